"""Held parts, bounds, weights and a loss in one solve: its end fulfils the conditions of a minimum.

The judge is the cost in NumPy: where something may move its derivative is zero, at a bound it
points outwards. Views remain and marks are eliminated, and both have parts that are held and
numbers at bounds.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.options import BackendName
from tests.covering import alternating
from tests.solver.solving import ON_BACKENDS
from tests.solver.test_fixed import (
    MARKS,
    METHODS,
    NUM_MARKS,
    NUM_VIEWS,
    SIGHTINGS,
    TIGHT,
    VIEWS,
    sighting,
)
from tests.support_cudss import require_library

Rows = NDArray[np.float64]

SCALE = 1.5

OUTLIERS = slice(0, None, 9)

FIXED = {"View": {"pose": [0], "lens": [1]}, "Mark": [3, 5]}

LENS = (np.array([499.0, -0.12, -np.inf]), np.array([502.5, 0.0, 0.05]))
NEAR = (None, np.where(np.arange(NUM_MARKS)[:, None] % 3 == 0, MARKS + 0.002, np.inf))
BOUNDS = {"View": {"lens": LENS}, "Mark": NEAR}

DIGITS = 3e-6
"""Distances to the zeros of derivatives."""

LOSSES: Mapping[str, Any] = {
    "SoftL1": lambda u: 2.0 * (np.sqrt(1.0 + u) - 1.0),
    "Cauchy": np.log1p,
}


@cache
def observed() -> dict[str, Any]:
    """Every ninth pixel is far off, every seventh instance weighs nothing."""
    random = np.random.default_rng(2)
    pixel = SIGHTINGS["pixel"].copy()
    pixel[OUTLIERS] += random.normal(size=pixel[OUTLIERS].shape) * 20.0
    weight = random.uniform(0.5, 2.0, len(pixel))
    weight[::7] = 0.0
    pixel[7] = np.nan  # weighs nothing
    return {**SIGHTINGS, "pixel": pixel, "weight": weight, "loss_scale": SCALE}


def arrays(loss: str | None) -> dict[str, Any]:
    """A start within the bounds."""
    views = VIEWS.copy()
    views[:, 7] = np.clip(views[:, 7], LENS[0][0] + 1e-3, LENS[1][0] - 1e-3)
    given = observed()
    if loss is None:
        given = {name: rows for name, rows in given.items() if name != "loss_scale"}
    return {"View": views, "Mark": MARKS, "sighting": given}


def cost(views: Rows, marks: Rows, loss: str | None) -> float:
    """In NumPy."""
    given = observed()
    view = views[given["view"]]
    turned = Rotation.from_quat(view[:, :4]).inv().apply(marks[given["mark"]] - view[:, 4:7])
    ray = turned[:, :2] / turned[:, 2:]
    square = (ray**2).sum(axis=1)
    bent = view[:, 7] * (1 + view[:, 8] * square + view[:, 9] * square**2)
    s = ((bent[:, None] * ray - given["pixel"]) ** 2).sum(axis=1)
    rho = s if loss is None else SCALE**2 * LOSSES[loss](s / SCALE**2)
    counts = given["weight"] > 0.0
    return float(0.5 * given["weight"][counts] @ rho[counts])


def slopes(views: Rows, marks: Rows, loss: str | None) -> tuple[Rows, Rows]:
    """Derivatives by tangents, (5, 9) and (40, 3), relative to the curvature: how far to the zero.

    By central differences; a Newton step of each number alone.
    """
    centre, step = cost(views, marks, loss), 1e-5

    def along(moved: Callable[[float], tuple[Rows, Rows]]) -> float:
        (view, mark), (other_view, other_mark) = moved(step), moved(-step)
        ahead, behind = cost(view, mark, loss), cost(other_view, other_mark, loss)
        curvature = max(ahead + behind - 2.0 * centre, 1e-9) / step**2
        return (ahead - behind) / (2.0 * step) / curvature

    def view_moved(number: int, axis: int, by: float) -> tuple[Rows, Rows]:
        changed = views.copy()
        if axis < 3:
            turn = Rotation.from_rotvec(by * np.eye(3)[axis])
            changed[number, :4] = (Rotation.from_quat(views[number, :4]) * turn).as_quat()
        else:
            changed[number, axis + 1] += by
        return changed, marks

    def mark_moved(number: int, axis: int, by: float) -> tuple[Rows, Rows]:
        changed = marks.copy()
        changed[number, axis] += by
        return views, changed

    of_views = [
        [along(partial(view_moved, number, axis)) for axis in range(9)]
        for number in range(NUM_VIEWS)
    ]
    of_marks = [
        [along(partial(mark_moved, number, axis)) for axis in range(3)]
        for number in range(NUM_MARKS)
    ]
    return np.array(of_views), np.array(of_marks)


def check_kept(result: caspar.SolveResult, loss: str | None) -> None:
    """Held numbers have their bits, bounds hold, and the cost is that of NumPy."""
    views, marks = result.values["View"], result.values["Mark"]
    start = arrays(loss)
    assert result.final_cost == pytest.approx(cost(views, marks, loss), rel=1e-9)
    assert_array_equal(views[0, :7], start["View"][0, :7])
    assert_array_equal(views[1, 7:], start["View"][1, 7:])
    assert_array_equal(marks[[3, 5]], MARKS[[3, 5]])
    assert (views[:, 7:] >= LENS[0]).all()
    assert (views[:, 7:] <= LENS[1]).all()
    assert (marks <= NEAR[1]).all()


def check_minimum(result: caspar.SolveResult, loss: str | None) -> None:
    """And nothing within the bounds descends."""
    assert result.status.is_success
    check_kept(result, loss)
    of_views, of_marks = slopes(result.values["View"], result.values["Mark"], loss)
    of_views[0, :6], of_views[1, 6:], of_marks[[3, 5]] = 0.0, 0.0, 0.0
    sides = (result.active_bounds["View"][:, 7:], result.active_bounds["Mark"])
    for slope, side in zip((of_views[:, 6:], of_marks), sides, strict=True):
        # the cost falls beyond the bound
        assert (slope[side > 0] <= DIGITS).all()
        assert (slope[side < 0] >= -DIGITS).all()
        assert (side != 0).sum() >= 2
        slope[side != 0] = 0.0
    assert_allclose(of_views / [*[1.0] * 6, 500.0, 1.0, 1.0], 0.0, atol=DIGITS)
    assert_allclose(of_marks, 0.0, atol=DIGITS)


def solved(loss: str | None, backend: BackendName, **choices: Any) -> caspar.SolveResult:
    factor = sighting if loss is None else sighting.with_loss(getattr(caspar.loss, loss))
    made = caspar.Solver(factor, backend=backend, **{"precision": "float64", **choices})
    tight = {**TIGHT, "linear_tolerance": 1e-6}
    return made.solve(arrays(loss), fixed=FIXED, bounds=BOUNDS, verbose=False, **tight)


@cache
def least(loss: str | None) -> float:
    """The cost of the minimum that all find."""
    result = solved(loss, "cpu", linear_solver="schur_dense")
    check_minimum(result, loss)
    return result.final_cost


@ON_BACKENDS
@pytest.mark.parametrize("method", METHODS)
def test_all_linear_methods(method: str, backend: BackendName) -> None:
    require_library(method, backend)
    result = solved("SoftL1", backend, **METHODS[method])
    if method == "pcg":
        # nothing is eliminated: a mark runs to infinity step by step (docs/design/0029-bounds.md)
        check_kept(result, "SoftL1")
        assert result.final_cost == pytest.approx(least("SoftL1"), rel=1e-7)
        return
    check_minimum(result, "SoftL1")
    assert result.final_cost == pytest.approx(least("SoftL1"), rel=1e-12)


@ON_BACKENDS
@pytest.mark.parametrize(
    ("eliminated", "loss"), alternating(["", "Mark", "View"], [None, "Cauchy"])
)
def test_whatever_is_eliminated(eliminated: str, loss: str | None, backend: BackendName) -> None:
    result = solved(loss, backend, eliminate=tuple(eliminated.split()))
    check_kept(result, loss)
    is_usual = eliminated == "Mark"
    assert result.final_cost == pytest.approx(least(loss), rel=1e-12 if is_usual else 1e-6)


@ON_BACKENDS
@pytest.mark.parametrize(
    "choices",
    [
        {"linear_solver": "pcg"},
        {"linear_solver": "sparse", "eliminate": ()},
        {"eliminate": ("View",)},
        {"linear_solver": "schur_dense", "inner_iterations": 0},
        {"linear_solver": "schur_dense"},
    ],
    ids=["pcg", "sparse", "views", "no inner iterations", "inner iterations"],
)
def test_bounds_take_few_iterations_where_no_mark_runs_to_infinity(
    choices: Any, backend: BackendName
) -> None:
    """With bounds on all marks, whatever is eliminated, and without inner iterations."""
    require_library("sparse" if choices.get("linear_solver") == "sparse" else "pcg", backend)
    made = caspar.Solver(sighting, backend=backend, precision="float64", **choices)
    near = MARKS - 30.0, np.minimum(NEAR[1], MARKS + 30.0)
    bounds = {"View": {"lens": LENS}, "Mark": near}
    tight = {**TIGHT, "linear_tolerance": 1e-6}
    result = made.solve(arrays(None), fixed=FIXED, bounds=bounds, **tight)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(3818.62397018, rel=1e-11)
    assert len(result.iterations) <= 60


@ON_BACKENDS
@pytest.mark.parametrize(
    ("precision", "digits", "method"),
    alternating([("mixed", 1e-9), ("float32", 1e-4)], ["schur_pcg", "schur_dense"]),
)
def test_narrower_precisions(
    precision: str, digits: float, method: str, backend: BackendName
) -> None:
    result = solved("SoftL1", backend, precision=precision, linear_solver=method)
    assert result.final_cost == pytest.approx(least("SoftL1"), rel=digits)
    if precision == "mixed":
        check_kept(result, "SoftL1")
    assert_array_equal(result.values["View"][0, :7], VIEWS[0, :7])
    assert_array_equal(result.values["Mark"][[3, 5]], MARKS[[3, 5]])
    assert (result.values["Mark"] <= NEAR[1]).all()
    assert (result.values["View"][:, 7:] <= LENS[1]).all()
