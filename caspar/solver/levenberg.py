"""Levenberg-Marquardt with the gain-ratio damping of Madsen, Nielsen and Tingleff (2004).

The damped linear system is solved inexactly, as tightly as the progress warrants (a forcing term
in the manner of Eisenstat and Walker). A step that gains next to nothing may be small because its
linear solve stopped early: before the solve ends, it is repeated with the tightest tolerance.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from caspar.errors import OptionError
from caspar.frontend.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import SolveOptions
from caspar.solver.course_remarks import (
    MUCH_ROUNDING,
    NO_FINITE_COST,
    crawls,
    remarks_on_candidates,
    remarks_on_faults,
    remarks_on_linear_solves,
    remarks_on_rounding,
)
from caspar.solver.normal_equations import LinearGoal, NormalEquations, TriedStep
from caspar.solver.result import IterationRecord, SolveStatus

MIN_GAIN_RATIO = 1e-3
"""Steps with less of the predicted decrease are rejected."""

GREATEST_SHRINK = 0.2
"""Damping shrinks by this at most for each accepted step."""

FORCING_FACTOR = 0.9
"""Share of the gradient norm's ratio that becomes the next tolerance."""

NEGLIGIBLE = 2.0**-104
"""A cost that fell by this factor is zero: the residuals are rounding errors of the first ones. But
those may have been huge for another reason, such as an exponential: so the cost is below this
factor itself too, or what rounding leaves."""

NEARLY_NEGLIGIBLE = 1e-10
"""A cost that fell by this factor may be what rounding leaves, which no step lowers and no gradient
tells from a minimum: there the solve ends with steps that are small for any reason."""

ROUNDING_SHARE = 0.01
"""What rounding leaves changes by this share at least when values are rounded once more."""

CONFIRMING_ITERATIONS = 10
"""PCG iterations at least of the step that confirms convergence."""

CONFIRMING_DAMPING = 1e-3
"""Its damping, where that has become 1 or more: how much less such a step promises than one without
damping is not known, as D is more than diag(J^T J) then."""

MAX_NOT_FINITE = 5
"""Linear solves in a row that could not begin, after which derivatives are taken to be at fault."""

Callback = Callable[[IterationRecord], object]
"""Called after each iteration; a true value stops the solve."""


@dataclass
class LevenbergState:
    """What changes from iteration to iteration.

    Attributes:
        cost: Cost of the current values.
        initial_cost: Cost of the start values.
        damping: Next damping.
        growth: Factor of the damping after the next rejection.
        tolerance: Next tolerance of the linear solver.
        gradient_norm: Of the last linearisation; None before the first.
        linearized: The system is linearised at the current values.
        confirming: The next step decides whether the solve has converged.
        num_not_finite: Linear solves in a row that could not begin.
        num_limited: Linear solves that ended at the limit of PCG iterations.
        asked_cost: Cost at which it was asked last whether rounding alone is left.
        is_rounding: Whether it is.
        promised: Largest decrease that a step promised since the last one was accepted.
        rounding: How much rounding the values changes the cost, where that ended the solve.
        records: Iterations so far.
    """

    cost: float
    initial_cost: float
    damping: float
    tolerance: float
    growth: float = 2.0
    gradient_norm: float | None = None
    linearized: bool = False
    confirming: bool = False
    num_not_finite: int = 0
    num_limited: int = 0
    asked_cost: float = math.inf
    is_rounding: bool = False
    promised: float = -math.inf
    rounding: float | None = None
    records: list[IterationRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Course:
    """How the iterations went.

    Attributes:
        status: Why they ended.
        initial_cost: Cost of the start values.
        final_cost: Cost of the current values.
        records: One for each iteration.
        remarks: What else they show, with advice.
    """

    status: SolveStatus
    initial_cost: float
    final_cost: float
    records: tuple[IterationRecord, ...]
    remarks: tuple[str, ...]


def minimize(
    system: NormalEquations, options: SolveOptions, on_iteration: Callback | None
) -> Course:
    """Iterate until a stopping rule holds.

    Args:
        system: The problem on the device; it holds the values that the iterations move.
        options: Limits and tolerances.
        on_iteration: Called after each iteration.
    """
    start = time.perf_counter()
    initial_cost = system.score()
    damping = options.initial_damping
    if damping is None:
        damping = min(max(system.usual_damping, options.min_damping), options.max_damping)
    state = LevenbergState(initial_cost, initial_cost, damping, options.linear_tolerance)
    if not math.isfinite(initial_cost):
        remarks = remarks_on_faults("residuals", system.faulty_costs())
        at_once = SolveStatus.INITIAL_COST_NOT_FINITE
        return Course(at_once, initial_cost, initial_cost, (), remarks)
    status: SolveStatus | None = None
    try:
        while status is None:
            status = _iterate(system, options, state, start)
            stop = on_iteration is not None and _asks_to_stop(on_iteration(state.records[-1]))
            if status is None and stop:
                status = SolveStatus.STOPPED
    except KeyboardInterrupt:
        status = SolveStatus.INTERRUPTED
        # it may have come between a move and its record
        state.cost = system.score()
    records = tuple(state.records)
    faulty: tuple[str, ...] = ()
    if status is SolveStatus.DERIVATIVES_NOT_FINITE:
        faulty = system.faulty_derivatives()
    remarks = (
        *remarks_on_faults("derivatives", faulty),
        *remarks_on_linear_solves(options, records, state.num_limited, system.stronger),
        *remarks_on_candidates(status, records),
        *remarks_on_rounding(_told_rounding(system, status, state)),
    )
    return Course(status, initial_cost, state.cost, records, remarks)


def _asks_to_stop(answer: object) -> bool:
    try:
        return bool(answer)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"on_iteration returned {type(answer).__name__}, which is neither true nor false "
            f"({error}): return True to stop, False or nothing to go on"
        ) from error


