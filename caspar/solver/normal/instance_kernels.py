"""Kernels that write rows for each instance of a factor, in float64 and in the order given.

Input: traced factors and a checked `Problem`. Output: arrays on the backend's device. Cost tier:
kernels once for a solver; memory once for a structure, or for a question; the rest once for a
question.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_specs
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import array_scalars, chunk_views, row_scalars
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel, Launch
from caspar.solver.input.problem import FactorArrays, Problem

FLOAT = DType.FLOAT64


def compiled(
    backend: Backend, purpose: str, specs: Mapping[str, Callable[[], KernelSpec]]
) -> list[Kernel]:
    """Compile and load kernels.

    Args:
        backend: Where they run.
        purpose: What they compute, such as `derivatives`.
        specs: By what identifies it in the cache what makes each kernel.
    """
    sources = compile_specs(
        [purpose, *specs],
        TARGETS[backend.traits.target],
        lambda: [make() for make in specs.values()],
    )
    with phase(f"compiling the kernels of {purpose}"):
        loaded = backend.load(list(sources.kernels.values()))
    return [loaded[name] for name in sources.kernels]


class InstanceKernels:
    """Kernels by factor and role, compiled when they are first needed.

    Args:
        backend: Where they run.
        purpose: What they compute.
        makers: By role what makes the kernel of a factor.
    """

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
        """Compile what is missing.

        Raises:
            SizeError: A kernel would take minutes to compile.
        """
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
        """Return packed zeros."""
        data = backend.xp.zeros(array_scalars(dim, FLOAT, count))
        return Packed(data, count, tuple(chunk_views(data, count, dim, FLOAT)))

    @staticmethod
    def of(backend: Backend, rows: Array) -> "Packed":
        """Pack (count, dim) rows, wherever they are."""
        packed = Packed.empty(backend, *map(int, rows.shape))
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

    Args:
        backend: Where they run.
        factor: The factor, with at least one instance.
        problem: Its arrays.
        values: Values of node types, by name.

    Attributes:
        factor: As given.
        count: Instances.
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
                packed = Packed.empty(backend, int(shape[0]), int(shape[1]))
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
        """Bind a kernel, and make its outputs.

        Args:
            kernel: Of this factor.
            outputs: By output the scalars of an instance.
            inputs: What it reads besides.

        Returns:
            The launch, and by output (count, dim), which it overwrites.
        """
        made = {name: output_rows(self._backend, self.count, dim) for name, dim in outputs.items()}
        bindings = {**self._bindings, **inputs}
        bindings |= {name: Binding(data, self.count) for name, (data, _) in made.items()}
        launch = self._backend.bind(kernel, bindings, self.count)
        return launch, {name: rows for name, (_, rows) in made.items()}
