"""Kernels that write rows for each instance of a factor in float64, such as costs and Jacobians.

Input: traced factors and a checked `Problem`. Output: arrays on the backend's device, in the order
given. Cost tier: kernels once for a solver; memory once for a structure, or for a question.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_specs
from caspar.equations.factor_kernels import derivative_kernel
from caspar.equations.parts import FactorPart, SolverPart
from caspar.errors import InputError
from caspar.frontend.factors.trace import WEIGHT, Argument, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import array_scalars, chunk_views, row_scalars
from caspar.options import Precision
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel, Launch
from caspar.solver.input.problem import FactorArrays, Problem

FLOAT = DType.FLOAT64


def compiled(
    backend: Backend, purpose: str, specs: Mapping[str, Callable[[], KernelSpec]]
) -> list[Kernel]:
    """Compile and load kernels."""
    sources = compile_specs(
        [purpose, *specs],
        TARGETS[backend.traits.target],
        lambda: [make() for make in specs.values()],
    )
    with phase(f"compiling the kernels of {purpose}"):
        loaded = backend.load(list(sources.kernels.values()))
    return [loaded[name] for name in sources.kernels]


class InstanceKernels:
    """Kernels by factor and role, compiled when they are first needed."""

    def __init__(
        self,
        backend: Backend,
        purpose: str,
        makers: Mapping[str, Callable[[TracedFactor], KernelSpec]],
    ) -> None:
        self._backend = backend
        self._purpose = purpose
        self._makers = makers
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._compiling = Lock()

    def load(self, factors: Sequence[TracedFactor], roles: Sequence[str]) -> None:
        """Compile what is missing."""
        with self._compiling:
            missing = [
                (factor, role)
                for factor in factors
                for role in roles
                if (factor.key, role) not in self._kernels
            ]
            if len(missing) == 0:
                return
            specs = {
                f"{role} {factor.key}": lambda factor=factor, role=role: self._makers[role](factor)
                for factor, role in missing
            }
            found = compiled(self._backend, self._purpose, specs)
            for (factor, role), kernel in zip(missing, found, strict=True):
                self._kernels[factor.key, role] = kernel

    def of(self, factor: TracedFactor, role: str) -> Kernel:
        """Return a kernel that has been loaded."""
        return self._kernels[factor.key, role]


@dataclass(frozen=True)
class Packed:
    """An array in the layout that kernels read. `chunks`: Views of it: (count, width) each."""

    data: Array
    count: int
    chunks: tuple[Array, ...]

    @staticmethod
    def empty(backend: Backend, count: int, dim: int, dtype: DType = FLOAT) -> "Packed":
        """Return packed zeros."""
        data = backend.xp.zeros(array_scalars(dim, dtype, count), dtype.in_arrays.value)
        return Packed(data, count, tuple(chunk_views(data, count, dim, dtype)))

    @staticmethod
    def of(backend: Backend, rows: Array) -> "Packed":
        """Pack (count, dim) rows, wherever they are."""
        packed = Packed.empty(backend, int(rows.shape[0]), int(rows.shape[1]))
        packed.fill(backend.upload(rows))
        return packed

    def fill(self, rows: Array) -> None:
        """Copy (count, dim) rows of the device."""
        self.write(rows, slice(None))

    def write(self, rows: Array, place: slice) -> None:
        """Copy (k, dim) rows of the device to a place of as many."""
        first = 0
        for chunk in self.chunks:
            width = int(chunk.shape[1])
            chunk[place] = rows[:, first : first + width]
            first += width

    def rows(self, xp: Any) -> Array:
        """(count, dim), the other way: a view, or new; by NumPy or CuPy."""
        return self.chunks[0] if len(self.chunks) == 1 else xp.concatenate(self.chunks, axis=1)

    @property
    def binding(self) -> Binding:
        """Binding that a kernel reads."""
        return Binding(self.data, self.count)


def output_rows(backend: Backend, count: int, dim: int) -> tuple[Array, Array]:
    """Memory of an output whose objects' scalars stand together, and (count, dim) of it."""
    width = row_scalars(dim, FLOAT)
    data = backend.xp.empty(count * width)
    return data, data.reshape(count, width)[:, :dim]


