"""Residuals whose squares are too small for the floating type: a cost of zero says nothing then.

Needed by residuals of 1e-22 in float32 (`test_squares_of_residuals_that_vanish`). Cost: nothing
unless the first cost is that small.
"""

import numpy as np

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.lm.policy import ROUNDING_SHARE
from caspar.solver.result.result import SolveStatus


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


def check(course: Course) -> Judgment | None:
    """No success if the start has shown it."""
    if not course.is_success or not course.is_tiny_at_start:
        return None
    return Judgment(status=SolveStatus.OUT_OF_RANGE)
