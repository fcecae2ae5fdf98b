"""Shared adds where neighbouring items share an object: lanes are summed, then added by atomics."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Field, Options, WriteAccessor
from caspar.memory.accessors.blocked import cuda_base, cuda_keep
from caspar.memory.accessors.indexed import indexed_fields, object_name, read_index
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, converted
from caspar.memory.accessors.sums.shared_atomics import ADD_CHUNK, RUNS
from caspar.memory.accessors.sums.slots import SLOT_FIELDS
from caspar.memory.layout import row_scalars

MANY_SCALARS = 12
"""Scalars of an object up to which all are summed in one loop, when the last is known."""

STAGED_SCALARS = 8
"""Scalars that are staged together, whichever chunks become known first."""

_CHUNK_BITS = 16
"""Bits of the number of a chunk among those that are staged together."""

_ADD_STAGED = f"""\
#ifndef CASPAR_ADD_STAGED
#define CASPAR_ADD_STAGED
template <typename T> struct alignas(16) RunStage {{
  T value[32][{STAGED_SCALARS}];
  u32 object[32];
}};

// Add sums of runs to chunks, whose numbers are packed: all lanes of the warp add, those of the
// same 32 bytes in one request. Chunk `c` of object `o` begins at
// data[chunk_step * c + object_step * o]. A lane adds the same scalar of every run it gets.
template <int CHUNK, int WIDTH, typename T, typename Sum>
__device__ __forceinline__ void add_staged(
    Sum* data, u64 chunk_step, u64 object_step, u32 dim, u64 chunks, u32 object, u32 adds,
    const T (&value)[WIDTH], RunStage<T>& stage) {{
  const u32 lane = threadIdx.x & 31u;
  if (adds >> lane & 1u) {{
    const u32 rank = __popc(adds & ((1u << lane) - 1u));
    stage.object[rank] = object;
#pragma unroll
    for (int scalar = 0; scalar < WIDTH; ++scalar) stage.value[rank][scalar] = value[scalar];
  }}
  __syncwarp();
  constexpr u32 AT_ONCE = 32 / WIDTH;
  const u32 place = lane % WIDTH, scalar = place % CHUNK;
  const u32 chunk = u32(chunks >> ({_CHUNK_BITS}u * (place / CHUNK))) & {(1 << _CHUNK_BITS) - 1}u;
  // an object's last chunk may be shorter
  if (lane < AT_ONCE * WIDTH && CHUNK * chunk + scalar < dim) {{
    Sum* const own = data + (chunk_step * chunk + scalar);
    const u32 total = u32(__popc(adds));
#pragma unroll 1
    for (u32 rank = lane / WIDTH; rank < total; rank += AT_ONCE) {{
      atomicAdd(own + object_step * stage.object[rank], Sum(stage.value[rank][place]));
    }}
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
        rows: As in `Accessor`; a request adds 32 bytes then. 48 float64 added to 13,682 objects,
            9 M times: 3.9 ms in chunks of two, 2.4 in chunks of four, 1.6 in rows where objects
            are near each other; 2.8, 1.4 and 1.4 where they are any (H200).
        spread: Whether objects have slots, see `accessors.slots`; each tile adds to one.
    """

    index_of: str = ""
    runs_of: str = ""
    rows: bool = False
    spread: bool = False

    cuda_functions: ClassVar[str] = ADD_CHUNK + RUNS + _ADD_STAGED
    adds: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True

    @property
    def has_own_chunks(self) -> bool:
        """Four float64 are one request."""
        return self.rows

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
        if self._is_staged(arg):
            stage = f"RunStage<{scalar}> run_stage[BLOCK_SIZE / 32]"
            scope.shared("run_stage", stage, fenced=True)
            scope.emit(f"{scalar} {arg.name}_kept[{STAGED_SCALARS}];")
        elif self._waits(arg):
            scope.emit(f"{scalar} {arg.name}_kept[{arg.dim}];")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Sum over the run, add; of few scalars, and of what is staged, only keep them."""
        if self._is_staged(arg) and (self.rows or len(values) == arg.chunk_length):
            if cuda_keep(scope, arg, chunk, values) == STAGED_SCALARS:
                self._add_staged(scope, arg)
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
            self._add_staged(scope, arg)
        if not self._waits(arg):
            return
        scope.emit(f"sum_runs<{arg.dim}>({self._runs(arg)}, {arg.name}_kept);")
        for chunk in range(len(arg.chunk_widths)):
            self._add(scope, arg, chunk, f"{arg.name}_kept", chunk * arg.chunk_length)

    def _waits(self, arg: ArgSpec) -> bool:
        """Whether all scalars are summed in one loop at the end."""
        return arg.dim <= MANY_SCALARS and not self._is_staged(arg)

    def _is_staged(self, arg: ArgSpec) -> bool:
        """Whether several lanes add a chunk: there are no vector additions of doubles."""
        return self.rows or (arg.dtype is DType.FLOAT64 and arg.dim > 1)

    def _add_staged(self, scope: CudaScope, arg: ArgSpec) -> None:
        chunks, runs, length = scope.noted(arg.name), self._runs(arg), arg.chunk_length
        packed = sum(chunk << (_CHUNK_BITS * place) for place, chunk in enumerate(chunks))
        width, total = length * len(chunks), scope.temporary()
        kept = ", ".join(f"{arg.name}_kept[{n}]" for n in range(width))
        row = row_scalars(arg.dim, arg.dtype)
        chunk_step = length if self.rows else f"{length}ull * {arg.name}_length"
        scope.emit(
            f"{SCALAR_TYPE[scope.dtype]} {total}[{width}] = {{{kept}}};",
            f"sum_runs<{width}>({runs}, {total});",
            f"add_staged<{length}, {width}>({arg.name}_data, {chunk_step}, "
            f"{row if self.rows else length}, {arg.dim}u, {packed}ull, {self._object(arg)}, "
            f"{runs}.adds, {total}, run_stage[threadIdx.x >> 5]);",
        )
        chunks.clear()

    def _object(self, arg: ArgSpec) -> str:
        """An item's object, in the slot of the tile."""
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
            f"{cuda_base(arg, chunk)}, {self._object(arg)}, {self._runs(arg)}.adds, {added});",
        )

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Not here: tiles run at the same time on the processor, and it has no atomics."""
        raise NotImplementedError
