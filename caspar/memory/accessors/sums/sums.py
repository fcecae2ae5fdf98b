"""Sums over items: of all, of runs of items, or of those whose `index[i]` names an object."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, BoundWrite, Finish, Kit, Options, WriteAccessor
from caspar.memory.accessors.block_functions import BLOCK_SUM
from caspar.memory.accessors.blocked import cpu_index, cuda_address
from caspar.memory.accessors.indexed import ReadIndexed
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, cuda_array
from caspar.memory.accessors.sequential import ReadUnique, WriteUnique
from caspar.memory.accessors.sums.partials import (
    AddSharedPartials,
    AddSumPartials,
    ReadPartials,
    room_for_warps,
)
from caspar.memory.accessors.sums.shared_atomics import AddSharedPeers, AddSharedRuns
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelBuilder, KernelSpec


@dataclass(frozen=True)
class WriteSum(AddSumPartials):
    """Object 0 gets the sum over all items.

    Each tile leaves its sum in scratch memory; a second kernel sums those in a fixed order. Both
    sums are taken in float64: the same bits in every run. (An atomic add for each tile needs no
    second kernel but sums in any order, and in the type of the output.)
    """

    writes_all: ClassVar[bool] = True
    has_one_object: ClassVar[bool] = True

    def num_objects(self, count: int, options: Options) -> int:
        """One."""
        return 1

    def in_kernel(self, options: Options, is_atomic: bool) -> WriteAccessor:
        """Sums of tiles."""
        return AddSumPartials()

    def stored_dtype(self, dtype: DType) -> DType:
        """Partial sums are float64."""
        return DType.FLOAT64

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Room for a partial of each tile; a kernel that sums them."""
        num_tiles = -(-kit.count // kit.tile_size)
        partials = Binding(kit.allocate(arg.dim * num_tiles, DType.FLOAT64), num_tiles)
        dtype = DType(str(output.data.dtype))
        spec = _total(arg.dim, dtype, self.adds)
        finish = Finish(spec, {"partials": partials, "output": output}, 1)
        return BoundWrite(partials.with_fields({"offset": 0}), (finish,))


@dataclass(frozen=True)
class AddSum(WriteSum):
    """Add to object 0 the sum over all items."""

    adds: ClassVar[bool] = True


@dataclass(frozen=True)
class AddUnique(AddSum):
    """All items add to object 0: the same as `AddSum`."""


def _total(dim: int, dtype: DType, adds: bool) -> KernelSpec:
    verb = "add" if adds else "write"
    kernel = KernelBuilder(f"{verb}_total_{dtype.value}_{dim}", DType.FLOAT64)
    sums = kernel.read("partials", dim, DType.FLOAT64, ReadPartials())
    if adds:
        old = kernel.read("output", dim, dtype, ReadUnique(), windowed=True)
        sums = [a + b for a, b in zip(old, sums, strict=True)]
    kernel.write("output", sums, dtype, WriteUnique(), windowed=True)
    return kernel.build()


@dataclass(frozen=True)
class ReadShared(ReadIndexed):
    """Item `i` reads object `index[i]`, which other items of its tile read too.

    By itself the same text as `ReadIndexed`: staging in shared memory, as in the paper, was slower
    than the caches are (docs/design/0010). Where the kernel also adds to the objects, its threads
    follow the order of their index, and these reads are sorted too.
    """


@dataclass(frozen=True)
class AddSharedSum(AddSharedPartials):
    """Add to object `index[i]` the value of item `i`, for all items that name it."""

    adds: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("index",)

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each index."""
        return int(options["index"].shape[0])

    def in_kernel(self, options: Options, is_atomic: bool) -> WriteAccessor:
        """Atomics, or partials of tiles that are summed in order."""
        if not is_atomic:
            return AddSharedPartials()
        return AddSharedRuns() if "prepared" in options else AddSharedPeers()

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Bind an output as the kernel's access needs it."""
        assert arg.write is not None
        return arg.write.bind(arg, output, options, kit)


_RUN_SUMS = """\
#ifndef CASPAR_RUN_SUMS
#define CASPAR_RUN_SUMS
// Sums over runs of SIZE threads, a multiple of 32: thread `WIDTH * run + component` gets that
// run's total of that component.
template <int WIDTH, int SIZE>
__device__ __forceinline__ double run_sum(const double (&value)[WIDTH], double (&stage)[4][32]) {
  warp_sums<WIDTH>(value, stage);
  double total = 0.0;
  if (threadIdx.x < blockDim.x / SIZE * WIDTH) {
    const u32 first = threadIdx.x / WIDTH * (SIZE / 32);
    for (u32 other = 0; other < SIZE / 32; ++other) {
      total += stage[threadIdx.x % WIDTH][first + other];
    }
  }
  return total;
}
#endif
"""


@dataclass(frozen=True)
class WriteBlockSum(WriteAccessor):
    """Object `i // size` gets the sum over the `size` items of its run.

    Sums are taken in float64, in a fixed order.

    Attributes:
        size: Items of a run: 32, 64, 128, 256, 512 or 1024.
    """

    cuda_functions: ClassVar[str] = BLOCK_SUM + _RUN_SUMS
    writes_all: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True
    needs_item_order: ClassVar[bool] = True
    size: int = 256

    def __post_init__(self) -> None:
        """Check the size."""
        if self.size not in (32, 64, 128, 256, 512, 1024):
            raise ValueError(
                f"{self.name}: size {self.size}; allowed are 32, 64, 128, 256, 512 and 1024"
            )

    @property
    def min_block_size(self) -> int:
        """A block holds whole runs."""
        return self.size

    def num_objects(self, count: int, options: Options) -> int:
        """One for each run; the last may be shorter."""
        return -(-count // self.size)

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Room for the sums of the warps."""
        room_for_warps(scope)

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """A sum over each run of the block."""
        width = len(values)
        stage, scalar = scope.alternate("sums"), SCALAR_TYPE[arg.dtype]
        items = [f"active ? double({value}) : 0.0" for value in values]
        total, run = cuda_array(scope, DType.FLOAT64, items), scope.temporary()
        address = cuda_address(arg, chunk, arg.object(run))
        scope.emit(
            f"{total}[0] = run_sum<{width}, {self.size}>({total}, {stage});",
            f"const u32 {run} = tile * (BLOCK_SIZE / {self.size}) + threadIdx.x / {width}u;",
            f"if (threadIdx.x < BLOCK_SIZE / {self.size} * {width} && "
            f"{run} < (count + {self.size - 1}u) / {self.size}u) {{",
            f"  ({address})[threadIdx.x % {width}u] {self._step} {scalar}({total}[0]);",
            "}",
        )

    @property
    def _step(self) -> str:
        return "+=" if self.adds else "="

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """A total for each column, cleared where a run begins."""
        zero = scope.number(0.0, DType.FLOAT64)
        totals = [f"{arg.name}_total{column}" for column in range(arg.dim)]
        scope.before(*(f"{total} = {zero}" for total in totals))
        scope.emit(f"if item % {self.size} == 0:", *(f"    {total} = {zero}" for total in totals))

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Add to the totals; store them where a run ends."""
        last = f"item % {self.size} == {self.size - 1} or item + 1 == last"
        place = cpu_index(arg, chunk, arg.object(f"(item // {self.size})"))
        for lane, value in enumerate(values):
            total = f"{arg.name}_total{chunk * arg.chunk_length + lane}"
            rounded = scope.cast(total, DType.FLOAT64, arg.dtype)
            scope.emit(
                f"{total} += {scope.cast(value, scope.dtype, DType.FLOAT64)}",
                f"if {last}:",
                f"    {arg.name}_data[{place} + {lane}] {self._step} {rounded}",
            )


@dataclass(frozen=True)
class AddBlockSum(WriteBlockSum):
    """Add to object `i // size` the sum over the `size` items of its run."""

    adds: ClassVar[bool] = True
