"""Whether a solve ends after a step, and why: pure functions.

All tests are relative to the cost. Damping and loose linear solves make a step small without being
near a minimum: what such a step shows is discounted, or confirmed by another one.
"""

import math

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import CompleteOptions
from caspar.solver.lm.steps import AskRounding, CostChanges, End, PolicyState, TriedStep
from caspar.solver.result.result import SolveStatus

NEGLIGIBLE = 2.0**-104
"""A cost that fell by this factor is zero: the residuals are rounding errors of the first ones. But
those may have been huge for another reason, such as an exponential. So it is also asked whether two
thirds of the digits of the values are those of a solution: then moving the values by the last third
changes the cost."""

FALLING = 0.9
"""A step on the way to a cost of zero leaves at most this share of it. A solve that creeps along at
a cost that is small beside a huge first one is on the way to something else."""

NEARLY_NEGLIGIBLE = 1e-10
"""A cost that fell by this factor may be what rounding leaves, which no step lowers and no gradient
tells from a minimum: the device is asked."""

ASK_AGAIN = 0.01
"""Share of the cost at which the device was last asked, at which it is asked again."""

ROUNDING_SHARE = 0.5
"""What rounding leaves changes by this share at least when values are rounded once more. Less does
not tell: where the first cost was huge, a cost that is far from a minimum changes by a tenth."""

MAX_REJECTED = 4
"""Rejected steps in a row, after which the device is asked whether rounding explains them."""

SLIGHT_PROMISE = 1e-9
"""Of the cost: if a step promises no more, the device is asked at the first rejection. Only where
the tolerance of the cost is less."""

GREATEST_RELIEF = 1e-3
"""Damping of a confirming step at most, where the usual one has become 1 or more. D is more than
diag(J^T J) then, so what a step would promise without damping is not known."""

LEAST_RELIEF = {DType.FLOAT32: 1e-5, DType.FLOAT64: 1e-14}
"""Damping of a confirming step at least, by the type of vectors: with less, directions that no
factor holds drift by what the gradient is rounded to. A free gauge moved by 0.014 with 1e-8 in
float32, where nodes are 1 apart."""

RELIEF_GROWTH = 1e3
"""Factor of the damping of a confirming step after one that did not keep what it promised."""

GAINED_SINCE = 0.01
"""Of the cost: after that, whether a step of little damping would gain is asked again."""

LITTLE_DAMPING = 1e-3
"""With at most this, a step promises nearly what one without damping would."""

MAX_NOT_FINITE = 5
"""Linear solves in a row that could not begin, after which derivatives are taken to be at fault."""


COST_ROUNDING = 2.0**-52
"""Of the cost: costs are summed in float64 unless values are float32."""

VISIBLE = 64.0
"""Roundings of the cost that it has to rise by, for the rise to tell a curvature."""

SAME_CURVATURE = 1.5
"""Factor between the curvatures along two steps up to which the cost is a parabola along both."""

OTHER_STEP = 2.0
"""Factor between the lengths of two such steps at least."""


def step_damping(state: PolicyState, options: CompleteOptions) -> float:
    """Damping of the next step: the usual one, unless it confirms.

    Then it is very small at first: where a part of a tangent has several units, more of it holds
    the entries that have the largest ones (D by `node_blocks.node_diagonal`), and what they could
    gain is not seen.
    """
    if not state.confirming:
        return state.damping
    most = state.damping if state.damping < 1.0 else max(GREATEST_RELIEF, options.min_damping)
    return min(state.relief, most)


def after_step(
    state: PolicyState, tried: TriedStep, options: CompleteOptions, *, accepted: bool
) -> tuple[PolicyState, SolveStatus | None]:
    """Whether a step shows a minimum, or that there is no way on.

    Args:
        state: Before the step.
        tried: What came of it.
        options: Tolerances.
        accepted: Whether it is taken.

    Returns:
        The state, with what the step has shown; and why the solve ends, if it does.
    """
    damping, number = step_damping(state, options), state.num_iterations + 1
    state = state._replace(remaining=_remaining(state, damping, tried, accepted=accepted))
    if damping < state.damping and not accepted:
        status, _ = _shown(state, state.promised, damping, tried, options, accepted=False)
        if status is not None:
            return state._replace(num_iterations=number), status
        # it promised something: more damping may keep it
        state = _with_rise(state, tried)
        relief, confirming = RELIEF_GROWTH * damping, damping < GREATEST_RELIEF
        after = state._replace(
            num_iterations=number, relief=relief, relief_cost=state.cost, confirming=confirming
        )
        return after, None
    if state.is_rounding and not accepted:
        after = state._replace(num_iterations=number, remaining=0.0)
        return after, SolveStatus.CONVERGED_GRADIENT
    has_gained = state.cost <= (1.0 - GAINED_SINCE) * state.relief_cost
    # damping may mend blocks that overflow, but no gradient that is not finite
    is_faulty = tried.outcome is LinearOutcome.NOT_FINITE and tried.linear_iterations == 0
    promised = -math.inf if accepted else _promised(state, damping, tried)
    state = _forgotten_rise(state) if accepted else _with_rise(state, tried)
    num_not_finite = state.num_not_finite + 1 if is_faulty else 0
    status, confirming = None, state.confirming
    if not is_faulty:
        status, confirming = _shown(state, promised, damping, tried, options, accepted=accepted)
    elif num_not_finite >= MAX_NOT_FINITE:
        status = SolveStatus.DERIVATIVES_NOT_FINITE
    after = state._replace(
        num_iterations=number,
        relief=state.least_relief if has_gained else state.relief,
        relief_cost=math.inf if has_gained else state.relief_cost,
        promised=promised,
        num_not_finite=num_not_finite,
        num_rejected=0 if accepted else state.num_rejected + 1,
        confirming=confirming,
    )
    return after, status


