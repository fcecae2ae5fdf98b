"""Newton's method on active constraints: quick near a minimum, and exact.

A step d and a change e of multipliers solve

    [ H + J^T P J  -J^T ] [d]   [ -(g - J^T (l - P c)) ]
    [     -J         0  ] [e] = [           c          ]

with H the second derivative of the Lagrangian f - l^T c, J and c of the entries that are active,
and P their penalties, which change no solution and make the first block positive definite near a
minimum (Hestenes, 1969). Entries of equations are active; of inequalities those with l - p c > 0,
as in primal-dual active sets (Hintermueller, Ito, Kunisch, SIAM J. Optim. 2002). The system is
scaled to a diagonal of ones and rows of length one; a small negative diagonal in place of the zero
lets it have redundant rows, and refinement takes it off again. By the signs of pivots of L D L^T
a step is known to lead to a minimum; if it does not, multiples of the scaled identity are added, as
in Waechter, Biegler, *On the implementation of an interior-point filter line-search algorithm*,
2006. Cost tier: a factorisation for a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.factors.factor import ConstraintKind
from caspar.solver.constraints.bordered import Factored, System
from caspar.solver.constraints.lagrangian import Expansion, Point
from caspar.solver.constraints.violations import Floats, Sizes, pushing_multipliers

MAX_STEPS = 60
"""Of one run; near a minimum it takes three to six."""

SHRINKS = 0.7
"""A step is taken if it leaves at most this share of what is wrong."""

ARMIJO = 1e-4
"""Or if it lowers the cost with weighted violations by this share of what is promised."""

SHORTEST = 2.0**-12
"""Share of a step at which nothing better is looked for."""

SHIFTS = (0.0, *(3.0 * 10.0**power for power in range(-6, 4)))
"""What is added to the scaled diagonal until the step leads to a minimum; it never makes a diagonal
entry of -1 zero."""

RUNAWAY = 100.0
"""Times what was wrong at first, at which a run ends."""

NEAR = 1e-6
"""Share of its terms up to which an entry of an inequality counts as zero at the start."""

IDLE = 1e-7
"""Share of what was wrong at first that multipliers of the wrong sign may be at the end."""

SMALL_STEP = 1e-7
"""Of values, by their sizes: a step of this length leaves the square of it."""


@dataclass(frozen=True)
class Polished:
    """The outcome of Newton's method.

    Attributes:
        points: The start, and the end of each accepted step.
        errors: The error at each point, see `_Parts`.
        has_converged: Whether the last one is a minimum, as far as rounding tells.
    """

    points: tuple[Point, ...]
    errors: tuple[float, ...]
    has_converged: bool


@dataclass(frozen=True)
class _Parts:
    """The scale and the error of a point.

    Attributes:
        scale: Scale that makes the diagonal one; 0 for unknowns that are held or at a bound.
        error: Norm of gradient, violations and idle multipliers, in the unit of the root of the
            cost.
    """

    scale: Floats
    error: float


@dataclass(frozen=True)
class _Step:
    """A step.

    Attributes:
        values: d.
        multipliers: l + e by constraint, (m, dim); 0 of what is not active, below 0 for
            inequalities that hold the step back and are to leave the active ones.
        factored: The system that it solves.
    """

    values: Floats
    multipliers: Mapping[str, Floats]
    factored: Factored


class Newton:
    """Steps on one structure.

    Args:
        expansion: The Lagrangian.
        penalties: By constraint (m, dim).
        sizes: Of values, by node type.
    """

    def __init__(self, expansion: Expansion, penalties: Mapping[str, Floats], sizes: Sizes) -> None:
        self._expansion, self._penalties = expansion, penalties
        self._border, self._sizes_by_node = expansion.border, sizes
        unknowns, problem = expansion.unknowns, expansion.problem
        own, free = {}, {}
        for name, node in unknowns.nodes.items():
            shape = node.count, node.dim
            own[name] = np.broadcast_to(sizes[name], shape)
            free[name] = np.asarray(problem.free.get(name, np.ones(shape)), bool)
        for name, limits in problem.bounds.items():
            # a component is held where its limits are crossed
            free[name] = limits.lower <= limits.upper
        self._sizes, self._free = unknowns.joined(np, own), unknowns.joined(np, free)

    def run(self, point: Point, max_steps: int) -> Polished:
        """Take steps from some values as long as they help.

        It has converged if two steps in a row are short: the second one shows that what is active
        stays so.
        """
        parts, num_short = self._parts(point), 0
        first, errors, points = parts.error, [parts.error], [point]
        weights = {name: np.abs(rows) for name, rows in point.multipliers.items()}
        while len(points) <= min(max_steps, MAX_STEPS) and parts.error <= RUNAWAY * first:
            step = self._step(parts, point)
            if step is None:
                break
            is_short = self._length(step.values) <= SMALL_STEP
            is_short &= step.factored.system.shift == 0.0
            num_short = num_short + 1 if is_short else 0
            for name, rows in step.multipliers.items():
                pushing = pushing_multipliers(point.found[name].kind, rows)
                weights[name] = np.maximum(weights[name], np.abs(pushing))
            found = self._shortened(parts, point, step, weights, is_short=is_short)
            if found is None:
                num_short = 2 if is_short and self._idle(step, point) <= IDLE * first else 0
                break
            point, parts = found
            errors.append(parts.error)
            points.append(point)
            if num_short == 2:
                break
        return Polished(tuple(points), tuple(errors), num_short == 2)

    def _shortened(
        self,
        parts: _Parts,
        point: Point,
        step: "_Step",
        weights: Mapping[str, Floats],
        *,
        is_short: bool,
    ) -> tuple[Point, _Parts] | None:
        """Halve a step until its end is better; return that, or None if no length helps.

        An end is better if its error is small enough, or if it lowers the cost with weighted
        violations (Han, 1977) by a share of the decrease that the linear model predicts. Along a
        bent constraint a whole step may do neither however near the minimum is (Maratos, 1978), so
        it is tried again with a correction of second order, and shorter steps follow that arc
        (Mayne, Polak, 1982). A short step is tried once.
        """
        before = _merit(point, weights)
        slope = float(point.gradient @ step.values) - (before - point.cost)
        most, shortest = (1.0, 1.0) if is_short else (SHRINKS, SHORTEST)
        share, bend = 1.0, None
        while share >= shortest:
            candidate = self._moved(point, step, share, bend)
            if candidate.is_finite:
                after = self._parts(candidate)
                decrease = before - _merit(candidate, weights)
                is_lower = slope < 0.0 and decrease >= -ARMIJO * share * slope
                if after.error < most * parts.error or (is_lower and not is_short):
                    return candidate, after
                if share == 1.0 and bend is None and not is_short:
                    bend = self._bend(step, candidate)
                    continue
            share *= 0.5
        return None

    def _bend(self, step: "_Step", candidate: Point) -> Floats:
        """Return the change that brings the end of a whole step back to the active constraints.

        It is 0 if it would be longer than the step itself.
        """
        none = np.zeros_like(step.values)
        found = self._border.solved(step.factored, none, candidate.rows)
        is_usable = found is not None and self._length(found[0]) <= self._length(step.values)
        return found[0] if found is not None and is_usable else none

    def _length(self, step: Floats) -> float:
        """The largest component of a step of all unknowns, by the sizes of values."""
        return float(np.abs(step / self._sizes).max(initial=0.0))

    def _idle(self, step: "_Step", point: Point) -> float:
        """Return how far multipliers of inequalities would go below 0, in the unit of errors."""
        squares = 0.0
        for name, rows in step.multipliers.items():
            below = rows - pushing_multipliers(point.found[name].kind, rows)
            squares += float((below**2 / self._penalties[name]).sum())
        return float(np.sqrt(squares))

    # -- one step --------------------------------------------------------------------------------

    def _moved(self, point: Point, step: "_Step", share: float, bend: Floats | None) -> Point:
        """The point at a share of a step, along the arc that the correction `bend` makes of it."""
        change = share * step.values
        if bend is not None:
            change += share**2 * bend
        values = self._expansion.moved(point, change)
        for name, limits in self._expansion.problem.bounds.items():
            values[name] = limits.within(values[name])
        multipliers = {
            name: rows + share * (step.multipliers[name] - rows)
            for name, rows in point.multipliers.items()
        }
        return self._expansion.at(values, multipliers, self._penalties)

    def _parts(self, point: Point) -> _Parts:
        scale = self._scale(self._expansion.border.diagonal(point.first), point)
        squares = float(((point.pull * scale) ** 2).sum())
        for name, active in self._by_constraint(point, point.active).items():
            rows, penalties = point.found[name].rows, self._penalties[name]
            idle = point.multipliers[name] ** 2 / penalties
            squares += float(np.where(active, penalties * rows**2, idle).sum())
        return _Parts(scale, float(np.sqrt(squares)))

    def _scale(self, diagonal: Floats, point: Point) -> Floats:
        """Return the scale that makes the first block's diagonal one; 0 for what stays."""
        diagonal = np.abs(diagonal)
        moves = self._free & (diagonal > 0.0)
        for name, limits in self._expansion.problem.bounds.items():
            node = self._expansion.unknowns.nodes[name]
            place = slice(node.first, node.first + node.count * node.dim)
            pull = point.pull[place].reshape(node.count, node.dim)
            held = np.zeros(pull.shape, bool)
            components, numbers = list(limits.places), list(limits.places.values())
            rows, own = point.values[name][:, numbers], pull[:, components]
            at_lower = rows <= limits.lower[:, components]
            at_upper = rows >= limits.upper[:, components]
            held[:, components] = (at_lower & (own > 0.0)) | (at_upper & (own < 0.0))
            moves[place] &= ~held.ravel()
        return np.where(moves, 1.0 / np.sqrt(np.where(moves, diagonal, 1.0)), 0.0)

    def _step(self, parts: _Parts, point: Point) -> "_Step | None":
        """d and l + e; None: no curvature that is added makes the system one of a minimum."""
        for shift in SHIFTS:
            system = System(point.first, point.jacobian, point.active, parts.scale, shift)
            factored = self._border.factorized(system)
            if factored is None:
                continue
            found = self._border.solved(factored, -point.pull, point.rows)
            if found is None:
                continue
            changes = self._by_constraint(point, found[1])
            multipliers = {
                name: np.where(active, point.multipliers[name] + changes[name], 0.0)
                for name, active in self._by_constraint(point, point.active).items()
            }
            return _Step(found[0], multipliers, factored)
        return None

    def estimated(self, point: Point) -> dict[str, Floats]:
        """Multipliers of entries that hold with equality, so that they leave least of the gradient.

        Squares are summed in the scaled unknowns. If entries depend on each other, the shortest
        multipliers are found.
        """
        near = [
            (one.rows <= NEAR * one.scale(self._sizes_by_node)) | (one.kind is ConstraintKind.ZERO)
            for one in point.found.values()
        ]
        border, scale = self._border, self._parts(point).scale
        active = np.concatenate([rows.ravel() for rows in near])
        diagonal = border.only_diagonal(point.first)
        factored = border.factorized(System(diagonal, point.jacobian, active, scale, 0.0))
        none = np.zeros(border.num_rows)
        found = None if factored is None else border.solved(factored, -point.gradient, none)
        rows = none if found is None else np.where(active, found[1], 0.0)
        return {
            name: pushing_multipliers(point.found[name].kind, own)
            for name, own in self._by_constraint(point, rows).items()
        }

    def _by_constraint(self, point: Point, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """A number for each row of the border as (m, dim) by constraint."""
        parts, first = {}, 0
        for name, one in point.found.items():
            parts[name] = rows[first : first + one.rows.size].reshape(one.rows.shape)
            first += one.rows.size
        return parts


def _merit(point: Point, weights: Mapping[str, Floats]) -> float:
    """The cost with weighted violations."""
    return point.cost + sum(
        float((weights[name] * one.violation).sum()) for name, one in point.found.items()
    )