def _told_rounding(
    system: NormalEquations, status: SolveStatus, state: LevenbergState
) -> float | None:
    """How much rounding changes the cost, where users should know."""
    if system.storage is not DType.FLOAT32:
        return None
    if status is not SolveStatus.ITERATION_LIMIT or not crawls(state.records):
        return state.rounding
    found = _rounding(system, state)
    return found if MUCH_ROUNDING * state.cost < found < math.inf else None


def _iterate(
    system: NormalEquations, options: SolveOptions, state: LevenbergState, start: float
) -> SolveStatus | None:
    """One iteration; returns the status that ends the solve, or None."""
    goal = _goal(options, state)
    if not state.linearized:
        system.linearize(goal.damping)
        state.linearized = True
    tried = system.try_step(goal)
    state.num_limited += tried.outcome is LinearOutcome.ITERATIONS
    decrease = state.cost - tried.cost
    gain_ratio = decrease / tried.model_decrease if tried.model_decrease > 0.0 else math.nan
    reason = _rejection(tried, gain_ratio)
    accepted = reason == ""
    status = _converged(options, state, goal.damping, tried, decrease, accepted)
    if accepted:
        state.damping = goal.damping
        system.accept()
        state.cost = tried.cost
        state.linearized = False
    else:
        system.reject()
    _update_damping(options, state, gain_ratio, accepted)
    if accepted:
        _update_tolerance(options, state, tried)
        state.promised = -math.inf
        if status is None:
            status = _fallen(system, state)
    elif math.isfinite(tried.model_decrease):
        state.promised = max(state.promised, _promised(state, tried, goal.damping))
    elapsed = time.perf_counter() - start
    if status is None:
        status = _limit(system, options, state, elapsed)
    state.records.append(
        IterationRecord(
            iteration=len(state.records) + 1,
            cost=state.cost,
            candidate_cost=tried.cost,
            damping=goal.damping,
            gain_ratio=gain_ratio,
            linear_iterations=tried.linear_iterations,
            step_accepted=accepted,
            reason=reason,
            time_s=elapsed,
        )
    )
    return status


def _promised(state: LevenbergState, tried: TriedStep, damping: float) -> float:
    """Decrease of the cost that a rejected step stands for.

    Large damping alone makes what it promises small. Where no step with less was rejected before
    it, what counts is half of what a step would promise without.
    """
    if damping < 1.0 or math.isfinite(state.promised):
        return tried.model_decrease
    return max(tried.model_decrease, 0.5 * (1.0 + damping) * _square(tried.gradient_norm))


def _square(number: float) -> float:
    """Infinite where it is too large: a power would raise."""
    return number * number


def _goal(options: SolveOptions, state: LevenbergState) -> LinearGoal:
    least, damping, tolerance = options.min_linear_iterations, state.damping, state.tolerance
    if state.confirming:
        tolerance = min(tolerance, options.min_linear_tolerance)
        least = max(least, CONFIRMING_ITERATIONS)
        if damping >= 1.0:
            damping = max(CONFIRMING_DAMPING, options.min_damping)
    most = options.max_linear_iterations
    # a step that confirms convergence is mostly the last one too
    is_last = state.confirming or len(state.records) + 1 >= options.max_iterations
    expected = None if is_last else _shrunk(options, state, GREATEST_SHRINK)
    return LinearGoal(damping, tolerance, min(least, most), most, expected)


def _rejection(tried: TriedStep, gain_ratio: float) -> str:
    """Why a step is rejected; empty for an accepted one. NaN is never accepted."""
    if tried.outcome is LinearOutcome.AT_OPTIMUM:
        return "the gradient is zero: there is no step"
    if tried.outcome is LinearOutcome.NOT_FINITE:
        return "the linear solve is not finite"
    if not math.isfinite(tried.cost):
        return NO_FINITE_COST
    if not tried.model_decrease > 0.0:
        return "the linear model predicts no decrease"
    if not gain_ratio > MIN_GAIN_RATIO:
        return "the cost did not decrease as predicted"
    return ""


