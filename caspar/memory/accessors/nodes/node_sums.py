"""Sums over the items of one eliminated node, which all lie in one tile.

`memory.tiling.node_tiles` makes the tiles.

Nothing is added by atomics and no partial leaves the block: the sums have the same bits in every
run. An item knows its position in the tile's order by node, and where its node's items begin.

Here is what is added to a node, or written; for sums that the items get see `accessors.exchanges`.
"""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Field, WriteAccessor
from caspar.memory.accessors.blocked import (
    cpu_store,
    cuda_address,
    cuda_keep,
    cuda_kept,
    cuda_lanes,
    cuda_packed,
    cuda_vector,
)
from caspar.memory.accessors.indexed import ByIndex, object_name, owner
from caspar.memory.accessors.scope import (
    SCALAR_TYPE,
    CpuScope,
    CudaScope,
    converted_all,
    cuda_array,
)

NODE_SUMS = """\
#ifndef CASPAR_NODE_SUMS
#define CASPAR_NODE_SUMS
// Rows are aligned so that one load takes a row of four.
template <typename T, int ROW> struct alignas(ROW % 4 == 0 ? 16 : sizeof(T)) StageRow {
  T value[ROW];
};

// Write the item's values where its node's items are neighbours.
template <int WIDTH, typename T, int ROW>
__device__ __forceinline__ void stage_values(
    StageRow<T, ROW>* stage, u32 position, bool active, const T (&value)[WIDTH]) {
  if (!active) return;
  StageRow<T, ROW> row;
#pragma unroll
  for (int component = 0; component < ROW; ++component) {
    row.value[component] = component < WIDTH ? value[component < WIDTH ? component : 0] : T(0);
  }
  stage[position] = row;
}

// Neighbouring lanes that work for one node; as many for each node of a tile. One word says how,
// since it is kept while all else is computed.
struct Team {
  u32 node;   // its number; teams without one have the number of the last
  u32 items;  // begin | log2(lanes) << 10 | length << 20, which is 0 for those

  __device__ __forceinline__ u32 begin() const { return items & 0x3ffu; }
  __device__ __forceinline__ u32 end() const { return begin() + (items >> 20); }
  __device__ __forceinline__ u32 lanes() const { return 1u << (items >> 10 & 7u); }
  __device__ __forceinline__ u32 lane() const { return threadIdx.x & (lanes() - 1u); }
  __device__ __forceinline__ bool leads() const { return items >= 1u << 20 && lane() == 0u; }
};

// Of the nodes from group[0] up to group[1]; all threads lead one that has several tiles.
template <u32 SIZE>
__device__ __forceinline__ Team team_of(
    const int* group, const int* node_items, bool is_long) {
  const u32 first = u32(group[0]);
  if (is_long) return Team{first, 1u << 20};
  const u32 num_nodes = u32(group[1]) - first;
  const u32 shift = min(5u, u32(__clz(int(num_nodes - 1u)) - __clz(int(SIZE - 1u))));
  const u32 number = threadIdx.x >> shift;
  const u32 node = first + min(number, num_nodes - 1u), own = u32(node_items[node]);
  return Team{node, (number < num_nodes ? own : 0u) | shift << 10};
}

// The same, but the first warp sums the tile's items of a node that has several tiles.
template <u32 SIZE>
__device__ __forceinline__ Team adders_of(
    const int* group, const int* node_items, bool is_long, u32 num_items) {
  if (!is_long) return team_of<SIZE>(group, node_items, false);
  return Team{u32(group[0]), (threadIdx.x < 32u ? num_items << 20 : 0u) | 5u << 10};
}

// Sum the items of the team's node; for all lanes of a warp.
template <int WIDTH, typename Sum, typename T, int ROW>
__device__ __forceinline__ void sum_by_team(
    const StageRow<T, ROW>* stage, const Team& team, Sum (&total)[WIDTH]) {
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) total[component] = Sum(0);
#pragma unroll 2
  for (u32 slot = team.begin() + team.lane(); slot < team.end(); slot += team.lanes()) {
    const StageRow<T, ROW> row = stage[slot];
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      total[component] += Sum(row.value[component]);
    }
  }
#pragma unroll 1
  for (u32 step = team.lanes() >> 1; step > 0u; step >>= 1) {
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      total[component] += __shfl_xor_sync(0xffffffffu, total[component], step);
    }
  }
}

// Give every item the values of its node's leader; holes get those of some item.
template <int WIDTH, typename T, int ROW>
__device__ __forceinline__ void spread_values(
    StageRow<T, ROW>* stage, u32 begin, const Team& team, T (&value)[WIDTH]) {
  if (team.leads()) {
    StageRow<T, ROW> row;
#pragma unroll
    for (int component = 0; component < ROW; ++component) {
      row.value[component] = component < WIDTH ? value[component < WIDTH ? component : 0] : T(0);
    }
    stage[team.begin()] = row;
  }
  __syncthreads();
  const StageRow<T, ROW> row = stage[begin];
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) value[component] = row.value[component];
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


NODE_FIELDS = (Field("group_node", DType.INT32), Field("node_items", DType.INT32))
"""Index arrays that teams are formed by: see `memory.tiling.node_tiles.NodeTiles`."""

STAGED_SCALARS = 4
"""Scalars that are added to nodes together."""

NODE_TILE_SIZES = (256, 128)
"""Items of a node tile, the preferred number first. More items of a tile share cameras, which makes
fewer additions; fewer wait less at barriers. Bundle adjustment on an H200, ms of a PCG iteration
and of what stands around PCG, with 128 and 256: 5.0 M factors, recomputed 0.152 and 0.162,
2.4 and 2.1; with float16 0.138 and 0.128, 2.8 and 2.5; 29 M 0.94 and 0.95, 15.0 and 12.7; with
float16 0.85 and 0.76, 16.7 and 14.8."""


def group_lines(name: str) -> tuple[str, ...]:
    """Declare `<name>_nodes`: where the first nodes of the tile's group and of the next stand."""
    return (
        f"const int* const {name}_nodes = {name}_group_node",
        "    + (is_long ? blockIdx.x : tile - u32(tiles_num_long_tiles - tiles_num_long));",
    )


