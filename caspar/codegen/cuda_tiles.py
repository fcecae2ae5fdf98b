"""CUDA kernels that build a `memory.tiles.TileIndex` on the device.

A block sorts the indices of its tile in shared memory; nothing is sorted across tiles except the
list of partials, once, by object.
"""

from caspar.codegen.cuda_header import BLOCK_SIZE

TILE_KERNELS = (
    "sort_tiles",
    "scan",
    "list_partials",
    "object_bounds",
    "lowest_partner",
    "locality_keys",
    "first_outside",
    "first_repeated",
)
"""Entry points of `TILE_SOURCE`."""

SCAN_BLOCK_SIZE = 1024

TILE_SOURCE = (
    f"""\
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
const u32 TILE = {BLOCK_SIZE}u;
const u32 SCAN = {SCAN_BLOCK_SIZE}u;
"""
    + """
// Inclusive sum over the first `width` threads of the block, a power of two.
template <u32 width> __device__ u32 inclusive_sum(u32 value, u32 (&shared)[width]) {
  const u32 lane = threadIdx.x;
  shared[lane] = value;
  __syncthreads();
  for (u32 step = 1; step < width; step <<= 1) {
    const u32 other = lane >= step ? shared[lane - step] : 0u;
    __syncthreads();
    shared[lane] += other;
    __syncthreads();
  }
  return shared[lane];
}

// Sort each tile by index: place of every item, its index's rank, number of distinct indices.
extern "C" __global__ void __launch_bounds__(256) sort_tiles(
    u32 count, const int* index, u16* position, u16* slot, int* num_distinct) {
  __shared__ u64 keys[TILE];
  __shared__ u32 ranks[TILE];
  const u32 lane = threadIdx.x;
  const u32 item = blockIdx.x * TILE + lane;
  // the lane makes keys distinct: equal indices keep their order; missing items sort last
  keys[lane] = item < count ? (u64(u32(index[item])) << 32) | lane : ~0ull;
  for (u32 size = 2; size <= TILE; size <<= 1) {
    for (u32 step = size >> 1; step > 0; step >>= 1) {
      __syncthreads();
      const u32 partner = lane ^ step;
      if (partner > lane) {
        const bool ascending = (lane & size) == 0;
        const u64 mine = keys[lane], other = keys[partner];
        if ((mine > other) == ascending) {
          keys[lane] = other;
          keys[partner] = mine;
        }
      }
    }
  }
  __syncthreads();
  const u64 key = keys[lane];
  const bool valid = key != ~0ull;
  const bool first = valid && (lane == 0 || (keys[lane - 1] >> 32) != (key >> 32));
  const u32 rank = inclusive_sum<TILE>(first ? 1u : 0u, ranks);
  if (valid) {
    const u32 own = blockIdx.x * TILE + u32(key & 0xffffffffu);
    position[own] = u16(lane);
    slot[own] = u16(rank - 1u);
  }
  if (lane == TILE - 1) num_distinct[blockIdx.x] = int(rank);
}

// start[k] = sum of value[0 .. k - 1], k = 0 .. count; one block.
extern "C" __global__ void __launch_bounds__(1024) scan(
    u32 count, const int* value, int* start) {
  __shared__ u32 sums[SCAN];
  u32 before = 0;
  for (u32 first = 0; first < count; first += SCAN) {
    const u32 place = first + threadIdx.x;
    const u32 own = place < count ? u32(value[place]) : 0u;
    const u32 inclusive = inclusive_sum<SCAN>(own, sums);
    if (place < count) start[place] = int(before + inclusive - own);
    before += sums[SCAN - 1];
    __syncthreads();
  }
  if (threadIdx.x == 0) start[count] = int(before);
}

// For each partial of a tile: where its segment ends, and which object it belongs to.
extern "C" __global__ void __launch_bounds__(256) list_partials(
    u32 count, const int* index, const u16* position, const u16* slot, const int* tile_start,
    u16* segment_end, int* object) {
  __shared__ u32 slots[TILE];
  __shared__ int indices[TILE];
  const u32 lane = threadIdx.x;
  const u32 item = blockIdx.x * TILE + lane;
  const u32 size = min(TILE, count - blockIdx.x * TILE);
  if (item < count) {
    slots[position[item]] = slot[item];
    indices[position[item]] = index[item];
  }
  __syncthreads();
  if (lane < size && (lane == size - 1 || slots[lane + 1] != slots[lane])) {
    const u32 partial = u32(tile_start[blockIdx.x]) + slots[lane];
    segment_end[partial] = u16(lane + 1);
    object[partial] = indices[lane];
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

// The first entry outside 0 .. size - 1; `first` starts above all entries.
extern "C" __global__ void __launch_bounds__(256) first_outside(
    u32 count, const int* index, u32 size, u32* first) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < count && u32(index[item]) >= size) atomicMin(first, item);
}

// The first entry that is not the first to name its object; `owner`, for each object, and `first`
// start above all entries. Run once with `find` 0 and once with `find` 1.
extern "C" __global__ void __launch_bounds__(256) first_repeated(
    u32 count, const int* index, u32* owner, u32 find, u32* first) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= count) return;
  if (find == 0) {
    atomicMin(&owner[index[item]], item);
  } else if (owner[index[item]] != item) {
    atomicMin(first, item);
  }
}

// Sort keys: first the lowest partner of the item's main object, then the main object.
extern "C" __global__ void __launch_bounds__(256) locality_keys(
    u32 count, const int* main, const int* lowest, long long* key) {
  const u32 item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < count) key[item] = ((long long)(lowest[main[item]]) << 32) | main[item];
}
"""
)
