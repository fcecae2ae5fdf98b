"""A program that interrupts itself: `python -m tests.reliability.interrupted COUNT CACHE_FOLDER`.

Prints how many interrupts hit, and what they ended. Fails where anything is not as before.
"""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

os.environ["CASPAR_CACHE_DIR"] = sys.argv[2]

import numpy as np
import symforce.symbolic as sf
from threadpoolctl import threadpool_info

import caspar
from caspar.runtime.cache import clear_cache
from caspar.runtime.cpu import compile as cpu_compile
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.lm import interrupts


class Point(sf.V3):
    """What is looked for."""


class Camera(sf.V3):
    """What remains, for a dense factorisation."""


@caspar.factor
def near(
    point: Annotated[Point, caspar.TunableShared],
    goal: Annotated[Point, caspar.ConstUnique],
    other: Annotated[Camera, caspar.TunableShared],
) -> sf.V4:
    """A direction, and a distance."""
    helper = (point - goal).normalized() + 0.1 * other
    return sf.V4(*helper, (point - other).norm() - 1)


ARRAYS: dict[str, Any] = {
    "Point": np.random.default_rng(0).normal(size=(12, 3)),
    "Camera": np.random.default_rng(1).normal(size=(3, 3)),
    "near": {"point": np.arange(12), "goal": np.ones(3), "other": np.arange(12) % 3},
}


def work(*, forget: bool) -> tuple[str, float, list[list[float]]]:
    """Make a solver, which compiles, and solve; what comes out."""
    if forget:
        clear_cache()
        cpu_compile._ADDRESSES.clear()
    return solve(new_solver())


def new_solver() -> caspar.Solver:
    """One that factorises, with all threads but one of BLAS held."""
    return caspar.Solver(near, backend="cpu", precision="float64", linear_solver="schur_dense")


def solve(solver: caspar.Solver) -> tuple[str, float, list[list[float]]]:
    """What comes out."""
    result = solver.solve(ARRAYS, max_iterations=60, cost_tolerance=0.0)
    return result.status.name, result.final_cost, result.values["Point"].tolist()


def state() -> tuple[object, ...]:
    """What is the process's, and must be as before."""
    blas = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
    outside = str(sf.V3.symbolic("a").norm()), str(sf.epsilon())
    return blas, outside, sys.gettrace(), sys.getprofile(), np.geterr(), sys.getrecursionlimit()


def main() -> None:
    """Interrupt until enough have hit."""
    random.seed(7)
    CpuBackend()
    wanted = work(forget=True)
    usual = state()
    kept = new_solver()
    solve(kept)
    jobs: dict[str, Callable[[], Any]] = {
        "cold": lambda: work(forget=True),
        "warm": lambda: work(forget=False),
        "solve": lambda: solve(kept),
    }
    duration_s = {name: duration(job) for name, job in jobs.items()}
    ends: Counter[str] = Counter()
    while ends.total() - ends["too late"] < int(sys.argv[1]):
        interrupts.forget()
        (job,) = random.choices(list(jobs), weights=(1, 4, 5))
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, duration_s[job]))
            status, *rest = jobs[job]()
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            if status == "INTERRUPTED":
                ends["a result"] += 1
            else:
                assert [status, *rest] == list(wanted)
                ends["too late"] += 1
        except KeyboardInterrupt:
            ends["KeyboardInterrupt"] += 1
        assert state() == usual, (state(), usual)
        if ends.total() % 10 == 0:
            in_time(lambda: work(forget=False) == wanted)
    for check in jobs.values():
        in_time(lambda check=check: check() == wanted)
    assert state() == usual
    print(ends.total() - ends["too late"], dict(ends))


def duration(job: Callable[[], Any]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def in_time(check: Any) -> None:
    """A check holds, also on another thread, where a lock that is stuck would not open."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(check()), daemon=True)
    thread.start()
    thread.join(120.0)
    assert found == [True], found


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    main()
