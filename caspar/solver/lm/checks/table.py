"""All checks of an end, in the order in which they are asked; the short ones are here.

Cost tier: once for each end; most return at once unless the end is of their kind. Each check names
the problem that needs it.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from caspar.ir.dtype import DType
from caspar.solver.lm.checks import mixed_precision, promises, saddles
from caspar.solver.lm.course import LEAST_GAINED, Check, Course, Judgment
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.policy import ROUNDING_SHARE, next_goal
from caspar.solver.lm.steps import AskRounding, Verdict
from caspar.solver.result.result import SolveStatus

WITHOUT_REMAINING = (
    SolveStatus.INITIAL_COST_NOT_FINITE,
    SolveStatus.INTERRUPTED,
    SolveStatus.DERIVATIVES_NOT_FINITE,
)
"""Ends after which nobody waits for a linear solve, or none can be had."""

MANY_LIMITED = 0.2
"""Share of the iterations whose linear solve was cut short, from which on it is remarked."""

MUCH_ROUNDING = 1e-3
"""Share of the cost. If rounding the values changes more, and the last iterations of a solve that
reached its limit gained no more than that change, a remark says so."""

CRAWLING = 20
"""Iterations that are looked at for that."""

MUCH_GAINED = 0.1
"""Share of the cost. If these iterations gained more, the effect of rounding is not measured: that
takes some evaluations."""

LONG_ENOUGH = 4
"""Iterations after which values may have run away. Solves that go on from a solution take fewer."""

MUCH_FALLEN = 0.5
"""Share of the first cost that is left after a solve that did not go on from a solution, although
it took fewer iterations: a first step without damping solves linear problems at once."""

_CHAINED = (
    "Long chains, such as pose graphs, may then end in a worse minimum: raise "
    "max_linear_iterations, and lower linear_tolerance and min_linear_tolerance."
)
_LOOSE = (
    "The nodes that remain are coupled more strongly than the preconditioner knows, as in a scene "
    "whose parts share few points, or far from the minimum: use linear_solver='sparse' or "
    "'schur_dense' if the matrix fits, or raise max_linear_iterations."
)


def weak_nodes(course: Course) -> Judgment | None:
    """Go on from the damping limit with weak nodes held, unless the last time gained nothing.

    D is relative: an unknown of which the residuals say next to nothing, such as the width of a
    peak beside all samples, has next to no D, and every step throws it far away. One such node
    among a thousand, and no step of all of them lowers the cost
    (`test_a_fit_without_influence_does_not_hold_the_others_up`).
    """
    if course.status is not SolveStatus.DAMPING_LIMIT:
        return None
    has_gained = course.cost <= (1.0 - LEAST_GAINED) * course.held_cost
    if not has_gained or course.state.num_iterations >= course.options.max_iterations:
        return None
    course.held_cost = course.cost
    course.promised_with(course.state.least_relief)  # for the D of little damping
    return Judgment(goes_on=True) if course.system.hold_weak() else None


def lost_squares(course: Course) -> Judgment | None:
    """No success if squares of derivatives are zero or infinite at the start and at the end.

    It comes from the units mostly, such as lengths of 1e-30, so the first derivatives show it
    (`test_squares_of_derivatives_out_of_range`). Cost: a linear solve, if they did.
    """
    if not course.is_success or len(course.lost_at_start) == 0:
        return None
    system, goal = course.system, next_goal(course.state, course.options)
    system.score()
    system.linearize(goal.damping)
    _, lost = course.first_step(goal)
    system.reject()
    if len(lost) == 0:
        return None
    remark = (
        f"Squares of derivatives by {', '.join(lost)} are zero or infinite in the floating type, "
        "so these values may not have moved. Use precision='float64', or another unit for these "
        "values or for the residuals."
    )
    is_moved = not any(lost.values())
    return Judgment(status=None if is_moved else SolveStatus.OUT_OF_RANGE, remarks=(remark,))


def residuals_are_tiny(system: NormalEquations, cost: float) -> bool:
    """Return whether squares of the first residuals, which were just evaluated, are too small.

    Not if the start is a solution: then the residuals are zero, or rounding the values changes
    them by more, or by half.
    """
    limits = np.finfo(system.storage.value)
    least = 0.5 * system.num_residuals * float(limits.tiny) / float(limits.eps)
    if not cost <= least or system.findings.largest_residual() == 0.0:
        return False
    others = system.rounded_costs()
    change = max(abs(other - cost) for other in others)
    return max(others) <= least and change <= ROUNDING_SHARE * cost


def tiny_residuals(course: Course) -> Judgment | None:
    """No success if a cost of zero says nothing: `test_squares_of_residuals_that_vanish`."""
    if not course.is_success or not course.is_tiny_at_start:
        return None
    return Judgment(status=SolveStatus.OUT_OF_RANGE)


def remaining(course: Course) -> Judgment:
    """The remaining decrease; 0 if rounding the values changes the cost by as much.

    It tells a minimum from a solve that crawls. Cost: a linear solve, unless a step of little
    damping was tried at these values.
    """
    if course.status in WITHOUT_REMAINING:
        return Judgment(remaining_decrease=course.state.remaining)
    decrease = course.promised_undamped()
    explained_by = course.explained_by if course.status is SolveStatus.CONVERGED_COST else None
    if explained_by is not None and decrease * course.cost <= explained_by:
        decrease = 0.0
    return Judgment(remaining_decrease=decrease)


def faulty_factors(course: Course) -> Judgment | None:
    """Name the factors of which something is not finite: one bad measurement among thousands.

    Cost: some passes over the arrays, of a solve that failed.
    """
    if course.status is SolveStatus.INITIAL_COST_NOT_FINITE:
        what, factors = "residuals", course.system.findings.faulty_costs()
    elif course.status is SolveStatus.DERIVATIVES_NOT_FINITE:
        what, factors = "derivatives", course.system.faulty_derivatives()
    else:
        return None
    if len(factors) == 0:
        return None
    remark = f"The {what} of these factors are not finite: {', '.join(factors)}."
    return Judgment(remarks=(remark,))


def limited_solves(course: Course) -> Judgment | None:
    """A remark on PCG that stopped at its limit, as for the soft modes of long chains."""
    num_records = len(course.records)
    if course.num_limited <= MANY_LIMITED * num_records:
        return None
    remark = (
        f"PCG stopped at max_linear_iterations={course.options.max_linear_iterations} in "
        f"{course.num_limited} of {num_records} iterations, so these steps were inexact. "
        f"{_CHAINED if course.system.is_chained else _LOOSE}"
    )
    return Judgment(remarks=(remark,))


def faulty_candidates(course: Course) -> Judgment | None:
    """Say if all the last steps ended at values without a finite cost, up to the damping limit.

    An example is a residual with a logarithm whose start is at the edge of its domain
    (`test_faults.test_candidates_without_a_cost`).
    """
    if course.status is not SolveStatus.DAMPING_LIMIT:
        return None
    last = itertools.takewhile(lambda record: not record.step_accepted, reversed(course.records))
    reasons = [record.reason for record in last]
    if set(reasons) != {Verdict.NO_FINITE_COST.value}:
        return None
    remark = (
        f"None of the last {len(reasons)} candidates had a finite cost. Look for an overflow, or "
        "for a root, a logarithm or a quotient at the edge of its domain."
    )
    return Judgment(remarks=(remark,))


def rounded_values(course: Course) -> Judgment | None:
    """Judge whether rounding of float32 values ended the solve or holds it up.

    Needed by values that are large beside what they differ by
    (`test_values_far_from_their_origin`). Cost: some evaluations of the cost, of a solve that
    crawled to its limit.
    """
    if course.system.values_type is not DType.FLOAT32:
        return None
    rounding, records, cost = course.explained_by, course.records, course.cost
    if course.status is SolveStatus.ITERATION_LIMIT and len(records) >= CRAWLING:
        gained = records[-CRAWLING].cost - records[-1].cost
        if gained <= MUCH_GAINED * cost:
            change = course.rounding_change(AskRounding.LAST_DIGIT, cost)
            rounding = change if max(MUCH_ROUNDING * cost, gained) < change < math.inf else None
    if rounding is None:
        return None
    remark = (
        f"Rounding the values to float32 changes the cost by {rounding:.2g}, so steps can hardly "
        "lower it further. Use precision='float64'. If the values are large compared with their "
        "differences, an origin near them helps too."
    )
    return Judgment(remarks=(remark,))


def free_values(course: Course) -> Judgment | None:
    """Remarks on numbers that ran away (`test_a_rate_that_ran_away`) and positions nothing holds.

    Not if the solve only went on from a solution. Cost: some reductions over the values, and
    evaluations of the cost if something is suspected (`system.free_values`).
    """
    has_fallen = course.cost <= MUCH_FALLEN * course.initial_cost
    if course.status in WITHOUT_REMAINING or not (has_fallen or len(course.records) >= LONG_ENOUGH):
        return None
    return Judgment(remarks=course.system.remarks_on_values(course.cost, course.initial_cost))


MAY_GO_ON: tuple[Check, ...] = (
    weak_nodes,  #      DAMPING_LIMIT: goes on with weak nodes held
    promises.check,  #  success: goes on, or DAMPING_LIMIT; DAMPING_LIMIT: the success before
    saddles.check,  #   success: goes on beside a saddle point
)
"""Asked whenever the policy ends the iterations."""

AT_THE_END: tuple[Check, ...] = (
    lost_squares,  #    success: OUT_OF_RANGE
    tiny_residuals,  #  success: OUT_OF_RANGE
    remaining,  #       remaining decrease
    faulty_factors,  #  INITIAL_COST_NOT_FINITE, DERIVATIVES_NOT_FINITE: remark
    mixed_precision.check,  # goes on in float64
    limited_solves,  #  remark
    faulty_candidates,  # DAMPING_LIMIT: remark
    promises.remarks,  # success, DAMPING_LIMIT: remark
    rounded_values,  #  remark
    free_values,  #     remark
)
"""Asked once, whatever has ended the iterations."""


def judge(course: Course, checks: Sequence[Check]) -> None:
    """Let checks judge the end of a course, until one of them lets it go on."""
    for check in checks:
        judgment = check(course)
        if judgment is None:
            continue
        if judgment.goes_on:
            course.go_on()
            return
        if judgment.status is not None:
            course.status = judgment.status
        if judgment.remaining_decrease is not None:
            course.remaining_decrease = judgment.remaining_decrease
        course.too_narrow = judgment.too_narrow or course.too_narrow
        course.remarks += judgment.remarks
