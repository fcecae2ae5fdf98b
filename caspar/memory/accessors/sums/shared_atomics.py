"""Shared adds by atomics: summed over neighbouring lanes of a warp first, then one request each.

The L2 cache of an H200 takes 100 G requests a second, of a scalar or of four float32 alike
(`red.v4`, from sm_90 on), and one for the same address every 4.5 ns. So: few requests, wide ones,
and concurrent blocks far apart; docs/design/0011-shared-adds.md compares them. Private copies in
shared memory win only for ten objects or fewer.
"""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import AnyObjects, ArgSpec, BoundWrite, Field, Kit, Options, WriteAccessor
from caspar.memory.accessors.blocked import cuda_base
from caspar.memory.accessors.scope import (
    SCALAR_TYPE,
    CpuScope,
    CudaScope,
    converted_all,
    cuda_array,
)
from caspar.memory.array import Array, Binding

ADD_CHUNK = """\
#ifndef CASPAR_ADD_CHUNK
#define CASPAR_ADD_CHUNK
// chunk[object] += value in the lanes whose bit is set in `adds`; all lanes of the warp call it.
// One request for each object where vectors can be added (sm_90), else one for each scalar.
template <int WIDTH>
__device__ __forceinline__ void add_chunk(
    float* chunk, u32 object, u32 adds, const float (&value)[WIDTH]) {
  constexpr int PADDED = WIDTH == 3 ? 4 : WIDTH;
  if ((adds >> (threadIdx.x & 31u) & 1u) == 0u) return;
  float* place = chunk + u64(PADDED) * object;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (PADDED == 4) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(place), "f"(value[0]),
                 "f"(value[1]), "f"(value[2]), "f"(WIDTH == 4 ? value[WIDTH - 1] : 0.0f)
                 : "memory");
    return;
  } else if constexpr (PADDED == 2) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(place), "f"(value[0]),
                 "f"(value[WIDTH - 1])
                 : "memory");
    return;
  } else {
    atomicAdd(place, value[0]);
    return;
  }
#else
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) {
    atomicAdd(place + component, value[component]);
  }
#endif
}

// There is no vector addition of doubles in memory: two lanes add the two scalars of an object's
// chunk, which is one request (cameras, 9 scalars: 2.65 ms without, 1.6 with).
template <int WIDTH>
__device__ __forceinline__ void add_chunk(
    double* chunk, u32 object, u32 adds, const double (&value)[WIDTH]) {
  const u32 lane = threadIdx.x & 31u;
  if constexpr (WIDTH == 1) {
    if (adds >> lane & 1u) atomicAdd(chunk + object, value[0]);
  } else {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      if ((adds >> (16u * half) & 0xffffu) == 0u) continue;
      const u32 from = 16u * half + lane / 2u;
      const u32 of = __shfl_sync(0xffffffffu, object, int(from));
      const double low = __shfl_sync(0xffffffffu, value[0], int(from));
      const double high = __shfl_sync(0xffffffffu, value[1], int(from));
      if (adds >> from & 1u) {
        atomicAdd(chunk + 2ull * of + (lane & 1u), (lane & 1u) != 0u ? high : low);
      }
    }
  }
}
#endif
"""

_PEERS = """\
#ifndef CASPAR_PEERS
#define CASPAR_PEERS
// Lanes that name the same object, wherever they stand in the warp. Nothing is lost where no two
// lanes agree.
struct Peers {
  u32 rest;  // peers behind this lane
  u32 rank;  // peers before it
  u32 adds;  // bit i: lane i is the first of its peers
};

__device__ __forceinline__ Peers find_peers(u32 object, bool active) {
  const u32 lane = threadIdx.x & 31u;
  const u32 busy = __ballot_sync(0xffffffffu, active);
  u32 peers = __match_any_sync(0xffffffffu, object) & busy;
  if (!active) peers = 1u << lane;
  Peers result;
  result.rest = peers & ~((2u << lane) - 1u);
  result.rank = u32(__popc(peers & ((1u << lane) - 1u)));
  result.adds = __ballot_sync(0xffffffffu, active && result.rank == 0u);
  return result;
}

// Sums over peers, in the first of each.
template <int WIDTH, typename T>
__device__ __forceinline__ void sum_peers(const Peers& peers, T (&value)[WIDTH]) {
  u32 rest = peers.rest, rank = peers.rank;
  while (__any_sync(0xffffffffu, rest != 0u)) {
    const int next = rest != 0u ? __ffs(int(rest)) - 1 : int(threadIdx.x & 31u);
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      const T other = __shfl_sync(0xffffffffu, value[component], next);
      if (rest != 0u) value[component] += other;
    }
    // those of odd rank have been taken; the others pair up again
    rest &= __ballot_sync(0xffffffffu, (rank & 1u) == 0u);
    rank >>= 1;
  }
}
#endif
"""

