"""Levenberg-Marquardt with the gain-ratio damping of Madsen, Nielsen and Tingleff (2004).

The damped linear system is solved inexactly, as tightly as the progress warrants (a forcing term
in the manner of Eisenstat and Walker). A step that gains next to nothing may be small because its
linear solve stopped early: before the solve ends, it is repeated with the tightest tolerance.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.errors import OptionError
from caspar.ir.dtype import DType
from caspar.options import SolveOptions
from caspar.solver.iterate import interrupts
from caspar.solver.iterate.course_remarks import (
    MUCH_GAINED,
    MUCH_ROUNDING,
    NO_FINITE_COST,
    gained_at_last,
    remarks_on_candidates,
    remarks_on_faults,
    remarks_on_linear_solves,
    remarks_on_lost_squares,
    remarks_on_rounding,
)
from caspar.solver.iterate.interrupts import Callback
from caspar.solver.iterate.normal_equations import NormalEquations
from caspar.solver.iterate.steps import LinearGoal, TriedStep
from caspar.solver.iterate.stopping import StoppingRules, change_by_rounding
from caspar.solver.result.result import IterationRecord, SolveStatus

MIN_GAIN_RATIO = 1e-3
"""Steps with less of the predicted decrease are rejected."""

GOOD_GAIN_RATIO = 0.25
"""With which a step of less than the usual damping makes its damping the usual one."""

GREATEST_SHRINK = 0.2
"""Damping shrinks by this at most for each accepted step."""

FORCING_FACTOR = 0.9
"""Share of the gradient norm's ratio that becomes the next tolerance."""

CONFIRMING_ITERATIONS = 10
"""PCG iterations at least of the step that confirms convergence."""


