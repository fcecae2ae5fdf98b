"""PCG that stopped at its limit.

Needed by long chains, for whose soft modes PCG takes thousands of iterations: see
`test_linear_solves_at_the_limit_are_remarked`.
"""

from caspar.solver.lm.course import Course, Judgment

MANY_LIMITED = 0.2
"""Share of the iterations whose linear solve was cut short, from which on it is remarked."""

_CHAINED = (
    "Long chains, such as pose graphs, may then end in a worse minimum: raise "
    "max_linear_iterations, and lower linear_tolerance and min_linear_tolerance."
)
_LOOSE = (
    "The nodes that remain are coupled more strongly than the preconditioner knows, as in a scene "
    "whose parts share few points, or far from the minimum: use linear_solver='sparse' or "
    "'schur_dense' if the matrix fits, or raise max_linear_iterations."
)


def check(course: Course) -> Judgment | None:
    """A remark on it."""
    num_records = len(course.records)
    if course.num_limited <= MANY_LIMITED * num_records:
        return None
    remark = (
        f"PCG stopped at max_linear_iterations={course.options.max_linear_iterations} in "
        f"{course.num_limited} of {num_records} iterations, so these steps were inexact. "
        f"{_CHAINED if course.system.is_chained else _LOOSE}"
    )
    return Judgment(remarks=(remark,))
