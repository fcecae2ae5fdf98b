"""Compiled forms of a kernel: one for each backend, type and way to write.

Once each: traced expressions to source text, which a cache on disk keeps, and source to machine
code, which CuPy's cache and caspar's keep. The block size is chosen by registers and shared memory,
or, if it is asked for, by measurement: some milliseconds for each size on the device, kept on disk
for this kernel on this device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS, Target
from caspar.driver import compile_kernel, compile_specs, digest_of
from caspar.errors import InputError
from caspar.frontend.kernels.spec import kernel_spec
from caspar.frontend.kernels.trace import TracedKernel
from caspar.ir.dtype import DType
from caspar.memory.access import FinishSpec, WriteAccessor
from caspar.memory.kernel import KernelSpec, ReduceSpec
from caspar.progress import phase
from caspar.runtime.backend import Backend, Kernel
from caspar.runtime.cache import read_entry, write_entry

MIN_GAIN = 0.02
"""Share of the time that another size than the chosen one must save, above what repeats differ."""


@dataclass(frozen=True)
class Tuning:
    """A kernel measured with every block size; made by `Kernel.tune`.

    Attributes:
        kernel: Its name.
        times_s: Median seconds of a call by block size.
        chosen: The size by registers and shared memory.
        best: The size that calls take from now on.
    """

    kernel: str
    times_s: Mapping[int, float]
    chosen: int
    best: int

    def __str__(self) -> str:
        lines = [f"kernel {self.kernel}: blocks of {self.best} from now on"]
        for size, seconds in sorted(self.times_s.items()):
            ratio = seconds / self.times_s[self.chosen]
            mark = " (chosen by registers and shared memory)" if size == self.chosen else ""
            lines.append(f"  {size:>5}: {seconds * 1e6:10.2f} us, {ratio:.3f}{mark}")
        return "\n".join(lines)

    __repr__ = __str__


def best_size(times_s: Mapping[int, float], chosen: int) -> int:
    """The quickest size; the chosen one where no other saves enough."""
    best = min(times_s, key=lambda size: times_s[size])
    return best if times_s[best] < (1.0 - MIN_GAIN) * times_s[chosen] else chosen


@dataclass
class MeasuredSizes:
    """Block sizes found by measurement, in this process and on disk."""

    known: dict[str, int | None] = field(default_factory=dict)

    def find(self, key: str) -> int | None:
        """The size of a kernel; None where it was never measured."""
        if key not in self.known:
            self.known[key] = _read(key)
        return self.known[key]

    def keep(self, key: str, size: int) -> None:
        """Remember a size, also for later processes."""
        self.known[key] = size
        write_entry("tuned", key, str(size).encode())


def _read(key: str) -> int | None:
    content = read_entry("tuned", key)
    return None if content is None else int(content)


def tuning_key(
    traced: TracedKernel, backend: Backend, dtype: DType, writes: Mapping[str, WriteAccessor]
) -> str:
    """Digest of all that a measurement holds for."""
    return digest_of((traced.key, backend.device, dtype.value, repr(writes)))


_Key = tuple[str, DType, tuple[tuple[str, WriteAccessor], ...], int | None]


@dataclass
class KernelCache:
    """The compiled forms of one kernel function in this process, and block sizes by measurement."""

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

        Without a block size it is the measured one, or else it is chosen. Raises an `InputError`
        for one that the kernel's accesses do not allow.
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
    traced: TracedKernel, dtype: DType, writes: Mapping[str, WriteAccessor], target: Target
) -> KernelSource:
    """Generate a stand-alone kernel, or take it from the cache."""
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
