"""Problems at the edge with an eliminated node type, and what holds for every result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar
from tests.solver import reference
from tests.solver.linear.linear_cases import Length, Mark, View, glance, hold, make_arrays, pin
from tests.solver.solving import Arrays, changed

EPSILON = float(np.finfo(np.float64).eps)

MOST_OF_A_COLUMN = 3e-3
"""Cosine that a success may leave: its square is what one unknown could still take off the cost,
and the default `cost_tolerance` is 3e-7."""

NEGLIGIBLE = {"float64": 1e-20, "mixed": 1e-11, "float32": 1e-11}
"""Share of the first cost below which residuals are rounding errors."""


@caspar.factor
def level(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[Length, caspar.ConstSequential],
) -> sf.V1:
    """Only sums of a mark's scalars: each of its blocks is singular, and so are the views'."""
    return sf.V1(mark[0] + mark[1] - view[0] - seen[0])


@caspar.factor
def depth(
    view: Annotated[View, caspar.TunableShared],
    mark: Annotated[Mark, caspar.TunableShared],
    seen: Annotated[Length, caspar.ConstSequential],
) -> sf.V1:
    """Not a number where a mark is behind its view."""
    return sf.V1(sf.log(mark[0] - view[0]) + 0.1 * mark[1] * view[1] - seen[0])


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes:
        factors: Its factors.
        make: Its arrays.
    """

    factors: tuple[caspar.Factor, ...]
    make: Callable[[], Arrays]


def chosen(factors: Sequence[caspar.Factor], arrays: Arrays) -> Arrays:
    """The arrays of some factors, and their nodes."""
    names = {"View", "Mark", *(factor.name for factor in factors)}
    return {name: rows for name, rows in arrays.items() if name in names}


def glances(**sizes: int) -> Arrays:
    return chosen([glance, hold, pin], make_arrays(**sizes))


def singular_blocks() -> Arrays:
    arrays = make_arrays()
    known = {name: arrays["sight"][name] for name in ("view", "mark")}
    seen = np.random.default_rng(5).normal(size=(len(known["view"]), 1))
    return {"View": arrays["View"], "Mark": arrays["Mark"], "level": {**known, "seen": seen}}


def free_gauge() -> Arrays:
    """Nothing says where all are, nor how far."""
    return chosen([glance], without_blind_views(make_arrays()))


def without_blind_views(arrays: Arrays) -> Arrays:
    """The last view sees nothing."""
    return changed(arrays, "View", arrays["View"][:-1])


def marks_seen_once() -> Arrays:
    arrays = glances(num_marks=40)
    once = {name: rows[:0] for name, rows in arrays["glance"].items()}
    _, first = np.unique(arrays["glance"]["mark"], return_index=True)
    once = {name: rows[first] for name, rows in arrays["glance"].items()}
    seen = np.unique(once["mark"])
    few = {"mark": seen[::2], "known": arrays["Mark"][seen[::2]] + 0.1}
    return {**arrays, "glance": once, "pin": few}


def marks_seen_once_and_not_pinned() -> Arrays:
    arrays = marks_seen_once()
    return {name: arrays[name] for name in ("View", "Mark", "glance", "hold")}


def duplicates() -> Arrays:
    arrays = glances()
    often = {name: np.concatenate([rows] * 40) for name, rows in arrays["glance"].items()}
    return {**arrays, "glance": often}


def one_mark_of_all() -> Arrays:
    """More observations than a tile has items."""
    arrays = glances(num_views=6)
    random = np.random.default_rng(6)
    seen = {
        "view": random.integers(0, 6, 3000),
        "mark": np.zeros(3000, int),
        "seen": 0.1 * random.normal(size=(3000, 2)),
    }
    joined = {name: np.concatenate([rows, seen[name]]) for name, rows in arrays["glance"].items()}
    return {**arrays, "glance": joined}


def views_without_marks() -> Arrays:
    arrays = glances(num_views=9)
    kept = arrays["glance"]["view"] < 3
    return {**arrays, "glance": {name: rows[kept] for name, rows in arrays["glance"].items()}}


