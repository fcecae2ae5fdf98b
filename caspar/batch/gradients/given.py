"""Keep the arrays of a batch's solve for its result. Once for a solve and for each query."""

from collections.abc import Mapping
from typing import Any

from caspar.batch.result import BatchResult
from caspar.errors import InputError
from caspar.runtime.backend import Backend
from caspar.solver.input.constraints import Constraints
from caspar.solver.result.solved_arrays import SolvedArrays


def batch_given(
    arrays: Mapping[str, Any],
    fixed: Mapping[str, Any] | None,
    bounds: Mapping[str, Any] | None,
    backend: Backend,
) -> SolvedArrays:
    """Return the arrays that the user passed to a solve, which has read them."""
    return SolvedArrays(arrays, Constraints(fixed, bounds), (backend,))


def kept(solved: BatchResult) -> SolvedArrays:
    """Return the arrays that a result keeps of its solve.

    Raises:
        InputError: It is a copy, which does not hold it.
    """
    if not isinstance(solved.given, SolvedArrays):
        raise InputError(
            "this result is a copy or comes from a pickle, which does not hold the arrays of its "
            "solve: pass {**arrays, **result.values} in its place"
        )
    return solved.given


def solved_and_remarks(
    solved: BatchResult | Mapping[str, Any],
    fixed: Mapping[str, Any] | None,
    bounds: Mapping[str, Any] | None,
) -> tuple[Mapping[str, Any], Constraints, tuple[str, ...]]:
    """Arrays with the values after a solve, what is held and bounded, and remarks on the solve.

    Raises:
        InputError: The result does not hold what a gradient needs, or its arrays have been written
            to since.
    """
    if isinstance(solved, Mapping):
        return solved, Constraints(fixed, bounds), ()
    given = kept(solved)
    if fixed is not None or bounds is not None:
        raise InputError(
            "gradient: a result knows what was fixed and bounded in its solve; pass fixed and "
            "bounds with arrays only"
        )
    arrays, constraints = given.with_values(solved.values), given.constraints
    num_failed = int((~solved.is_success).sum())
    if num_failed == 0:
        return arrays, constraints, ()
    remark = (
        f"{num_failed:,} of {solved.num_problems:,} problems have not converged: gradients hold at "
        "a minimum, so theirs may be wrong. See result.status."
    )
    return arrays, constraints, (remark,)
