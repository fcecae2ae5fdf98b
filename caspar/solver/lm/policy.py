"""Levenberg-Marquardt's decisions: from a state and a step that was tried to the next state.

Damping by the gain ratio, after Madsen, Nielsen and Tingleff (2004). The damped linear system is
solved inexactly, as tightly as the progress warrants (a forcing term in the manner of Eisenstat and
Walker). A step that gains next to nothing may be small because its linear solve stopped early:
before the solve ends, it is repeated with the tightest tolerance. All tests that end a solve are
relative to the cost.

Pure functions, once an iteration. Whoever calls them moves the values and asks the device;
`docs/design/0014-levenberg-policy.md` has the reasons and measurements.

The rules are also those of a kernel that solves the problems of a batch: `next_state` and what it
calls are traced by `ir.traced`, which says what such text may have.
"""

import math

from caspar.ir.dtype import DType
from caspar.options import CompleteOptions
from caspar.solver.lm.steps import (
    AskRounding,
    CostChanges,
    Decision,
    End,
    LinearGoal,
    PolicyState,
    TriedStep,
    Verdict,
)
from caspar.solver.result.result import SolveStatus

# -- damping ---------------------------------------------------------------------------------------

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
"""Least gain ratio with which a step of less than the usual damping makes its damping the usual."""

KEEPS_IN_VALLEYS = 0.25
"""Gain ratio that keeps the damping once a solve has gone on from an end: such solves come along
curved valleys, where gain ratios stay near one half."""

GREATEST_SHRINK = 0.2
"""Damping shrinks by this at most for each accepted step."""

FORCING_FACTOR = 0.9
"""Share of the gradient norm's ratio that becomes the next tolerance."""

CONFIRMING_ITERATIONS = 10
"""PCG iterations at least of the step that confirms convergence."""

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
"""Share of the cost: after this gain, a step of little damping is tried again."""

LITTLE_DAMPING = 1e-3
"""Damping up to which a step promises nearly as much as a step without damping."""

# -- ends ------------------------------------------------------------------------------------------

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
"""A gain, or a whole cost, that is rounding alone changes by at least this share when values are
rounded once more. A smaller change proves nothing: if the first cost was huge, a cost far from a
minimum changes by a tenth."""

MAX_REJECTED = 4
"""Rejected steps in a row, after which the device is asked whether rounding explains them."""

SLIGHT_PROMISE = 1e-9
"""Share of the cost: if a step promises no more, the device is asked at the first rejection. Used
only if the tolerance of the cost is less."""

MAX_NOT_FINITE = 5
"""Linear solves in a row that could not begin, after which derivatives are taken to be at fault."""

COST_ROUNDING = 2.0**-52
"""Relative rounding of the cost: costs are summed in float64 unless values are float32."""

VISIBLE = 64.0
"""Roundings of the cost that it has to rise by, for the rise to tell a curvature."""

SAME_CURVATURE = 1.5
"""Factor between the curvatures along two steps up to which the cost is a parabola along both."""

OTHER_STEP = 2.0
"""Factor between the lengths of two such steps at least."""

GO_ON: End = None
"""The solve does not end."""

NOT_ASKED = -1.0
"""The value of a change of the cost that is not known."""

# -- on the host -----------------------------------------------------------------------------------


def first_state(initial_cost: float, storage: DType, options: CompleteOptions) -> PolicyState:
    """The state before the first iteration."""
    relief = max(options.min_damping, LEAST_RELIEF[storage])
    return PolicyState(
        initial_cost=initial_cost,
        least_relief=relief,
        cost=initial_cost,
        damping=0.0 if options.tries_undamped else options.initial_damping,
        tolerance=options.linear_tolerance,
        relief=relief,
    )


