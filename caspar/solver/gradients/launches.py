"""The kernels of a problem's factors, bound to memory of their own.

Input: a `Problem` in float64. Output: for each factor its instances' parts of the Hessian, and
derivatives by everything that they read. Cost tier: bound once for a structure, that is, for counts
and indices; arrays are copied and kernels run once for a gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caspar.equations.adjoint import kernels as parts
from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.layout import array_scalars, chunk_views, row_scalars
from caspar.runtime.backend import Backend
from caspar.solver.gradients.kernels import ADJOINT, GradientKernels
from caspar.solver.input.problem import Problem

FLOAT = DType.FLOAT64


@dataclass(frozen=True)
class Packed:
    """An array in the layout that kernels read.

    Attributes:
        data: The memory.
        count: Objects.
        chunks: Views of it: (count, width) each.
    """

    data: Array
    count: int
    chunks: tuple[Array, ...]

    @staticmethod
    def empty(backend: Backend, count: int, dim: int) -> "Packed":
        """Of zeros."""
        data = backend.xp.zeros(array_scalars(dim, FLOAT, count))
        return Packed(data, count, tuple(chunk_views(data, count, dim, FLOAT)))

    def fill(self, rows: Array) -> None:
        """Copy (count, dim) rows of the device."""
        first = 0
        for chunk in self.chunks:
            width = int(chunk.shape[1])
            chunk[...] = rows[:, first : first + width]
            first += width

    def rows(self, xp: Any) -> Array:
        """(count, dim), the other way: a view, or new; by NumPy or CuPy."""
        return self.chunks[0] if len(self.chunks) == 1 else xp.concatenate(self.chunks, axis=1)

    @property
    def binding(self) -> Binding:
        """What a kernel reads."""
        return Binding(self.data, self.count)


def output_rows(backend: Backend, count: int, dim: int) -> tuple[Array, Array]:
    """Memory of an output whose objects' scalars stand together, and (count, dim) of it."""
    width = row_scalars(dim, FLOAT)
    data = backend.xp.empty(count * width)
    return data, data.reshape(count, width)[:, :dim]


class FactorLaunches:
    """The kernels of one factor.

    Args:
        backend: Where they run.
        kernels: Compiled ones.
        factor: The factor, with at least one instance.
        problem: Its arrays.
        memory: Values and adjoints of node types, by name.
        role: That of the kernel of the Hessian.

    Attributes:
        factor: As given.
        count: Instances.
        index: For each node argument's name the node of each instance, (m,), on the device.
        rows: For each indexed constant's name the row of each instance, (m,).
    """

    def __init__(
        self,
        backend: Backend,
        kernels: GradientKernels,
        factor: TracedFactor,
        problem: Problem,
        memory: Mapping[str, tuple[Packed, Packed]],
        role: str,
    ) -> None:
        self.factor = factor
        self._backend = backend
        arrays = problem.factors[factor.name]
        self.count = arrays.count
        self.index: dict[str, Array] = {}
        self.rows: dict[str, Array] = {}
        self._constants: dict[str, Packed] = {}
        bindings: dict[str, Binding] = {}
        for argument in factor.inputs:
            index = self._index(argument, problem)
            if argument.node is None:
                shape = arrays.constants[argument.source].rows.shape
                packed = Packed.empty(backend, int(shape[0]), int(shape[1]))
                self._constants[argument.source] = packed
            else:
                packed, adjoint = memory[argument.node.name]
                bindings[argument.part(parts.ADJOINT)] = adjoint.binding
            fields = {} if index is None else {"index": index}
            bindings[argument.value_name] = packed.binding.with_fields(fields)
        dims = {one.name: one.storage_dim for one in factor.inputs}
        dims |= {one.name: one.tangent_dim for one in factor.nodes}
        self._pulls = {name: output_rows(backend, self.count, dim) for name, dim in dims.items()}
        self._hessian = output_rows(backend, self.count, parts.hessian_dim(factor))
        outputs = {
            one.part(parts.PULL): Binding(self._pulls[one.name][0], self.count)
            for one in factor.inputs
        }
        outputs[parts.HESSIAN] = Binding(self._hessian[0], self.count)
        bound = {**bindings, **outputs}
        self.launches = {
            one: backend.bind(kernels.of(factor, one), bound, self.count) for one in (role, ADJOINT)
        }

    def _index(self, argument: Argument, problem: Problem) -> Array | None:
        """Which object each instance reads, on the device; None: its own, or all the same."""
        arrays = problem.factors[self.factor.name]
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
        """Copy constants, weights and parameters of losses."""
        arrays = problem.factors[self.factor.name]
        for source, packed in self._constants.items():
            packed.fill(self._backend.upload(arrays.constants[source].rows))

    def given(self, argument: Argument) -> Array:
        """(rows, dim) of a constant as `fill` has brought them."""
        return self._constants[argument.source].rows(self._backend.xp)

    @property
    def hessian(self) -> Array:
        """(count, hessian_dim), once the kernel has run; the next run overwrites it."""
        return self._hessian[1]

    def pull(self, argument: Argument) -> Array:
        """(count, dim) derivatives of an argument's, once the kernel has run."""
        return self._pulls[argument.name][1]


class GradientLaunches:
    """The kernels of all factors that have instances.

    Args:
        backend: Where they run.
        kernels: Compiled ones.
        factors: The factors, with their terms.
        nodes: Node types that they touch.
        problem: Arrays of one structure.
        role: That of the kernels of the Hessian.
    """

    def __init__(
        self,
        backend: Backend,
        kernels: GradientKernels,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
        role: str,
    ) -> None:
        self._backend = backend
        counts = problem.counts
        self._memory = {
            node.name: (
                Packed.empty(backend, counts[node.name], node.storage_dim),
                Packed.empty(backend, counts[node.name], node.tangent_dim),
            )
            for node in nodes
        }
        self.factors = [
            FactorLaunches(backend, kernels, factor, problem, self._memory, role)
            for factor in factors
        ]
        self._run_hessian = self._runner(role)
        self._run_adjoint = self._runner(ADJOINT)

    def _runner(self, role: str) -> Callable[[], None]:
        return self._backend.repeated_runner([one.launches[role] for one in self.factors])

    def fill(self, problem: Problem) -> None:
        """Copy arrays of the structure; values are on the device."""
        for name, (packed, _) in self._memory.items():
            packed.fill(problem.values[name])
        for one in self.factors:
            one.fill(problem)

    def run_hessian(self) -> None:
        """Write `FactorLaunches.hessian`."""
        self._run_hessian()

    def run_adjoint(self, adjoints: Mapping[str, Array]) -> None:
        """Write `FactorLaunches.pull`, by (n, tangent_dim) z of each node type, on the device."""
        for name, (_, packed) in self._memory.items():
            packed.fill(adjoints[name])
        self._run_adjoint()
