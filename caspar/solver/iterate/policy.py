"""Levenberg-Marquardt's decisions: from a state and a step that was tried to the next state.

Damping by the gain ratio, after Madsen, Nielsen and Tingleff (2004). The damped linear system is
solved inexactly, as tightly as the progress warrants (a forcing term in the manner of Eisenstat and
Walker). A step that gains next to nothing may be small because its linear solve stopped early:
before the solve ends, it is repeated with the tightest tolerance.

Pure functions on the host, once an iteration. Whoever calls them moves the values and asks the
device; `docs/design/0014-levenberg-policy.md` has the reasons and measurements.
"""

import math
from collections.abc import Sequence

from caspar.equations.node_blocks import ABSENT
from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import CompleteOptions
from caspar.solver.iterate import stopping
from caspar.solver.iterate.steps import (
    AskRounding,
    CostChanges,
    Decision,
    End,
    LinearGoal,
    Number,
    PolicyState,
    TriedStep,
    Verdict,
)

MIN_GAIN_RATIO = 1e-3
"""Steps with less of the predicted decrease are rejected."""

UNDAMPED_GAIN_RATIO = 0.9
"""A first step without damping is kept with at least this: its linear model holds as far as it
goes. What stiff residuals ask for is done then, and no damping holds the soft directions."""

LEAST_GROWN = 1e-16
"""A damping of zero grows as this one does."""

LEAST_GROWN_SINGULAR = 1e-12
"""The same if the matrix could not be factorised: less is no more than its rounding."""

GOOD_GAIN_RATIO = 0.25
"""With which a step of less than the usual damping makes its damping the usual one."""

KEEPS_IN_VALLEYS = 0.25
"""Gain ratio that keeps the damping once a solve has gone on from an end: such solves come along
curved valleys, where gain ratios stay near one half."""

GREATEST_SHRINK = 0.2
"""Damping shrinks by this at most for each accepted step."""

FORCING_FACTOR = 0.9
"""Share of the gradient norm's ratio that becomes the next tolerance."""

CONFIRMING_ITERATIONS = 10
"""PCG iterations at least of the step that confirms convergence."""


def first_state(initial_cost: float, storage: DType, options: CompleteOptions) -> PolicyState:
    """The state before the first iteration.

    Args:
        initial_cost: Cost of the start values.
        storage: Type of the values.
        options: Limits and tolerances.
    """
    relief = max(options.min_damping, stopping.LEAST_RELIEF[storage])
    return PolicyState(
        initial_cost=initial_cost,
        least_relief=relief,
        cost=initial_cost,
        damping=0.0 if options.tries_undamped else options.initial_damping,
        tolerance=options.linear_tolerance,
        relief=relief,
        first_damping=options.initial_damping if options.tries_undamped else math.nan,
    )


def resumed_state(state: PolicyState, options: CompleteOptions) -> PolicyState:
    """The state that goes on from an end that was none: as at the start, at the same values.

    Args:
        state: At the end.
        options: Limits and tolerances.
    """
    return PolicyState(
        initial_cost=state.initial_cost,
        least_relief=state.least_relief,
        cost=state.cost,
        damping=options.initial_damping,
        tolerance=options.linear_tolerance,
        relief=state.least_relief,
        num_iterations=state.num_iterations,
        keeps=KEEPS_IN_VALLEYS,
    )


def next_goal(state: PolicyState, options: CompleteOptions) -> LinearGoal:
    """What the linear solver is asked for in the next iteration."""
    least, tolerance = options.min_linear_iterations, state.tolerance
    if state.confirming:
        tolerance = min(tolerance, options.min_linear_tolerance)
        least = max(least, CONFIRMING_ITERATIONS)
    most = options.max_linear_iterations
    # a step that confirms convergence is mostly the last one too
    is_last = state.confirming or state.num_iterations + 1 >= options.max_iterations
    expected = None if is_last else _bounded(GREATEST_SHRINK * state.damping, options)
    return LinearGoal(
        stopping.step_damping(state, options),
        tolerance,
        min(least, most),
        most,
        expected,
        is_whole=state.confirming,
    )


def decide(
    state: PolicyState,
    tried: TriedStep,
    elapsed_s: float,
    options: CompleteOptions,
    changes: CostChanges,
) -> tuple[PolicyState, Decision]:
    """What becomes of the step that `next_goal` of this state led to.

    Args:
        state: Before the step.
        tried: What came of it.
        elapsed_s: Seconds since the start of the iterations.
        options: Limits and tolerances.
        changes: What the device has answered about the cost of this decision.

    Returns:
        The state behind the step, and the decision. If the decision asks for a rounding, the state
        is the one before the step: obey the verdict, ask the device, and call again with its answer
        among `changes`. The verdict stays.
    """
    damping = stopping.step_damping(state, options)
    decrease = state.cost - tried.cost
    gain_ratio = decrease / tried.model_decrease if tried.model_decrease > 0.0 else math.nan
    verdict = _verdict(tried, gain_ratio, is_speculative=state.tries_undamped)
    accepted = verdict is Verdict.ACCEPTED
    end: End
    after, end = stopping.after_step(state, tried, options, accepted=accepted)
    if accepted:
        # Madsen, Nielsen, Tingleff (2004), equation 3.16, where `keeps` is 1/2; powers of huge
        # numbers raise
        usual = damping if gain_ratio >= GOOD_GAIN_RATIO else state.damping
        if usual == 0.0 and gain_ratio < GOOD_GAIN_RATIO:
            usual = options.initial_damping  # no factor makes more of none
        excess = (min(gain_ratio, 1.0) - state.keeps) / (1.0 - state.keeps)
        factor = max(GREATEST_SHRINK, 1.0 - excess**3)
        after = after._replace(
            cost=tried.cost,
            damping=_bounded(factor * usual, options),
            growth=2.0,
            tolerance=_next_tolerance(state, tried, options),
            gradient_norm=tried.gradient_norm,
        )
        if end is None:
            after, end = stopping.after_fall(after, state.cost, changes)
    elif state.tries_undamped:
        after = after._replace(damping=state.first_damping, num_rejected=0)
    elif damping >= state.damping:
        is_singular = verdict is Verdict.NO_LINEAR_SOLUTION
        least = LEAST_GROWN_SINGULAR if is_singular else LEAST_GROWN
        grown = max(state.damping, least) * state.growth
        after = after._replace(damping=grown, growth=2.0 * state.growth)
    after = after._replace(first_damping=math.nan)
    if end is None:
        end = stopping.at_limit(after, elapsed_s, options, changes)
    decision = Decision(verdict, gain_ratio, after.cost, end)
    return (state if isinstance(end, AskRounding) else after), decision


