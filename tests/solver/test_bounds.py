"""Bounds hold, and a bounded solve ends where SciPy's does."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_array_equal
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import InputError
from tests.solver.solving import ON_BACKENDS
from tests.solver.test_fixed import (
    ARRAYS,
    MARKS,
    METHODS,
    NUM_MARKS,
    NUM_VIEWS,
    SIGHTINGS,
    TIGHT,
    VIEWS,
    robust_sighting,
    sighting,
)
from tests.support_cudss import require_library

FIXED = {"View": {"pose": [0]}, "Mark": [3, 5]}
"""Removes the gauge, so that bounds cannot be evaded by moving everything."""

FOCAL = (499.0, 502.0)
HEIGHT = 0.02
"""How far marks may move up or down."""

_LENS = (np.array([FOCAL[0], -0.12, -np.inf]), np.array([FOCAL[1], -0.11, np.inf]))
BOUNDS: Mapping[str, Any] = {
    "View": {"lens": _LENS, "pose": {"translation": (VIEWS[:, 4:7] - 0.01, None)}},
    "Mark": (
        np.column_stack([np.full((NUM_MARKS, 2), -np.inf), MARKS[:, 2] - HEIGHT]),
        np.column_stack([np.full((NUM_MARKS, 2), np.inf), MARKS[:, 2] + HEIGHT]),
    ),
}
"""On the type that stays and on the one that is eliminated, with all ways to write them."""

START = {**ARRAYS, "View": np.where(np.arange(10) == 8, -0.115, VIEWS)}
START["View"][:, 7] = 501.0


def _limits() -> tuple[np.ndarray, np.ndarray]:
    """Of all unknowns of `_expected`: rotation, translation, lens of views 1.., marks."""
    ones = np.ones((NUM_VIEWS, 3))
    lower = [np.hstack([-np.inf * ones, VIEWS[:, 4:7] - 0.01, ones * _LENS[0]]).ravel()]
    upper = [np.hstack([np.inf * ones, np.inf * ones, ones * _LENS[1]]).ravel()]
    lower.append(np.ravel(BOUNDS["Mark"][0]))
    upper.append(np.ravel(BOUNDS["Mark"][1]))
    return np.concatenate(lower), np.concatenate(upper)


def _residuals(unknowns: np.ndarray, arrays: Mapping[str, Any]) -> np.ndarray:
    views = unknowns[: 9 * NUM_VIEWS].reshape(NUM_VIEWS, 9)
    marks = unknowns[9 * NUM_VIEWS :].reshape(NUM_MARKS, 3)
    turned = Rotation.from_quat(arrays["View"][:, :4]) * Rotation.from_rotvec(views[:, :3])
    view, mark = SIGHTINGS["view"], SIGHTINGS["mark"]
    place = turned[view].inv().apply(marks[mark] - views[view, 3:6])
    ray = place[:, :2] / place[:, 2:]
    square = (ray**2).sum(axis=1)
    lens = views[view, 6:]
    scale = lens[:, 0] * (1 + lens[:, 1] * square + lens[:, 2] * square**2)
    return np.asarray((scale[:, None] * ray - SIGHTINGS["pixel"]).ravel())


@pytest.fixture(scope="module")
def expected() -> float:
    """The cost at which SciPy ends."""
    start = np.concatenate(
        [
            np.hstack([np.zeros((NUM_VIEWS, 3)), START["View"][:, 4:]]).ravel(),
            MARKS.ravel(),
        ]
    )
    moves = np.ones(len(start), bool)
    moves[:6] = False
    for mark in FIXED["Mark"]:
        first = 9 * NUM_VIEWS + 3 * mark  # type: ignore[operator]
        moves[first : first + 3] = False
    lower, upper = _limits()

    def residuals(moved: np.ndarray) -> np.ndarray:
        unknowns = start.copy()
        unknowns[moves] = moved
        return _residuals(unknowns, START)

    def jacobian(moved: np.ndarray) -> np.ndarray:
        """Central differences of one component of all views, or of all marks, at a time."""
        unknowns = start.copy()
        unknowns[moves] = moved
        found = np.zeros((len(SIGHTINGS["pixel"]) * 2, len(start)))
        rows = np.arange(len(found))
        kinds = ((0, 9, SIGHTINGS["view"]), (9 * NUM_VIEWS, 3, SIGHTINGS["mark"]))
        for first, dim, index in kinds:
            for component in range(dim):
                owner = np.repeat(first + dim * index + component, 2)
                step = np.zeros(len(start))
                step[np.unique(owner)] = 1e-6
                ahead, behind = (_residuals(unknowns + s * step, START) for s in (1.0, -1.0))
                found[rows, owner] = (ahead - behind) / 2e-6
        return found[:, moves]

    rounding = 1e-15
    found = least_squares(
        residuals,
        start[moves],
        jacobian,
        bounds=(lower[moves], upper[moves]),
        x_scale="jac",
        xtol=rounding,
        ftol=rounding,
        gtol=rounding,
    )
    return float(found.cost)


def _solve(
    bounds: Any = BOUNDS, backend: str = "cpu", precision: str = "float64", **choices: Any
) -> caspar.SolveResult:
    made = caspar.Solver(sighting, backend=backend, precision=precision, **choices)
    return made.solve(START, fixed=FIXED, bounds=bounds, verbose=False, **TIGHT)


def _assert_within(result: caspar.SolveResult) -> None:
    views, marks = result.values["View"], result.values["Mark"]
    assert (views[:, 7:9] >= _LENS[0][:2]).all()
    assert (views[:, 7:9] <= _LENS[1][:2]).all()
    assert (views[:, 4:7] >= VIEWS[:, 4:7] - 0.01).all()
    assert (np.abs(marks[:, 2] - MARKS[:, 2]) <= HEIGHT).all()


@ON_BACKENDS
@pytest.mark.parametrize("method", METHODS)
def test_all_linear_methods(method: str, backend: str, expected: float) -> None:
    require_library(method, backend)
    result = _solve(backend=backend, **METHODS[method])
    assert result.status.is_success
    assert result.final_cost == pytest.approx(expected, rel=1e-7)
    _assert_within(result)
    views, marks = result.values["View"], result.values["Mark"]
    assert_array_equal(views[0, :7], VIEWS[0, :7])
    assert_array_equal(marks[[3, 5]], MARKS[[3, 5]])
    active = result.active_bounds
    assert (active["View"].shape, active["Mark"].shape) == (views.shape, marks.shape)
    # some of each kind bind, and what is marked is at its bound to the bit
    assert (active["View"][:, 7] == 1).sum() + (active["View"][:, 7] == -1).sum() >= 1
    assert (active["View"][:, 8] != 0).any()
    assert 3 <= (active["Mark"] != 0).sum() < NUM_MARKS
    assert_array_equal(views[active["View"][:, 7] == 1, 7], FOCAL[1])
    assert_array_equal(views[active["View"][:, 7] == -1, 7], FOCAL[0])
    assert "at a bound" in str(result)
