"""All checks of an end, in the order in which they are asked.

Cost tier: once for each end; most return at once unless the end is of their kind.
"""

from collections.abc import Sequence

from caspar.solver.lm.checks import (
    faults,
    free_values,
    linear_solves,
    lost_squares,
    mixed_precision,
    promises,
    remaining,
    rounding,
    saddles,
    tiny_residuals,
    weak_nodes,
)
from caspar.solver.lm.course import Check, Course

MAY_GO_ON: tuple[Check, ...] = (
    weak_nodes.check,  #      DAMPING_LIMIT: goes on with weak nodes held
    promises.check,  #        success: goes on, or DAMPING_LIMIT; DAMPING_LIMIT: the success before
    saddles.check,  #         success: goes on beside a saddle point
)
"""Asked whenever the policy ends the iterations."""

AT_THE_END: tuple[Check, ...] = (
    lost_squares.check,  #    success: OUT_OF_RANGE
    tiny_residuals.check,  #  success: OUT_OF_RANGE
    remaining.check,  #       remaining decrease
    faults.check,  #          INITIAL_COST_NOT_FINITE, DERIVATIVES_NOT_FINITE: remark
    mixed_precision.check,  # goes on in float64
    linear_solves.check,  #   remark
    faults.candidates,  #     DAMPING_LIMIT: remark
    promises.remarks,  #      success, DAMPING_LIMIT: remark
    rounding.check,  #        remark
    free_values.check,  #     remark
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
