"""Rounding float32 values may change the cost by more than steps lower it.

Needed by values that are large beside what they differ by (`test_values_far_from_their_origin`).
Cost: some evaluations of the cost, of a solve that crawled to its limit.
"""

import math

from caspar.ir.dtype import DType
from caspar.solver.lm.course import Course, Judgment
from caspar.solver.lm.steps import AskRounding
from caspar.solver.result.result import SolveStatus

MUCH_ROUNDING = 1e-3
"""Share of the cost. If rounding the values changes more, and the last iterations of a solve that
reached its limit gained no more than that change, a remark says so."""

CRAWLING = 20
"""Iterations that are looked at for that."""

MUCH_GAINED = 0.1
"""Share of the cost. If these iterations gained more, the effect of rounding is not measured: that
takes some evaluations."""


def check(course: Course) -> Judgment | None:
    """Judge whether rounding of float32 values ended the solve or holds it up."""
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
