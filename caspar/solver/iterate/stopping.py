"""Whether a solve ends after a step, and why.

All tests are relative to the cost. Damping and loose linear solves make a step small without being
near a minimum: what such a step shows is discounted, or confirmed by another one.
"""

import math
from collections.abc import Sequence

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import SolveOptions
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.iterate.steps import TriedStep
from caspar.solver.result.result import SolveStatus

NEGLIGIBLE = 2.0**-104
"""A cost that fell by this factor is zero: the residuals are rounding errors of the first ones. But
those may have been huge for another reason, such as an exponential. So it is also asked whether the
values are as near to a solution as half of their digits tell: then moving them by the other half
changes the cost."""

NEARLY_NEGLIGIBLE = 1e-10
"""A cost that fell by this factor may be what rounding leaves, which no step lowers and no gradient
tells from a minimum: there the solve ends with steps that are small for any reason."""

ROUNDING_SHARE = 0.01
"""What rounding leaves changes by this share at least when values are rounded once more."""

GREATEST_RELIEF = 1e-3
"""Damping of a confirming step at most, where the usual one has become 1 or more. D is more than
diag(J^T J) then, so what a step would promise without damping is not known."""

LEAST_RELIEF = {DType.FLOAT32: 1e-5, DType.FLOAT64: 0.0}
"""Damping of a confirming step at least, by the type of the values: with less, directions that no
factor holds drift by what the gradient is rounded to. A free gauge moved by 0.014 with 1e-8 in
float32, where nodes are 1 apart."""

RELIEF_GROWTH = 1e3
"""Factor of the damping of a confirming step after one that did not keep what it promised."""

GAINED_SINCE = 0.01
"""Of the cost: after that, whether a step of little damping would gain is asked again."""

MAX_NOT_FINITE = 5
"""Linear solves in a row that could not begin, after which derivatives are taken to be at fault."""


