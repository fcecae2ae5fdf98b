"""Decide if a solve with Jacobians in float32 and values in float64 should go on in float64.

Needed by stiff problems, such as `test_two_decays_of_nearly_one_rate`; `benchmarks.regression` has
more.
"""

from itertools import takewhile

from caspar.solver.lm.course import Course, Judgment
from caspar.solver.result.result import SolveStatus

NEGLIGIBLE_DAMPING = 1e-8
"""Damping up to which the gain ratio of a step tells how exact the linear model is."""

MODEL_ERROR = 0.5
"""Excess of the gain ratio over 1 from which on such a step tells that it is not. A lower one may
also come from residuals that are not linear."""

MOST_INEXACT = 20
"""Such steps in a row after which Jacobians in float32 are taken to be at fault. Inner iterations
of eliminated nodes gain more than the linear model says, too, but not for long."""

NARROW_PROMISE = 1e-9
"""Share of the cost: a successful solve goes on in float64 if a step still promises more."""

TOO_NARROW = (
    SolveStatus.DERIVATIVES_NOT_FINITE,
    SolveStatus.OUT_OF_RANGE,
    SolveStatus.DAMPING_LIMIT,
)
"""Ends of solves whose derivatives may not fit float32."""


def check(course: Course) -> Judgment | None:
    """Go on in float64 if float32 may be why the solve ended like this."""
    reason = _reason(course) if course.system.is_mixed else ""
    return None if reason == "" else Judgment(too_narrow=reason)


def _reason(course: Course) -> str:
    status = course.end
    if status in TOO_NARROW:
        inexact = _inexact_steps(course)
        return inexact or f"Jacobians in float32 ended it with {status.name}"
    if len(course.system.plan.eliminated) > 0:
        return ""
    if course.is_success and course.remaining_decrease > NARROW_PROMISE:
        return (
            f"Jacobians in float32 ended it with {status.name}, although a step promised "
            f"{course.remaining_decrease:.1g} of the cost"
        )
    promises = course.told_promises
    if course.is_success and promises is not None and promises.doubtful != "":
        return f"Jacobians in float32 do not tell whether residuals determine {promises.doubtful}"
    if status is SolveStatus.ITERATION_LIMIT and course.chosen.max_iterations is None:
        return f"it had not converged after {len(course.records)} iterations"
    return ""


def has_inexact_steps(course: Course) -> bool:
    """Return whether the last steps in mixed precision were far from what they promised."""
    return most_unseen_steps(course) < 0


def most_unseen_steps(course: Course) -> int:
    """Steps after which `has_inexact_steps` is false, whatever they gain; -1: it is true now."""
    last = course.records[: -MOST_INEXACT - 1 : -1]
    inexact = takewhile(
        lambda one: one.damping <= NEGLIGIBLE_DAMPING and one.gain_ratio > 1.0 + MODEL_ERROR, last
    )
    return MOST_INEXACT - 1 - sum(1 for _ in inexact)


def _inexact_steps(course: Course) -> str:
    if not has_inexact_steps(course):
        return ""
    gain = course.records[-1].gain_ratio
    return f"steps of next to no damping gained {gain:.2g} times what Jacobians in float32 promised"