def two_parts() -> Arrays:
    first, second = glances(seed=1), glances(seed=2)
    counts = {"view": len(first["View"]), "mark": len(first["Mark"])}

    def joined(name: str) -> Any:
        both = first[name], second[name]
        if not isinstance(first[name], dict):
            return np.concatenate(both)
        return {
            key: np.concatenate([rows, second[name][key] + counts.get(key, 0)])
            for key, rows in first[name].items()
        }

    return {name: joined(name) for name in first}


def exact() -> Arrays:
    """Every residual is zero, all numbers being short."""
    arrays = glances()
    views = np.zeros_like(arrays["View"])
    marks = np.round(8.0 * arrays["Mark"]) / 8.0
    views[:, 2] = -1.0  # marks are 4 ahead
    seen = marks[arrays["glance"]["mark"]] / 4.0
    return {
        "View": views,
        "Mark": marks,
        "glance": {**arrays["glance"], "seen": seen},
        "hold": {**arrays["hold"], "known": views},
        "pin": {**arrays["pin"], "known": marks},
    }


def behind() -> Arrays:
    """Some views start behind their marks."""
    arrays = glances()
    views = arrays["View"].copy()
    views[::2, 2] -= 8.0
    return {**arrays, "View": views}


ANCHORED = (glance, hold, pin)
CASES = {
    "singular blocks": Case((level,), singular_blocks),
    "free gauge": Case((glance,), free_gauge),
    "marks seen once": Case(ANCHORED, marks_seen_once),
    "marks seen once, not pinned": Case((glance, hold), marks_seen_once_and_not_pinned),
    "duplicates": Case(ANCHORED, duplicates),
    "one mark of all": Case(ANCHORED, one_mark_of_all),
    "views without marks": Case(ANCHORED, views_without_marks),
    "two parts": Case(ANCHORED, two_parts),
    "behind": Case(ANCHORED, behind),
}


def _cost_of_rounding(
    result: caspar.SolveResult, factors: Sequence[caspar.Factor], at_end: Arrays
) -> float:
    """The largest change of the cost, of five, when each value at the end moves by a rounding.

    A point next to the plane of a camera has a residual that no order of operations computes to
    nine digits.
    """
    random = np.random.default_rng(0)
    cost = reference.cost(factors, at_end)
    changes = []
    for _ in range(5):
        moved = {
            name: np.asarray(rows) * (1.0 + EPSILON * random.choice([-1.0, 1.0], np.shape(rows)))
            for name, rows in result.values.items()
        }
        changes.append(abs(reference.cost(factors, {**at_end, **moved}) - cost))
    return max(changes)


def assert_sound(
    result: caspar.SolveResult,
    factors: Sequence[caspar.Factor],
    arrays: Arrays,
    *,
    is_at_a_pole: bool = False,
) -> None:
    """Finite values whose cost is as said, no worse than the start; success only at a minimum.

    At a pole, where a residual has no nine digits, the cost is as said up to roundings of values.
    """
    for name, rows in result.values.items():
        assert np.shape(rows) == np.shape(arrays[name])
        assert np.isfinite(rows).all(), name
    at_end = {**arrays, **{name: np.asarray(rows) for name, rows in result.values.items()}}
    cost = reference.cost(factors, at_end)
    negligible = NEGLIGIBLE[result.precision] * result.initial_cost
    rel = 1e-9 if result.precision == "float64" else 1e-4
    allowed = rel * cost + negligible + 1e-25
    if is_at_a_pole:
        allowed += 10.0 * _cost_of_rounding(result, factors, at_end)
    assert abs(result.final_cost - cost) <= allowed
    costs = [result.initial_cost, *(record.cost for record in result.iterations)]
    # where another method goes on, the same values are scored again, on a GPU in another order
    assert all(after <= before * (1.0 + 1e-14) for before, after in pairwise(costs))
    assert costs[-1] == result.final_cost
    assert np.isfinite(result.final_cost)
    if result.status.is_success and cost > negligible:
        assert reference.largest_cosine(factors, at_end) <= MOST_OF_A_COLUMN
