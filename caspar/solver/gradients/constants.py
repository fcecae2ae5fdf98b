"""Derivatives by the constants of a factor, from those of its instances.

Input: what the adjoint kernel of a factor wrote. Output: rows as they were given. Cost tier: once
for a gradient.
"""

from caspar.frontend.factors.trace import WEIGHT, Argument, ArgumentKind
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.covariance.sums import add_rows
from caspar.solver.gradients.launches import FactorLaunches
from caspar.solver.input.problem import Problem


def own_derivatives(
    backend: Backend, launches: FactorLaunches, problem: Problem
) -> dict[str, Array]:
    """Derivatives of a loss function by the constants of a factor, by name: (rows, dim)."""
    constants = problem.factors[launches.factor.name].constants
    return {
        one.source: -_summed(backend, launches, one, backend.upload(constants[one.source].rows))
        for one in launches.factor.inputs
        if one.node is None
    }


def _summed(backend: Backend, launches: FactorLaunches, one: Argument, given: Array) -> Array:
    """The derivatives by the rows of a constant, from those of instances."""
    xp, pull = backend.xp, launches.pull(one)
    if one.kind is ArgumentKind.CONST_UNIQUE:
        pull = pull.sum(axis=0)[None]
    elif one.name in launches.rows:
        rows = xp.zeros((int(given.shape[0]), int(pull.shape[1])))
        add_rows(xp, rows, launches.rows[one.name], xp.ascontiguousarray(pull))
        pull = rows
    if one.source == WEIGHT:
        # of an instance that weighs nothing the residual may be anything
        pull = xp.where((given > 0.0) | xp.isfinite(pull), pull, 0.0)
    for part in one.unit_ranges:
        # what is nearly of unit length gets it before it is used
        columns = slice(part.start, part.stop)
        unit = given[:, columns]
        if pull.base is not None:
            pull = pull.copy()
        along = (unit * pull[:, columns]).sum(axis=1) / (unit * unit).sum(axis=1)
        pull[:, columns] -= along[:, None] * unit
    return pull
