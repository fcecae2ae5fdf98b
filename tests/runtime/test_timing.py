"""Runs are repeated until a clock can measure them."""

import pytest

from caspar.runtime import timing
from caspar.runtime.timing import MAX_RUNS, SAMPLE_S, runs_of_sample, time_on_host


@pytest.mark.parametrize(
    ("seconds", "runs"),
    [(0.0, MAX_RUNS), (1e-9, MAX_RUNS), (SAMPLE_S / 10, 10), (SAMPLE_S, 1), (5.0, 1)],
)
def test_runs_make_a_sample(seconds: float, runs: int) -> None:
    assert runs_of_sample(seconds) == runs


def test_a_sample_is_the_mean_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now, runs = 0.0, 0

    def run() -> None:
        nonlocal now, runs
        runs += 1
        now += SAMPLE_S / 4 if runs < 6 else SAMPLE_S / 2

    monkeypatch.setattr(timing, "perf_counter", lambda: now)
    samples = time_on_host(run, 3)
    assert runs == 1 + 1 + 3 * 4
    assert samples == pytest.approx([SAMPLE_S * (3 / 4 + 1 / 2) / 4, SAMPLE_S / 2, SAMPLE_S / 2])
