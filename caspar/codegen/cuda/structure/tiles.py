"""CUDA kernels that build a `memory.tiling.tiles.TileOrder` or `TileIndex`.

A warp sorts a tile in registers; nothing is sorted across tiles except the list of partials, once,
by object. Once for each index.
"""

from caspar.memory.tiling.tiles import NEW_INDEX, ORDER_TILE_SIZES, PLACE_MASK

TILE_KERNELS = ("scan_blocks", "object_bounds", "lowest_partner", "locality_keys")
"""Entry points of `TILE_SOURCE`."""

SORT_KERNELS = ("sort_tiles", "list_partials")
"""Entry points of a `sort_source`."""

SCAN_BLOCK_SIZE = 1024

WARPS_OF_BLOCK = 8
"""Tiles that a block of `SORT_KERNELS` has: a warp each."""

TILE_COMMON = """\
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

// Over the first LANES lanes of a warp: the sum up to each.
template <u32 LANES> __device__ __forceinline__ u32 inclusive_sum(u32 value) {
#pragma unroll
  for (u32 step = 1; step < LANES; step <<= 1) {
    const u32 other = __shfl_up_sync(0xffffffffu >> (32u - LANES), value, step);
    if ((threadIdx.x & 31u) >= step) value += other;
  }
  return value;
}
"""


def sort_source(tile_size: int) -> str:
    """Text of the kernels that sort tiles and list their partials."""
    assert tile_size in ORDER_TILE_SIZES
    constants = f"""\
const int R = {tile_size // 32};  // items of a thread
const u32 TILE = {tile_size}u;
const u32 PLACE_BITS = {tile_size.bit_length() - 1}u;
const u32 WARPS_OF_BLOCK = {WARPS_OF_BLOCK}u;
const u32 NEW_INDEX = {NEW_INDEX:#x}u;
const u32 PLACE_MASK = {PLACE_MASK:#x}u;
"""
    return TILE_COMMON + constants + _SORT_TILES + _LIST_PARTIALS


