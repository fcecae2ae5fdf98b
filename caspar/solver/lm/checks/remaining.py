"""The decrease that a step could still gain at the end: `SolveResult.remaining_decrease`.

Needed to tell a minimum from a solve that crawls, as `tests/solver/test_outcomes.py` does.
Cost: a linear solve, unless a step of little damping was tried at these values.
"""

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.result.result import SolveStatus

WITHOUT_REMAINING = (
    SolveStatus.INITIAL_COST_NOT_FINITE,
    SolveStatus.INTERRUPTED,
    SolveStatus.DERIVATIVES_NOT_FINITE,
)
"""Ends after which nobody waits for a linear solve, or none can be had."""


def check(course: Course) -> Judgment:
    """The remaining decrease; 0 if rounding the values changes the cost by as much."""
    if course.status in WITHOUT_REMAINING:
        return Judgment(remaining_decrease=course.state.remaining)
    remaining = course.promised_undamped()
    explained_by = course.explained_by if course.status is SolveStatus.CONVERGED_COST else None
    if explained_by is not None and remaining * course.cost <= explained_by:
        remaining = 0.0
    return Judgment(remaining_decrease=remaining)