class InstanceInputs:
    """The inputs of a factor's kernels.

    Attributes:
        index: For each node argument's name the node of each instance, (m,), on the device.
        rows: For each indexed constant's name the row of each instance, (m,).
    """

    def __init__(
        self, backend: Backend, factor: TracedFactor, problem: Problem, values: Mapping[str, Packed]
    ) -> None:
        self.factor, self._backend = factor, backend
        arrays = problem.factors[factor.name]
        self.count = arrays.count
        self.index: dict[str, Array] = {}
        self.rows: dict[str, Array] = {}
        self._constants: dict[str, Packed] = {}
        self._bindings: dict[str, Binding] = {}
        for argument in factor.inputs:
            index = self._index(argument, arrays)
            if argument.node is None:
                shape = arrays.constants[argument.source].rows.shape
                dtype = DType.FLOAT16 if argument.is_half else FLOAT
                packed = Packed.empty(backend, int(shape[0]), int(shape[1]), dtype)
                self._constants[argument.source] = packed
            else:
                packed = values[argument.node.name]
            fields = {} if index is None else {"index": index}
            self._bindings[argument.value_name] = packed.binding.with_fields(fields)
        self.fill(problem)

    def _index(self, argument: Argument, arrays: FactorArrays) -> Array | None:
        """Return the object each instance reads, on the device; None: its own, or one for all."""
        if argument.node is None:
            index = arrays.constants[argument.source].index
            if index is not None:
                self.rows[argument.name] = self._backend.upload(index)
            return self.rows.get(argument.name)
        index = arrays.nodes[argument.name]
        if index is None:
            self.index[argument.name] = self._backend.xp.zeros(self.count, "int32")
            return None
        self.index[argument.name] = self._backend.upload(index)
        return self.index[argument.name]

    def fill(self, problem: Problem) -> None:
        """Copy constants, weights and parameters of losses of a problem of the same structure."""
        arrays = problem.factors[self.factor.name]
        for source, packed in self._constants.items():
            packed.fill(self._backend.upload(arrays.constants[source].rows))

    def write(self, source: str, rows: Array, place: slice) -> None:
        """Copy some rows of a constant, a weight or a parameter of a loss; on the device."""
        self._constants[source].write(rows, place)

    def given(self, argument: Argument) -> Array:
        """(rows, dim) of a constant as `fill` has brought them."""
        return self._constants[argument.source].rows(self._backend.xp)

    def bind(
        self,
        kernel: Kernel,
        outputs: Mapping[str, int],
        inputs: Mapping[str, Binding] = MappingProxyType({}),
    ) -> tuple[Launch, dict[str, Array]]:
        """Bind a kernel, and make its outputs: (count, dim) each, which the launch overwrites."""
        made = {name: output_rows(self._backend, self.count, dim) for name, dim in outputs.items()}
        bindings = {**self._bindings, **inputs}
        bindings |= {name: Binding(data, self.count) for name, (data, _) in made.items()}
        launch = self._backend.bind(kernel, bindings, self.count)
        return launch, {name: rows for name, (_, rows) in made.items()}


@dataclass(frozen=True)
class NodeJacobian:
    """The derivative of a factor's residual by the tangent of one of its nodes.

    Attributes:
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
        costs: (m,) float64; without a loss 1/2 of the square of each residual.
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
    """Rows of residuals, and their squares over the degrees of freedom; NaN if none are left."""
    num_rows, squares = 0, 0.0
    for jacobian in jacobians:
        num_rows += jacobian.num_rows * jacobian.count
        squares += 2.0 * float(jacobian.costs.sum())
    num_left = num_rows - rank
    return num_rows, squares / num_left if num_left > 0 else math.nan


class DerivativeKernels:
    """The kernels that evaluate factors and their Jacobians, compiled when first needed."""

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
        """Every factor that has instances."""
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
        if arrays.num_counted == arrays.count:
            return slice(None)
        weights = self._backend.upload(arrays.constants[WEIGHT].rows)
        return self._backend.xp.flatnonzero(weights[:, 0] > 0.0)

    def _check(self, factor: str, what: str, rows: Array) -> None:
        xp = self._backend.xp
        if bool(xp.isfinite(rows).all()):
            return
        first = int(xp.flatnonzero(~xp.isfinite(rows).all(axis=1))[0])
        raise InputError(
            f"factor {factor}: the {what} of instance {first} is not finite at these values, so "
            "there is no covariance. Pass the values of a solve that converged, and look for a "
            "root or a norm of zero in the residual"
        )