# Milliseconds for 30 million items on an H200:
#
#   tiles of                                                    256    512   1024
#   rejected: a block sorts in shared memory, one block scans   1.28
#   a warp sorts 32-bit keys in registers                       0.14   0.15   0.19
#   64-bit keys, for tiles whose indices lie far apart          0.32   0.38   0.51
#   tiles that are sorted already                               0.07   0.06   0.08
#   one block scans over blocks of 8 tiles                      0.01   0.01   0.01
#   listing the partials, at most                               0.20   0.23   0.35
#   grouping them by object, at most                            1.40   1.40   1.40
#
# With all that the host does, an order takes 0.12 to 0.57, a `TileIndex` (256) 0.6 to 2.0.
_SORT_TILES = """
enum Stat { NUM_PARTIALS, NUM_UNSORTED_TILES, LOWEST, HIGHEST };

// Over the first LANES lanes of a warp.
template <u32 LANES> __device__ __forceinline__ u32 sum_of(u32 value) {
  const u32 mask = 0xffffffffu >> (32u - LANES);
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(mask, value);
#else
  for (u32 step = LANES / 2; step > 0; step >>= 1) value += __shfl_xor_sync(mask, value, step);
  return value;
#endif
}

template <u32 LANES> __device__ __forceinline__ int lowest_of(int value) {
  const u32 mask = 0xffffffffu >> (32u - LANES);
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(mask, value);
#else
  for (u32 step = LANES / 2; step > 0; step >>= 1) {
    value = min(value, __shfl_xor_sync(mask, value, step));
  }
  return value;
#endif
}

template <u32 LANES> __device__ __forceinline__ int highest_of(int value) {
  return -1 - lowest_of<LANES>(-1 - value);
}

template <typename Key> __device__ __forceinline__ void exchange(Key& a, Key& b) {
  const Key low = a < b ? a : b;
  b = a < b ? b : a;
  a = low;
}

template <typename Key> __device__ __forceinline__ Key pick(Key a, Key b, bool low) {
  return low == (a < b) ? a : b;
}

// Steps of a merge between items of one thread.
template <typename Key> __device__ __forceinline__ void merge_own(Key (&key)[R], int step) {
#pragma unroll
  for (; step > 0; step >>= 1) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if ((r & step) == 0) exchange(key[r], key[r + step]);
    }
  }
}

// Ascending over the places lane * R + r. Bitonic; the first step of every merge is mirrored, so
// that all comparisons go one way. Steps of less than R stay in registers. Of tiles of 1024 the
// steps between lanes are a loop: unrolled they compile in 1.8 s instead of 0.5.
template <typename Key> __device__ __forceinline__ void sort_places(Key (&key)[R]) {
  const u32 lane = threadIdx.x & 31u;
#pragma unroll
  for (int size = 2; size <= R; size <<= 1) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      if ((r ^ (size - 1)) > r) exchange(key[r], key[r ^ (size - 1)]);
    }
    merge_own(key, size / 4);
  }
#pragma unroll (R <= 16 ? 8 : 1)
  for (u32 lanes = 2; lanes <= 32u; lanes <<= 1) {
    const bool lower = (lane & (lanes / 2)) == 0u;
#pragma unroll
    for (int r = 0; r < R / 2; ++r) {
      const Key a = __shfl_xor_sync(0xffffffffu, key[R - 1 - r], int(lanes - 1u));
      const Key b = __shfl_xor_sync(0xffffffffu, key[r], int(lanes - 1u));
      key[r] = pick(key[r], a, lower);
      key[R - 1 - r] = pick(key[R - 1 - r], b, lower);
    }
#pragma unroll (R <= 16 ? 8 : 1)
    for (u32 step = lanes / 4; step > 0; step >>= 1) {
      const bool low = (lane & step) == 0u;
#pragma unroll
      for (int r = 0; r < R; ++r) {
        key[r] = pick(key[r], __shfl_xor_sync(0xffffffffu, key[r], int(step)), low);
      }
    }
    merge_own(key, R / 2);
  }
}

// Entries of `order` from keys (index, place) of which the first `present` are items; returns the
// bits r at which an index begins. The keys are all different: equal indices keep their order.
template <typename Key>
__device__ __forceinline__ u32 sorted_entries(
    Key (&key)[R], bool sorted, u32 present, u32 (&entry)[R]) {
  if (!sorted) sort_places(key);
  const Key before = __shfl_up_sync(0xffffffffu, key[R - 1], 1);
  u32 begins = 0;
#pragma unroll
  for (u32 r = 0; r < R; ++r) {
    const Key previous = r == 0u ? before : key[r == 0u ? 0u : r - 1u];
    const bool differs = (previous >> PLACE_BITS) != (key[r] >> PLACE_BITS);
    const bool is_new = r < present && (differs || (r == 0u && (threadIdx.x & 31u) == 0u));
    begins |= u32(is_new) << r;
    entry[r] = (u32(key[r]) & (TILE - 1u)) | (is_new ? NEW_INDEX : 0u);
  }
  return begins;
}

__device__ __forceinline__ void load_items(const int* index, u32 present, int (&value)[R]) {
  if (present == u32(R) && (u64(index) & 15ull) == 0ull) {
#pragma unroll
    for (int r = 0; r < R; r += 4) {
      const int4 four = *reinterpret_cast<const int4*>(index + r);
      value[r] = four.x;
      value[r + 1] = four.y;
      value[r + 2] = four.z;
      value[r + 3] = four.w;
    }
  } else {
#pragma unroll
    for (u32 r = 0; r < R; ++r) value[r] = r < present ? index[r] : 0;
  }
}

// A warp a tile. order: (num_tiles * TILE,), see memory/tiles.py; tile_start: (num_tiles + 1,),
// counted from the block's first tile; block_start: (num_blocks,) partials of each block; stats
// starts as {0, 0, highest int, lowest int}.
extern "C" __global__ void __launch_bounds__(256) sort_tiles(
    u32 count, const int* index, u16* order, int* tile_start, u32* block_start, int* stats) {
  __shared__ u32 partials[WARPS_OF_BLOCK], unsorted[WARPS_OF_BLOCK];
  __shared__ int lows[WARPS_OF_BLOCK], highs[WARPS_OF_BLOCK];
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  const u32 tile = blockIdx.x * WARPS_OF_BLOCK + warp;
  const u32 begin = tile * TILE + lane * R;
  const u32 present = begin < count ? min(u32(R), count - begin) : 0u;
  int value[R];
  load_items(index + begin, present, value);
  int low = 0x7fffffff, high = -1 - low;
  const int before = __shfl_up_sync(0xffffffffu, value[R - 1], 1);
  bool rises = true;
#pragma unroll
  for (u32 r = 0; r < R; ++r) {
    if (r >= present) break;
    low = min(low, value[r]);
    high = max(high, value[r]);
    const int previous = r == 0u ? before : value[r == 0u ? 0u : r - 1u];
    rises = rises && (previous <= value[r] || (r == 0u && lane == 0u));
  }
  low = lowest_of<32>(low);
  high = highest_of<32>(high);
  const bool sorted = __all_sync(0xffffffffu, rises);
  // keys count from the tile's lowest index and mostly fit into 32 bits; ~0 is for missing items
  u32 entry[R], begins;
  if (low > high || u32(high) - u32(low) < (0xffffffffu >> PLACE_BITS)) {
    u32 key[R];
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
      const u32 above = r < present ? u32(value[r]) - u32(low) : 0xffffffffu;
      key[r] = (above << PLACE_BITS) | (lane * R + r);
    }
    begins = sorted_entries(key, sorted, present, entry);
  } else {
    u64 key[R];
#pragma unroll
    for (u32 r = 0; r < R; ++r) {
      const u64 above = r < present ? u64(u32(value[r]) - u32(low)) : ~0ull;
      key[r] = (above << PLACE_BITS) | (lane * R + r);
    }
    begins = sorted_entries(key, sorted, present, entry);
  }
  if (tile * TILE < count) {
#pragma unroll
    for (int r = 0; r < R; r += 4) {
      *reinterpret_cast<uint2*>(order + begin + r) = make_uint2(
          entry[r] | (entry[r + 1] << 16), entry[r + 2] | (entry[r + 3] << 16));
    }
  }
  const u32 num = sum_of<32>(u32(__popc(begins)));
  if (lane == 0u) {
    partials[warp] = num;
    unsorted[warp] = sorted ? 0u : 1u;
    lows[warp] = low;
    highs[warp] = high;
  }
  __syncthreads();
  if (threadIdx.x >= WARPS_OF_BLOCK) return;
  const u32 inclusive = inclusive_sum<WARPS_OF_BLOCK>(partials[lane]);
  const u32 own_tile = blockIdx.x * WARPS_OF_BLOCK + lane;
  if (own_tile * TILE < count) tile_start[own_tile] = int(inclusive - partials[lane]);
  const u32 num_unsorted = sum_of<WARPS_OF_BLOCK>(unsorted[lane]);
  const int lowest = lowest_of<WARPS_OF_BLOCK>(lows[lane]);
  const int highest = highest_of<WARPS_OF_BLOCK>(highs[lane]);
  if (lane == WARPS_OF_BLOCK - 1u) {
    block_start[blockIdx.x] = inclusive;
    atomicAdd(&stats[NUM_PARTIALS], int(inclusive));
    if (num_unsorted > 0u) atomicAdd(&stats[NUM_UNSORTED_TILES], int(num_unsorted));
    atomicMin(&stats[LOWEST], lowest);
    atomicMax(&stats[HIGHEST], highest);
  }
}
"""

