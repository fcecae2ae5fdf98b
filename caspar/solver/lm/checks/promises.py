"""A success at which a step of next to no damping still promises a lower cost.

D remembers what diag(J^T J) was (`node_kernels.MEMORY`). An unknown that has lost its influence on
the residuals is then held by every damping, and steps promise nothing although its own slope does
not vanish: `test_a_rate_that_has_lost_its_influence`, of NIST's BoxBOD.

Cost: a linearisation and eigenvalues of each node's block, of few unknowns
(`system.lone_promises`); else up to two linear solves.
"""

import math
from dataclasses import replace

import numpy as np

from caspar.ir.dtype import DType
from caspar.solver.lm.course import LEAST_GAINED, Course, Judgment
from caspar.solver.lm.steps import AskRounding
from caspar.solver.result.result import SolveStatus
from caspar.solver.system.lone_promises import Promises

HELD_BACK = 1e4
"""Times the cost tolerance: a success is looked at again if a node alone promises more. A solve
that went on from there has to gain as much, to go on once more."""


def check(course: Course) -> Judgment | None:
    """Go on from a success that promises much; D forgets then what it remembers.

    It stays a success if the solve goes on in vain, unless the promise can be trusted.
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
    promises = course.promises = _promises(course)
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


def _promises(course: Course) -> Promises | None:
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


def remarks(course: Course) -> Judgment | None:
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
