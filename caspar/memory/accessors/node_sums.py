"""Sums over the items of one eliminated node, which all lie in one tile; see `memory.node_tiles`.

Nothing is added by atomics and no partial leaves the block: the sums have the same bits in every
run. An item's place in the tile's order by node is one word: begin | slot << 10 | length << 20.
"""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, ExchangeAccessor, Field, Options, WriteAccessor
from caspar.memory.accessors.blocked import (
    cpu_index,
    cpu_store,
    cuda_address,
    cuda_lanes,
    cuda_packed,
    cuda_vector,
)
from caspar.memory.accessors.indexed import indexed_fields, object_name, read_index
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, converted
from caspar.memory.layout import padded_width

_NODE_SUMS = """\
#ifndef CASPAR_NODE_SUMS
#define CASPAR_NODE_SUMS
// Rows are aligned so that one load takes a row of four.
template <typename T, int ROW> struct alignas(ROW % 4 == 0 ? 16 : sizeof(T)) StageRow {
  T value[ROW];
};

// Write the item's values where its node's items are neighbours.
template <int WIDTH, typename T, int ROW>
__device__ __forceinline__ void stage_values(
    StageRow<T, ROW>* stage, u32 place, bool active, const T (&value)[WIDTH]) {
  if (!active) return;
  StageRow<T, ROW> row;
#pragma unroll
  for (int component = 0; component < ROW; ++component) {
    row.value[component] = component < WIDTH ? value[component < WIDTH ? component : 0] : T(0);
  }
  stage[place >> 10 & 0x3ffu] = row;
}

// Sum the items of the node.
template <int WIDTH, typename Sum, typename T, int ROW>
__device__ __forceinline__ void sum_node(
    const StageRow<T, ROW>* stage, u32 place, Sum (&total)[WIDTH]) {
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) total[component] = Sum(0);
  const u32 begin = place & 0x3ffu, end = begin + (place >> 20);
#pragma unroll 2
  for (u32 slot = begin; slot < end; ++slot) {
    const StageRow<T, ROW> row = stage[slot];
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      total[component] += Sum(row.value[component]);
    }
  }
}

// A node whose items fill several tiles: add this tile's to the total.
template <int WIDTH, int WARPS, typename T>
__device__ __forceinline__ void collect_node(
    bool active, bool first, const T (&value)[WIDTH], T (&warp_sum)[WARPS][WIDTH],
    T (&total)[WIDTH]) {
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) {
    T sum = active ? value[component] : T(0);
    for (u32 step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if ((threadIdx.x & 31u) == 0u) warp_sum[threadIdx.x >> 5][component] = sum;
  }
  __syncthreads();
  if (threadIdx.x < WIDTH) {
    T sum = first ? T(0) : total[threadIdx.x];
    for (int warp = 0; warp < WARPS; ++warp) sum += warp_sum[warp][threadIdx.x];
    total[threadIdx.x] = sum;
  }
  __syncthreads();
}
#endif
"""


NODE_TILE_SIZES = (128, 256, 512)
"""Items of a node tile, the preferred number first: more would halve the additions to shared nodes
but for waits at barriers (bundle adjustment on an H200, Schur product of 5 M factors: 199, 235 and
341 us with recomputed Jacobians, 234, 228 and 226 with stored ones)."""


