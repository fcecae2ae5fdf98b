"""Levenberg-Marquardt on the device: asks the policy, obeys it, and keeps the records.

`policy.decide` decides after each step; where that takes what only the device knows, it asks.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.ir.dtype import DType
from caspar.options import CompleteOptions, SolveOptions
from caspar.progress import iteration as shown_iteration
from caspar.solver.iterate import interrupts
from caspar.solver.iterate.course_remarks import (
    MUCH_GAINED,
    MUCH_ROUNDING,
    gained_at_last,
    remarks_on_candidates,
    remarks_on_faults,
    remarks_on_linear_solves,
    remarks_on_lost_squares,
    remarks_on_promises,
    remarks_on_rounding,
)
from caspar.solver.iterate.interrupts import Callback
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.iterate.policy import (
    CONFIRMING_ITERATIONS,
    decide,
    first_state,
    next_goal,
    resumed_state,
    without_undamped,
)
from caspar.solver.iterate.steps import AskRounding, LinearGoal, PolicyState
from caspar.solver.iterate.stopping import ROUNDING_SHARE, is_at_bottom, remaining_decrease
from caspar.solver.iterate.usual_options import USUAL_OPTIONS
from caspar.solver.result.quantities import cost_text
from caspar.solver.result.result import IterationRecord, SolveStatus
from caspar.solver.system.lone_promises import Promises

HELD_BACK = 1e4
"""Times the cost tolerance: a success is looked at again if a node alone promises more."""

LEAST_GAINED = 1e-9
"""Of the cost: what a solve that went on has gained at least, to go on once more. Or as much as a
success may be promised, if that is more."""

NEGLIGIBLE_DAMPING = 1e-8
"""With at most this, the gain ratio of a step tells how exact the linear model is."""

MODEL_ERROR = 0.5
"""Excess of the gain ratio over 1 from which on such a step tells that it is not. A lower one may
also come from residuals that are not linear."""

MOST_INEXACT = 20
"""Such steps in a row after which Jacobians in float32 are taken to be at fault. Inner iterations
of eliminated nodes gain more than the linear model says, too, but not for long."""

NARROW_PROMISE = 1e-9
"""Of the cost: a success of such a problem goes on in float64 if a step still promises more."""

TOO_NARROW = (
    SolveStatus.DERIVATIVES_NOT_FINITE,
    SolveStatus.OUT_OF_RANGE,
    SolveStatus.DAMPING_LIMIT,
)
"""Ends of solves whose derivatives may not fit float32."""

WITHOUT_REMAINING = (SolveStatus.INTERRUPTED, SolveStatus.DERIVATIVES_NOT_FINITE)
"""Ends after which nobody waits for a linear solve, or none can be had."""


@dataclass
class _Progress:
    """What changes from iteration to iteration.

    Attributes:
        state: What the policy decides by.
        is_looked_at: Whether D was looked at in a step with damping, see there.
        is_singular: Whether there was no step without damping.
        lost: Node types whose derivatives had squares out of range in the first iteration, see
            `NormalEquations.try_first_step`.
        num_inexact: Steps in a row by which Jacobians in float32 have lied.
        num_limited: Linear solves that ended at the limit of PCG iterations.
        rounding: How much rounding the values changes the cost, if that ended the solve.
        records: Iterations so far.
        resumed_cost: Cost at which the solve last went on from an end; infinite if it never did.
        is_resumed: Whether it has just done so, so that the values have to be linearised.
        held_cost: Cost at which it last went on with nodes of next to no influence held.
        doubted: The end from which it went on, if the promises there may be rounding.
        promises: What nodes promised at the last end that was looked at.
        promised_cost: Cost there.
    """

    state: PolicyState
    is_looked_at: bool = False
    is_singular: bool = False
    lost: Mapping[str, bool] = field(default_factory=dict)
    num_inexact: int = 0
    num_limited: int = 0
    rounding: float | None = None
    records: list[IterationRecord] = field(default_factory=list)
    resumed_cost: float = math.inf
    is_resumed: bool = False
    held_cost: float = math.inf
    doubted: SolveStatus | None = None
    promises: Promises | None = None
    promised_cost: float = math.inf


@dataclass(frozen=True)
class Course:
    """How the iterations went.

    Attributes:
        status: Why they ended.
        initial_cost: Cost of the start values.
        final_cost: Cost of the current values.
        remaining_decrease: As in `SolveResult`.
        records: One for each iteration.
        remarks: What else they show, with advice.
        too_narrow: Why the solve should go on in float64, as the end of a sentence; empty: it need
            not. The status means little then.
    """

    status: SolveStatus
    initial_cost: float
    final_cost: float
    remaining_decrease: float
    records: tuple[IterationRecord, ...]
    remarks: tuple[str, ...]
    too_narrow: str = ""


def minimize(
    system: NormalEquations, chosen: SolveOptions, on_iteration: Callback | None
) -> Course:
    """Iterate until a stopping rule holds.

    Args:
        system: The problem on the device; it holds the values that the iterations move.
        chosen: Limits and tolerances, as far as the user chose them.
        on_iteration: Called after each iteration.

    Raises:
        KeyboardInterrupt: The second within `interrupts.SECOND_WITHIN_S`; the first ends the
            iterations.
    """
    start = time.perf_counter()
    options = CompleteOptions.complete(chosen, system.usual_options)
    initial_cost = system.score()
    if not math.isfinite(initial_cost):
        remarks = remarks_on_faults("residuals", system.findings.faulty_costs())
        at_once = SolveStatus.INITIAL_COST_NOT_FINITE
        return Course(at_once, initial_cost, initial_cost, math.nan, (), remarks)
    shown_iteration(lambda: f"start: cost {cost_text(initial_cost)}")
    progress = _Progress(first_state(initial_cost, system.storage, options))
    too_small = _residuals_are_too_small(system, initial_cost)
    status: SolveStatus | None = None
    try:
        while status is None:
            status = _iterate(system, options, progress, start)
            options = _with_floor(options, progress)
            if status is not None:
                status = _confirmed(system, options, progress, status)
            shown_iteration(partial(str, progress.records[-1]))
            stop = False
            if on_iteration is not None:
                stop = interrupts.asks_to_stop(on_iteration(progress.records[-1]))
            if status is None and stop:
                status = SolveStatus.STOPPED
            elif status is None and _inexact_steps(system, progress) != "":
                status = SolveStatus.DAMPING_LIMIT
    except KeyboardInterrupt:
        if interrupts.is_second():
            raise
        status = SolveStatus.INTERRUPTED
        # it may have come between a move and its record
        progress.state = progress.state._replace(cost=system.score())
    lost = _lost_squares(system, options, progress) if status.is_success else {}
    if any(lost.values()) or (status.is_success and too_small):
        status = SolveStatus.OUT_OF_RANGE
    records = tuple(progress.records)
    remaining = _remaining_at_end(system, options, progress, status)
    faulty: tuple[str, ...] = ()
    if status is SolveStatus.DERIVATIVES_NOT_FINITE:
        faulty = system.faulty_derivatives()
    narrow = _too_narrow(system, chosen, progress, status, remaining)
    # float64 judges anew what nodes promise
    promises = _told_promises(progress) if narrow == "" else None
    remarks = (
        *remarks_on_faults("derivatives", faulty),
        *remarks_on_lost_squares(lost),
        *_remarks_on_linear_solves(system, options, progress),
        *remarks_on_candidates(status, records),
        *remarks_on_promises(status, promises, progress.state.cost, system.storage),
        *remarks_on_rounding(_told_rounding(system, status, progress)),
    )
    return Course(status, initial_cost, progress.state.cost, remaining, records, remarks, narrow)


def _with_floor(options: CompleteOptions, progress: _Progress) -> CompleteOptions:
    """The options, with the usual lower bound of the damping if the problem is singular.

    Along what nothing holds, steps of no damping are rounding errors.
    """
    if not progress.is_singular or options.min_damping > 0.0:
        return options
    return replace(options, min_damping=USUAL_OPTIONS["min_damping"])


def _too_narrow(
    system: NormalEquations,
    chosen: SolveOptions,
    progress: _Progress,
    status: SolveStatus,
    remaining: float,
) -> str:
    """Why a solve with Jacobians in float32 and values in float64 should go on in float64."""
    if not system.is_mixed:
        return ""
    if status in TOO_NARROW:
        inexact = _inexact_steps(system, progress)
        return inexact or f"Jacobians in float32 ended it with {status.name}"
    if len(system.plan.eliminated) > 0:
        return ""
    if status.is_success and remaining > NARROW_PROMISE:
        return (
            f"Jacobians in float32 ended it with {status.name}, although a step promised "
            f"{remaining:.1g} of the cost"
        )
    promises = _told_promises(progress)
    if status.is_success and promises is not None and promises.doubtful != "":
        return f"Jacobians in float32 do not tell whether residuals determine {promises.doubtful}"
    if status is SolveStatus.ITERATION_LIMIT and chosen.max_iterations is None:
        return f"it had not converged after {len(progress.records)} iterations"
    return ""


def _inexact_steps(system: NormalEquations, progress: _Progress) -> str:
    """The gain ratio of the last step, if several steps were far from what they promised."""
    if progress.num_inexact < MOST_INEXACT or not system.is_mixed:
        return ""
    gain = progress.records[-1].gain_ratio
    return f"steps of next to no damping gained {gain:.2g} times what Jacobians in float32 promised"


def _remarks_on_linear_solves(
    system: NormalEquations, options: CompleteOptions, progress: _Progress
) -> tuple[str, ...]:
    records, num_limited = progress.records, progress.num_limited
    is_chained, stronger = system.is_chained, system.stronger
    return remarks_on_linear_solves(options, records, num_limited, stronger, is_chained=is_chained)


def _residuals_are_too_small(system: NormalEquations, cost: float) -> bool:
    """Whether squares of residuals are too small for the values' type: a zero says nothing then.

    Not if the start is a solution: then the residuals are zero, or rounding the values changes
    them by more, or by half.
    """
    limits = np.finfo(system.storage.value)
    least = 0.5 * system.num_residuals * float(limits.tiny) / float(limits.eps)
    if cost > least or system.findings.largest_residual() == 0.0:
        return False
    others = system.rounded_costs()
    change = max(abs(other - cost) for other in others)
    return max(others) <= least and change <= ROUNDING_SHARE * cost


def _lost_squares(
    system: NormalEquations, options: CompleteOptions, progress: _Progress
) -> Mapping[str, bool]:
    """Node types whose derivatives have squares out of range, at the start and now.

    It comes from the units mostly, so that the start shows it.
    """
    if len(progress.lost) == 0:
        return {}
    goal = next_goal(progress.state, options)
    system.score()
    system.linearize(goal.damping)
    _, lost = system.try_first_step(goal)
    system.reject()
    return lost


def _remaining_at_end(
    system: NormalEquations, options: CompleteOptions, progress: _Progress, status: SolveStatus
) -> float:
    """What `SolveResult.remaining_decrease` says: 0 if rounding changes the cost by as much."""
    state = progress.state
    if status in WITHOUT_REMAINING:
        return state.remaining
    remaining = _remaining_decrease(system, options, state)
    rounding = progress.rounding if status is SolveStatus.CONVERGED_COST else None
    return 0.0 if rounding is not None and remaining * state.cost <= rounding else remaining


def _remaining_decrease(
    system: NormalEquations, options: CompleteOptions, state: PolicyState
) -> float:
    """What a step of next to no damping still promises, by one more linear solve if need be.

    It is not known either if confirming steps had to take more damping: those with less promised
    something and did not keep it.
    """
    if options.ends_by_rises and is_at_bottom(state):
        return state.attainable / state.cost
    if not math.isnan(state.remaining) and state.relief <= state.least_relief:
        return state.remaining
    return _promised_with(system, options, state, state.least_relief)


def _promised_with(
    system: NormalEquations, options: CompleteOptions, state: PolicyState, damping: float
) -> float:
    """What a step of that damping promises at the current values, relative to the cost."""
    goal = LinearGoal(
        damping=damping,
        tolerance=options.min_linear_tolerance,
        min_iterations=min(CONFIRMING_ITERATIONS, options.max_linear_iterations),
        max_iterations=options.max_linear_iterations,
        is_whole=True,
    )
    return remaining_decrease(state.cost, system.promise(goal))


def _told_promises(progress: _Progress) -> Promises | None:
    """What nodes promised, if it was at the values that are returned."""
    return progress.promises if progress.state.cost >= progress.promised_cost else None


def _told_rounding(
    system: NormalEquations, status: SolveStatus, progress: _Progress
) -> float | None:
    """How much rounding changes the cost, where users should know."""
    if system.values_type is not DType.FLOAT32:
        return None
    cost, gained = progress.state.cost, gained_at_last(progress.records)
    if status is not SolveStatus.ITERATION_LIMIT or gained > MUCH_GAINED * cost:
        return progress.rounding
    found = _change(system, cost, AskRounding.LAST_DIGIT)
    return found if max(MUCH_ROUNDING * cost, gained) < found < math.inf else None


def _iterate(
    system: NormalEquations, options: CompleteOptions, progress: _Progress, start: float
) -> SolveStatus | None:
    """One iteration; returns the status that ends the solve, or None."""
    goal = next_goal(progress.state, options)
    is_first = progress.state.num_iterations == 0
    if is_first or progress.is_resumed or progress.records[-1].step_accepted:
        system.linearize(goal.damping)
    if is_first or not progress.is_looked_at:
        tried, progress.lost = system.try_first_step(goal)
        progress.is_looked_at = goal.damping > 0.0
    else:
        tried = system.try_step(goal)
    if progress.state.tries_undamped and tried.outcome is LinearOutcome.NOT_FINITE:
        system.reject()
        system.score()  # what was linearised and scored is of the candidate
        progress.is_singular = True
        progress.state = without_undamped(progress.state)
        return _iterate(system, options, progress, start)
    progress.is_resumed = False
    progress.num_limited += tried.outcome is LinearOutcome.ITERATIONS
    elapsed_s = time.perf_counter() - start
    if options.max_time_s is not None:
        elapsed_s = system.communicator.broadcast(elapsed_s)
    changes: dict[AskRounding, float] = {}
    state, decision = decide(progress.state, tried, elapsed_s, options, changes)
    if decision.accepted:
        system.accept()
    else:
        system.reject()
    while isinstance(decision.end, AskRounding):
        changes[decision.end] = _change(system, decision.cost, decision.end)
        state, decision = decide(progress.state, tried, elapsed_s, options, changes)
    if decision.end is SolveStatus.CONVERGED_COST:
        progress.rounding = changes.get(AskRounding.LAST_DIGIT)
    is_inexact = goal.damping <= NEGLIGIBLE_DAMPING and decision.gain_ratio > 1.0 + MODEL_ERROR
    progress.num_inexact = progress.num_inexact + 1 if is_inexact else 0
    progress.state = state
    progress.records.append(
        IterationRecord(
            iteration=state.num_iterations,
            cost=decision.cost,
            candidate_cost=tried.cost,
            damping=goal.damping,
            gain_ratio=decision.gain_ratio,
            linear_iterations=tried.linear_iterations,
            step_accepted=decision.accepted,
            reason=decision.verdict.value,
            time_s=elapsed_s,
        )
    )
    return decision.end


def _confirmed(
    system: NormalEquations, options: CompleteOptions, progress: _Progress, status: SolveStatus
) -> SolveStatus | None:
    """Whether an end stays, by what steps of next to no damping promise; None: the solve goes on.

    D forgets then what it remembers, and the damping is the first one again. An end stays a success
    if the solve goes on in vain, unless the promise can be trusted.
    """
    most = HELD_BACK * options.cost_tolerance
    least_gained = max(LEAST_GAINED, most)
    has_gained = progress.state.cost <= (1.0 - least_gained) * progress.resumed_cost
    if status is SolveStatus.DAMPING_LIMIT and _holds_weak(system, options, progress):
        return None
    if not status.is_success:
        is_in_vain = status is SolveStatus.DAMPING_LIMIT and not has_gained
        return progress.doubted if is_in_vain and progress.doubted is not None else status
    state = progress.state
    is_bottom = options.ends_by_rises and is_at_bottom(state)
    if state.is_rounding or state.cost == 0.0 or is_bottom:
        if system.findings.has_lone_promises:
            progress.promises = _free_alone(_promises(system, options, progress))
            progress.promised_cost = state.cost
        return status
    promises = progress.promises = _promises(system, options, progress)
    state = progress.state
    progress.promised_cost = state.cost
    if promises is None:
        return status
    change = 0.0
    if promises.decrease > most * state.cost:
        change = _change(system, state.cost, AskRounding.LAST_DIGIT)
    if promises.decrease <= most * state.cost or change >= min(promises.decrease, state.cost):
        progress.promises = _free_alone(promises)
        return status
    is_trusted = promises.trusted > max(most * state.cost, change)
    if has_gained and state.num_iterations < options.max_iterations:
        progress.resumed_cost, progress.is_resumed = state.cost, True
        progress.doubted = None if is_trusted else status
        progress.state = resumed_state(state, options)
        system.forget()
        return None
    return SolveStatus.DAMPING_LIMIT if is_trusted else status


def _free_alone(promises: Promises | None) -> Promises | None:
    """Promises that are slight or rounding: they say no more than which unknowns nothing holds."""
    return None if promises is None else replace(promises, decrease=0.0, trusted=0.0, where="")


def _holds_weak(system: NormalEquations, options: CompleteOptions, progress: _Progress) -> bool:
    """Whether the solve goes on from the damping limit, with what has next to no influence held.

    Not if it did so and has gained nothing since.
    """
    state = progress.state
    has_gained = state.cost <= (1.0 - LEAST_GAINED) * progress.held_cost
    if not has_gained or state.num_iterations >= options.max_iterations:
        return False
    progress.held_cost = state.cost
    _promised_with(system, options, state, state.least_relief)
    if not system.hold_weak():
        return False
    progress.state, progress.is_resumed = resumed_state(state, options), True
    return True


def _promises(
    system: NormalEquations, options: CompleteOptions, progress: _Progress
) -> Promises | None:
    """What nodes promise at an end: one by one, or together if looking at each is too slow.

    Returns:
        None if it is little, or not known.
    """
    state = progress.state
    if system.findings.has_lone_promises:
        system.score()
        system.linearize(state.damping)
        return system.findings.lone_promises()
    remaining = _remaining_decrease(system, options, state)
    progress.state = state._replace(remaining=remaining, relief=state.least_relief)
    if not remaining > HELD_BACK * options.cost_tolerance:
        return None
    # with D = diag(J^T J) this damping holds directions that have less than half of their digits
    system.forget()
    half = math.sqrt(float(np.finfo(system.storage.value).eps))
    trusted = _promised_with(system, options, state, half)
    return Promises(remaining * state.cost, trusted * state.cost)


def _change(system: NormalEquations, cost: float, ask: AskRounding) -> float:
    """How much the cost changes by such a rounding: the most of several draws; NaN if any is."""
    if ask is AskRounding.LAST_THIRD:
        return cost * system.coarsely_rounded_change()
    changes = [abs(other - cost) for other in system.rounded_costs()]
    return math.nan if any(map(math.isnan, changes)) else max(changes)
