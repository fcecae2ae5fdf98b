"""One sum for each run of `size` consecutive items."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Options, WriteAccessor
from caspar.memory.accessors.block_functions import BLOCK_SUM
from caspar.memory.accessors.blocked import cpu_index, cuda_address
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, cuda_array
from caspar.memory.accessors.sums.partials import room_for_warps

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
