"""Kernels that write rows for each instance of a factor, in float64 and in the order given.

Input: traced factors and a checked `Problem`. Output: arrays on the backend's device. Cost tier:
kernels once for a solver, the rest once for a question.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

from caspar.codegen.targets import TARGETS
from caspar.driver import compile_specs
from caspar.frontend.factors.trace import TracedFactor
from caspar.frontend.precision import TYPES, Types
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import array_scalars, chunk_views, row_scalars
from caspar.options import Precision
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel
from caspar.solver.input.problem import Problem

FLOAT = DType.FLOAT64


class InstanceKernels:
    """One kernel for each factor, compiled when it is first needed.

    Args:
        backend: Where they run.
        purpose: What they compute, such as `derivatives`.
        make: Makes the kernel of a factor.
    """

    def __init__(
        self, backend: Backend, purpose: str, make: Callable[[TracedFactor, Types], KernelSpec]
    ) -> None:
        self._backend = backend
        self._purpose = purpose
        self._make = make
        self._kernels: dict[str, Kernel] = {}
        self._compiling = Lock()

    def compile(self, factors: Sequence[TracedFactor]) -> None:
        """Compile what is missing."""
        with self._compiling:
            missing = [factor for factor in factors if factor.key not in self._kernels]
            if len(missing) == 0:
                return
            types = TYPES[Precision.FLOAT64]
            sources = compile_specs(
                [self._purpose, *(factor.key for factor in missing)],
                TARGETS[self._backend.traits.target],
                lambda: [self._make(factor, types) for factor in missing],
            )
            with phase(f"compiling the kernels of {self._purpose}"):
                loaded = self._backend.load(list(sources.kernels.values()))
            for factor, source in zip(missing, sources.kernels.values(), strict=True):
                self._kernels[factor.key] = loaded[source.name]

    def packed(self, rows: Array) -> Array:
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

    def run(
        self,
        factor: TracedFactor,
        problem: Problem,
        values: Mapping[str, Array],
        dims: Mapping[str, int],
    ) -> tuple[dict[str, Array], dict[str, Array | None]]:
        """Run a kernel that has been compiled.

        Args:
            factor: The factor, with at least one instance.
            problem: Its arrays.
            values: By node type its packed values.
            dims: By output the scalars of an instance.

        Returns:
            By output (instances, dim); and by input argument the index that it was read with.
        """
        arrays = problem.factors[factor.name]
        bindings, indices = {}, {}
        for argument in factor.inputs:
            if argument.node is None:
                constant = arrays.constants[argument.source]
                data, length = self.packed(constant.rows), int(constant.rows.shape[0])
                index = constant.index
            else:
                data, length = values[argument.node.name], problem.counts[argument.node.name]
                index = arrays.nodes[argument.name]
            fields = {} if index is None else {"index": self._backend.upload(index)}
            bindings[argument.value_name] = Binding(data, length, fields=fields)
            indices[argument.name] = fields.get("index")
        empty, count = self._backend.xp.empty, arrays.count
        outputs = {name: empty(count * row_scalars(dim, FLOAT)) for name, dim in dims.items()}
        bindings |= {name: Binding(array, count) for name, array in outputs.items()}
        launch = self._backend.bind(self._kernels[factor.key], bindings, count)
        self._backend.runner([launch])()
        # without the padding of rows
        found = {
            name: outputs[name].reshape(count, row_scalars(dim, FLOAT))[:, :dim]
            for name, dim in dims.items()
        }
        return found, indices