RUNS = """\
#ifndef CASPAR_RUNS
#define CASPAR_RUNS
// Which tile a block has: `regions` stretches of the tiles advance side by side.
__device__ __forceinline__ u32 spread_block(u32 block, u32 num_blocks, u32 regions) {
  const u32 region = block % regions;
  const u32 tiles = num_blocks / regions, longer = num_blocks % regions;
  return region * tiles + min(region, longer) + block / regions;
}

// A run: neighbouring lanes of a warp that name the same object.
struct Runs {
  u32 rest;     // lanes of the run from this one on
  u32 longest;  // the highest `rest` of the warp
  u32 adds;     // bit i: lane i holds a sum to be added once its run is summed
  u32 joins;    // the later warp that the run goes on in, or none: NO_WARP
};
const u32 NO_WARP = 0xffffffffu;

__device__ __forceinline__ u32 highest_of_warp(u32 value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, value);
#else
  for (u32 step = 16; step > 0; step >>= 1) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
#endif
}

__device__ __forceinline__ Runs find_runs(u32 object, bool active) {
  const u32 lane = threadIdx.x & 31u;
  const u32 before = __shfl_up_sync(0xffffffffu, object, 1);
  // idle lanes repeat the last item: each is a run of its own and adds nothing
  const u32 first = __ballot_sync(0xffffffffu, !active || before != object) | 1u;
  const u32 later = first & ~((2u << lane) - 1u);
  Runs runs;
  runs.rest = (later != 0u ? u32(__ffs(int(later))) - 1u : 32u) - lane;
  runs.longest = highest_of_warp(runs.rest);
  runs.adds = first & __ballot_sync(0xffffffffu, active);
  runs.joins = NO_WARP;
  return runs;
}

// Sums of the runs, each in its first lane.
template <int WIDTH, typename T>
__device__ __forceinline__ void sum_runs(const Runs& runs, T (&value)[WIDTH]) {
#pragma unroll 1
  for (u32 step = 1; step < runs.longest; step <<= 1) {
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      const T other = __shfl_down_sync(0xffffffffu, value[component], step);
      if (step < runs.rest) value[component] += other;
    }
  }
}

// Runs that go on from warp to warp are added once for the block instead of once for each warp.
// continues: lane 0's object is also that of the place before, in the same block.
template <int WARPS>
__device__ __forceinline__ void find_joins(Runs& runs, bool continues, u32 (&state)[WARPS]) {
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  // 0: a new object begins here; 1: one goes on and ends here; 2: one goes on through this warp
  if (lane == 0u) state[warp] = continues ? (runs.rest == 32u ? 2u : 1u) : 0u;
  __syncthreads();
  // the sum of a run that came in belongs to the warp where it began
  runs.adds &= ~__shfl_sync(0xffffffffu, continues ? 1u : 0u, 0);
  const bool last = (runs.adds >> lane) == 1u;
  if (last && warp + 1u < WARPS && state[warp + 1u] != 0u) runs.joins = warp + 1u;
}

// After sum_runs. `carry` alternates between two arrays: one barrier a chunk is enough.
template <int WIDTH, int WARPS, typename T>
__device__ __forceinline__ void join_runs(
    const Runs& runs, const u32 (&state)[WARPS], T (&carry)[WARPS][4], T (&value)[WIDTH]) {
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  if (lane == 0u) {
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      carry[warp][component] = value[component];
    }
  }
  __syncthreads();
  for (u32 other = runs.joins; other < WARPS && state[other] != 0u; ++other) {
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      value[component] += carry[other][component];
    }
    if (state[other] == 1u) break;
  }
}
#endif
"""


SKIPPED_SHARE = 0.99
"""Share of items with a (tile, object) pair of their own from which on no order is followed."""

ITEMS_OF_A_PAIR = 32
"""Items a (tile, object) pair has on average, from which on runs are joined over the block: one
object for all 4.2 ms without, 0.6 with; up to 0.06 ms lost elsewhere."""

ITEMS_OF_AN_OBJECT = 16
"""Items an object has on average, from which on concurrent blocks are put far apart: cameras of
near points 0.88 ms without, 0.41 with; kernels bound by streams lose 4 %."""


