"""Shared adds where neighbouring items share an object: lanes are summed, then added by atomics."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Field
from caspar.memory.accessors.blocked import cuda_keep, cuda_kept
from caspar.memory.accessors.indexed import ByIndex, object_name, owner, read_index
from caspar.memory.accessors.scope import SCALAR_TYPE, CudaScope, converted_all, cuda_array
from caspar.memory.accessors.sums.shared_atomics import ADD_CHUNK, RUNS, AddAtomically, add_chunk
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
class AddRuns(AddAtomically, ByIndex):
    """Lanes of a warp that stand together and name one object are summed, then added.

    The sums over lanes are taken in the computing type, the sums in memory in the array's.
    `index_of` is another argument that is read by the same index, `runs_of` one that is added by
    it; empty: its own, or none. With `rows`, as in `Accessor`, a request adds 32 bytes; with
    `spread` objects have slots, see `accessors.slots`, and each tile adds to one. Figures:
    docs/design/0012-elimination.md.
    """

    index_of: str = ""
    runs_of: str = ""
    rows: bool = False
    spread: bool = False

    cuda_functions: ClassVar[str] = ADD_CHUNK + RUNS + _ADD_STAGED

    @property
    def has_own_chunks(self) -> bool:
        """Four float64 are one request."""
        return self.rows

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item, and where the slots are."""
        return (*super().fields(arg), *(SLOT_FIELDS if self.spread else ()))

    def _runs(self, arg: ArgSpec) -> str:
        return f"{owner(arg, self.runs_of)}_runs"

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
        total = cuda_array(scope, scope.dtype, values)
        scope.emit(f"sum_runs<{len(values)}>({self._runs(arg)}, {total});")
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
        """Return whether all scalars are summed in one loop at the end."""
        return arg.dim <= MANY_SCALARS and not self._is_staged(arg)

    def _is_staged(self, arg: ArgSpec) -> bool:
        """Return whether several lanes add a chunk: there are no vector additions of doubles."""
        return self.rows or (arg.dtype is DType.FLOAT64 and arg.dim > 1)

    def _add_staged(self, scope: CudaScope, arg: ArgSpec) -> None:
        chunks, kept = cuda_kept(scope, arg)
        runs, length, width = self._runs(arg), arg.chunk_length, len(kept)
        packed = sum(chunk << (_CHUNK_BITS * place) for place, chunk in enumerate(chunks))
        total = cuda_array(scope, scope.dtype, kept)
        row = row_scalars(arg.dim, arg.dtype)
        chunk_step = length if self.rows else f"{length}ull * {arg.name}_length"
        scope.emit(
            f"sum_runs<{width}>({runs}, {total});",
            f"add_staged<{length}, {width}>({arg.name}_data, {chunk_step}, "
            f"{row if self.rows else length}, {arg.dim}u, {packed}ull, {self._object(arg)}, "
            f"{runs}.adds, {total}, run_stage[threadIdx.x >> 5]);",
        )

    def _object(self, arg: ArgSpec) -> str:
        place = object_name(arg, self.index_of)
        if not self.spread:
            return place
        return f"{place} + (tile & u32({arg.name}_slots - 1)) * u32({arg.name}_stride)"

    def _add(self, scope: CudaScope, arg: ArgSpec, chunk: int, total: str, first: int) -> None:
        width = arg.chunk_widths[chunk]
        sums = [f"{total}[{first + n}]" for n in range(width)]
        converted = converted_all(sums, scope.dtype, arg.dtype)
        added = cuda_array(scope, arg.dtype, converted, const=True)
        adds = f"{self._runs(arg)}.adds"
        scope.emit(add_chunk(arg, chunk, self._object(arg), adds, added))