_LIST_PARTIALS = """
// A warp a tile. tile_start is counted from the first tile of all; for each partial where its
// segment ends and its object; for each item its place and the rank of its index.
extern "C" __global__ void __launch_bounds__(256) list_partials(
    u32 count, const int* index, const u16* order, const u32* block_start, int* tile_start,
    u16* segment_end, int* object, u16* position, u16* slot) {
  __shared__ u16 places[WARPS_OF_BLOCK][TILE], ranks[WARPS_OF_BLOCK][TILE];
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  const u32 tile = blockIdx.x * WARPS_OF_BLOCK + warp;
  const u32 begin = tile * TILE;
  if (begin >= count) return;
  const u32 size = min(TILE, count - begin);
  const u32 start = block_start[blockIdx.x] + u32(tile_start[tile]);
  u32 num = 0;  // indices that began in earlier places
#pragma unroll 4
  for (u32 r = 0; r < R; ++r) {
    const u32 place = 32u * r + lane;
    const u32 entry = place < size ? order[begin + place] : 0u;
    const bool is_new = (entry & NEW_INDEX) != 0u;
    const u32 begins = __ballot_sync(0xffffffffu, is_new);
    const u32 rank = num + u32(__popc(begins & ((2u << lane) - 1u))) - 1u;
    if (is_new) {
      object[start + rank] = index[begin + (entry & PLACE_MASK)];
      if (rank > 0u) segment_end[start + rank - 1u] = u16(place);
    }
    if (place < size) {
      places[warp][entry & PLACE_MASK] = u16(place);
      ranks[warp][entry & PLACE_MASK] = u16(rank);
    }
    num += u32(__popc(begins));
  }
  __syncwarp();
#pragma unroll 4
  for (u32 r = 0; r < R; ++r) {
    const u32 item = 32u * r + lane;
    if (item < size) {
      position[begin + item] = places[warp][item];
      slot[begin + item] = ranks[warp][item];
    }
  }
  if (lane == 0u) {
    segment_end[start + num - 1u] = u16(size);
    tile_start[tile] = int(start);
    if (begin + size == count) tile_start[tile + 1u] = int(start + num);
  }
}
"""

