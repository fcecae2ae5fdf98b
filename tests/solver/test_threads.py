"""Solvers made and run in several threads at once, and what is done in the middle of a solve."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from tests.solver.linear.linear_cases import MIX, fresh, problem_of
from tests.solver.solving import ON_BACKENDS, assert_same_result, moved

NUM_THREADS = 4


class Level(sf.V1): ...


@caspar.factor
def reading(
    level: Annotated[Level, caspar.TunableShared], value: Annotated[sf.V1, caspar.ConstSequential]
) -> sf.V1:
    return level - value


def _solve(start: float) -> float:
    arrays = {
        "Level": np.array([[start]]),
        "reading": {"level": np.zeros(3, dtype=int), "value": np.array([1.0, 2.0, 6.0])},
    }
    return float(caspar.Solver([reading], backend="cpu").solve(arrays).values["Level"][0, 0])


def test_threads_compile_and_solve_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASPAR_CACHE_DIR", str(tmp_path))
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(_solve, [0.0, 1.0, 5.0, 9.0]))
    assert found == pytest.approx([3.0] * NUM_THREADS)


@ON_BACKENDS
def test_threads_on_one_solver(backend: str) -> None:
    """Each has a system of its own while it solves; one of them is kept."""
    _, arrays = problem_of(MIX)
    made = fresh(backend=backend)
    made.compile()
    given = [moved(arrays, seed) for seed in range(NUM_THREADS)]
    wanted = [fresh(backend=backend).solve(one) for one in given]
    together = Barrier(NUM_THREADS, timeout=60.0)

    def solve(number: int) -> list[caspar.SolveResult]:
        def wait(record: caspar.IterationRecord) -> None:
            if record.iteration == 1:
                together.wait()  # all are in the middle of a solve

        return [made.solve(given[number], on_iteration=wait) for _ in range(3)]

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = list(pool.map(solve, range(NUM_THREADS)))
    for results, one in zip(found, wanted, strict=True):
        for result in results:
            assert_same_result(result, one)


@ON_BACKENDS
def test_a_solve_within_a_solve(backend: str) -> None:
    """A callback that solves with the same solver."""
    _, arrays = problem_of(MIX)
    made = fresh(backend=backend)
    wanted = fresh(backend=backend).solve(arrays)
    other = fresh(backend=backend).solve(moved(arrays))
    inner = []

    def solve_another(record: caspar.IterationRecord) -> None:
        if record.iteration == 2:
            inner.append(made.solve(moved(arrays)))

    assert_same_result(made.solve(arrays, on_iteration=solve_another), wanted)
    assert_same_result(inner[0], other)


@ON_BACKENDS
def test_release_within_a_solve(backend: str) -> None:
    """What is let go of in the middle of a solve is not kept at its end."""
    _, arrays = problem_of(MIX)
    made = fresh(backend=backend)
    made.solve(arrays, on_iteration=lambda _: made.release())
    assert made.memory_table() is None
    made.solve(arrays)
    assert made.memory_table() is not None


FORK = """
import multiprocessing
import signal
import caspar
from caspar.bundle_adjustment import snavely
from tests.solver.bundles import arrays_of, read

arrays = arrays_of(read("problem-49-7776"))
made = caspar.Solver([snavely], backend="cpu")

def work(queue):
    signal.alarm(100)
    queue.put(made.solve(arrays, max_iterations=2).final_cost)

cost = made.solve(arrays, max_iterations=2).final_cost
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
worker = context.Process(target=work, args=(queue,))
worker.start()
worker.join(120)
assert worker.exitcode == 0, worker.exitcode
assert queue.get() == cost
"""


def test_a_fork_solves_with_threads_of_its_own() -> None:
    environment = {**os.environ, "CASPAR_NUM_THREADS": "3"}
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_solves_on_several_threads_have_the_same_bits() -> None:
    _, arrays = problem_of(MIX)
    made = fresh(backend="cpu")
    expected = made.solve(arrays, max_iterations=2)
    with ThreadPoolExecutor(4) as pool:
        solves = [pool.submit(made.solve, arrays, max_iterations=2) for _ in range(12)]
    for solve in solves:
        assert_same_result(solve.result(60.0), expected)
