"""Paths with landmarks: the same in a plane and in space, and however their systems are solved."""

from collections.abc import Callable
from typing import Any

import pytest

import caspar
from benchmarks.landmarks import FLAT, SPACE, WAYS, flat_path, measure, path

SIZES = (40, 5, 30)

Make = Callable[[int, int, int], dict[str, Any]]


@pytest.mark.parametrize(
    ("factors", "make"),
    [(FLAT, flat_path), pytest.param(SPACE, path, marks=pytest.mark.reliability)],
)
def test_every_way_ends_at_one_cost(factors: tuple[caspar.Factor, ...], make: Make) -> None:
    arrays = make(*SIZES)
    costs = []
    for way in WAYS:
        solver = caspar.Solver(factors, backend="cpu", linear_solver=way.linear_solver)
        solved = measure(solver, way, arrays, 1, 100)
        assert solved.result.status.is_success
        assert solved.solve_ms > 0.0
        assert solved.anew_ms > 0.0
        eliminated = solver.prepare(arrays).eliminated
        assert any("Mark" in name for name in eliminated) is (way.eliminates is True)
        costs.append(solved.result.final_cost)
    assert costs == pytest.approx([costs[0]] * len(WAYS), rel=1e-6)
    # half of a variance of a quarter, for 417 residuals less 130 unknowns
    assert costs[0] == pytest.approx(0.5 * 0.25 * 287, rel=0.3)


def test_space_adds_nothing_to_the_plane() -> None:
    def initial_cost(factors: tuple[caspar.Factor, ...], make: Make) -> float:
        solver = caspar.Solver(factors, backend="cpu", linear_solver="sparse")
        return solver.solve(make(*SIZES), max_iterations=1).initial_cost

    flat = initial_cost(FLAT, flat_path)
    assert initial_cost(SPACE, path) == pytest.approx(flat, rel=1e-9)
