"""Costs and Jacobians of all factor instances at given values, in float64.

Input: traced factors and a checked `Problem`. Output: a `FactorJacobian` for each factor, on the
backend's device. Cost tier: kernels once for a solver, the rest once for a covariance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_specs
from caspar.equations.factor_kernels import derivative_kernel
from caspar.equations.parts import FactorPart, SolverPart
from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.layout import array_scalars, chunk_views, row_scalars
from caspar.options import Precision
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.input.problem import FactorArrays, Problem

FLOAT = DType.FLOAT64


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
        self._kernels: dict[str, Kernel] = {}
        self._compiling = Lock()

    def evaluate(self, factors: Sequence[TracedFactor], problem: Problem) -> list[FactorJacobian]:
        """Every factor that has instances.

        Raises:
            InputError: A cost or a derivative is not finite.
        """
        self._compile(factors)
        packed = {name: self._packed(rows) for name, rows in problem.values.items()}
        return [
            self._evaluate(factor, problem, packed)
            for factor in factors
            if problem.factors[factor.name].count > 0
        ]

    def _compile(self, factors: Sequence[TracedFactor]) -> None:
        with self._compiling:
            missing = [factor for factor in factors if factor.key not in self._kernels]
            if len(missing) == 0:
                return
            types = TYPES[Precision.FLOAT64]
            sources = compile_specs(
                ["derivatives", *(factor.key for factor in missing)],
                TARGETS[self._backend.traits.target],
                lambda: [derivative_kernel(factor, types) for factor in missing],
            )
            with phase("compiling the kernels of derivatives"):
                loaded = self._backend.load(list(sources.kernels.values()))
            for factor, source in zip(missing, sources.kernels.values(), strict=True):
                self._kernels[factor.key] = loaded[source.name]

    def _packed(self, rows: Array) -> Array:
        """(n, dim) rows on the device, in the layout that kernels read."""
        count, dim = (int(size) for size in rows.shape)
        on_device = self._backend.upload(rows)
        packed = self._backend.xp.zeros(array_scalars(dim, FLOAT, count))
        first = 0
        for chunk in chunk_views(packed, count, dim, FLOAT):
            width = int(chunk.shape[1])
            chunk[...] = on_device[:, first : first + width]
            first += width
        return packed

    def _evaluate(
        self, factor: TracedFactor, problem: Problem, packed: Mapping[str, Array]
    ) -> FactorJacobian:
        arrays = problem.factors[factor.name]
        bindings, indices = {}, {}
        for argument in factor.inputs:
            if argument.node is None:
                constant = arrays.constants[argument.source]
                data, length = self._packed(constant.rows), int(constant.rows.shape[0])
                index = constant.index
            else:
                data, length = packed[argument.node.name], problem.counts[argument.node.name]
                index = arrays.nodes[argument.name]
            fields = {} if index is None else {"index": self._backend.upload(index)}
            bindings[argument.value_name] = Binding(data, length, fields=fields)
            indices[argument.name] = fields.get("index")
        outputs = self._outputs(factor, arrays.count)
        bindings |= {name: Binding(array, arrays.count) for name, array in outputs.items()}
        launch = self._backend.bind(self._kernels[factor.key], bindings, arrays.count)
        self._backend.runner([launch])()
        counted, num_rows = self._counted(arrays), len(factor.residual)
        costs = outputs[SolverPart.COSTS.addend][counted]
        self._check(factor.name, "cost", costs[:, None])
        nodes = []
        for argument in factor.nodes:
            data = outputs[argument.part(FactorPart.JACOBIAN.text)]
            entries = _rows(data, arrays.count, num_rows * argument.tangent_dim)[counted]
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

    def _outputs(self, factor: TracedFactor, count: int) -> dict[str, Array]:
        num_rows = len(factor.residual)
        dims = {SolverPart.COSTS.addend: 1}
        for argument in factor.nodes:
            dims[argument.part(FactorPart.JACOBIAN.text)] = num_rows * argument.tangent_dim
        empty = self._backend.xp.empty
        return {name: empty(count * row_scalars(dim, FLOAT)) for name, dim in dims.items()}

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


def _rows(data: Array, count: int, dim: int) -> Array:
    """(count, dim) of an array whose objects stand together, without their padding."""
    return data.reshape(count, row_scalars(dim, FLOAT))[:, :dim]
