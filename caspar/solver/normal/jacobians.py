"""Costs and Jacobians of all factor instances at given values, in float64.

Input: traced factors and a checked `Problem`. Output: a `FactorJacobian` for each factor, on the
backend's device. Cost tier: kernels once for a solver, the rest once for a covariance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from caspar.equations.factor_kernels import derivative_kernel
from caspar.equations.parts import FactorPart, SolverPart
from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.solver.input.problem import FactorArrays, Problem
from caspar.solver.normal.instance_kernels import InstanceInputs, InstanceKernels, Packed


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
        makers = {"derivatives": partial(derivative_kernel, types=TYPES[Precision.FLOAT64])}
        self._kernels = InstanceKernels(backend, "derivatives", makers)

    def load(self, factors: Sequence[TracedFactor]) -> None:
        """Compile the kernels of factors, if that has not been done."""
        self._kernels.load(factors, ["derivatives"])

    def evaluate(
        self, factors: Sequence[TracedFactor], problem: Problem, *, check: bool = True
    ) -> list[FactorJacobian]:
        """Every factor that has instances.

        Args:
            factors: The factors, with terms.
            problem: Their arrays.
            check: Whether numbers that are not finite are refused.

        Raises:
            InputError: A cost or a derivative is not finite.
        """
        self.load(factors)
        values = {name: Packed.of(self._backend, rows) for name, rows in problem.values.items()}
        return [
            self._evaluate(InstanceInputs(self._backend, factor, problem, values), problem, check)
            for factor in factors
            if problem.factors[factor.name].count > 0
        ]

    def _evaluate(self, inputs: InstanceInputs, problem: Problem, check: bool) -> FactorJacobian:
        factor = inputs.factor
        num_rows, cost = len(factor.residual), SolverPart.COSTS.addend
        names = {one.name: one.part(FactorPart.JACOBIAN.text) for one in factor.nodes}
        dims = {names[one.name]: num_rows * one.tangent_dim for one in factor.nodes}
        kernel = self._kernels.of(factor, "derivatives")
        launch, outputs = inputs.bind(kernel, {cost: 1, **dims})
        self._backend.runner([launch])()
        counted = self._counted(problem.factors[factor.name])
        costs = outputs[cost][:, 0][counted]
        if check:
            self._check(factor.name, "cost", costs[:, None])
        nodes = []
        for argument in factor.nodes:
            entries = outputs[names[argument.name]][counted]
            if check:
                self._check(factor.name, f"derivative by {argument.source}", entries)
            shape = (len(entries), num_rows, argument.tangent_dim)
            index = inputs.index[argument.name][counted]
            nodes.append(NodeJacobian(argument.node_type.name, index, entries.reshape(shape)))
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
