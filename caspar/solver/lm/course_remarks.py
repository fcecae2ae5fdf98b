"""What the course of a solve shows, in words, with advice."""

import itertools
import math
from collections.abc import Collection, Sequence

from caspar.ir.dtype import DType
from caspar.options import CompleteOptions
from caspar.solver.lm.steps import Verdict
from caspar.solver.result.result import IterationRecord, SolveStatus
from caspar.solver.system.lone_promises import Promises

MANY_LIMITED = 0.2
"""Share of the iterations whose linear solve was cut short, from which on it is remarked."""

SLOW_SOLVES, SLOW_SOLVE = 1000, 50
"""PCG iterations in all, and of a linear solve on average, from which on a stronger preconditioner
may pay (docs/design/0015-two-level-preconditioner.md)."""

MUCH_ROUNDING = 1e-3
"""Of the cost, by a rounding of the values: a solve that reached its limit says so, if its last
iterations gained no more than such a rounding changes."""

CRAWLING = 20
"""Iterations that are looked at for that."""

MUCH_GAINED = 0.1
"""Of the cost, by those: then nobody asks what rounding changes, which takes some evaluations."""


_CHAINED = (
    "Long chains, such as pose graphs, may then end in a worse minimum: raise "
    "max_linear_iterations, and lower linear_tolerance and min_linear_tolerance."
)
_LOOSE = (
    "The nodes that remain are coupled more strongly than the preconditioner knows, as in a scene "
    "whose parts share few points, or far from the minimum: use linear_solver='sparse' or "
    "'schur_dense' if the matrix fits, or raise max_linear_iterations."
)


def remarks_on_linear_solves(
    options: CompleteOptions,
    records: Sequence[IterationRecord],
    num_limited: int,
    stronger: str,
    *,
    is_chained: bool,
) -> tuple[str, ...]:
    """Sentences for users.

    Args:
        options: Of the solve.
        records: Its iterations.
        num_limited: Linear solves that ended at the limit of PCG iterations.
        stronger: What takes fewer of them, as users ask for it; empty: nothing known.
        is_chained: Whether a factor couples two nodes of a type that remains.
    """
    remarks = []
    if num_limited > MANY_LIMITED * len(records):
        remarks.append(
            f"PCG stopped at max_linear_iterations={options.max_linear_iterations} in "
            f"{num_limited} of {len(records)} iterations, so these steps were inexact. "
            f"{_CHAINED if is_chained else _LOOSE}"
        )
    total = sum(record.linear_iterations for record in records)
    if stronger != "" and total >= max(SLOW_SOLVES, SLOW_SOLVE * len(records)):
        remarks.append(
            f"PCG took {total / len(records):.0f} iterations a step. If nodes lie along a path, "
            f"such as the cameras of a street, {stronger} takes far fewer. Each of them costs "
            "more, and more kernels are compiled."
        )
    return tuple(remarks)


def remarks_on_faults(what: str, factors: Sequence[str]) -> tuple[str, ...]:
    """Factors of which something is not finite."""
    if len(factors) == 0:
        return ()
    return (f"The {what} of these factors are not finite: {', '.join(factors)}.",)


def remarks_on_lost_squares(types: Collection[str]) -> tuple[str, ...]:
    """Node types whose derivatives are too small or too large."""
    if len(types) == 0:
        return ()
    return (
        f"Squares of derivatives by {', '.join(types)} are zero or infinite in the floating type, "
        "so these values may not have moved. Use precision='float64', or another unit for these "
        "values or for the residuals.",
    )


def remarks_on_candidates(
    status: SolveStatus, records: Sequence[IterationRecord]
) -> tuple[str, ...]:
    """Why no step lowered the cost, where all ended at values that have none."""
    last = itertools.takewhile(lambda record: not record.step_accepted, reversed(records))
    reasons = [record.reason for record in last]
    if status is not SolveStatus.DAMPING_LIMIT or set(reasons) != {Verdict.NO_FINITE_COST.value}:
        return ()
    return (
        f"None of the last {len(reasons)} candidates had a finite cost. Look for an overflow, or "
        "for a root, a logarithm or a quotient at the edge of its domain.",
    )


def gained_at_last(records: Sequence[IterationRecord]) -> float:
    """What the last iterations lowered the cost by; infinite where there are too few."""
    if len(records) < CRAWLING:
        return math.inf
    return records[-CRAWLING].cost - records[-1].cost


def remarks_on_promises(
    status: SolveStatus, promises: Promises | None, cost: float, storage: DType
) -> tuple[str, ...]:
    """Which node holds up the solve, and of which unknowns the residuals say nothing.

    Args:
        status: Of the solve.
        promises: What nodes promise one by one at the values returned; None: not looked at.
        cost: Of these values.
        storage: Type of the Jacobians.
    """
    remarks = []
    if promises is None:
        return ()
    share = promises.trusted / cost if cost > 0.0 else 0.0
    if status is SolveStatus.DAMPING_LIMIT and promises.where != "":
        remarks.append(
            f"The derivatives say that {promises.where} alone could take {share:.2g} of the cost "
            "away, but no step does: it may have lost its influence, or the cost may have no "
            "minimum near these values. Start elsewhere, or keep it in reach by bounds=, fixed= or "
            "a prior."
        )
    if status is SolveStatus.DAMPING_LIMIT and promises.where == "" and promises.trusted > 0.0:
        remarks.append(
            f"The derivatives say that a step with little damping takes {share:.2g} of the cost "
            "away, but no step does: some unknowns may have lost their influence, or the cost may "
            "have no minimum near these values. Start elsewhere, or keep unknowns in reach by "
            "bounds=, fixed= or a prior."
        )
    if status.is_success and len(promises.free) == 0 and promises.decrease > 0.0:
        remarks.append(
            f"The derivatives say that a step without damping takes {promises.decrease / cost:.2g} "
            "of the cost away, but along directions of which the residuals say next to nothing. "
            "Other values fit as well, or a better minimum lies far away. Hold something by "
            "fixed=, add a prior, or start elsewhere."
        )
    if status.is_success and len(promises.free) > 0:
        is_wide = storage is DType.FLOAT64
        rounding, advice = ("", "") if is_wide else (" to float32", "use precision='float64', ")
        remarks.append(
            f"The residuals do not determine {'; '.join(promises.free)}: there, or along some "
            f"direction of these together, they have no slope, as far as rounding{rounding} tells. "
            "Other values fit as well, or a better minimum lies far away. Hold something by "
            f"fixed=, add a prior, {advice}or start elsewhere."
        )
    return tuple(remarks)


def remarks_on_rounding(rounding: float | None) -> tuple[str, ...]:
    """What rounding the values changes the cost by; None: nothing to tell."""
    if rounding is None:
        return ()
    return (
        f"Rounding the values to float32 changes the cost by {rounding:.2g}, so steps can hardly "
        "lower it further. Use precision='float64'. If the values are large compared with their "
        "differences, an origin near them helps too.",
    )
