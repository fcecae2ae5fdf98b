"""Small problems of several factor mixes, and what every linear solver must do with them."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.testing import assert_allclose

import caspar
from tests.solver import reference

Arrays = dict[str, Any]


class View(sf.V3):
    """Place and depth of an observer; reduced."""


class Mark(sf.V2):
    """What is observed; eliminated."""


class Bearing(sf.V1):
    """A direction that is observed; eliminated too."""


class Lens(sf.V1):
    """What all observations share."""


class Glass(sf.V1):
    """One of a few lenses."""


class Seen(sf.V2):
    """An observation."""


class Drift(sf.V3):
    """Difference of two views."""


class Length(sf.V1):
    """A distance."""


@caspar.factor
def sight(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    lens: Annotated[Lens, caspar.TunableUnique],
    seen: Annotated[Seen, caspar.ConstSequential],
) -> sf.V2:
    ahead = 5.0 + view[2] + 0.1 * mark[0] * view[1]
    return lens[0] * sf.V2(mark[0] - view[0], mark[1] - view[1]) / ahead - seen


@caspar.factor
def glimpse(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    glass: Annotated[Glass, caspar.TunableShared],
    seen: Annotated[Seen, caspar.ConstSequential],
) -> sf.V2:
    ahead = 5.0 + view[2] + 0.1 * mark[0] * view[1]
    return glass[0] * sf.V2(mark[0] - view[0], mark[1] - view[1]) / ahead - seen


@caspar.factor
def glance(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[Seen, caspar.ConstSequential],
) -> sf.V2:
    ahead = 5.0 + view[2] + 0.1 * mark[0] * view[1]
    return sf.V2(mark[0] - view[0], mark[1] - view[1]) / ahead - seen


@caspar.factor
def turn(
    view: Annotated[View, caspar.TunableShared],
    bearing: Annotated[Bearing, caspar.TunableShared],
    known: Annotated[Length, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1(bearing[0] * (1.0 + 0.1 * view[2]) - view[0] + 0.5 * view[1] - known[0])


@caspar.factor
def parallax(
    left: Annotated[View, caspar.TunableShared],
    right: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    known: Annotated[Length, caspar.ConstSequential],
) -> sf.V1:
    """Two observers of one mark."""
    a, b = (mark[0] - view[0] for view in (left, right))
    return sf.V1(a * b + left[2] - 2.0 * right[2] + mark[1] * right[1] - known[0])


@caspar.factor
def drift(
    views: Annotated[caspar.Pair[View], caspar.TunablePair],
    step: Annotated[Drift, caspar.ConstSequential],
) -> sf.V3:
    first, second = views
    return second - first - step + 0.1 * sf.V3(first[0] * second[1], 0.0, first[2] * second[2])


@caspar.factor
def tie(
    start: Annotated[View, caspar.TunableShared],
    end: Annotated[View, caspar.TunableShared],
    step: Annotated[Drift, caspar.ConstSequential],
) -> sf.V3:
    return 2.0 * end - start - step + 0.1 * sf.V3(0.0, start[2] * end[1], start[0] * end[0])


@caspar.factor
def hold(
    view: Annotated[View, caspar.TunableShared],
    known: Annotated[Drift, caspar.ConstSequential],
) -> sf.V3:
    return view - known


@caspar.factor
def pin(
    mark: Annotated[Mark, caspar.TunableShared],
    known: Annotated[Seen, caspar.ConstSequential],
) -> sf.V2:
    return 0.3 * (mark - known)


def make_arrays(num_views: int = 5, num_marks: int = 14, seed: int = 0) -> Arrays:
    """Measurements with noise: two of one pair, marks seen once, a view that sees nothing."""
    random = np.random.default_rng(seed)

    def noisy(rows: Any) -> Any:
        return rows + 0.05 * random.standard_normal(rows.shape)

    views = 0.5 * random.standard_normal((num_views, 3))
    marks = random.standard_normal((num_marks, 2))
    mark = np.repeat(np.arange(num_marks), 3)[:-4]
    view = random.integers(0, num_views - 1, len(mark))
    view, mark = np.append(view, view[:3]), np.append(mark, mark[:3])
    order = random.permutation(len(view))
    view, mark = view[order], mark[order]
    ahead = 5.0 + views[view, 2] + 0.1 * marks[mark, 0] * views[view, 1]
    seen = (marks[mark] - views[view, :2]) / ahead[:, None]
    left, right, both = random.integers(0, num_views, (3, 9))
    right[:2] = left[:2]
    product = (marks[both, 0] - views[left, 0]) * (marks[both, 0] - views[right, 0])
    parallaxes = product + views[left, 2] - 2.0 * views[right, 2] + marks[both, 1] * views[right, 1]
    start, end = np.array([3, 0, 2, 1, 1]), np.array([0, 3, 2, 4, 4])
    return {
        "View": noisy(noisy(views)),
        "Mark": noisy(noisy(marks)),
        "Bearing": np.linspace(0.5, 2.0, 6)[:, None],
        "Lens": np.array([[2.1]]),
        "Glass": np.array([[2.1], [1.9]]),
        "sight": {"view": view, "mark": mark, "seen": noisy(2.0 * seen)},
        "glance": {"view": view[::2], "mark": mark[::2], "seen": noisy(seen[::2])},
        "parallax": {
            "left": left,
            "right": right,
            "mark": both,
            "known": noisy(parallaxes[:, None]),
        },
        "turn": {
            "view": left,
            "bearing": np.arange(len(left)) % 6,
            "known": parallaxes[:, None] - views[left, :1],
        },
        "drift": {"step": noisy(views[1:] - views[:-1])},
        "tie": {"start": start, "end": end, "step": noisy(2.0 * views[end] - views[start])},
        "hold": {"view": np.arange(num_views), "known": noisy(views)},
        "pin": {"mark": np.arange(num_marks), "known": noisy(marks)},
        "glimpse": {"view": view, "mark": mark, "glass": view % 2, "seen": noisy(2.0 * seen)},
    }


MIXES: Mapping[str, tuple[caspar.Factor, ...]] = {
    "bundle adjustment": (glance, hold, pin),
    "shared lens": (sight, hold, pin),
    "few lenses": (glimpse, hold, pin),
    "two factors on marks": (glance, parallax, hold, pin),
    "marks and bearings": (glance, turn, hold, pin),
    "everything": (sight, glance, parallax, drift, tie, hold, pin),
    "views alone": (drift, tie, hold),
}


MIX = "two factors on marks"


def fresh(mix: str = MIX, backend: Any = "cpu", **choices: Any) -> caspar.Solver:
    """A solver that has not solved anything; equal input gives equal bits."""
    choices = {"precision": "float64", "deterministic": True, **choices}
    return caspar.Solver(MIXES[mix], backend=backend, **choices)


def problem_of(mix: str) -> tuple[tuple[caspar.Factor, ...], Arrays]:
    factors = MIXES[mix]
    arrays = make_arrays()
    wanted = {factor.name for factor in factors}
    wanted |= {"View"} if mix == "views alone" else {"View", "Mark"}
    wanted |= {"Lens"} if sight in factors else set()
    wanted |= {"Glass"} if glimpse in factors else set()
    wanted |= {"Bearing"} if turn in factors else set()
    return factors, {name: rows for name, rows in arrays.items() if name in wanted}


def solver_names(mix: str) -> tuple[str, ...]:
    return (
        ("pcg", "dense", "sparse", "auto")
        if mix == "views alone"
        else ("pcg", "schur_pcg", "schur_dense", "dense", "sparse")
    )


def assert_first_step(solver: caspar.Solver, mix: str, damping: float, tolerance: float) -> None:
    factors, arrays = problem_of(mix)
    expected = reference.damped_step(factors, arrays, damping)
    result = solver.solve(
        arrays,
        max_iterations=1,
        initial_damping=damping,
        linear_tolerance=1e-9,
        min_linear_tolerance=1e-9,
    )
    assert result.iterations[0].step_accepted
    for node, rows in result.values.items():
        assert_allclose(rows, expected[node], atol=tolerance)