class AddAtomically(WriteAccessor):
    """A pattern that adds by atomics: the bits differ from run to run. For CUDA alone."""

    adds: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Refuse: tiles run at the same time on the processor, and it has no atomics."""
        raise NotImplementedError


@dataclass(frozen=True)
class AddSharedPeers(AddAtomically, AnyObjects):
    """Lanes of a warp that name one object are summed, then added: for an index as it comes."""

    cuda_functions: ClassVar[str] = ADD_CHUNK + _PEERS

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item."""
        return (Field("index", DType.INT32),)

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        """The index."""
        return {"index": options["index"]}

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Find the peers."""
        scope.emit(
            f"const u32 {arg.name}_object = {arg.object(f'{arg.name}_index[item]')};",
            f"const Peers {arg.name}_peers = find_peers({arg.name}_object, active);",
        )

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Sum over peers, add."""
        peers, width = f"{arg.name}_peers", len(values)
        total = cuda_array(scope, arg.dtype, converted_all(values, scope.dtype, arg.dtype))
        scope.emit(
            f"sum_peers<{width}>({peers}, {total});",
            add_chunk(arg, chunk, f"{arg.name}_object", f"{peers}.adds", total),
        )


@dataclass(frozen=True)
class AddSharedRuns(AddAtomically, AnyObjects):
    """The threads follow an order in which items of a tile that name one object are neighbours.

    Runs of lanes are summed, where few objects have all the items also over the warps of a block
    (`cross`), then added. Blocks that run at the same time are put far apart (`regions`), as
    neighbouring items share objects. Of several such arguments the first has its order; the
    others are summed over peers.
    """

    cuda_functions: ClassVar[str] = ADD_CHUNK + RUNS + _PEERS
    tile_sizes: ClassVar[tuple[int, ...]] = (512, 256)

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item, the order (or none), and how to sum."""
        return (
            Field("index", DType.INT32),
            Field("order", DType.UINT16),
            Field("cross"),
            Field("regions"),
        )

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """The index, and how to sum by its statistics."""
        order = kit.order(options)
        pairs = order.num_partials
        in_order = order.num_unsorted_tiles == 0 or pairs > SKIPPED_SHARE * kit.count
        is_shared = kit.count >= ITEMS_OF_AN_OBJECT * output.num_objects
        fields = {
            "index": options["index"],
            "order": 0 if in_order else order.order,
            "cross": int(ITEMS_OF_A_PAIR * pairs <= kit.count),
            "regions": 2 * kit.num_multiprocessors if is_shared else 1,
        }
        return BoundWrite(output.with_fields(fields))

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Find the runs; those that other warps go on with."""
        name = arg.name
        if not scope.lead(name):
            AddSharedPeers().cuda_before(scope, arg)
            return
        scalar = SCALAR_TYPE[arg.dtype]
        scope.shared("run_state", "u32 run_state[BLOCK_SIZE / 32]")
        scope.shared("run_carry", f"{scalar} run_carry[2][BLOCK_SIZE / 32][4]")
        scope.emit(
            f"const u32 {name}_object = {arg.object(f'{name}_index[item]')};",
            f"Runs {name}_runs = find_runs({name}_object, active);",
            f"if ({name}_cross != 0) {{",
            "  bool continues = false;",
            "  if ((threadIdx.x & 31u) == 0u && threadIdx.x > 0u && active) {",
            "    const u32 before = own_item - 1u;",
            f"    const u32 other = {name}_order == nullptr ? before",
            f"        : tile * BLOCK_SIZE + ({name}_order[before] & 0x7fffu);",
            f"    continues = {name}_object == {arg.object(f'{name}_index[other]')};",
            "  }",
            f"  find_joins<BLOCK_SIZE / 32>({name}_runs, continues, run_state);",
            "}",
        )

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Sum over the run, add."""
        if not scope.lead(arg.name):
            AddSharedPeers().cuda_write(scope, arg, chunk, values)
            return
        runs, width = f"{arg.name}_runs", len(values)
        total = cuda_array(scope, arg.dtype, converted_all(values, scope.dtype, arg.dtype))
        carry = scope.alternate("run_carry")
        scope.emit(
            f"sum_runs<{width}>({runs}, {total});",
            f"if ({arg.name}_cross != 0) {{",
            f"  join_runs<{width}, BLOCK_SIZE / 32>({runs}, run_state, {carry}, {total});",
            "}",
            add_chunk(arg, chunk, f"{arg.name}_object", f"{runs}.adds", total),
        )


def add_chunk(arg: ArgSpec, chunk: int, place: str, adds: str, values: str) -> str:
    """Add an array of values to a chunk of object `place`, in lanes whose bit is set in `adds`."""
    width = arg.chunk_widths[chunk]
    return f"add_chunk<{width}>({cuda_base(arg, chunk)}, {place}, {adds}, {values});"
