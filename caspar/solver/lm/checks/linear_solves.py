"""PCG that stopped at its limit, or that takes many iterations.

Needed by long chains, for whose soft modes PCG takes thousands of iterations: see
`test_linear_solves_at_the_limit_are_remarked` and `test_slow_linear_solves_name_what_is_stronger`.
"""

from caspar.solver.lm.course import Course, Judgment

MANY_LIMITED = 0.2
"""Share of the iterations whose linear solve was cut short, from which on it is remarked."""

SLOW_SOLVES, SLOW_SOLVE = 1000, 50
"""PCG iterations in all, and of a linear solve on average, from which on a stronger preconditioner
may pay (docs/design/0015-two-level-preconditioner.md)."""

_CHAINED = (
    "Long chains, such as pose graphs, may then end in a worse minimum: raise "
    "max_linear_iterations, and lower linear_tolerance and min_linear_tolerance."
)
_LOOSE = (
    "The nodes that remain are coupled more strongly than the preconditioner knows, as in a scene "
    "whose parts share few points, or far from the minimum: use linear_solver='sparse' or "
    "'schur_dense' if the matrix fits, or raise max_linear_iterations."
)


def check(course: Course) -> Judgment:
    """Remarks on both."""
    records, system = course.records, course.system
    remarks = []
    if course.num_limited > MANY_LIMITED * len(records):
        remarks.append(
            f"PCG stopped at max_linear_iterations={course.options.max_linear_iterations} in "
            f"{course.num_limited} of {len(records)} iterations, so these steps were inexact. "
            f"{_CHAINED if system.is_chained else _LOOSE}"
        )
    total = sum(record.linear_iterations for record in records)
    if system.stronger != "" and total >= max(SLOW_SOLVES, SLOW_SOLVE * len(records)):
        remarks.append(
            f"PCG took {total / len(records):.0f} iterations a step. If nodes lie along a path, "
            f"such as the cameras of a street, {system.stronger} takes far fewer. Each of them "
            "costs more, and more kernels are compiled."
        )
    return Judgment(remarks=tuple(remarks))