TILE_SOURCE = (
    TILE_COMMON
    + """
// Exclusive sums in place; one block.
extern "C" __global__ void __launch_bounds__(1024) scan_blocks(u32 count, u32* value) {
  __shared__ u32 sums[32];
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  u32 before = 0;
  for (u32 first = 0; first < count; first += 4096u) {
    const u32 at = first + 4u * threadIdx.x;
    u32 own[4], total = 0;
#pragma unroll
    for (u32 k = 0; k < 4u; ++k) {
      own[k] = at + k < count ? value[at + k] : 0u;
      total += own[k];
    }
    const u32 inclusive = inclusive_sum<32>(total);
    if (lane == 31u) sums[warp] = inclusive;
    __syncthreads();
    const u32 up_to = inclusive_sum<32>(sums[lane]);
    const u32 earlier = __shfl_sync(0xffffffffu, up_to, warp > 0u ? int(warp) - 1 : 0);
    u32 start = before + (warp > 0u ? earlier : 0u) + inclusive - total;
#pragma unroll
    for (u32 k = 0; k < 4u; ++k) {
      if (at + k < count) value[at + k] = start;
      start += own[k];
    }
    before += __shfl_sync(0xffffffffu, up_to, 31);
    __syncthreads();
  }
}

// start[k] = first of the partials, grouped by object, that belongs to object k or a later one;
// `grouped` is narrowed to `partials` on the way.
extern "C" __global__ void __launch_bounds__(256) object_bounds(
    u32 num_partials, u32 num_objects, const int* object, const long long* grouped, int* partials,
    int* start) {
  const u32 entry = blockIdx.x * blockDim.x + threadIdx.x;
  if (entry > num_partials) return;
  if (entry < num_partials) partials[entry] = int(grouped[entry]);
  const u32 begin = entry == 0 ? 0u : u32(object[grouped[entry - 1]]) + 1u;
  const u32 end = entry == num_partials ? num_objects : u32(object[grouped[entry]]);
  for (u32 k = begin; k <= end; ++k) start[k] = int(entry);
}

// The lowest partner of each main object; `lowest` starts at the largest numbers.
extern "C" __global__ void __launch_bounds__(256) lowest_partner(
    u32 count, const int* main, const int* partner, int* lowest) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < count) atomicMin(&lowest[main[item]], partner[item]);
}

// Keys: first the lowest partner of the item's main object, then the main object.
extern "C" __global__ void __launch_bounds__(256) locality_keys(
    u32 count, const int* main, const int* lowest, long long* key) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < count) key[item] = ((long long)(lowest[main[item]]) << 32) | main[item];
}
"""
)
