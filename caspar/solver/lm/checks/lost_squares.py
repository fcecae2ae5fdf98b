"""Squares of derivatives that are zero or infinite in the floating type: values cannot move.

It comes from the units mostly, such as lengths of 1e-30, so the first derivatives show it
(`test_squares_of_derivatives_out_of_range`). Cost: a linear solve, if they did.
"""

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.lm.policy import next_goal
from caspar.solver.result.result import SolveStatus


def check(course: Course) -> Judgment | None:
    """No success if squares are out of range at the start and at the end."""
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
