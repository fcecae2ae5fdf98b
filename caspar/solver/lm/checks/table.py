"""All checks of an end; the tables at the end have the order in which they are asked.

Cost tier: once for each end; most return at once unless the end is of their kind. Each check names
the problem that needs it.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.ir.dtype import DType
from caspar.solver.lm.checks import mixed_precision
from caspar.solver.lm.course import LEAST_GAINED, Check, Course, Judgment
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.policy import ROUNDING_SHARE, next_goal
from caspar.solver.lm.steps import AskRounding, Verdict
from caspar.solver.plan.plan import Plan
from caspar.solver.result.result import SolveStatus
from caspar.solver.system.free_values import write_added
from caspar.solver.system.lone_promises import MOST_DIRECTIONS, Direction, Promises, numbers_of

HELD_BACK = 1e4
"""Times the cost tolerance: a success is looked at again if a node alone promises more. A solve
that went on from there has to gain as much, to go on once more."""


def held_back(course: Course) -> Judgment | None:
    """Go on from a success at which a step of next to no damping still promises a lower cost.

    D remembers what diag(J^T J) was (`node_kernels.MEMORY`). An unknown that has lost its influence
    on the residuals is then held by every damping, and steps promise nothing although its own slope
    does not vanish: `test_a_rate_that_has_lost_its_influence`, of NIST's BoxBOD. So D forgets. It
    stays a success if the solve goes on in vain, unless the promise can be trusted.

    Cost: a linearisation and eigenvalues of each node's block, of few unknowns
    (`system.lone_promises`); else up to two linear solves.
    """
    state, options, cost = course.state, course.options, course.cost
    most = HELD_BACK * options.cost_tolerance
    has_gained = cost <= (1.0 - max(LEAST_GAINED, most)) * course.resumed_cost
    if course.status is SolveStatus.DAMPING_LIMIT and not has_gained:
        return Judgment(status=course.doubted)
    if not course.is_success:
        return None
    is_minimum = state.is_rounding or cost == 0.0 or course.is_at_bottom
    if is_minimum and not course.system.findings.has_lone_promises:
        return None
    promises = course.promises = _promises_of(course)
    course.promised_cost = cost
    if promises is None:
        return None
    change, is_little = 0.0, is_minimum or promises.decrease <= most * cost
    if not is_little:
        change = course.rounding_change(AskRounding.LAST_DIGIT, cost)
        is_little = change >= min(promises.decrease, cost)
    if is_little:
        # they say no more than which unknowns nothing holds
        course.promises = replace(promises, decrease=0.0, trusted=0.0, where="")
        return None
    is_trusted = promises.trusted > max(most * cost, change)
    if has_gained and state.num_iterations < options.max_iterations:
        course.resumed_cost = cost
        course.doubted = None if is_trusted else course.status
        course.system.forget()
        return Judgment(goes_on=True)
    return Judgment(status=SolveStatus.DAMPING_LIMIT) if is_trusted else None


def _promises_of(course: Course) -> Promises | None:
    """The promises of nodes one by one, or together if that is slow; None: little or not known."""
    system, state = course.system, course.state
    if system.findings.has_lone_promises:
        cost = system.score()
        system.linearize(state.damping)
        least = HELD_BACK * course.options.cost_tolerance * cost
        return system.findings.lone_promises(cost, least)
    remaining = course.promised_undamped()
    course.state = state._replace(remaining=remaining, relief=state.least_relief)
    if not remaining > HELD_BACK * course.options.cost_tolerance:
        return None
    # with D = diag(J^T J) this damping holds directions that have less than half of their digits
    system.forget()
    half = math.sqrt(float(np.finfo(system.storage.value).eps))
    trusted = course.promised_with(half)
    return Promises(remaining * course.cost, trusted * course.cost)


def promise_remarks(course: Course) -> Judgment | None:
    """Name the node that holds up the solve, and the unknowns that no residual determines."""
    promises, cost = course.told_promises, course.cost
    if promises is None or course.too_narrow != "":
        return None  # float64 judges anew
    told = []
    share = promises.trusted / cost if cost > 0.0 else 0.0
    if course.status is SolveStatus.DAMPING_LIMIT and promises.where != "":
        told.append(
            f"The derivatives say that {promises.where} alone could take {share:.2g} of the cost "
            "away, but no step does: it may have lost its influence, or the cost may have no "
            "minimum near these values. Start elsewhere, or keep it in reach by bounds=, fixed= or "
            "a prior."
        )
    elif course.status is SolveStatus.DAMPING_LIMIT and promises.trusted > 0.0:
        told.append(
            f"The derivatives say that a step with little damping takes {share:.2g} of the cost "
            "away, but no step does: some unknowns may have lost their influence, or the cost may "
            "have no minimum near these values. Start elsewhere, or keep unknowns in reach by "
            "bounds=, fixed= or a prior."
        )
    if course.is_success and len(promises.free) > 0:
        is_wide = course.system.storage is DType.FLOAT64
        rounding, advice = ("", "") if is_wide else (" to float32", "use precision='float64', ")
        told.append(
            f"The residuals do not determine {'; '.join(promises.free)}: there, or along some "
            f"direction of these together, they have no slope, as far as rounding{rounding} tells. "
            "Other values fit as well, or a better minimum lies far away. Hold something by "
            f"fixed=, add a prior, {advice}or start elsewhere."
        )
    elif course.is_success and promises.decrease > 0.0:
        told.append(
            f"The derivatives say that a step without damping takes {promises.decrease / cost:.2g} "
            "of the cost away, but along directions of which the residuals say next to nothing. "
            "Other values fit as well, or a better minimum lies far away. Hold something by "
            "fixed=, add a prior, or start elsewhere."
        )
    return Judgment(remarks=tuple(told))


MANY_ROUNDINGS = 256.0
"""Roundings of the cost in its type by which a second difference has to be negative, at least."""

ROUNDINGS_OF_A_CURVATURE = 8.0
"""Measured changes by rounding by which a second difference has to be negative, at least: it has
four costs, each rounded, and some draws tell a rounding to a factor of two."""

LONGER, MOST_STEPS = 4.0, 12
"""Each further step is this many times longer, until the cost falls no more."""


def saddle(course: Course) -> Judgment | None:
    """Go on beside a point that is no minimum: along what has no slope the cost falls.

    A sum of like terms whose start values are equal is an example. Their columns of the Jacobian
    are the same, so no step tells the terms apart, and the iterations end at the best fit of equal
    terms (`test_two_terms_that_start_equal`). Residuals at a maximum, such as x^2 - 1 at 0, are
    another. Cost: two evaluations of the cost for each direction and each pair of them, of small
    problems that leave a few directions open.
    """
    promises, system, cost = course.told_promises, course.system, course.cost
    if not course.is_success or promises is None or not cost > 0.0:
        return None
    if not 0 < len(promises.directions) <= MOST_DIRECTIONS or system.is_bounded:
        return None
    if course.state.num_iterations >= course.options.max_iterations:
        return None
    found = _falling(course, promises.directions)
    if found is None:
        return None
    way, length, lowest = found
    _cost_of(course, way, length)
    system.accept()
    system.score()
    course.state = course.state._replace(cost=lowest)
    system.forget()
    return Judgment(goes_on=True)


def _cost_of(course: Course, way: Direction, length: float) -> float:
    write_added(course.system.plan, {name: length * one for name, one in way.items()})
    return course.system.candidate_cost()


def _falling(
    course: Course, directions: tuple[Direction, ...]
) -> tuple[Direction, float, float] | None:
    """The direction in which the cost falls most, how far, and the cost there; None: in none."""
    plan = course.system.plan
    rounding = float(np.finfo(course.system.values_type.value).eps)
    step = rounding**0.25 * _size(plan, directions)
    here = _cost_of(course, directions[0], 0.0)
    change = course.rounding_change(AskRounding.LAST_DIGIT, course.cost)
    least = max(MANY_ROUNDINGS * rounding * here, ROUNDINGS_OF_A_CURVATURE * change)

    def curvature(way: Direction) -> float:
        return _cost_of(course, way, step) + _cost_of(course, way, -step) - 2.0 * here

    count = len(directions)
    second = np.zeros((count, count))
    for i, one in enumerate(directions):
        second[i, i] = curvature(one)
        for j, other in enumerate(directions[:i]):
            both = curvature(_sum(((1.0, one), (1.0, other))))
            second[i, j] = second[j, i] = 0.5 * (both - second[i, i] - second[j, j])
    if not np.isfinite(second).all():
        return None
    curvatures, shares = np.linalg.eigh(second)
    if not curvatures[0] < -least:
        return None
    way = _sum(tuple(zip(shares[:, 0].tolist(), directions, strict=True)))
    best, lowest = 0.0, here - max(LEAST_GAINED * here, least)
    for sign in (1.0, -1.0):
        length = sign * step
        for _ in range(MOST_STEPS):
            cost = _cost_of(course, way, length)
            if not cost < lowest:
                break
            best, lowest = length, cost
            length *= LONGER
    return (way, best, lowest) if best != 0.0 else None


def _sum(parts: tuple[tuple[float, Direction], ...]) -> Direction:
    """The sum of directions times their shares; each may move other node types."""
    total: dict[str, NDArray[np.float64]] = {}
    for share, way in parts:
        for name, one in way.items():
            total[name] = total[name] + share * one if name in total else share * one
    return total


def _size(plan: Plan, directions: tuple[Direction, ...]) -> float:
    """The largest number that directions, whose largest entry is 1, move; 1 if all are 0."""
    sizes = [
        np.abs(numbers_of(plan, plan.node_plans[name], NodePart.NODES))[one != 0.0].max(initial=0.0)
        for way in directions
        for name, one in way.items()
    ]
    return float(max(sizes)) or 1.0


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
    held_back,  #       success: goes on, or DAMPING_LIMIT; DAMPING_LIMIT: the success before
    saddle,  #          success: goes on beside a saddle point
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
    promise_remarks,  # success, DAMPING_LIMIT: remark
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
