"""Costs and derivatives that are not finite.

Needed to find the one bad measurement among thousands (`tests/solver/lm/test_faults.py`).
Cost: some passes over the arrays, of a solve that failed.
"""

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.result.result import SolveStatus


def check(course: Course) -> Judgment | None:
    """Name the factors of which something is not finite."""
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
