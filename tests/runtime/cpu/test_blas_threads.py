"""BLAS has its threads again, whatever ends a factorisation that ran on one of them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from caspar.runtime.cpu import direct as direct_cpu
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import LapackCholesky

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _several_threads() -> Iterator[None]:
    """Tests have one, see tests/conftest.py."""
    with threadpool_limits(2, user_api="blas"):
        yield


def blas_threads() -> list[int]:
    return [library.num_threads for library in direct_cpu._threads().lib_controllers]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_blas_has_its_threads_after_an_error(error: type[BaseException]) -> None:
    usual, inside = blas_threads(), []

    def work() -> None:
        inside.extend(blas_threads())
        raise error

    with pytest.raises(error):
        direct_cpu.on_one_thread(work)
    assert inside == [1] * len(usual)
    assert blas_threads() == usual


def test_threads_that_an_interrupt_left_are_given_back_by_the_next() -> None:
    usual = blas_threads()
    for give_back in (factorise, leave_scope):
        for library, num_threads in zip(direct_cpu._threads().lib_controllers, usual, strict=True):
            direct_cpu._USUAL[library] = num_threads
            library.set_num_threads(1)
        give_back()
        assert blas_threads() == usual
        assert direct_cpu._USUAL == {}


def factorise() -> None:
    solver, solution = LapackCholesky(3), np.zeros(3)
    solver.matrix[...] = 4.0 * np.eye(3)
    solver.factorize()
    solver.solve(np.ones(3), solution)
    assert solution.tolist() == [0.25] * 3


def leave_scope() -> None:
    with CpuBackend().scope():
        pass


FORK = """
import os, signal
from caspar.runtime.cpu import direct
from tests.runtime.cpu.test_blas_threads import blas_threads, leave_scope
usual = blas_threads()
with direct._ALONE:  # as while another thread factorises
    for library in direct._threads().lib_controllers:
        direct._USUAL[library] = library.num_threads
        library.set_num_threads(1)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        leave_scope()
        direct.on_one_thread(lambda: None)
        os._exit(0 if blas_threads() == usual else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
def test_a_fork_while_another_thread_factorises() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FORK]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
