"""What the linear solves of a whole solve show, in words, with advice."""

from collections.abc import Sequence

from caspar.options import SolveOptions
from caspar.solver.result import IterationRecord

MANY_LIMITED = 0.2
"""Share of the iterations whose linear solve was cut short, from which on it is remarked."""

SLOW_SOLVES, SLOW_SOLVE = 1000, 50
"""PCG iterations in all, and of a linear solve on average, from which on a stronger preconditioner
may pay (docs/design/0015-two-level-preconditioner.md)."""


def remarks_on_linear_solves(
    options: SolveOptions, records: Sequence[IterationRecord], num_limited: int, stronger: str
) -> tuple[str, ...]:
    """Sentences for users.

    Args:
        options: Of the solve.
        records: Its iterations.
        num_limited: Linear solves that ended at the limit of PCG iterations.
        stronger: What takes fewer of them, as users ask for it; empty: nothing known.
    """
    remarks = []
    if num_limited > MANY_LIMITED * len(records):
        remarks.append(
            f"PCG stopped at max_linear_iterations={options.max_linear_iterations} in "
            f"{num_limited} of {len(records)} iterations: long chains, such as pose graphs, need "
            "more, and a lower linear_tolerance and min_linear_tolerance, to find the better "
            "minimum."
        )
    total = sum(record.linear_iterations for record in records)
    if stronger != "" and total >= max(SLOW_SOLVES, SLOW_SOLVE * len(records)):
        remarks.append(
            f"PCG took {total / len(records):.0f} iterations a step: {stronger} takes far fewer "
            "where nodes stand along a path, such as the cameras of a street; each costs more, and "
            "it has kernels of its own to compile."
        )
    return tuple(remarks)
