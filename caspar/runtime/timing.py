"""Measure how long runs take: as many in a row as a clock needs."""

import math
from collections.abc import Callable
from time import perf_counter

SAMPLE_S = 1e-3
"""Least duration of a sample: a thousand times what clocks resolve."""

MAX_RUNS = 200
"""Runs in a sample: more would wait long for kernels of a microsecond."""


def runs_of_sample(seconds: float) -> int:
    """Runs in a row that make a sample, of runs that take about so long."""
    return MAX_RUNS if seconds <= 0.0 else max(1, min(MAX_RUNS, math.ceil(SAMPLE_S / seconds)))


def time_on_host(run: Callable[[], None], num_samples: int) -> list[float]:
    """Seconds of a run that returns when it is done, each the mean over a millisecond of runs.

    It is run some more times before.
    """
    run()
    num_runs = runs_of_sample(_seconds(run, 1))
    return [_seconds(run, num_runs) for _ in range(num_samples)]


def _seconds(run: Callable[[], None], num_runs: int) -> float:
    start = perf_counter()
    for _ in range(num_runs):
        run()
    return (perf_counter() - start) / num_runs
