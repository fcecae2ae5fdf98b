"""Candidates without a finite cost, up to the damping limit.

An example is a residual with a logarithm whose start is at the edge of its domain
(`test_faults.test_candidates_without_a_cost`).
"""

import itertools

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.lm.steps import Verdict
from caspar.solver.result.result import SolveStatus


def check(course: Course) -> Judgment | None:
    """Why no step lowered the cost, if all the last ones ended at values that have none."""
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
