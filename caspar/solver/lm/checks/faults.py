"""Costs and derivatives that are not finite.

Needed to find the one bad measurement among thousands (`tests/solver/lm/test_faults.py`).
Cost: some passes over the arrays, of a solve that failed.
"""

import itertools

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.lm.steps import Verdict
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


def candidates(course: Course) -> Judgment | None:
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