@dataclass(frozen=True)
class AddOwnNode(WriteAccessor, ByIndex):
    """The sums over the items of a node are added to the node by the leader of its team.

    `index_of` is another argument that is read by the same index, `team_of` one that is added to
    the same nodes; empty: its own, or none. `in_order`: its array is in the order of the tiles'
    nodes; else `node_at` says where each of them is.
    """

    index_of: str = ""
    team_of: str = ""
    in_order: bool = True

    cuda_functions: ClassVar[str] = NODE_SUMS
    adds: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = NODE_TILE_SIZES

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The node of each item, and the nodes of each group."""
        index = super().fields(arg)
        if self.team_of != "":
            return index
        where = () if self.in_order else (Field("node_at", DType.INT32),)
        return (*index, *NODE_FIELDS, *where)

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Form teams; room for the staged values."""
        scalar, name = SCALAR_TYPE[scope.dtype], arg.name
        rows = f"StageRow<{scalar}, {STAGED_SCALARS}> node_rows[2][BLOCK_SIZE]"
        scope.shared("node_rows", rows)
        scope.emit(f"{scalar} {name}_kept[{STAGED_SCALARS}];")
        if self.team_of != "":
            return
        scope.emit(
            *group_lines(name),
            f"const Team {name}_team = adders_of<BLOCK_SIZE>(",
            f"    {name}_nodes, {name}_node_items, is_long, u32(tiles_items[tile]));",
        )
        if not self.in_order:
            scope.emit(f"const u32 {name}_node = u32({name}_node_at[{name}_team.node]);")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Keep; when there are enough, stage and add them."""
        if cuda_keep(scope, arg, chunk, values) == STAGED_SCALARS:
            self._add(scope, arg)

    def cuda_after(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Stage and add what was kept."""
        if len(scope.noted(arg.name)) > 0:
            self._add(scope, arg)

    def _add(self, scope: CudaScope, arg: ArgSpec) -> None:
        first = owner(arg, self.team_of)
        team, node = f"{first}_team", f"{first}_team.node" if self.in_order else f"{first}_node"
        chunks, kept = cuda_kept(scope, arg)
        length, width, stage = arg.chunk_length, len(kept), scope.alternate("node_rows")
        staged = cuda_array(scope, scope.dtype, kept, const=True)
        total = scope.temporary()
        scope.emit(
            f"stage_values<{width}>({stage}, tiles_position, active, {staged});",
            "__syncthreads();",
            f"{SCALAR_TYPE[arg.dtype]} {total}[{width}];",
            f"sum_by_team<{width}>({stage}, {team}, {total});",
            f"if ({team}.leads()) {{",
        )
        for number, chunk in enumerate(chunks):
            vector, old = cuda_vector(arg, chunk), scope.temporary()
            address = cuda_address(arg, chunk, node)
            lanes = cuda_lanes(arg, chunk, old)
            sums = (f"{lane} += {total}[{length * number + n}];" for n, lane in enumerate(lanes))
            scope.emit(
                f"  {vector} {old} = *reinterpret_cast<{vector}*>({address});",
                f"  {' '.join(sums)}",
                f"  *reinterpret_cast<{vector}*>({address}) = {old};",
            )
        scope.emit("}")

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Add: no other tile has items of the node."""
        cpu_store(scope, arg, chunk, object_name(arg, self.index_of), values, "+=")


@dataclass(frozen=True)
class WriteOwnNode(WriteAccessor, ByIndex):
    """The leader of each node's team writes it; its array is in the order of the tiles' nodes.

    Where the kernel reads the same array it may write nothing else that depends on it: on the
    processor items read what was written before they write. `team_of` and `index_of` are as in
    `ReadForNode`.
    """

    team_of: str = ""
    index_of: str = ""

    cooperates: ClassVar[bool] = True
    for_node: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = NODE_TILE_SIZES

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector store."""
        vector = cuda_vector(arg, chunk)
        scalars = converted_all(values, scope.dtype, arg.dtype)
        address = cuda_address(arg, chunk, f"{self.team_of}_team.node")
        packed = cuda_packed(scope, arg, chunk, scalars)
        written = scope.noted(f"{arg.name}: chunks written")
        if len(written) == 0:
            scope.emit(
                f"const bool {arg.name}_writes = {self.team_of}_team.leads()",
                "    && (!is_long || (tile == first_tile && threadIdx.x == 0u));",
                # the last pass over several tiles has no barrier behind the reads of the same array
                "if (is_long) __syncthreads();",
            )
        written.append(chunk)
        scope.emit(f"if ({arg.name}_writes) *reinterpret_cast<{vector}*>({address}) = {packed};")

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        cpu_store(scope, arg, chunk, object_name(arg, self.index_of), values, "=")