def without_undamped(state: PolicyState) -> PolicyState:
    """The state before the first iteration if there is no step without damping."""
    return state._replace(damping=state.first_damping, first_damping=math.nan)


# -- plain steps -----------------------------------------------------------------------------------
#
# A step is plain if `decide` accepts it and has nothing else to say: it ends nothing, asks nothing,
# and the linear solver stays. Compiled code takes such steps (`Backend.plain_steps`), by the same
# operations in the same order, and stops at the first other one, which the host decides about.


def may_be_plain(state: PolicyState, options: CompleteOptions) -> bool:
    """Whether the next step may be plain: earlier ones have left nothing to be decided."""
    return (
        options.max_time_s is None
        and not state.is_rounding
        and math.isinf(state.relief_cost)
        and state.num_iterations + 1 < options.max_iterations
    )


def plain_numbers(state: PolicyState, options: CompleteOptions, *, looks: bool) -> list[float]:
    """What plain steps are decided by.

    Args:
        state: Before them.
        options: Limits and tolerances.
        looks: Whether D has still to be looked at, see `derivative_sizes`.
    """
    return [  # in the order of `Number`
        0.0,
        state.cost,
        state.damping,
        stopping.step_damping(state, options),
        state.gradient_norm,
        float(state.confirming),
        state.remaining,
        UNDAMPED_GAIN_RATIO if state.tries_undamped else MIN_GAIN_RATIO,
        0.0,
        MIN_GAIN_RATIO,
        GOOD_GAIN_RATIO,
        state.keeps,
        3.0,
        GREATEST_SHRINK,
        options.min_damping,
        options.max_damping,
        options.cost_tolerance,
        2.0 * options.gradient_tolerance,
        2.0 * options.step_tolerance**2,
        stopping.NEARLY_NEGLIGIBLE * state.initial_cost,
        state.least_relief,
        max(stopping.GREATEST_RELIEF, options.min_damping),
        stopping.LITTLE_DAMPING,
        0.0,  # of the linear solver
        float(looks),
        ABSENT,
    ]


def behind_plain(state: PolicyState, numbers: Sequence[float]) -> PolicyState:
    """The state behind plain steps: what rejected ones before them have left is forgotten.

    The tolerance of linear solves stays: they are exact.

    Args:
        state: Before the steps.
        numbers: By `Number`, behind them.
    """
    return PolicyState(
        initial_cost=state.initial_cost,
        least_relief=state.least_relief,
        cost=numbers[Number.COST],
        damping=numbers[Number.DAMPING],
        tolerance=state.tolerance,
        relief=state.least_relief,
        gradient_norm=numbers[Number.GRADIENT_NORM],
        num_iterations=state.num_iterations + int(numbers[Number.COUNT]),
        confirming=numbers[Number.CONFIRMING] > 0.5,
        remaining=numbers[Number.REMAINING],
        asked_cost=state.asked_cost,
        keeps=state.keeps,
    )


# --------------------------------------------------------------------------------------------------


def _verdict(tried: TriedStep, gain_ratio: float, *, is_speculative: bool) -> Verdict:
    """NaN is never accepted."""
    if tried.outcome is LinearOutcome.AT_OPTIMUM:
        return Verdict.NO_GRADIENT
    if tried.outcome is LinearOutcome.NOT_FINITE:
        return Verdict.NO_LINEAR_SOLUTION
    if not math.isfinite(tried.cost):
        return Verdict.NO_FINITE_COST
    if not tried.model_decrease > 0.0:
        return Verdict.NO_PREDICTED_DECREASE
    least = UNDAMPED_GAIN_RATIO if is_speculative else MIN_GAIN_RATIO
    return Verdict.ACCEPTED if gain_ratio > least else Verdict.TOO_LITTLE_DECREASE


def _bounded(damping: float, options: CompleteOptions) -> float:
    """The damping after an accepted step, which ends no solve: one of little gain makes it grow."""
    return min(max(options.min_damping, damping), options.max_damping)


def _next_tolerance(state: PolicyState, tried: TriedStep, options: CompleteOptions) -> float:
    """Solve the next system as tightly as the gradient shrinks, but never tighten abruptly."""
    if not state.gradient_norm > 0.0:
        return state.tolerance
    tolerance = FORCING_FACTOR * tried.gradient_norm / state.gradient_norm
    kept = FORCING_FACTOR * state.tolerance
    if kept > 0.1:
        tolerance = max(tolerance, kept)
    return min(max(tolerance, options.min_linear_tolerance), options.linear_tolerance)
