"""The benchmark of batches: its problems, and peers that solve the same ones."""

import numpy as np
import pytest

import caspar
from benchmarks import batches
from examples import tags


def test_problems_have_their_minimum_where_they_say() -> None:
    poses, start, given = batches.pnp(20, 0.3, 0.2)
    solver = caspar.BatchSolver(tags.corner, backend="cpu")
    goal = solver.solve({"Tag": poses, "corner": given})
    result = solver.solve({"Tag": start, "corner": given})
    np.testing.assert_allclose(result.final_cost, goal.final_cost, rtol=1e-9)
    # half a pixel, and 6 of 24 degrees of freedom fitted
    assert result.final_cost.mean() == pytest.approx(0.5 * 0.25 * 18, rel=0.3)


def test_scipy_solves_the_same() -> None:
    _, start, given = batches.pnp(3, 0.3, 0.2)
    result = caspar.BatchSolver(tags.corner, backend="cpu").solve({"Tag": start, "corner": given})
    costs = batches.scipy_costs(start, given["point"], given["pixel"])
    np.testing.assert_allclose(costs, result.final_cost, rtol=1e-6)


def test_ragged_problems_are_not_touched_by_spoilt_ones() -> None:
    ((number, others, same, words),) = batches.ragged_row("cpu", 1)
    assert number == "10,000"
    assert others == same
    assert "99 NO_RESIDUALS" in words
