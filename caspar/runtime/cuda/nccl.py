"""Connections of CUDA devices by NCCL.

NVLink multicast stays off (`NCCL_NVLS_ENABLE`), and connections are made when the group is
(`NCCL_RUNTIME_CONNECT`): members call from threads of one process, and must not wait for each other
inside a call that holds what the other needs.
"""

import ctypes
import importlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import cupy

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.cuda.aside import aside

_SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_RUNTIME_CONNECT": "0"}
"""Of NCCL, unless the user has set them; it reads them when the process makes its first group."""

_TYPES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"}


def nccl_of_cupy() -> Any:
    """CuPy's interface to NCCL, with our settings.

    Raises:
        BackendError: It is not there.
    """
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")  # CuPy itself does not import it
    except ImportError:
        nccl = None
    if not getattr(nccl, "available", False):
        raise BackendError(
            "several CUDA devices need NCCL, which CuPy does not find. Install the wheel "
            "nvidia-nccl-cu12 or nvidia-nccl-cu13 that goes with CuPy, or use devices=1"
        )
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    return nccl


class Connection:
    """A member's connection to the others.

    NCCL ends a connection only when no CUDA graph uses it any more, and waits for that. Python may
    collect connection and graphs together, in any order, so the end is always left to a thread, for
    which only the end of the process waits, a moment.

    Args:
        communicator: CuPy's, which no one else keeps.
    """

    def __init__(self, communicator: Any) -> None:
        self._nccl = nccl_of_cupy()
        self._communicator = communicator
        # CuPy ends a communicator that is collected, and waits: this one is never collected
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
        self._end = weakref.finalize(self, _abort, communicator)
        self._end.atexit = False

    def add_up(self, arrays: Sequence[Array], check: Callable[[], None]) -> None:
        """Enqueue sums over all members on the current stream, as one kernel; others call it too.

        Args:
            arrays: In place.
            check: Raises what is known to have failed.

        Raises:
            BackendError: NCCL refuses, and nothing else is known to have failed.
        """
        check()
        nccl, stream = self._nccl, cupy.cuda.get_current_stream().ptr
        try:
            nccl.groupStart()
            for array in arrays:
                place, dtype = array.data.ptr, getattr(nccl, _TYPES[array.dtype.name])
                self._communicator.allReduce(place, place, array.size, dtype, nccl.NCCL_SUM, stream)
            nccl.groupEnd()
        except nccl.NcclError as error:
            check()
            raise BackendError(f"NCCL cannot add up over these devices: {error}") from error

    def abort(self) -> None:
        """End kernels that wait for another member, at once; once for a connection."""
        self._end.detach()
        _abort(self._communicator)


def _abort(communicator: Any) -> None:
    """Call `ncclCommAbort`: `ncclCommDestroy` would also wait for the other members."""
    aside(communicator.abort)