def remaining_decrease(cost: float, tried: TriedStep) -> float:
    """The decrease of the cost that a step promises, relative to the cost; NaN if it has none."""
    if tried.outcome is LinearOutcome.AT_OPTIMUM or cost == 0.0:
        return 0.0
    promised = tried.promise
    # rounding makes a promise of nothing negative
    return max(promised, 0.0) / cost if math.isfinite(promised) else math.nan


def _remaining(state: PolicyState, damping: float, tried: TriedStep, *, accepted: bool) -> float:
    """What is known of `PolicyState.remaining` behind a step.

    What an accepted step of little damping promised stands for the values it leads to: more than
    what remains there, unless the linear model is wrong.
    """
    if damping <= LITTLE_DAMPING and not tried.is_shortened:
        return remaining_decrease(state.cost, tried)
    return math.nan if accepted else state.remaining


def _promised(state: PolicyState, damping: float, tried: TriedStep) -> float:
    """The decrease of the cost that rejected steps stand for, now that there is another one.

    Large damping alone makes what it promises small. Where no step with less was rejected before
    it, what counts is half of what a step would promise without.
    """
    promised = tried.promise
    if not math.isfinite(promised):
        return state.promised
    if damping >= 1.0 and not math.isfinite(state.promised):
        promised = max(promised, 0.5 * (1.0 + damping) * _square(tried.gradient_norm))
    return max(state.promised, promised)


def _forgotten_rise(state: PolicyState) -> PolicyState:
    """The state without what rejected steps have told of the curvature."""
    if math.isnan(state.curvature):
        return state
    return state._replace(curvature=math.nan, curved_step=math.nan, attainable=math.inf)


def _with_rise(state: PolicyState, tried: TriedStep) -> PolicyState:
    """The state with what a rejected step tells of the curvature.

    The linear model may promise the whole cost at a minimum where the residuals' second derivatives
    dominate, as that of (x - 1)^2 + 5. Rejected steps tell: the cost falls along each with the
    slope that the gradient has, and its rise at their ends gives the curvature.
    """
    rise, slope = tried.cost - state.cost, 2.0 * tried.model_decrease
    step = tried.step_norm
    is_visible = VISIBLE * COST_ROUNDING * state.cost < rise < math.inf
    if not (is_visible and slope > 0.0 and step > 0.0):
        return state
    curvature = 2.0 * (rise + slope) / _square(step)
    lengths, curvatures = step / state.curved_step, curvature / state.curvature
    is_other = not 1.0 / OTHER_STEP < lengths < OTHER_STEP
    is_same = 1.0 / SAME_CURVATURE <= curvatures <= SAME_CURVATURE
    attainable = state.attainable
    if is_other and is_same:
        attainable = _square(slope) / (4.0 * (rise + slope))
    return state._replace(curvature=curvature, curved_step=step, attainable=attainable)


