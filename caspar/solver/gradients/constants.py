"""Derivatives by the constants of a factor, from those of its instances.

Input: what the adjoint kernel of a factor wrote. Output: rows as they were given. Cost tier: once
for a gradient.
"""

from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.gradients.launches import FactorLaunches
from caspar.solver.normal.sums import add_rows


def own_derivatives(
    backend: Backend, launches: FactorLaunches, *, is_partial: bool
) -> dict[str, Array]:
    """Derivatives of a loss function by the constants of a factor, by name: (rows, dim).

    Args:
        backend: Where they are.
        launches: Of the factor; its adjoint kernel has run.
        is_partial: Numbers that are not finite count as 0.

    Raises:
        InputError: A derivative is not finite.
    """
    xp, found = backend.xp, {}
    for one in launches.factor.inputs:
        if one.node is not None:
            continue
        pull, given = launches.pull(one), launches.given(one)
        if one.source == WEIGHT:
            # of an instance that weighs nothing the residual may be anything
            weights = given if one.name not in launches.rows else given[launches.rows[one.name]]
            pull = xp.where((weights > 0.0) | xp.isfinite(pull), pull, 0.0)
        is_finite = xp.isfinite(pull)
        if is_partial:
            pull = xp.where(is_finite, pull, 0.0)
        elif not bool(is_finite.all()):
            instance = int(xp.flatnonzero(~is_finite.all(axis=1))[0])
            raise InputError(
                f"factor {launches.factor.name}: the derivative by {one.source} of instance "
                f"{instance} is not finite at these values. Look for a root or a norm of zero in "
                "the residual"
            )
        found[one.source] = -_summed(backend, launches, one, pull, given)
    return found


def _summed(
    backend: Backend, launches: FactorLaunches, one: Argument, pull: Array, given: Array
) -> Array:
    """The derivatives by the rows of a constant, from those of instances."""
    xp = backend.xp
    if one.kind is ArgumentKind.CONST_UNIQUE:
        pull = pull.sum(axis=0)[None]
    elif one.name in launches.rows:
        rows = xp.zeros((int(given.shape[0]), int(pull.shape[1])))
        add_rows(xp, rows, launches.rows[one.name], xp.ascontiguousarray(pull))
        pull = rows
    if len(one.unit_ranges) > 0:
        pull = pull.copy()
    for part in one.unit_ranges:
        # what is nearly of unit length gets it before it is used
        columns = slice(part.start, part.stop)
        unit = given[:, columns]
        along = (unit * pull[:, columns]).sum(axis=1) / (unit * unit).sum(axis=1)
        pull[:, columns] -= along[:, None] * unit
    return pull
