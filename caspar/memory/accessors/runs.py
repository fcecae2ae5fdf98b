"""Shared adds where neighbouring items share an object: lanes are summed, then added by atomics."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Field, Options, WriteAccessor
from caspar.memory.accessors.blocked import cuda_base
from caspar.memory.accessors.indexed import indexed_fields, object_name, read_index
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, converted
from caspar.memory.accessors.shared_atomics import ADD_CHUNK, RUNS
from caspar.memory.accessors.slots import SLOT_FIELDS

MANY_SCALARS = 12
"""Scalars of an object up to which all are summed in one loop, when the last is known."""

PAIRS = 4
"""Chunks of two doubles that are summed and added together, in whatever order they become known."""

_CHUNK_BITS = 8
"""Bits of the number of a chunk among those of a group."""

_ADD_PAIRS = f"""\
#ifndef CASPAR_ADD_PAIRS
#define CASPAR_ADD_PAIRS
template <typename T> struct PairStage {{
  T value[32][{2 * PAIRS}];
  u32 object[32];
}};

// Add sums of runs to chunks of two doubles, whose numbers are packed: all lanes of the warp add,
// two of them the scalars of a chunk, which is one request.
template <int WIDTH, typename T>
__device__ __forceinline__ void add_pairs(
    double* data, u32 length, u64 chunks, u32 object, u32 adds, const T (&value)[WIDTH],
    PairStage<T>& stage) {{
  const u32 lane = threadIdx.x & 31u;
  if (adds >> lane & 1u) {{
    const u32 rank = __popc(adds & ((1u << lane) - 1u));
    stage.object[rank] = object;
#pragma unroll
    for (int scalar = 0; scalar < WIDTH; ++scalar) stage.value[rank][scalar] = value[scalar];
  }}
  __syncwarp();
  const u32 total = WIDTH * __popc(adds);
  for (u32 number = lane; number < total; number += 32u) {{
    const u32 rank = number / WIDTH, scalar = number - rank * WIDTH;
    const u32 chunk = u32(chunks >> ({_CHUNK_BITS}u * (scalar >> 1))) & {(1 << _CHUNK_BITS) - 1}u;
    const u64 place = 2ull * (u64(length) * chunk + stage.object[rank]) + (scalar & 1u);
    atomicAdd(data + place, double(stage.value[rank][scalar]));
  }}
  __syncwarp();
}}
#endif
"""


@dataclass(frozen=True)
class AddRuns(WriteAccessor):
    """Lanes of a warp that stand together and name one object are summed, then added.

    The sums over lanes are taken in the computing type, the sums in memory in the array's.

    Attributes:
        index_of: Another argument of the kernel, read by the same index; empty: its own.
        runs_of: Another argument of the kernel, added by the same index; empty: none.
        spread: Whether objects have slots, see `accessors.slots`; each tile adds to one.
    """

    index_of: str = ""
    runs_of: str = ""
    spread: bool = False

    cuda_functions: ClassVar[str] = ADD_CHUNK + RUNS + _ADD_PAIRS
    adds: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item, and where the slots are."""
        return (*indexed_fields(self.index_of), *(SLOT_FIELDS if self.spread else ()))

    def num_objects(self, count: int, options: Options) -> int:
        """Any number: indices are checked against it."""
        return 0

    def _runs(self, arg: ArgSpec) -> str:
        return f"{arg.name if self.runs_of == '' else self.runs_of}_runs"

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Find the runs."""
        read_index(scope, arg, self.index_of)
        if self.runs_of == "":
            place = object_name(arg, self.index_of)
            scope.emit(f"const Runs {self._runs(arg)} = find_runs({place}, active);")
        scalar = SCALAR_TYPE[scope.dtype]
        if self._has_pairs(arg):
            stage = f"PairStage<{scalar}> pair_stage[BLOCK_SIZE / 32]"
            scope.shared("pair_stage", stage, fenced=True)
            scope.emit(f"{scalar} {arg.name}_kept[{2 * PAIRS}];")
        elif self._waits(arg):
            scope.emit(f"{scalar} {arg.name}_kept[{arg.dim}];")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Sum over the run, add; of few scalars, and of pairs of doubles, only keep them."""
        if self._has_pairs(arg) and len(values) == 2:
            chunks = scope.noted(arg.name)
            first = 2 * len(chunks)
            chunks.append(chunk)
            kept = (f"{arg.name}_kept[{first + n}] = {value};" for n, value in enumerate(values))
            scope.emit(" ".join(kept))
            if len(chunks) == PAIRS:
                self._add_pairs(scope, arg)
            return
        if self._waits(arg):
            first = chunk * arg.chunk_length
            kept = (f"{arg.name}_kept[{first + n}] = {value};" for n, value in enumerate(values))
            scope.emit(" ".join(kept))
            return
        total = scope.temporary()
        scalar, width = SCALAR_TYPE[scope.dtype], len(values)
        scope.emit(
            f"{scalar} {total}[{width}] = {{{', '.join(values)}}};",
            f"sum_runs<{width}>({self._runs(arg)}, {total});",
        )
        self._add(scope, arg, chunk, total, 0)

    def cuda_after(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Sum and add what was kept."""
        if len(scope.noted(arg.name)) > 0:
            self._add_pairs(scope, arg)
        if not self._waits(arg):
            return
        scope.emit(f"sum_runs<{arg.dim}>({self._runs(arg)}, {arg.name}_kept);")
        for chunk in range(len(arg.chunk_widths)):
            self._add(scope, arg, chunk, f"{arg.name}_kept", chunk * arg.chunk_length)

    def _waits(self, arg: ArgSpec) -> bool:
        """Whether all scalars are summed in one loop at the end."""
        return arg.dim <= MANY_SCALARS and not self._has_pairs(arg)

    def _has_pairs(self, arg: ArgSpec) -> bool:
        """Whether chunks are pairs of doubles, but for a last one."""
        return arg.dtype is DType.FLOAT64 and 2 <= arg.dim < 2 << _CHUNK_BITS

    def _add_pairs(self, scope: CudaScope, arg: ArgSpec) -> None:
        chunks, runs = scope.noted(arg.name), self._runs(arg)
        packed = sum(chunk << (_CHUNK_BITS * place) for place, chunk in enumerate(chunks))
        width, total = 2 * len(chunks), scope.temporary()
        kept = ", ".join(f"{arg.name}_kept[{n}]" for n in range(width))
        scope.emit(
            f"{SCALAR_TYPE[scope.dtype]} {total}[{width}] = {{{kept}}};",
            f"sum_runs<{width}>({runs}, {total});",
            f"add_pairs<{width}>({arg.name}_data, {arg.name}_length, {packed}ull, "
            f"{self._row(arg)}, {runs}.adds, {total}, pair_stage[threadIdx.x >> 5]);",
        )
        chunks.clear()

    def _row(self, arg: ArgSpec) -> str:
        """Where an item's object is, in the slot of the tile."""
        place = object_name(arg, self.index_of)
        if not self.spread:
            return place
        return f"{place} + (tile & u32({arg.name}_slots - 1)) * u32({arg.name}_stride)"

    def _add(self, scope: CudaScope, arg: ArgSpec, chunk: int, total: str, first: int) -> None:
        width, added = arg.chunk_widths[chunk], scope.temporary()
        sums = ", ".join(
            converted(f"{total}[{first + n}]", scope.dtype, arg.dtype) for n in range(width)
        )
        scope.emit(
            f"const {SCALAR_TYPE[arg.dtype]} {added}[{width}] = {{{sums}}};",
            f"add_chunk<{width}>("
            f"{cuda_base(arg, chunk)}, {self._row(arg)}, {self._runs(arg)}.adds, {added});",
        )

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Not here: tiles run at the same time on the processor, and it has no atomics."""
        raise NotImplementedError
