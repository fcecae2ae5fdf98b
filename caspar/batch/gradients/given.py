"""What a batch was given, as its result holds it for what follows. Once for each solve."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from caspar.batch.result import BatchResult
from caspar.errors import InputError
from caspar.solver.input.constraints import Constraints


@dataclass(frozen=True, eq=False)
class BatchGiven:
    """What `BatchSolver.solve` was given.

    Attributes:
        arrays: As the user passed them.
        constraints: Likewise.
    """

    arrays: Mapping[str, Any]
    constraints: Constraints


def batch_given(
    arrays: Mapping[str, Any], fixed: Mapping[str, Any] | None, bounds: Mapping[str, Any] | None
) -> BatchGiven:
    """What the user passed to a solve."""
    return BatchGiven(arrays, Constraints(fixed, bounds))


def kept(solved: BatchResult) -> BatchGiven:
    """What a result holds of its solve.

    Raises:
        InputError: It is a copy, which does not hold it.
    """
    if not isinstance(solved.given, BatchGiven):
        raise InputError(
            "this result is a copy or comes from a pickle, which does not hold the arrays of its "
            "solve: pass {**arrays, **result.values} in its place"
        )
    return solved.given


def given_and_values(
    solved: BatchResult | Mapping[str, Any],
    fixed: Mapping[str, Any] | None,
    bounds: Mapping[str, Any] | None,
) -> tuple[BatchGiven, Mapping[str, Any], tuple[str, ...]]:
    """What was solved, the values after it, and what is to be said of these.

    Args:
        solved: A result, or arrays with values.
        fixed: With arrays only.
        bounds: Likewise.

    Raises:
        InputError: The result does not hold what a gradient needs.
    """
    if isinstance(solved, Mapping):
        return batch_given(solved, fixed, bounds), solved, ()
    given = kept(solved)
    if fixed is not None or bounds is not None:
        raise InputError(
            "gradient: a result knows what was fixed and bounded in its solve; pass fixed and "
            "bounds with arrays only"
        )
    num_failed = int((~solved.is_success).sum())
    if num_failed == 0:
        return given, solved.values, ()
    remark = (
        f"{num_failed:,} of {solved.num_problems:,} problems have not converged: gradients hold at "
        "a minimum, so theirs may be wrong. See result.status."
    )
    return given, solved.values, (remark,)