def _row(dim: int) -> int:
    """Scalars of a staged row: rows of three are padded, so that one load takes them."""
    return padded_width(dim) if dim <= 4 else -(-dim // 4) * 4


def _place(arg: ArgSpec) -> str:
    return f"{arg.name}_at"


@dataclass(frozen=True)
class SumOverNode(ExchangeAccessor):
    """Every item gets the sums over the items of its node; the array holds the items' places."""

    cuda_functions: ClassVar[str] = _NODE_SUMS
    cooperates: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = NODE_TILE_SIZES

    def num_objects(self, count: int, options: Options) -> int:
        """A place for each item."""
        return count

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Read the place; room for the staged values."""
        scalar, name = SCALAR_TYPE[scope.dtype], arg.name
        scope.shared(f"{name}_rows", f"StageRow<{scalar}, {_row(arg.dim)}> {name}_rows[BLOCK_SIZE]")
        scope.shared(f"{name}_warps", f"{scalar} {name}_warps[BLOCK_SIZE / 32][{arg.dim}]")
        scope.shared(f"{name}_total", f"{scalar} {name}_total[{arg.dim}]")
        scope.emit(f"const u32 {_place(arg)} = active ? u32(load_once({name}_data + item)) : 0u;")

    def cuda_exchange(self, scope: CudaScope, arg: ArgSpec, values: list[str]) -> list[str]:
        """Stage, sum; of a node with several tiles the first pass collects."""
        name, width, total = arg.name, len(values), scope.temporary()
        scalar = SCALAR_TYPE[scope.dtype]
        scope.emit(
            f"{scalar} {total}[{width}] = {{{', '.join(values)}}};",
            "if (last_tile - first_tile > 1u) {",
            f"  if (pass == {scope.next_exchange()}u) {{",
            f"    collect_node<{width}, BLOCK_SIZE / 32>(",
            f"        active, tile == first_tile, {total}, {name}_warps, {name}_total);",
            "    continue;",
            "  }",
            f"  for (int n = 0; n < {width}; ++n) {total}[n] = {name}_total[n];",
            "} else {",
            f"  stage_values<{width}>({name}_rows, {_place(arg)}, active, {total});",
            "  __syncthreads();",
            f"  sum_node<{width}>({name}_rows, {_place(arg)}, {total});",
            "}",
        )
        return [f"{total}[{component}]" for component in range(width)]

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """A sum for each place where a node can begin."""
        scope.once(f"{arg.name}_sums = np.zeros(TILE_SIZE * {arg.dim})")
        scope.emit(f"{_place(arg)} = {arg.dim} * ({arg.name}_data[item] & 0x3FF)")

    def cpu_exchange(self, scope: CpuScope, arg: ArgSpec, values: list[str]) -> list[str]:
        """Collect in the first turn."""
        place = _place(arg)
        scope.emit(f"if turn == {scope.next_exchange()}:")
        for component, value in enumerate(values):
            scope.emit(f"    {arg.name}_sums[{place} + {component}] += {value}")
        scope.emit("    continue")
        sums = (f"{arg.name}_sums[{place} + {component}]" for component in range(len(values)))
        return [scope.cast(total, DType.FLOAT64, scope.dtype) for total in sums]


@dataclass(frozen=True)
class AddOwnNode(WriteAccessor):
    """The sums over the items of a node are added to the node, by one thread.

    Attributes:
        index_of: Another argument of the kernel, read by the same index; empty: its own.
    """

    index_of: str = ""

    cuda_functions: ClassVar[str] = _NODE_SUMS
    adds: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = NODE_TILE_SIZES

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The node of each item, and its place in the tile."""
        return (*indexed_fields(self.index_of), Field("place", DType.INT32))

    def num_objects(self, count: int, options: Options) -> int:
        """Any number: indices are checked against it."""
        return 0

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Read the place; room for the staged values."""
        scalar = SCALAR_TYPE[scope.dtype]
        scope.shared("node_rows", f"StageRow<{scalar}, 4> node_rows[2][BLOCK_SIZE]")
        read_index(scope, arg, self.index_of)
        scope.emit(f"const u32 {_place(arg)} = active ? u32({arg.name}_place[item]) : 0u;")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Stage; the thread of the node's first place sums and adds."""
        width, place = len(values), _place(arg)
        stage, staged, total = scope.alternate("node_rows"), scope.temporary(), scope.temporary()
        old, sums = scope.temporary(), SCALAR_TYPE[arg.dtype]
        vector = cuda_vector(arg, chunk)
        address = cuda_address(arg, chunk, object_name(arg, self.index_of))
        adds = (
            f"{lane} += {total}[{component}];"
            for component, lane in enumerate(cuda_lanes(arg, chunk, old))
        )
        scope.emit(
            f"const {SCALAR_TYPE[scope.dtype]} {staged}[{width}] = {{{', '.join(values)}}};",
            f"stage_values<{width}>({stage}, {place}, active, {staged});",
            "__syncthreads();",
            f"if (active && ({place} >> 10 & 0x3ffu) == ({place} & 0x3ffu)) {{",
            f"  {sums} {total}[{width}];",
            f"  sum_node<{width}>({stage}, {place}, {total});",
            f"  {vector} {old} = *reinterpret_cast<{vector}*>({address});",
            f"  {' '.join(adds)}",
            f"  *reinterpret_cast<{vector}*>({address}) = {old};",
            "}",
        )

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Read the index."""
        read_index(scope, arg, self.index_of)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Add: no other tile has items of the node."""
        cpu_store(scope, arg, chunk, object_name(arg, self.index_of), values, "+=")


@dataclass(frozen=True)
class WriteOwnNode(WriteAccessor):
    """One item of each node writes it; all of them have the same values.

    Where the kernel reads the same array it may write nothing else that depends on it: on the
    processor a node's later items read what was written.

    Attributes:
        index_of: Another argument of the kernel, read by the same index; empty: its own.
    """

    index_of: str = ""

    cooperates: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = NODE_TILE_SIZES

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The node of each item, and its place in the tile."""
        return (*indexed_fields(self.index_of), Field("place", DType.INT32))

    def num_objects(self, count: int, options: Options) -> int:
        """Any number: indices are checked against it."""
        return 0

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """See whether this item writes."""
        place = f"{arg.name}_place[item]"
        scope.emit(
            f"const bool {arg.name}_writes = active && tile == first_tile",
            f"    && (u32({place}) >> 10 & 0x3ffu) == (u32({place}) & 0x3ffu);",
        )

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector store."""
        vector = cuda_vector(arg, chunk)
        scalars = [converted(value, scope.dtype, arg.dtype) for value in values]
        address = cuda_address(arg, chunk, object_name(arg, self.index_of))
        packed = cuda_packed(scope, arg, chunk, scalars)
        if chunk == 0:
            # the last pass over several tiles has no barrier behind the reads of the same array
            scope.emit("if (last_tile - first_tile > 1u) __syncthreads();")
        scope.emit(f"if ({arg.name}_writes) *reinterpret_cast<{vector}*>({address}) = {packed};")

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """See whether this item writes."""
        word = f"{arg.name}_word"
        scope.emit(
            f"{word} = {arg.name}_place[item]",
            f"{arg.name}_writes = tile == tiles_group_start[group] "
            f"and ({word} >> 10 & 0x3FF) == ({word} & 0x3FF)",
        )

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        place = cpu_index(arg, chunk, object_name(arg, self.index_of))
        scope.emit(f"if {arg.name}_writes:")
        for lane, value in enumerate(values):
            scalar = scope.cast(value, scope.dtype, arg.dtype)
            scope.emit(f"    {arg.name}_data[{place} + {lane}] = {scalar}")
