"""Levenberg-Marquardt on the device: `minimize` is the algorithm.

`policy.next_goal` says what the linear solver is asked for, `policy.decide` what becomes of the
step; if that takes what only the device knows, it asks. An end that the policy sees is judged by
`checks.table`. Cost tier: once an iteration; a step is one exchange with the device.
"""

import math
import time
from dataclasses import replace
from functools import partial

from caspar.equations.scalar_kernels import LinearOutcome
from caspar.options import CompleteOptions, SolveOptions
from caspar.progress import iteration as shown_iteration
from caspar.solver.lm import interrupts
from caspar.solver.lm.checks.mixed_precision import has_inexact_steps, most_unseen_steps
from caspar.solver.lm.checks.table import AT_THE_END, MAY_GO_ON, judge, residuals_are_tiny
from caspar.solver.lm.course import Course
from caspar.solver.lm.interrupts import Callback
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.plain.steps import behind_plain, may_be_plain, plain_numbers
from caspar.solver.lm.policy import decide, first_state, next_goal
from caspar.solver.lm.steps import AskRounding, LinearGoal, TriedStep
from caspar.solver.lm.usual_options import USUAL_OPTIONS
from caspar.solver.result.quantities import cost_text
from caspar.solver.result.result import IterationRecord, SolveStatus


def minimize(
    system: NormalEquations, chosen: SolveOptions, on_iteration: Callback | None
) -> Course:
    """Iterate until a stopping rule holds and no check objects."""
    course, is_mixed = _begun(system, chosen), system.is_mixed
    try:
        while course.status is None:
            if on_iteration is None:
                _take_plain_steps(course)
            goal = next_goal(course.state, course.options)
            if course.has_moved:
                system.linearize(goal.damping)
            tried = _tried(course, goal)
            if tried.outcome is LinearOutcome.NOT_FINITE and course.state.tries_undamped:
                _begin_with_damping(course)
                continue
            course.status = _decided(course, goal, tried)
            if course.status is not None:
                judge(course, MAY_GO_ON)
            stops = _shown(course, on_iteration)
            if course.status is None and stops:
                course.status = SolveStatus.STOPPED
            elif course.status is None and is_mixed and has_inexact_steps(course):
                course.status = SolveStatus.DAMPING_LIMIT
    except KeyboardInterrupt:
        if interrupts.is_second():
            raise
        course.status = SolveStatus.INTERRUPTED
        # it may have come between a move and its record
        course.state = course.state._replace(cost=system.score())
    judge(course, AT_THE_END)
    return course


def _begun(system: NormalEquations, chosen: SolveOptions) -> Course:
    """The course before the first iteration, with the cost of the start."""
    start_s = time.perf_counter()
    options = CompleteOptions.complete(chosen, system.usual_options)
    cost = system.score()
    state = first_state(cost, system.storage, options)
    course = Course(system, chosen, options, cost, start_s, state)
    if not math.isfinite(cost):
        course.status = SolveStatus.INITIAL_COST_NOT_FINITE
        return course
    shown_iteration(lambda: f"start: cost {cost_text(cost)}")
    course.is_tiny_at_start = residuals_are_tiny(system, cost)
    return course


def _take_plain_steps(course: Course) -> None:
    """Take the steps that need no decision of the host, if there may be any."""
    state, options = course.state, course.options
    if not (course.has_moved and may_be_plain(state, options)):
        return
    begun = time.perf_counter()
    numbers = plain_numbers(state, options, looks=not course.is_looked_at)
    most = options.max_iterations - state.num_iterations - 1
    if course.system.is_mixed:
        most = min(most, most_unseen_steps(course))
    if most < 1:
        return
    steps = course.system.take_plain_steps(numbers, most)
    if steps is None or len(steps.rows) == 0:
        return
    # all that is known of the times between
    each_s = (time.perf_counter() - begun) / len(steps.rows)
    for number, (cost, damping, gain_ratio) in enumerate(steps.rows, start=1):
        record = IterationRecord(
            iteration=state.num_iterations + number,
            cost=cost,
            candidate_cost=cost,
            damping=damping,
            gain_ratio=gain_ratio,
            linear_iterations=1,
            step_accepted=True,
            reason="",
            time_s=begun - course.start_s + number * each_s,
        )
        course.records.append(record)
        shown_iteration(partial(str, record))
    course.state = behind_plain(steps.numbers)
    course.cost_changes.clear()
    if not course.is_looked_at:
        course.lost_at_start = {}  # a step is not plain if D shows anything


def _tried(course: Course, goal: LinearGoal) -> TriedStep:
    """Try a step. The first one with damping shows whether D is to level units."""
    if course.is_looked_at:
        return course.system.try_step(goal)
    tried, course.lost_at_start = course.first_step(goal)
    course.is_looked_at = goal.damping > 0.0
    return tried


def _begin_with_damping(course: Course) -> None:
    """Begin again, as there is no step without damping: the problem is singular.

    Damping keeps its usual lower bound then: along what nothing holds, steps of no damping are
    rounding errors.
    """
    course.system.reject()
    course.system.score()  # what was linearised and scored is of the candidate
    course.state = course.state._replace(damping=course.options.initial_damping)
    if course.options.min_damping == 0.0:
        floor = USUAL_OPTIONS["min_damping"]
        course.options = replace(course.options, min_damping=floor)


def _decided(course: Course, goal: LinearGoal, tried: TriedStep) -> SolveStatus | None:
    """Accept or reject the step, and note the iteration; why the policy ends the iterations."""
    system, options = course.system, course.options
    elapsed_s = time.perf_counter() - course.start_s
    if options.max_time_s is not None:
        elapsed_s = system.communicator.broadcast(elapsed_s)
    changes: dict[AskRounding, float] = {}
    state, decision = decide(course.state, tried, elapsed_s, options, changes)
    accepted = decision.accepted
    if accepted:
        system.accept()
        course.cost_changes.clear()
    else:
        system.reject()
    while isinstance(decision.end, AskRounding):
        changes[decision.end] = course.rounding_change(decision.end, decision.cost)
        state, decision = decide(course.state, tried, elapsed_s, options, changes)
    course.state, course.has_moved = state, accepted
    course.num_limited += tried.outcome is LinearOutcome.ITERATIONS
    if decision.end is SolveStatus.CONVERGED_COST:
        course.explained_by = changes.get(AskRounding.LAST_DIGIT)
    course.records.append(
        IterationRecord(
            iteration=state.num_iterations,
            cost=decision.cost,
            candidate_cost=tried.cost,
            damping=goal.damping,
            gain_ratio=decision.gain_ratio,
            linear_iterations=tried.linear_iterations,
            step_accepted=accepted,
            reason=decision.verdict.value,
            time_s=elapsed_s,
        )
    )
    return decision.end


def _shown(course: Course, on_iteration: Callback | None) -> bool:
    """Show the iteration; whether the callback stops the solve."""
    shown_iteration(partial(str, course.records[-1]))
    if on_iteration is None:
        return False
    return interrupts.asks_to_stop(on_iteration(course.records[-1]))
