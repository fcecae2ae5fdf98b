"""The threads that compiled drivers run on, which are Numba's: who may call them, and when.

Cost tier: begun once in a process; `turn` is asked in every run of a sequence.
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import Lock

import numba

from caspar.errors import BackendError

# GNU OpenMP's threads spin at every barrier by default. On a machine that has other work they
# then wait for each other's time slices: 7.5 s against 0.2 s for Trafalgar-21 on two busy cores.
# Read when the OpenMP library is loaded, which is after this; a user's own setting is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@dataclass(frozen=True)
class _Threads:
    """Numba's threads.

    Attributes:
        turns: A lock where they serve one caller at a time: Numba's own layer, which it takes where
            neither OpenMP nor TBB is there, aborts the process when two threads call it.
        process: Where they began.
        is_gnu: Whether they are GNU OpenMP's, which ends a fork of that process that calls them.
    """

    turns: AbstractContextManager[object]
    process: int
    is_gnu: bool


@cache
def _begun() -> _Threads:
    numba.get_num_threads()  # which layer it is Numba knows once its threads have begun
    layer = numba.threading_layer()
    turns = Lock() if layer == "workqueue" else nullcontext()
    # loaded where it is the layer, and nowhere else
    is_gnu = layer == "omp" and sys.modules["numba.np.ufunc.omppool"].openmp_vendor == "GNU"
    return _Threads(turns, os.getpid(), is_gnu)


def turn(is_parallel: bool) -> AbstractContextManager[object]:
    """What to hold while a compiled driver runs.

    Args:
        is_parallel: It uses more than the thread that calls it.

    Raises:
        BackendError: It would end the process, which is a fork of one where threads had begun.
    """
    threads = _begun()
    if is_parallel and threads.is_gnu and threads.process != os.getpid():
        raise BackendError(
            "this process was forked after its parent had used caspar on the processor. The "
            "threads of GNU OpenMP, which caspar uses, do not work after a fork. Start workers "
            "with multiprocessing.get_context('spawn') or 'forkserver', or use caspar only in the "
            "workers"
        )
    return threads.turns