def resumed_state(state: PolicyState, options: CompleteOptions) -> PolicyState:
    """The state that goes on from an end that was none: as at the start, at the same values."""
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
    """Return the goal of the linear solver in the next iteration."""
    least, tolerance = options.min_linear_iterations, state.tolerance
    if state.confirming:
        tolerance = min(tolerance, options.min_linear_tolerance)
        least = max(least, CONFIRMING_ITERATIONS)
    most = options.max_linear_iterations
    # a step that confirms convergence is mostly the last one too
    is_last = state.confirming or state.num_iterations + 1 >= options.max_iterations
    expected = None if is_last else _bounded(GREATEST_SHRINK * state.damping, options)
    return LinearGoal(
        step_damping(state, options),
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
    """Decide about the step that `next_goal` of this state led to.

    `changes`: What the device has answered about the cost of this decision. Returns the state
    behind the step, and the decision. If the decision asks for a rounding, the state is the one
    before the step: obey the verdict, ask the device, and call again with its answer among
    `changes`. The verdict stays.
    """
    digit = changes.get(AskRounding.LAST_DIGIT, NOT_ASKED)
    third = changes.get(AskRounding.LAST_THIRD, NOT_ASKED)
    damping = step_damping(state, options)
    after, end, accepted, gain_ratio = next_state(
        state, damping, tried, options, (digit, third), elapsed_s
    )
    verdict = Verdict.ACCEPTED if accepted else _why_rejected(tried)
    decision = Decision(verdict, gain_ratio, after.cost, end)
    return (state if isinstance(end, AskRounding) else after), decision


def _why_rejected(tried: TriedStep) -> Verdict:
    if tried.at_optimum:
        return Verdict.NO_GRADIENT
    if tried.is_unsolved:
        return Verdict.NO_LINEAR_SOLUTION
    if not math.isfinite(tried.cost):
        return Verdict.NO_FINITE_COST
    has_promise = tried.model_decrease > 0.0
    return Verdict.TOO_LITTLE_DECREASE if has_promise else Verdict.NO_PREDICTED_DECREASE


def is_at_bottom(state: PolicyState) -> bool:
    """Return whether rejected steps have shown that the cost can fall by no more than rounding."""
    return state.attainable < math.inf


# -- rules, also of a kernel -----------------------------------------------------------------------


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


def next_state(
    state: PolicyState,
    damping: float,
    tried: TriedStep,
    options: CompleteOptions,
    changes: tuple[float, float],
    elapsed_s: float,
    *,
    may_vanish: bool = True,
) -> tuple[PolicyState, End, bool, float]:
    """Return the state after a step.

    `changes`: How much the cost of this decision changes by each `AskRounding`, or `NOT_ASKED`.
    Returns the state behind the step, why the solve ends, whether the step is accepted, its gain
    ratio.
    """
    promises = tried.model_decrease > 0.0
    gain_ratio = (state.cost - tried.cost) / tried.model_decrease if promises else math.nan
    is_speculative = may_vanish and state.tries_undamped
    # NaN is never accepted
    accepted = (
        not tried.at_optimum
        and not tried.is_unsolved
        and math.isfinite(tried.cost)
        and promises
        and gain_ratio > (UNDAMPED_GAIN_RATIO if is_speculative else MIN_GAIN_RATIO)
    )
    # a rejected step of less than the usual damping is followed by one of more
    is_relieved = damping < state.damping
    was_relieved, was_usual = is_relieved and not accepted, not (is_relieved or accepted)

    promised = state.promised if is_relieved else _promised(state, damping, tried)
    shown, confirming = _shown(state, promised, damping, tried, options, accepted, changes[0])
    num_not_finite = state.num_not_finite + 1 if tried.is_faulty else 0
    is_broken = was_usual and num_not_finite >= MAX_NOT_FINITE
    is_at_rest = was_usual and state.is_rounding
    shown = SolveStatus.DERIVATIVES_NOT_FINITE if is_broken else shown
    shown = SolveStatus.CONVERGED_GRADIENT if is_at_rest else shown
    goes_on = shown is GO_ON
    retries = was_relieved and goes_on
    shows_nothing_else = was_relieved or is_at_rest
    has_gained = not shows_nothing_else and state.cost <= (1.0 - GAINED_SINCE) * state.relief_cost
    relief = state.least_relief if has_gained else state.relief
    relief_cost = math.inf if has_gained else state.relief_cost

    num_rejected = state.num_rejected if is_relieved else state.num_rejected + 1
    next_damping, growth = _next_damping(
        state, damping, gain_ratio, tried, options, accepted, may_vanish=may_vanish
    )
    fallen, asked_cost, is_rounding = _fallen(state, tried, changes, accepted and goes_on)
    is_zero = is_at_rest or fallen is SolveStatus.CONVERGED_GRADIENT
    rise, rise_square, is_at_bottom, attainable = 0.0, 0.0, False, math.inf
    if options.ends_by_rises:
        rise, rise_square, is_at_bottom, attainable = _rise(state, tried)
    after = PolicyState(
        initial_cost=state.initial_cost,
        least_relief=state.least_relief,
        cost=tried.cost if accepted else state.cost,
        damping=next_damping,
        tolerance=_next_tolerance(state, tried, options) if accepted else state.tolerance,
        relief=RELIEF_GROWTH * damping if retries else relief,
        growth=growth,
        gradient_norm=tried.gradient_norm if accepted else state.gradient_norm,
        num_iterations=state.num_iterations + 1,
        confirming=damping < GREATEST_RELIEF if was_relieved else confirming,
        relief_cost=state.cost if retries else relief_cost,
        promised=-math.inf if accepted else promised,
        num_not_finite=state.num_not_finite if was_relieved else num_not_finite,
        remaining=0.0 if is_zero else _remaining(state, damping, tried, accepted),
        num_rejected=0 if accepted or is_speculative else num_rejected,
        rise=0.0 if accepted else rise,
        rise_square=0.0 if accepted else rise_square,
        attainable=attainable if goes_on or not shows_nothing_else else math.inf,
        asked_cost=asked_cost,
        is_rounding=is_rounding,
        keeps=state.keeps,
    )
    limit = _limit(after, options, changes[0], elapsed_s)
    limit = SolveStatus.CONVERGED_GRADIENT if is_at_bottom else limit
    end = limit if fallen is GO_ON else fallen
    return after, end if goes_on else shown, accepted, gain_ratio


def _next_damping(
    state: PolicyState,
    damping: float,
    gain_ratio: float,
    tried: TriedStep,
    options: CompleteOptions,
    accepted: bool,
    *,
    may_vanish: bool,
) -> tuple[float, float]:
    """The usual damping behind a step, and by what it grows after the next rejection.

    Madsen, Nielsen, Tingleff (2004), equation 3.16, where `keeps` is 1/2.
    """
    is_good = gain_ratio >= GOOD_GAIN_RATIO
    usual, least = damping if is_good else state.damping, state.damping
    if may_vanish:  # no factor makes more of zero
        usual = usual if is_good or usual > 0.0 else options.initial_damping
        least = max(least, LEAST_GROWN_SINGULAR if tried.is_unsolved else LEAST_GROWN)
    excess = (min(gain_ratio, 1.0) - state.keeps) / (1.0 - state.keeps)
    factor = max(GREATEST_SHRINK, 1.0 - excess * excess * excess)
    is_speculative = may_vanish and state.tries_undamped
    grows = damping >= state.damping and not is_speculative
    grown = least * state.growth if grows else state.damping
    grown = options.initial_damping if is_speculative else grown
    growth = 2.0 * state.growth if grows else state.growth
    shrunk = _bounded(factor * usual, options)
    return shrunk if accepted else grown, 2.0 if accepted else growth


def _bounded(damping: float, options: CompleteOptions) -> float:
    """The damping after an accepted step, which ends no solve: one of little gain makes it grow."""
    return min(max(options.min_damping, damping), options.max_damping)


def _next_tolerance(state: PolicyState, tried: TriedStep, options: CompleteOptions) -> float:
    """Solve the next system as tightly as the gradient shrinks, but never tighten abruptly."""
    if not state.gradient_norm > 0.0:
        return state.tolerance
    tolerance = FORCING_FACTOR * tried.gradient_norm / state.gradient_norm
    kept = FORCING_FACTOR * state.tolerance
    tolerance = max(tolerance, kept) if kept > 0.1 else tolerance
    return min(max(tolerance, options.min_linear_tolerance), options.linear_tolerance)


def _promised(state: PolicyState, damping: float, tried: TriedStep) -> float:
    """The decrease of the cost that rejected steps stand for, now that there is another one.

    Large damping alone makes what it promises small. Where no step with less was rejected before
    it, what counts is half of what a step would promise without.
    """
    if tried.is_unsolved or not math.isfinite(tried.promise):
        return state.promised
    if damping >= 1.0 and not math.isfinite(state.promised):
        return max(tried.promise, 0.5 * (1.0 + damping) * tried.descent)
    return max(state.promised, tried.promise)


def remaining_decrease(cost: float, tried: TriedStep) -> float:
    """The decrease of the cost that a step promises, relative to the cost; NaN if it has none."""
    if tried.at_optimum or cost == 0.0:
        return 0.0
    is_known = math.isfinite(tried.promise) and not tried.is_unsolved
    # rounding makes a promise of nothing negative
    return max(tried.promise, 0.0) / cost if is_known else math.nan


def _remaining(state: PolicyState, damping: float, tried: TriedStep, accepted: bool) -> float:
    """Return what is known of `PolicyState.remaining` after a step.

    What an accepted step of little damping promised stands for the values it leads to: more than
    what remains there, unless the linear model is wrong.
    """
    if damping <= LITTLE_DAMPING and not tried.is_shortened:
        return remaining_decrease(state.cost, tried)
    return math.nan if accepted else state.remaining


def _rise(state: PolicyState, tried: TriedStep) -> tuple[float, float, bool, float]:
    """Return the curvature that a rejected step shows, and whether nothing is left: `attainable`.

    The linear model may promise the whole cost at a minimum where the residuals' second derivatives
    dominate, as that of (x - 1)^2 + 5. Rejected steps tell: the cost falls along each with the
    slope that the gradient has, and its rise at their ends gives the curvature. Quotients are
    compared as products: a kernel has no division then.
    """
    rise, slope, square = tried.cost - state.cost, 2.0 * tried.model_decrease, tried.step_square
    least = VISIBLE * COST_ROUNDING * state.cost
    is_visible = least < rise < math.inf and slope > 0.0 and square > 0.0
    bent, before, most = rise + slope, state.rise_square, OTHER_STEP * OTHER_STEP
    is_other = not (before < most * square and square < most * before)
    now, then = bent * before, state.rise * square
    is_same = then <= SAME_CURVATURE * now and now <= SAME_CURVATURE * then and then > 0.0
    is_lowest = slope * slope <= 4.0 * bent * least
    is_at_bottom = is_visible and is_other and is_same and is_lowest
    return (
        bent if is_visible else state.rise,
        square if is_visible else before,
        is_at_bottom,
        slope * slope / (4.0 * bent) if is_at_bottom else math.inf,
    )


def _shown(
    state: PolicyState,
    promised: float,
    damping: float,
    tried: TriedStep,
    options: CompleteOptions,
    accepted: bool,
    digit: float,
) -> tuple[End, bool]:
    """Return whether a step shows a minimum, and whether the next one is to confirm that.

    A step may gain far more than it promised because the cost is rounded: then the device is asked,
    and what rounding explains is no gain.
    """
    cost, tolerance, promise = state.cost, options.step_tolerance, tried.promise
    # of the damped system: large damping alone makes them small
    is_damped = damping >= 1.0
    relief = 1.0 + damping if is_damped else 1.0
    slope, square = relief * tried.descent, relief * relief * tried.step_square
    if tried.is_bounded:
        square = max(square, slope)
    # float32 may hold nothing of the square of a step that large damping makes small
    is_lost = is_damped and tried.step_square <= 0.0 and tried.descent > 0.0
    most = options.cost_tolerance * cost
    gained = cost - tried.cost
    promises_little = accepted and promise <= most and not is_damped
    is_odd = promises_little and most < gained <= SLIGHT_PROMISE * cost
    is_rounding = options.asks_early and digit >= ROUNDING_SHARE * gained
    # a step is also small where the damping is large: that says nothing about the minimum
    is_little = promises_little and (gained <= most or is_rounding)
    decrease = max(promise, 0.5 * slope) if is_damped else promise
    is_small = is_little if accepted else 0.0 < decrease <= most
    is_unknown = tried.at_optimum or tried.is_unsolved or not math.isfinite(tried.cost)
    # of these rules later ones outrank others
    end = SolveStatus.CONVERGED_COST if is_small and state.confirming else GO_ON
    is_short = not is_lost and square <= 2.0 * tolerance * tolerance * cost
    end = SolveStatus.CONVERGED_STEP if is_short else end
    is_flat = slope <= 2.0 * options.gradient_tolerance * cost
    end = SolveStatus.CONVERGED_GRADIENT if is_flat else end
    end = GO_ON if is_unknown else end
    # unless it was not zero with less damping: float32 holds nothing that small
    is_zero = tried.at_optimum and not promised > 0.0
    end = SolveStatus.CONVERGED_GRADIENT if is_zero else end
    asks = options.asks_early and is_odd and end is GO_ON and digit == NOT_ASKED
    end = AskRounding.LAST_DIGIT if asks else end
    confirming = state.confirming if is_unknown else is_small
    if tried.is_bounded:  # a step that bounds shortened ends nothing: the next one is whole
        confirming = confirming or (tried.is_shortened and end is not GO_ON)
        end = GO_ON if tried.is_shortened else end
    return end, confirming


def _fallen(
    state: PolicyState, tried: TriedStep, changes: tuple[float, float], is_asked: bool
) -> tuple[End, float, bool]:
    """Return whether the cost of an accepted step is zero: relative tests never hold at zero.

    `is_asked`: Whether it is accepted, and ends the solve by nothing else. Returns whether it ends
    the solve; `asked_cost` and `is_rounding` of the next state.
    """
    cost, first = tried.cost, state.initial_cost
    digit, third = changes
    least = ROUNDING_SHARE * cost
    looks = is_asked and cost <= NEARLY_NEGLIGIBLE * first
    asks = looks and cost <= ASK_AGAIN * state.asked_cost
    is_rounding = least <= digit if asks else state.is_rounding
    is_deep = looks and cost <= NEGLIGIBLE * first and cost <= FALLING * state.cost
    is_coarse = is_deep and least <= third
    rests = (is_deep and is_rounding) or (looks and not asks and is_rounding)
    # of these rules later ones outrank others
    end = SolveStatus.CONVERGED_GRADIENT if is_coarse else GO_ON
    end = AskRounding.LAST_THIRD if is_deep and third == NOT_ASKED else end
    end = SolveStatus.CONVERGED_GRADIENT if rests else end
    end = AskRounding.LAST_DIGIT if asks and digit == NOT_ASKED else end
    return end, cost if asks else state.asked_cost, is_rounding or is_coarse


def _limit(after: PolicyState, options: CompleteOptions, digit: float, elapsed_s: float) -> End:
    """Return whether a limit is reached, or rounding explains that no step is accepted."""
    cost, promised = after.cost, after.promised
    slight = SLIGHT_PROMISE * cost
    is_exact = options.cost_tolerance * cost < slight
    is_slight = options.asks_early and is_exact and 0.0 < promised <= slight
    # a step with less damping may be about to confirm the end
    is_early = is_slight and not after.confirming and after.num_rejected == 1
    is_stuck = after.damping > options.max_damping
    asks = is_stuck or after.num_rejected == MAX_REJECTED or is_early
    if asks and digit == NOT_ASKED:
        return AskRounding.LAST_DIGIT
    # rejected steps promised no more than rounding takes: then the values are a minimum. No step
    # keeps what it promises beyond the whole cost, of which little is left if measurements have no
    # noise. A few draws tell what rounding takes to a factor of two
    explains = math.isfinite(promised) and math.isfinite(digit) and digit > 0.0
    if asks and explains and digit >= ROUNDING_SHARE * min(promised, cost):
        return SolveStatus.CONVERGED_COST
    if is_stuck:
        return SolveStatus.DAMPING_LIMIT
    if after.num_iterations >= options.max_iterations:
        return SolveStatus.ITERATION_LIMIT
    if options.max_time_s is not None and elapsed_s >= options.max_time_s:
        return SolveStatus.TIME_LIMIT
    return GO_ON
