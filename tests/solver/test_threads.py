"""Several solves of one solver at the same time, and what is done in the middle of one."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import caspar
from tests.solver.linear_cases import problem_of
from tests.solver.test_plan_reuse import MIX, ON_BACKENDS, assert_same_result, fresh, moved


@ON_BACKENDS
def test_threads_on_one_solver(backend: str) -> None:
    """Each has a system of its own while it solves; one of them is kept."""
    _, arrays = problem_of(MIX)
    made, num_threads = fresh(backend=backend), 4
    made.compile()
    given = [moved(arrays, seed) for seed in range(num_threads)]
    wanted = [fresh(backend=backend).solve(one) for one in given]
    together = Barrier(num_threads, timeout=60.0)

    def solve(number: int) -> list[caspar.SolveResult]:
        def wait(record: caspar.IterationRecord) -> None:
            if record.iteration == 1:
                together.wait()  # all are in the middle of a solve

        return [made.solve(given[number], on_iteration=wait) for _ in range(3)]

    with ThreadPoolExecutor(num_threads) as pool:
        found = list(pool.map(solve, range(num_threads)))
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


WORKQUEUE = """
from concurrent.futures import ThreadPoolExecutor
import numba
import caspar
from caspar.frontend.bundle_adjustment import snavely
from tests.solver.bundles import arrays_of, read

arrays = arrays_of(read("problem-49-7776"))
made = caspar.Solver([snavely], backend="cpu")
cost = made.solve(arrays, max_iterations=2).final_cost
assert numba.threading_layer() == "workqueue"
with ThreadPoolExecutor(4) as pool:
    solves = [pool.submit(made.solve, arrays, max_iterations=2) for _ in range(12)]
assert [solve.result().final_cost for solve in solves] == [cost] * 12
print("all the same")
"""


def test_threads_share_a_pool_that_serves_one_at_a_time() -> None:
    """Numba's own layer, which machines without OpenMP and TBB have, would abort the process."""
    environment = {**os.environ, "NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", WORKQUEUE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "all the same\n"), done.stderr[-2000:]
