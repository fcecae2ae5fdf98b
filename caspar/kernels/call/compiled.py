"""Compiled forms of a kernel: one for each backend, type and way to write.

Once each: traced expressions to source text, which a cache on disk keeps, and source to machine
code, which CuPy's cache and caspar's keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS, Target
from caspar.driver import compile_kernel, compile_specs
from caspar.errors import InputError
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.kernels.trace import TracedKernel
from caspar.ir.dtype import DType
from caspar.kernels.call.tuning import MeasuredSizes, tuning_key
from caspar.memory.access import FinishSpec, WriteAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.reduce import ReduceSpec
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel

_Key = tuple[str, DType, tuple[tuple[str, WriteAccessor], ...], int | None]


@dataclass
class KernelCache:
    """The compiled forms of one kernel function in this process.

    Attributes:
        kernels: By what they were compiled for.
        sizes: Block sizes that were found by measurement.
    """

    kernels: dict[_Key, Kernel] = field(default_factory=dict)
    sizes: MeasuredSizes = field(default_factory=MeasuredSizes)

    def kernel(
        self,
        traced: TracedKernel,
        backend: Backend,
        dtype: DType,
        writes: Mapping[str, WriteAccessor],
        block_size: int | None,
    ) -> Kernel:
        """The kernel for one way to call it.

        Args:
            traced: What to compile.
            backend: Where it runs.
            dtype: Type it computes in.
            writes: How the kernel itself writes each output.
            block_size: Threads of a block; None: as measured, or else chosen.

        Raises:
            InputError: A block size that the kernel's accesses do not allow.
        """
        key = (backend.name, dtype, tuple(writes.items()), block_size)
        found = self.kernels.get(key)
        if found is not None:
            return found
        source = kernel_source(traced, dtype, writes, TARGETS[backend.traits.target])
        wanted = block_size
        if wanted is None:
            wanted = self.sizes.find(tuning_key(traced, backend, dtype, writes))
        if block_size is not None and block_size not in source.block_sizes:
            allowed = ", ".join(map(str, sorted(source.block_sizes)))
            raise InputError(
                f"kernel {traced.name}: block_size={block_size}; its accesses allow {allowed}"
            )
        with phase(f"compiling kernel {traced.name}"):
            self.kernels[key] = backend.load([source], wanted)[source.name]
        return self.kernels[key]

    def finish(self, backend: Backend, spec: FinishSpec) -> Kernel:
        """A kernel that completes a write."""
        key = (backend.name, spec.name)
        if key not in _FINISHES:
            source = finish_source(spec, TARGETS[backend.traits.target])
            _FINISHES[key] = backend.load([source], backend.tile_size)[source.name]
        return _FINISHES[key]


_FINISHES: dict[tuple[str, str], Kernel] = {}


def kernel_source(
    traced: TracedKernel,
    dtype: DType,
    writes: Mapping[str, WriteAccessor],
    target: Target,
) -> KernelSource:
    """Generate a stand-alone kernel, or take it from the cache.

    Args:
        traced: The kernel function.
        dtype: Type it computes in and its arrays have.
        writes: How the kernel itself writes each output, by the output's name.
        target: What to generate.
    """
    parts = (dtype.value, traced.key, repr(writes))
    made = compile_specs(parts, target, lambda: [kernel_spec(traced, dtype, writes)])
    (source,) = made.kernels.values()
    return source


def finish_source(spec: FinishSpec, target: Target) -> KernelSource:
    """Generate a kernel that completes a write of another."""
    if isinstance(spec, ReduceSpec):
        return target.generate_reduce(spec)
    assert isinstance(spec, KernelSpec)
    return compile_kernel(spec, target)


def sums_are_atomic(backend: Backend, deterministic: bool) -> bool:
    """Return whether kernels of a backend sum over shared objects by atomics."""
    return TARGETS[backend.traits.target].dialect.sums_are_atomic(deterministic)
