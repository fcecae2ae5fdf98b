"""Costs and Jacobians of all factor instances at given values, in float64.

Input: traced factors and a checked `Problem`. Output: a `FactorJacobian` for each factor, on the
backend's device. Cost tier: kernels once for a solver, the rest once for a covariance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caspar.equations.factor_kernels import derivative_kernel
from caspar.equations.parts import FactorPart, SolverPart
from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import FactorArrays, Problem
from caspar.solver.normal.instance_kernels import InstanceKernels


@dataclass(frozen=True)
class NodeJacobian:
    """The derivative of a factor's residual by the tangent of one of its nodes.

    Attributes:
        node: Name of the node type.
        index: (m,) integers: the node of each instance.
        entries: (m, rows, tangent_dim) float64.
    """

    node: str
    index: Array
    entries: Array


@dataclass(frozen=True)
class FactorJacobian:
    """A factor at some values.

    Attributes:
        name: Of the factor.
        num_rows: Rows of a residual.
        costs: (m,) float64; without a loss 1/2 of the square of each residual.
        nodes: For each node argument its Jacobian.
    """

    name: str
    num_rows: int
    costs: Array
    nodes: tuple[NodeJacobian, ...]

    @property
    def count(self) -> int:
        """Instances."""
        return len(self.costs)


def residual_variance(jacobians: Sequence[FactorJacobian], rank: int) -> tuple[int, float]:
    """Rows of residuals, and their sum of squares over the degrees of freedom.

    Args:
        jacobians: Of all factors.
        rank: Directions that are determined.

    Returns:
        The variance is NaN if no degrees of freedom are left.
    """
    num_rows, squares = 0, 0.0
    for jacobian in jacobians:
        num_rows += jacobian.num_rows * jacobian.count
        squares += 2.0 * float(jacobian.costs.sum())
    num_left = num_rows - rank
    return num_rows, squares / num_left if num_left > 0 else math.nan


class DerivativeKernels:
    """The kernels that evaluate factors and their Jacobians, compiled when first needed.

    Args:
        backend: Where they run.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kernels = InstanceKernels(backend, "derivatives", derivative_kernel)

    def evaluate(self, factors: Sequence[TracedFactor], problem: Problem) -> list[FactorJacobian]:
        """Every factor that has instances.

        Raises:
            InputError: A cost or a derivative is not finite.
        """
        self._kernels.compile(factors)
        packed = {name: self._kernels.packed(rows) for name, rows in problem.values.items()}
        return [
            self._evaluate(factor, problem, packed)
            for factor in factors
            if problem.factors[factor.name].count > 0
        ]

    def _evaluate(
        self, factor: TracedFactor, problem: Problem, packed: Mapping[str, Array]
    ) -> FactorJacobian:
        arrays, num_rows = problem.factors[factor.name], len(factor.residual)
        dims = {SolverPart.COSTS.addend: 1}
        for argument in factor.nodes:
            dims[argument.part(FactorPart.JACOBIAN.text)] = num_rows * argument.tangent_dim
        outputs, indices = self._kernels.run(factor, problem, packed, dims)
        counted = self._counted(arrays)
        costs = outputs[SolverPart.COSTS.addend][:, 0][counted]
        self._check(factor.name, "cost", costs[:, None])
        nodes = []
        for argument in factor.nodes:
            entries = outputs[argument.part(FactorPart.JACOBIAN.text)][counted]
            self._check(factor.name, f"derivative by {argument.source}", entries)
            shape = (len(entries), num_rows, argument.tangent_dim)
            index = indices[argument.name]
            if index is None:
                index = self._backend.xp.zeros(arrays.count, dtype="int32")
            name = argument.node_type.name
            nodes.append(NodeJacobian(name, index[counted], entries.reshape(shape)))
        return FactorJacobian(factor.name, num_rows, costs, tuple(nodes))

    def _counted(self, arrays: FactorArrays) -> Any:
        """Selects the instances whose weight is not zero."""
        if arrays.num_counted == arrays.count:
            return slice(None)
        weights = self._backend.upload(arrays.constants[WEIGHT].rows)
        return self._backend.xp.flatnonzero(weights[:, 0] > 0.0)

    def _check(self, factor: str, what: str, rows: Array) -> None:
        """Refuse numbers that are not finite."""
        xp = self._backend.xp
        if bool(xp.isfinite(rows).all()):
            return
        first = int(xp.flatnonzero(~xp.isfinite(rows).all(axis=1))[0])
        raise InputError(
            f"factor {factor}: the {what} of instance {first} is not finite at these values, so "
            "there is no covariance. Pass the values of a solve that converged, and look for a "
            "root or a norm of zero in the residual"
        )