@dataclass
class LevenbergState:
    """What changes from iteration to iteration.

    Attributes:
        cost: Cost of the current values.
        rules: Whether the solve ends.
        damping: Next damping.
        growth: Factor of the damping after the next rejection.
        tolerance: Next tolerance of the linear solver.
        gradient_norm: Of the last linearisation; None before the first.
        linearized: The system is linearised at the current values.
        lost: Node types whose derivatives had squares out of range in the first iteration, see
            `NormalEquations.try_first_step`; None: not looked at yet.
        num_limited: Linear solves that ended at the limit of PCG iterations.
        records: Iterations so far.
    """

    cost: float
    rules: StoppingRules
    damping: float
    tolerance: float
    growth: float = 2.0
    gradient_norm: float | None = None
    linearized: bool = False
    lost: Mapping[str, bool] | None = None
    num_limited: int = 0
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

    Raises:
        KeyboardInterrupt: The second within `interrupts.SECOND_WITHIN_S`; the first ends the
            iterations.
    """
    start = time.perf_counter()
    initial_cost = system.score()
    damping = options.initial_damping
    if damping is None:
        damping = min(max(system.usual_damping, options.min_damping), options.max_damping)
    rules = StoppingRules(system, options, initial_cost)
    state = LevenbergState(initial_cost, rules, damping, options.linear_tolerance)
    if not math.isfinite(initial_cost):
        remarks = remarks_on_faults("residuals", system.faulty_costs())
        at_once = SolveStatus.INITIAL_COST_NOT_FINITE
        return Course(at_once, initial_cost, initial_cost, (), remarks)
    too_small = _residuals_are_too_small(system, initial_cost)
    status: SolveStatus | None = None
    try:
        while status is None:
            status = _iterate(system, options, state, start)
            stop = on_iteration is not None and _asks_to_stop(on_iteration(state.records[-1]))
            if status is None and stop:
                status = SolveStatus.STOPPED
    except KeyboardInterrupt:
        if interrupts.is_second():
            raise
        status = SolveStatus.INTERRUPTED
        # it may have come between a move and its record
        state.cost = system.score()
    lost = _lost_squares(system, options, state) if status.is_success else {}
    if any(lost.values()) or (status.is_success and too_small):
        status = SolveStatus.OUT_OF_RANGE
    records = tuple(state.records)
    faulty: tuple[str, ...] = ()
    if status is SolveStatus.DERIVATIVES_NOT_FINITE:
        faulty = system.faulty_derivatives()
    remarks = (
        *remarks_on_faults("derivatives", faulty),
        *remarks_on_lost_squares(lost),
        *remarks_on_linear_solves(options, records, state.num_limited, system.stronger),
        *remarks_on_candidates(status, records),
        *remarks_on_rounding(_told_rounding(system, status, state)),
    )
    return Course(status, initial_cost, state.cost, records, remarks)


def _residuals_are_too_small(system: NormalEquations, cost: float) -> bool:
    """Whether squares of residuals are too small for the values' type: a zero says nothing then.

    Not if the start is a solution: then the residuals are zero, or rounding the values changes
    them by more.
    """
    limits = np.finfo(system.storage.value)
    least = 0.5 * system.num_residuals * float(limits.tiny) / float(limits.eps)
    if cost > least or system.largest_residual() == 0.0:
        return False
    return max(system.rounded_costs()) <= least


def _lost_squares(
    system: NormalEquations, options: SolveOptions, state: LevenbergState
) -> Mapping[str, bool]:
    """Node types whose derivatives have squares out of range, at the start and now.

    It comes from the units mostly, so that the start shows it.
    """
    if not state.lost:
        return {}
    goal = _goal(options, state)
    system.score()
    system.linearize(goal.damping)
    _, lost = system.try_first_step(goal)
    system.reject()
    return lost


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
    gained = gained_at_last(state.records)
    if status is not SolveStatus.ITERATION_LIMIT or gained > MUCH_GAINED * state.cost:
        return state.rules.rounding
    found = change_by_rounding(system, state.cost)
    return found if max(MUCH_ROUNDING * state.cost, gained) < found < math.inf else None


def _iterate(
    system: NormalEquations, options: SolveOptions, state: LevenbergState, start: float
) -> SolveStatus | None:
    """One iteration; returns the status that ends the solve, or None."""
    goal = _goal(options, state)
    if not state.linearized:
        system.linearize(goal.damping)
        state.linearized = True
    if state.lost is None:
        tried, state.lost = system.try_first_step(goal)
    else:
        tried = system.try_step(goal)
    state.num_limited += tried.outcome is LinearOutcome.ITERATIONS
    decrease = state.cost - tried.cost
    gain_ratio = decrease / tried.model_decrease if tried.model_decrease > 0.0 else math.nan
    reason = _rejection(tried, gain_ratio)
    accepted = reason == ""
    relieved = goal.damping < state.damping
    status = state.rules.after_step(
        state.cost, goal.damping, tried, accepted=accepted, relieved=relieved
    )
    if accepted:
        if gain_ratio >= GOOD_GAIN_RATIO:
            state.damping = goal.damping
        system.accept()
        state.cost = tried.cost
        state.linearized = False
    else:
        system.reject()
    if accepted or not relieved:
        _update_damping(options, state, gain_ratio, accepted)
    if accepted:
        _update_tolerance(options, state, tried)
        if status is None:
            status = state.rules.fallen(state.cost)
    elapsed, number = time.perf_counter() - start, len(state.records) + 1
    if status is None:
        status = state.rules.limit(state.cost, state.damping, number, elapsed)
    state.records.append(
        IterationRecord(
            iteration=number,
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


def _goal(options: SolveOptions, state: LevenbergState) -> LinearGoal:
    least, damping, tolerance = options.min_linear_iterations, state.damping, state.tolerance
    if state.rules.confirming:
        tolerance = min(tolerance, options.min_linear_tolerance)
        least = max(least, CONFIRMING_ITERATIONS)
        damping = state.rules.confirming_damping(damping)
    most = options.max_linear_iterations
    # a step that confirms convergence is mostly the last one too
    is_last = state.rules.confirming or len(state.records) + 1 >= options.max_iterations
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