def _converged(
    options: SolveOptions,
    state: LevenbergState,
    damping: float,
    tried: TriedStep,
    decrease: float,
    accepted: bool,
) -> SolveStatus | None:
    """Convergence after a step, judged before it is taken."""
    if tried.outcome is LinearOutcome.AT_OPTIMUM:
        return SolveStatus.CONVERGED_GRADIENT
    if tried.outcome is LinearOutcome.NOT_FINITE and tried.linear_iterations == 0:
        # damping may mend blocks that overflow, but no gradient that is not finite
        state.num_not_finite += 1
        if state.num_not_finite >= MAX_NOT_FINITE:
            return SolveStatus.DERIVATIVES_NOT_FINITE
        return None
    state.num_not_finite = 0
    if tried.outcome is LinearOutcome.NOT_FINITE or not math.isfinite(tried.cost):
        return None
    # of the damped system: large damping alone makes them small
    relief = 1.0 if damping < 1.0 or state.is_rounding else 1.0 + damping
    slope = relief * _square(tried.gradient_norm)
    if slope <= 2.0 * options.gradient_tolerance * state.cost:
        return SolveStatus.CONVERGED_GRADIENT
    if _square(relief * tried.step_norm) <= 2.0 * options.step_tolerance**2 * state.cost:
        return SolveStatus.CONVERGED_STEP
    if accepted:
        # a step is also small where the damping is large: that says nothing about the minimum
        gain = max(decrease, tried.model_decrease)
        small = gain <= options.cost_tolerance * state.cost and damping < 1.0
    else:
        promised = tried.model_decrease
        if damping >= 1.0:
            promised = max(promised, 0.5 * slope)
        small = 0.0 < promised <= options.cost_tolerance * state.cost
    if small and state.confirming:
        return SolveStatus.CONVERGED_COST
    state.confirming = small
    return None


def _fallen(system: NormalEquations, state: LevenbergState) -> SolveStatus | None:
    """Whether a cost that has fallen far is zero: relative tests never hold at a bound of zero."""
    if state.cost > NEARLY_NEGLIGIBLE * state.initial_cost:
        return None
    if state.cost <= NEGLIGIBLE * min(state.initial_cost, 1.0):
        return SolveStatus.CONVERGED_GRADIENT
    if state.cost <= ROUNDING_SHARE * state.asked_cost:
        state.asked_cost = state.cost
        state.is_rounding = _rounding(system, state) >= ROUNDING_SHARE * state.cost
    is_zero = state.is_rounding and state.cost <= NEGLIGIBLE * state.initial_cost
    return SolveStatus.CONVERGED_GRADIENT if is_zero else None


def _update_damping(
    options: SolveOptions, state: LevenbergState, gain_ratio: float, accepted: bool
) -> None:
    """Madsen, Nielsen, Tingleff (2004), equation 3.16 and algorithm 3.16."""
    if accepted:
        # powers of huge numbers raise
        factor = max(GREATEST_SHRINK, 1.0 - (2.0 * min(gain_ratio, 1.0) - 1.0) ** 3)
        state.damping = _shrunk(options, state, factor)
        state.growth = 2.0
    else:
        state.damping *= state.growth
        state.growth *= 2.0


def _shrunk(options: SolveOptions, state: LevenbergState, factor: float) -> float:
    """The damping after an accepted step, which ends no solve: one of little gain makes it grow."""
    return min(max(options.min_damping, state.damping * factor), options.max_damping)


def _update_tolerance(options: SolveOptions, state: LevenbergState, tried: TriedStep) -> None:
    """Solve the next system as tightly as the gradient shrinks, and never loosen abruptly."""
    previous = state.gradient_norm
    state.gradient_norm = tried.gradient_norm
    if previous is None or not previous > 0.0:
        return
    tolerance = FORCING_FACTOR * tried.gradient_norm / previous
    kept = FORCING_FACTOR * state.tolerance
    if kept > 0.1:
        tolerance = max(tolerance, kept)
    state.tolerance = min(max(tolerance, options.min_linear_tolerance), options.linear_tolerance)


def _limit(
    system: NormalEquations, options: SolveOptions, state: LevenbergState, elapsed_s: float
) -> SolveStatus | None:
    if state.damping > options.max_damping:
        return _stalled(system, state)
    if len(state.records) + 1 >= options.max_iterations:
        return SolveStatus.ITERATION_LIMIT
    if options.max_time_s is not None and elapsed_s >= options.max_time_s:
        return SolveStatus.TIME_LIMIT
    return None


def _stalled(system: NormalEquations, state: LevenbergState) -> SolveStatus:
    """No step lowered the cost. Where none promised more than rounding takes, this is a minimum.

    None can keep what it promises beyond the whole cost, of which little is left where measurements
    have no noise.
    """
    rounding = _rounding(system, state)
    promised = min(state.promised, state.cost)
    explains = math.isfinite(rounding) and rounding > 0.0 and rounding >= promised
    if not (explains and math.isfinite(state.promised)):
        return SolveStatus.DAMPING_LIMIT
    state.rounding = rounding
    return SolveStatus.CONVERGED_COST


def _rounding(system: NormalEquations, state: LevenbergState) -> float:
    """How much rounding the values changes the cost: the most of several draws; NaN if any is."""
    changes = [abs(cost - state.cost) for cost in system.rounded_costs()]
    return math.nan if any(map(math.isnan, changes)) else max(changes)