def _shown(
    state: PolicyState,
    promised: float,
    damping: float,
    tried: TriedStep,
    options: CompleteOptions,
    *,
    accepted: bool,
) -> tuple[SolveStatus | None, bool]:
    """Whether a step shows a minimum, and whether the next one is to confirm that.

    Args:
        state: Before the step.
        promised: See `PolicyState`, behind the step.
        damping: Of the step.
        tried: What came of it.
        options: Tolerances.
        accepted: Whether it is taken.
    """
    if tried.is_shortened:
        whole = tried._replace(is_shortened=False)
        shown, is_small = _shown(state, promised, damping, whole, options, accepted=accepted)
        return None, is_small or shown is not None
    cost = state.cost
    if tried.outcome is LinearOutcome.AT_OPTIMUM:
        # unless it was not zero with less damping: float32 holds nothing that small
        is_zero = not promised > 0.0
        return SolveStatus.CONVERGED_GRADIENT if is_zero else None, state.confirming
    if tried.outcome is LinearOutcome.NOT_FINITE or not math.isfinite(tried.cost):
        return None, state.confirming
    # of the damped system: large damping alone makes them small
    relief = 1.0 if damping < 1.0 else 1.0 + damping
    slope = relief * _square(tried.gradient_norm)
    if slope <= 2.0 * options.gradient_tolerance * cost:
        return SolveStatus.CONVERGED_GRADIENT, state.confirming
    # float32 may hold nothing of the square of a step that large damping makes small
    is_lost = relief > 1.0 and tried.step_norm == 0.0 < tried.gradient_norm
    step = _square(relief * tried.step_norm)
    if tried.least_promise > 0.0:
        step = max(step, slope)
    if not is_lost and step <= 2.0 * options.step_tolerance**2 * cost:
        return SolveStatus.CONVERGED_STEP, state.confirming
    if accepted:
        # a step is also small where the damping is large: that says nothing about the minimum
        gain = max(cost - tried.cost, tried.promise)
        is_small = gain <= options.cost_tolerance * cost and damping < 1.0
    else:
        decrease = tried.promise
        if damping >= 1.0:
            decrease = max(decrease, 0.5 * slope)
        is_small = 0.0 < decrease <= options.cost_tolerance * cost
    return SolveStatus.CONVERGED_COST if is_small and state.confirming else None, is_small


def after_fall(state: PolicyState, before: float, changes: CostChanges) -> tuple[PolicyState, End]:
    """Whether the cost of an accepted step is zero: relative tests never hold at zero.

    Args:
        state: With the cost of the step.
        before: The cost before the step.
        changes: What the device has answered about this cost.
    """
    if state.cost > NEARLY_NEGLIGIBLE * state.initial_cost:
        return state, None
    least = ROUNDING_SHARE * state.cost
    if state.cost <= ASK_AGAIN * state.asked_cost:
        if AskRounding.LAST_DIGIT not in changes:
            return state, AskRounding.LAST_DIGIT
        is_rounding = changes[AskRounding.LAST_DIGIT] >= least
        state = state._replace(asked_cost=state.cost, is_rounding=is_rounding)
    elif state.is_rounding:
        return state._replace(remaining=0.0), SolveStatus.CONVERGED_GRADIENT
    if state.cost > min(NEGLIGIBLE * state.initial_cost, FALLING * before):
        return state, None
    if state.is_rounding:
        return state._replace(remaining=0.0), SolveStatus.CONVERGED_GRADIENT
    if AskRounding.LAST_THIRD not in changes:
        return state, AskRounding.LAST_THIRD
    if changes[AskRounding.LAST_THIRD] >= least:
        state = state._replace(remaining=0.0, is_rounding=True)
        return state, SolveStatus.CONVERGED_GRADIENT
    return state, None


def at_limit(
    state: PolicyState, elapsed_s: float, options: CompleteOptions, changes: CostChanges
) -> End:
    """Whether a limit is reached.

    Args:
        state: After the step, with the next damping.
        elapsed_s: Seconds since the start of the iterations.
        options: Limits.
        changes: What the device has answered about the cost.
    """
    if options.ends_by_rises and is_at_bottom(state):
        return SolveStatus.CONVERGED_GRADIENT
    slight = SLIGHT_PROMISE * state.cost
    is_exact = options.cost_tolerance * state.cost < slight
    is_slight = options.asks_early and is_exact and 0.0 < state.promised <= slight
    # a step with less damping may be about to confirm the end
    is_slight = is_slight and not state.confirming
    is_asked = state.num_rejected in ((1, MAX_REJECTED) if is_slight else (MAX_REJECTED,))
    if state.damping > options.max_damping or is_asked:
        if AskRounding.LAST_DIGIT not in changes:
            return AskRounding.LAST_DIGIT
        if _rounding_explains(state, changes[AskRounding.LAST_DIGIT]):
            return SolveStatus.CONVERGED_COST
    if state.damping > options.max_damping:
        return SolveStatus.DAMPING_LIMIT
    if state.num_iterations >= options.max_iterations:
        return SolveStatus.ITERATION_LIMIT
    if options.max_time_s is not None and elapsed_s >= options.max_time_s:
        return SolveStatus.TIME_LIMIT
    return None


def is_at_bottom(state: PolicyState) -> bool:
    """Whether rejected steps have shown that the cost cannot fall by more than its roundings."""
    return state.attainable <= VISIBLE * COST_ROUNDING * state.cost


def _rounding_explains(state: PolicyState, change: float) -> bool:
    """Whether rejected steps promised no more than rounding takes: then the values are a minimum.

    No step can keep what it promises beyond the whole cost, of which little is left if measurements
    have no noise.
    """
    explains = math.isfinite(change) and change > 0.0 and change >= min(state.promised, state.cost)
    return explains and math.isfinite(state.promised)


def _square(number: float) -> float:
    """Infinite where it is too large: a power would raise."""
    return number * number
