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

import numpy as np
from scipy.sparse import block_array, csr_array, diags_array, eye_array, tril

from caspar.frontend.factors.factor import ConstraintKind
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.solver.constraints.lagrangian import Expansion, Point
from caspar.solver.constraints.violations import Flags, Floats, Sizes

MAX_STEPS = 60
"""Of one run; near a minimum it takes three to six."""

SHRINKS = 0.7
"""A step is taken if it leaves at most this share of what is wrong."""

ARMIJO = 1e-4
"""Or if it lowers the cost with weighted violations by this share of what is promised."""

SHORTEST = 2.0**-12
"""Share of a step at which nothing better is looked for."""

SHIFTS = (0.0, *(3.0 * 10.0**power for power in range(-7, 4)))
"""What is added to the scaled diagonal until the step leads to a minimum; it never makes a diagonal
entry of -1 zero."""

SHORT = 1.0
"""The same of a step that is short already."""

RUNAWAY = 100.0
"""Times what was wrong at first, at which a run ends."""

IDLE = 1e-7
"""Share of what was wrong at first that multipliers of the wrong sign may be at the end."""

SMALL_STEP = 1e-7
"""Of values, by their sizes: a step of this length leaves the square of it."""

REGULARISATION = 1e-8
"""In place of the zero block, in units of the scaled system."""

MAX_REFINEMENTS = 6
"""Corrections by the residual of the system without it."""


@dataclass(frozen=True)
class Polished:
    """What Newton's method came to.

    Attributes:
        points: The start, and where each step that was accepted ended.
        errors: What was wrong there.
        has_converged: Whether the last one is a minimum, as far as rounding tells.
    """

    points: tuple[Point, ...]
    errors: tuple[float, ...]
    has_converged: bool


@dataclass(frozen=True)
class _Parts:
    """The system at a point.

    Attributes:
        first: The lower triangle of the first block, as it is.
        jacobian: J.
        rows: c.
        gradient: g - J^T (l - P c).
        active: Which entries J and c have.
        scale: What makes the diagonal one; 0 for what is held or at a bound.
        error: What is wrong: gradient, violations and idle multipliers, in the unit of the root of
            the cost.
    """

    first: csr_array
    jacobian: csr_array
    rows: Floats
    gradient: Floats
    active: Flags
    scale: Floats
    error: float


@dataclass(frozen=True)
class _Step:
    """A step.

    Attributes:
        values: d.
        multipliers: l + e by constraint, (m, dim); 0 of what is not active.
        shift: What was added to the scaled diagonal.
    """

    values: Floats
    multipliers: Mapping[str, Floats]
    shift: float


