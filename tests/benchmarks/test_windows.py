"""The benchmark of windows runs, and solves what it says."""

import numpy as np
import pytest

import caspar
from benchmarks.windows import WINDOWS, Row, Window, measure, page


@pytest.mark.filterwarnings("ignore:node type")
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.name)
def test_windows_are_solved(window: Window) -> None:
    rng = np.random.default_rng(1)
    first, second = (window.make(rng, number) for number in range(2))
    solver = caspar.Solver(list(window.factors), backend="cpu")
    for arrays in (first, second):
        result = solver.solve(arrays)
        assert result.status.is_success
        assert result.final_cost < 0.5 * result.initial_cost
    row = measure(window, 2, None)
    assert row.gtsam_ms is None
    assert min(row.same_ms, row.new_ms) > 0.0


def test_the_page_has_ratios() -> None:
    text = page([Row("window", 1.0, 2.0, 8.0, 1e-6), Row("alone", 1.0, 2.0, None, 0.0)])
    assert "| window | 1.0 | 2.0 | 8.0 | 0.25 | 1e-06 |" in text
    assert "| alone | 1.0 | 2.0 | | | |" in text
