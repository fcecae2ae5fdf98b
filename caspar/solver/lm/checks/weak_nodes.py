"""Nodes of next to no influence, which every step throws far away, whatever the damping.

D is relative: an unknown of which the residuals say next to nothing has next to no D. An example is
the width of a peak beside all samples. One such node among a thousand, and no step of all of them
lowers the cost (`test_a_fit_without_influence_does_not_hold_the_others_up`).
"""

from caspar.solver.lm.course import LEAST_GAINED, Course, Judgment
from caspar.solver.result.result import SolveStatus


def check(course: Course) -> Judgment | None:
    """Go on from the damping limit with weak nodes held, unless the last time gained nothing."""
    if course.status is not SolveStatus.DAMPING_LIMIT:
        return None
    has_gained = course.cost <= (1.0 - LEAST_GAINED) * course.held_cost
    if not has_gained or course.state.num_iterations >= course.options.max_iterations:
        return None
    course.held_cost = course.cost
    course.promised_with(course.state.least_relief)  # for the D of little damping
    return Judgment(goes_on=True) if course.system.hold_weak() else None