class Newton:
    """Steps on one structure.

    Args:
        expansion: The Lagrangian.
        penalties: By constraint (m, dim).
        sizes: Of values, by node type.
    """

    def __init__(self, expansion: Expansion, penalties: Mapping[str, Floats], sizes: Sizes) -> None:
        self._expansion, self._penalties = expansion, penalties
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
        self._kept: tuple[bytes, QdldlFactorization] | None = None

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
            length = float(np.abs(step.values / self._sizes).max(initial=0.0))
            is_short = length <= SMALL_STEP and step.shift == 0.0
            num_short = num_short + 1 if is_short else 0
            for name, rows in step.multipliers.items():
                weights[name] = np.maximum(weights[name], np.abs(rows))
            found = self._shortened(parts, point, step, SHORT if is_short else SHORTEST, weights)
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
        shortest: float,
        weights: Mapping[str, Floats],
    ) -> tuple[Point, _Parts] | None:
        """Where a step ends, or half of it, and so on; None: nowhere is better.

        An end is better if it leaves less of what is wrong, or if it lowers the cost with weighted
        violations (Han, 1977) by a share of what the linear model promises.
        """
        before = _merit(point, weights)
        slope = float(point.gradient @ step.values) - (before - point.cost)
        most = SHRINKS if shortest < SHORT else 1.0
        share = 1.0
        while share >= shortest:
            candidate = self._moved(point, step, share)
            if candidate.is_finite:
                after = self._parts(candidate)
                decrease = before - _merit(candidate, weights)
                is_lower = slope < 0.0 and decrease >= -ARMIJO * share * slope
                if after.error < most * parts.error or (is_lower and shortest < SHORT):
                    return candidate, after
            share *= 0.5
        return None

    def _idle(self, step: "_Step", point: Point) -> float:
        """How far multipliers of inequalities would go below 0, in the unit of errors."""
        squares = sum(
            float((np.minimum(rows, 0.0) ** 2 / self._penalties[name]).sum())
            for name, rows in step.multipliers.items()
            if point.found[name].kind is ConstraintKind.POSITIVE
        )
        return float(np.sqrt(squares))

    # -- one step --------------------------------------------------------------------------------

    def _active(self, point: Point) -> dict[str, np.ndarray]:
        """Which entries are active."""
        return {
            name: np.ones(one.rows.shape, bool)
            if one.kind is ConstraintKind.ZERO
            else point.multipliers[name] - self._penalties[name] * one.rows > 0.0
            for name, one in point.found.items()
        }

    def _moved(self, point: Point, step: "_Step", share: float) -> Point:
        values = self._expansion.moved(point, share * step.values)
        for name, limits in self._expansion.problem.bounds.items():
            values[name] = limits.within(values[name])
        multipliers = {
            name: rows + share * (step.multipliers[name] - rows)
            for name, rows in point.multipliers.items()
        }
        for name, rows in multipliers.items():
            if point.found[name].kind is ConstraintKind.POSITIVE:
                multipliers[name] = np.maximum(rows, 0.0)
        return self._expansion.at(values, multipliers)

    def _parts(self, point: Point) -> _Parts:
        active = self._active(point)
        jacobian = self._expansion.jacobian(point, active)
        rows, pull, weight = [np.zeros(0)], [np.zeros(0)], [np.zeros(0)]
        squares = 0.0
        for name, one in point.found.items():
            chosen, penalties = active[name], self._penalties[name]
            penalty, c = penalties[chosen], one.rows[chosen]
            rows.append(c)
            weight.append(penalty)
            pull.append(point.multipliers[name][chosen] - penalty * c)
            squares += float((penalty * c**2).sum())
            squares += float((point.multipliers[name] ** 2 / penalties)[~chosen].sum())
        product = jacobian.T @ diags_array(np.concatenate(weight)) @ jacobian
        first = csr_array(point.hessian + tril(product, format="csr"))
        gradient = point.gradient - jacobian.T @ np.concatenate(pull)
        scale = self._scale(first.diagonal(), gradient, point)
        squares += float(((gradient * scale) ** 2).sum())
        error = float(np.sqrt(squares))
        return _Parts(first, jacobian, np.concatenate(rows), gradient, active, scale, error)

    def _scale(self, diagonal: Floats, gradient: Floats, point: Point) -> Floats:
        """What makes the first block's diagonal one; 0 for what is held or at a bound."""
        diagonal = np.abs(diagonal)
        moves = self._free & (diagonal > 0.0)
        for name, limits in self._expansion.problem.bounds.items():
            node = self._expansion.unknowns.nodes[name]
            place = slice(node.first, node.first + node.count * node.dim)
            pull = gradient[place].reshape(node.count, node.dim)
            held = np.zeros(pull.shape, bool)
            for component, number in limits.places.items():
                rows, own = point.values[name][:, number], pull[:, component]
                at_lower = rows <= limits.lower[:, component]
                at_upper = rows >= limits.upper[:, component]
                held[:, component] = (at_lower & (own > 0.0)) | (at_upper & (own < 0.0))
            moves[place] &= ~held.ravel()
        return np.where(moves, 1.0 / np.sqrt(np.where(moves, diagonal, 1.0)), 0.0)

    def _step(self, parts: _Parts, point: Point) -> "_Step | None":
        """d and l + e; None: no curvature that is added makes the system one of a minimum."""
        scale = parts.scale
        scaling = diags_array(scale)
        stays = diags_array((scale == 0.0).astype(np.float64))
        first = csr_array(scaling @ parts.first @ scaling + stays)
        scaled = parts.jacobian @ scaling
        lengths = np.sqrt(np.asarray((scaled**2).sum(axis=1)).ravel())
        unit = np.where(lengths > 0.0, 1.0 / np.where(lengths > 0.0, lengths, 1.0), 0.0)
        second = csr_array(diags_array(-unit) @ scaled)
        rhs = np.concatenate([-parts.gradient * scale, parts.rows * unit])
        size = len(scale)
        for shift in SHIFTS:
            found = self._solved(csr_array(first + shift * eye_array(size)), second, rhs)
            if found is None:
                continue
            change, multipliers, start = found[size:] * unit, {}, 0
            for name, chosen in parts.active.items():
                own, num = np.zeros(chosen.shape), int(chosen.sum())
                own[chosen] = point.multipliers[name][chosen] + change[start : start + num]
                multipliers[name] = own
                start += num
            return _Step(found[:size] * scale, multipliers, shift)
        return None

    def _solved(self, first: csr_array, second: csr_array, rhs: Floats) -> Floats | None:
        """The solution of the scaled system; None: it has other signs than near a minimum."""
        num_active, size = second.shape
        lower = first
        if num_active > 0:
            zero = eye_array(num_active) * -REGULARISATION
            lower = csr_array(block_array([[first, None], [second, zero]], format="csr"))
        lower.sort_indices()
        key = lower.indptr.tobytes() + lower.indices.tobytes()
        if self._kept is None or self._kept[0] != key:
            places = lower.indptr.astype(np.int32), lower.indices.astype(np.int32)
            self._kept = key, QdldlFactorization(*places, size + num_active)
        factorization = self._kept[1]
        factorization.values[...] = lower.data
        try:
            factorization.factorize()
        except RuntimeError:  # a pivot is zero
            return None
        pivots = factorization.factors()[1]
        if int((pivots < 0.0).sum()) != num_active or not bool(np.isfinite(pivots).all()):
            return None
        exact = lower + diags_array(np.repeat([0.0, REGULARISATION], [size, num_active]))
        upper, own = exact.T, exact.diagonal()

        def left_by(solution: Floats) -> Floats:
            return np.asarray(rhs - (exact @ solution + upper @ solution - own * solution))

        solution = factorization.solved(rhs)
        left = left_by(solution)
        for _ in range(MAX_REFINEMENTS):
            better = solution + factorization.solved(left)
            rest = left_by(better)
            if not np.linalg.norm(rest) < 0.5 * np.linalg.norm(left):
                break
            solution, left = better, rest
        return solution if bool(np.isfinite(solution).all()) else None


def _merit(point: Point, weights: Mapping[str, Floats]) -> float:
    """The cost with weighted violations."""
    return point.cost + sum(
        float((weights[name] * one.violation).sum()) for name, one in point.found.items()
    )