class StoppingRules:
    """What the steps of a solve have shown so far.

    Args:
        system: Asked how much rounding changes the cost.
        options: Limits and tolerances.
        initial_cost: Cost of the start values.

    Attributes:
        confirming: The next step decides whether the solve has converged.
        rounding: How much rounding the values changes the cost, where that ended the solve.
    """

    def __init__(self, system: NormalEquations, options: SolveOptions, initial_cost: float) -> None:
        self.confirming = False
        self.rounding: float | None = None
        self._system = system
        self._options = options
        self._initial_cost = initial_cost
        self._least_relief = max(options.min_damping, LEAST_RELIEF[system.storage])
        self._relief = self._least_relief
        """Damping of the next step that confirms, unless the usual one is less."""
        self._relief_cost = math.inf
        """Cost at which a step of little damping did not keep what it promised last."""
        self._num_not_finite = 0
        """Linear solves in a row that could not begin."""
        self._asked_cost = math.inf
        """Cost at which it was asked last whether rounding alone is left."""
        self._is_rounding = False
        """Whether it is."""
        self._promised = -math.inf
        """Largest decrease that a step promised since the last one was accepted."""

    def confirming_damping(self, damping: float) -> float:
        """Damping of a step that confirms, from the usual one.

        It is very small at first: where a part of a tangent has several units, more of it holds
        the entries that have the largest ones (D by `node_blocks.node_diagonal`), and what they
        could gain is not seen.
        """
        most = damping if damping < 1.0 else max(GREATEST_RELIEF, self._options.min_damping)
        return min(self._relief, most)

    def after_step(
        self, cost: float, damping: float, tried: TriedStep, *, accepted: bool, relieved: bool
    ) -> SolveStatus | None:
        """Whether a step shows a minimum, or that there is no way on; to be asked of each, once.

        Args:
            cost: Before the step.
            damping: Of its linear system.
            tried: What came of it.
            accepted: Whether it is taken.
            relieved: Whether it confirms with less than the usual damping.
        """
        if relieved and not accepted:
            status = self._judged(cost, damping, tried, accepted=False)
            if status is None:
                # it promised something: more damping may keep it
                self._relief, self._relief_cost = RELIEF_GROWTH * damping, cost
                self.confirming = damping < GREATEST_RELIEF
            return status
        if cost <= (1.0 - GAINED_SINCE) * self._relief_cost:
            self._relief, self._relief_cost = self._least_relief, math.inf
        self._note_promise(damping, tried, accepted)
        if tried.outcome is LinearOutcome.NOT_FINITE and tried.linear_iterations == 0:
            # damping may mend blocks that overflow, but no gradient that is not finite
            self._num_not_finite += 1
            at_fault = self._num_not_finite >= MAX_NOT_FINITE
            return SolveStatus.DERIVATIVES_NOT_FINITE if at_fault else None
        self._num_not_finite = 0
        return self._judged(cost, damping, tried, accepted=accepted)

    def _judged(
        self, cost: float, damping: float, tried: TriedStep, *, accepted: bool
    ) -> SolveStatus | None:
        """Whether a step shows a minimum; notes whether the next one is to confirm that."""
        if tried.outcome is LinearOutcome.AT_OPTIMUM:
            # unless it was not zero with less damping: float32 holds nothing that small
            return None if self._promised > 0.0 else SolveStatus.CONVERGED_GRADIENT
        if tried.outcome is LinearOutcome.NOT_FINITE or not math.isfinite(tried.cost):
            return None
        options = self._options
        # of the damped system: large damping alone makes them small
        relief = 1.0 if damping < 1.0 or self._is_rounding else 1.0 + damping
        slope = relief * _square(tried.gradient_norm)
        if slope <= 2.0 * options.gradient_tolerance * cost:
            return SolveStatus.CONVERGED_GRADIENT
        # float32 may hold nothing of the square of a step that large damping makes small
        is_lost = relief > 1.0 and tried.step_norm == 0.0 < tried.gradient_norm
        step = _square(relief * tried.step_norm)
        if not is_lost and step <= 2.0 * options.step_tolerance**2 * cost:
            return SolveStatus.CONVERGED_STEP
        if accepted:
            # a step is also small where the damping is large: that says nothing about the minimum
            gain = max(cost - tried.cost, tried.model_decrease)
            small = gain <= options.cost_tolerance * cost and damping < 1.0
        else:
            promised = tried.model_decrease
            if damping >= 1.0:
                promised = max(promised, 0.5 * slope)
            small = 0.0 < promised <= options.cost_tolerance * cost
        if small and self.confirming:
            return SolveStatus.CONVERGED_COST
        self.confirming = small
        return None

    def fallen(self, cost: float) -> SolveStatus | None:
        """Whether the cost of an accepted step is zero: relative tests never hold at zero."""
        if cost > NEARLY_NEGLIGIBLE * self._initial_cost:
            return None
        least = ROUNDING_SHARE * cost
        if cost <= ROUNDING_SHARE * self._asked_cost:
            self._asked_cost = cost
            self._is_rounding = change_by_rounding(self._system, cost) >= least
        if cost > NEGLIGIBLE * self._initial_cost:
            return None
        is_zero = self._is_rounding or change_by_half_digits(self._system, cost) >= least
        return SolveStatus.CONVERGED_GRADIENT if is_zero else None

    def limit(
        self, cost: float, damping: float, num_iterations: int, elapsed_s: float
    ) -> SolveStatus | None:
        """Whether a limit is reached, with the next damping."""
        if damping > self._options.max_damping:
            return self._stalled(cost)
        if num_iterations >= self._options.max_iterations:
            return SolveStatus.ITERATION_LIMIT
        if self._options.max_time_s is not None and elapsed_s >= self._options.max_time_s:
            return SolveStatus.TIME_LIMIT
        return None

    def _note_promise(self, damping: float, tried: TriedStep, accepted: bool) -> None:
        """The decrease of the cost that a rejected step stands for.

        Large damping alone makes what it promises small. Where no step with less was rejected
        before it, what counts is half of what a step would promise without.
        """
        if accepted:
            self._promised = -math.inf
            return
        promised = tried.model_decrease
        if not math.isfinite(promised):
            return
        if damping >= 1.0 and not math.isfinite(self._promised):
            promised = max(promised, 0.5 * (1.0 + damping) * _square(tried.gradient_norm))
        self._promised = max(self._promised, promised)

    def _stalled(self, cost: float) -> SolveStatus:
        """No step lowered the cost. Where none promised more than rounding takes, it is a minimum.

        None can keep what it promises beyond the whole cost, of which little is left where
        measurements have no noise.
        """
        found = change_by_rounding(self._system, cost)
        promised = min(self._promised, cost)
        explains = math.isfinite(found) and found > 0.0 and found >= promised
        if not (explains and math.isfinite(self._promised)):
            return SolveStatus.DAMPING_LIMIT
        self.rounding = found
        return SolveStatus.CONVERGED_COST


def change_by_rounding(system: NormalEquations, cost: float) -> float:
    """How much rounding the values changes their cost: the most of several draws; NaN if any is."""
    return _greatest_change(system.rounded_costs(), cost)


def change_by_half_digits(system: NormalEquations, cost: float) -> float:
    """The same, for values of which the lower half of the digits is changed."""
    return _greatest_change(system.rounded_costs(coarsely=True), cost)


def _greatest_change(others: Sequence[float], cost: float) -> float:
    changes = [abs(other - cost) for other in others]
    return math.nan if any(map(math.isnan, changes)) else max(changes)


def _square(number: float) -> float:
    """Infinite where it is too large: a power would raise."""
    return number * number
