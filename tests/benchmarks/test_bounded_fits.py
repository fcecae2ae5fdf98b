"""Fits with bounds: where they end, and how they are compared."""

import numpy as np
import pytest

from benchmarks.bounded_fits import Row, measure, page
from benchmarks.regression.bounded import bounded_problems
from benchmarks.regression.problem import NumericProblem, Problem

PROBLEMS = bounded_problems()

CHOSEN = ("Lanczos2, b2", "MGH09, b4", "Nelson, b2", "linear 0", "decays 1", "neurons 5")
ALSO = ("Chwirut1, b3", "Misra1d, b2", "Rat43, b1", "linear 8", "decays 6", "neurons 0")


def test_the_problems_are_sixty_and_start_within() -> None:
    assert len({bounded.name for bounded in PROBLEMS}) == 60
    for bounded in PROBLEMS:
        assert bounded.bounds is not None
        (lower, upper), start = bounded.bounds, np.array(bounded.starts[0])
        assert (lower < upper).all()
        assert ((lower <= start) & (start <= upper)).all()
        assert np.isfinite(NumericProblem(bounded).sum_of_squares(start))


@pytest.mark.parametrize(
    "bounded",
    [
        pytest.param(one, marks=[] if one.name in CHOSEN else pytest.mark.reliability)
        for one in PROBLEMS
        if one.name in CHOSEN + ALSO
    ],
    ids=lambda one: one.name,
)
def test_fits_end_where_scipy_ends_or_lower(bounded: Problem) -> None:
    row = measure(bounded)
    assert row.status.startswith("CONVERGED")
    assert row.iterations <= 100
    assert row.num_active >= 1
    for method in row.others:
        assert row.beside(method) != "higher"


def test_the_page_counts() -> None:
    rows = [
        Row("one", 1, "CONVERGED_COST", 3, 1.0, {"trf": (1.0, 5), "dogbox": (2.0, 5)}),
        Row("two", 1, "CONVERGED_COST", 3, 1.0, {"trf": (0.5, 5), "dogbox": (1.0, 5)}),
    ]
    text = page(rows)
    assert "| trf | 0 | 1 | 1 |" in text
    assert "| dogbox | 1 | 1 | 0 |" in text
    assert "1 of 2 end no higher than either" in text
