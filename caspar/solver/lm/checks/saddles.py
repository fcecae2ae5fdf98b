"""A success at a point that is no minimum: along what has no slope the cost falls to second order.

A sum of like terms whose start values are equal is an example. Their columns of the Jacobian are
the same, so no step tells the terms apart, and the iterations end at the best fit of equal terms
(`test_two_terms_that_start_equal`). Residuals at a maximum, such as x^2 - 1 at 0, are another.

Cost: two evaluations of the cost for each direction and each pair of them, of small problems that
leave a few directions open.
"""

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.solver.lm.course import LEAST_GAINED, Course, Judgment
from caspar.solver.lm.steps import AskRounding
from caspar.solver.plan.plan import Plan
from caspar.solver.system.free_values import write_added
from caspar.solver.system.lone_promises import MOST_DIRECTIONS, Direction, numbers_of

MANY_ROUNDINGS = 256.0
"""Roundings of the cost in its type by which a second difference has to be negative, at least."""

ROUNDINGS_OF_A_CURVATURE = 8.0
"""Measured changes by rounding by which a second difference has to be negative, at least: it has
four costs, each rounded, and some draws tell a rounding to a factor of two."""

LONGER, MOST_STEPS = 4.0, 12
"""Each further step is this many times longer, until the cost falls no more."""


def check(course: Course) -> Judgment | None:
    """Go on from values beside a saddle point, with a lower cost."""
    promises, system, cost = course.told_promises, course.system, course.cost
    if not course.is_success or promises is None or not cost > 0.0:
        return None
    if not 0 < len(promises.directions) <= MOST_DIRECTIONS or system.is_bounded:
        return None
    if course.state.num_iterations >= course.options.max_iterations:
        return None
    found = _falling(course, promises.directions)
    if found is None:
        return None
    way, length, lowest = found
    _cost_of(course, way, length)
    system.accept()
    system.score()
    course.state = course.state._replace(cost=lowest)
    system.forget()
    return Judgment(goes_on=True)


def _cost_of(course: Course, way: Direction, length: float) -> float:
    write_added(course.system.plan, {name: length * one for name, one in way.items()})
    return course.system.candidate_cost()


def _falling(
    course: Course, directions: tuple[Direction, ...]
) -> tuple[Direction, float, float] | None:
    """The direction in which the cost falls most, how far, and the cost there; None: in none."""
    plan = course.system.plan
    rounding = float(np.finfo(course.system.values_type.value).eps)
    step = rounding**0.25 * _size(plan, directions)
    here = _cost_of(course, directions[0], 0.0)
    change = course.rounding_change(AskRounding.LAST_DIGIT, course.cost)
    least = max(MANY_ROUNDINGS * rounding * here, ROUNDINGS_OF_A_CURVATURE * change)

    def curvature(way: Direction) -> float:
        return _cost_of(course, way, step) + _cost_of(course, way, -step) - 2.0 * here

    count = len(directions)
    second = np.zeros((count, count))
    for i, one in enumerate(directions):
        second[i, i] = curvature(one)
        for j, other in enumerate(directions[:i]):
            both = curvature(_sum(((1.0, one), (1.0, other))))
            second[i, j] = second[j, i] = 0.5 * (both - second[i, i] - second[j, j])
    if not np.isfinite(second).all():
        return None
    curvatures, shares = np.linalg.eigh(second)
    if not curvatures[0] < -least:
        return None
    way = _sum(tuple(zip(shares[:, 0].tolist(), directions, strict=True)))
    best, lowest = 0.0, here - max(LEAST_GAINED * here, least)
    for sign in (1.0, -1.0):
        length = sign * step
        for _ in range(MOST_STEPS):
            cost = _cost_of(course, way, length)
            if not cost < lowest:
                break
            best, lowest = length, cost
            length *= LONGER
    return (way, best, lowest) if best != 0.0 else None


def _sum(parts: tuple[tuple[float, Direction], ...]) -> Direction:
    """The sum of directions times their shares; each may move other node types."""
    total: dict[str, NDArray[np.float64]] = {}
    for share, way in parts:
        for name, one in way.items():
            total[name] = total[name] + share * one if name in total else share * one
    return total


def _size(plan: Plan, directions: tuple[Direction, ...]) -> float:
    """The largest number that directions, whose largest entry is 1, move; 1 if all are 0."""
    sizes = [
        np.abs(numbers_of(plan, plan.node_plans[name], NodePart.NODES))[one != 0.0].max(initial=0.0)
        for way in directions
        for name, one in way.items()
    ]
    return float(max(sizes)) or 1.0
