"""What an interrupt must not leave behind: half a compilation, one BLAS thread."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from caspar.runtime.cpu import direct as direct_cpu
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import LapackCholesky
from caspar.runtime.cpu.uninterrupted import uninterrupted

ROOT = Path(__file__).parents[3]


def test_it_returns_and_raises_what_the_function_does() -> None:
    error = KeyError("mine")

    def fail() -> None:
        raise error

    assert uninterrupted(divmod, 7, 2) == (3, 1)
    with pytest.raises(KeyError) as caught:
        uninterrupted(fail)
    assert caught.value is error


def test_it_ends_though_the_wait_is_interrupted() -> None:
    interrupted, released, done = threading.Event(), threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def work() -> None:
        while not interrupted.wait(0.05):  # a signal just before the wait is seen after it only
            signal.pthread_kill(main, signal.SIGINT)  # where Linux sends a Ctrl-C
        assert released.wait(60.0)
        done.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(work)
        assert not done.is_set()
    finally:
        released.set()
        assert done.wait(60.0)
        signal.signal(signal.SIGINT, before)


def blas_threads() -> list[int]:
    return [library.num_threads for library in direct_cpu._threads().lib_controllers]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_blas_has_its_threads_after_an_error(error: type[BaseException]) -> None:
    usual, inside = blas_threads(), []

    def work() -> None:
        inside.extend(blas_threads())
        raise error

    with pytest.raises(error):
        direct_cpu._on_one_thread(work)
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
import os, threading
from caspar.errors import BackendError
from caspar.runtime.cpu import compile as cpu_compile
from tests.runtime.cpu.test_cpu import double, sources_of
(source,) = sources_of(double("forked"))
with cpu_compile._COMPILING:  # as while another thread compiles
    child = os.fork()
    if child == 0:
        try:
            cpu_compile.function_address(source)
        except BackendError as error:
            os._exit(0 if "'spawn'" in str(error) else 1)
        os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
child = os.fork()
if child == 0:
    cpu_compile.function_address(source)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_while_another_thread_compiles_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORK]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
