"""CUDA kernels that build `memory.tiling.node_tiles.NodeTiles`.

`runtime.cuda.structure.node_tile_steps` launches them.

Once for a structure. Nodes are sorted by key, tiles are packed in chunks side by side, and the sort
inside tiles is that of `cuda_tiles`.
"""

from caspar.codegen.cuda.structure.partner_labels import LABEL_KERNELS, LABEL_TEXT
from caspar.codegen.cuda.structure.tiles import TILE_COMMON
from caspar.memory.tiling.node_tiles import (
    HOLE,
    LENGTH_SHIFT,
    LOOKAHEAD,
    MAX_ROUNDS,
    MAX_TILE_SIZE,
    NARROW_BITS,
    TILES_OF_CHUNK,
    WIDE_BITS,
)
from caspar.memory.tiling.tiles import PLACE_MASK

NODE_TILE_KERNELS = (
    *LABEL_KERNELS,
    "find_nodes",
    "make_keys",
    "sum_sizes",
    "place_nodes",
    "find_chunks",
    "pack_chunks",
    "list_tiles",
    "rank_nodes",
    "fill_tiles",
    "count_rounds",
    "sort_slots",
)
"""Entry points of `NODE_TILE_SOURCE`."""

MAX_TILES_OF_CHUNK = 2 * TILES_OF_CHUNK + 2
"""Two tiles in a row have more than one tile of items, the second's first node included."""

NODE_BLOCK_SIZE = 256
"""Threads of a block, but `fill_tiles` and `count_rounds` have one for each slot of a tile,
`pack_chunks` has `LOOKAHEAD`, and `normalise_places` `NORMALISE_BLOCK_SIZE`."""

assert LOOKAHEAD == 32, "a warp's"

_CONSTANTS = f"""
const u32 NARROW_BITS = {NARROW_BITS}u;
const u32 WIDE_BITS = {WIDE_BITS}u;
const u32 HOLE = {HOLE}u;
const u32 LENGTH_SHIFT = {LENGTH_SHIFT}u;
const u32 TILES_OF_CHUNK = {TILES_OF_CHUNK}u;
const u32 MAX_TILES_OF_CHUNK = {MAX_TILES_OF_CHUNK}u;
const u32 PLACE_MASK = {PLACE_MASK:#x}u;
const u32 MAX_TILE_SIZE = {MAX_TILE_SIZE}u;
const u32 MAX_ROUNDS = {MAX_ROUNDS}u;
"""

NODE_TILE_SOURCE = (
    TILE_COMMON
    + _CONSTANTS
    + """
enum Stat { NUM_NODES, NUM_LONG, NUM_LONG_TILES };

__device__ __forceinline__ u32 thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }
"""
    + LABEL_TEXT
    + """
// Items grouped by node: [first, end) of each node that has items; both start as zeros.
extern "C" __global__ void __launch_bounds__(256) find_nodes(
    u32 count, const long long* grouped, const int* node, int* items, int* first, int* end) {
  const u32 i = thread_number();
  if (i >= count) return;
  const int item = int(grouped[i]);
  const int own = node[item];
  items[i] = item;
  if (i == 0u || node[grouped[i - 1u]] != own) first[own] = int(i);
  if (i == count - 1u || node[grouped[i + 1u]] != own) end[own] = int(i + 1u);
}

// How far along Hilbert's curve a cell lies.
__device__ __forceinline__ u32 along_curve(u32 x, u32 y, u32 bits) {
  u32 distance = 0;
  for (u32 bit = bits; bit-- > 0u;) {
    const u32 right = (x >> bit) & 1u, up = (y >> bit) & 1u;
    distance = (distance << 2) | ((3u * right) ^ up);
    if (up == 0u) {
      const u32 flip = right != 0u ? (1u << bit) - 1u : 0u;
      const u32 other = x ^ flip;
      x = y ^ flip;
      y = other;
    }
  }
  return distance;
}

// 0 for nodes with more items than a tile, the highest number for those without any. `partner` and
// `labels`, (2, num_partners) label and rarity, may be null; labels are used where `spans` says so.
// `stats` starts as zeros.
extern "C" __global__ void __launch_bounds__(256) make_keys(
    u32 num_nodes, u32 tile_size, u32 num_partners, u32 partner_bits, u32 curve_bits,
    u32 label_curve_bits, const int* items, const int* first, const int* end, const int* partner,
    const int* labels, const u64* spans, int* key, u32* stats) {
  const u32 node = thread_number();
  if (labels != nullptr && spans[0] <= spans[1]) labels = nullptr;
  u32 size = 0;
  if (node < num_nodes) {
    const u32 start = u32(first[node]);
    size = u32(end[node]) - start;
    u32 own = size == 0u ? 0x7fffffffu : 0u;
    if (size > tile_size) {
      atomicAdd(&stats[NUM_LONG], 1u);
      atomicAdd(&stats[NUM_LONG_TILES], (size - 1u) / tile_size + 1u);
    } else if (size > 0u) {
      u32 low = partner == nullptr ? 0u : 0xffffffffu, high = 0, rarity = 0xffffffffu, home = 0;
      for (u32 i = start; partner != nullptr && i < start + size; ++i) {
        const int other = partner[items[i]];
        const u32 number = u32(labels == nullptr ? other : labels[other]);
        low = min(low, number);
        high = max(high, number);
        if (labels != nullptr && u32(labels[num_partners + other]) < rarity) {
          rarity = u32(labels[num_partners + other]);
          home = number;
        }
      }
      const u32 bits = labels == nullptr ? curve_bits : label_curve_bits;
      const u32 shift = partner_bits > bits ? partner_bits - bits : 0u;
      own = 1u + ((home << (2u * bits)) | along_curve(low >> shift, high >> shift, bits));
    }
    key[node] = int(own);
  }
  const int present = __syncthreads_count(size > 0u);
  if (threadIdx.x == 0u && present > 0) atomicAdd(&stats[NUM_NODES], u32(present));
}

// Tiles of `unit` items that a node takes, by its place in the order.
__device__ __forceinline__ u32 units_of(
    u32 rank, u32 unit, const long long* order, const int* first, const int* end) {
  const long long node = order[rank];
  const u32 size = u32(end[node]) - u32(first[node]);
  return unit == 1u ? size : (size - 1u) / unit + 1u;
}

// The sum up to each thread of a block of 256, of all before it in `earlier`.
__device__ __forceinline__ u32 sum_of_block(u32 value, u32* earlier) {
  __shared__ u32 sums[8];
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
  const u32 inclusive = inclusive_sum<32>(value);
  if (lane == 31u) sums[warp] = inclusive;
  __syncthreads();
  u32 before = 0;
  for (u32 other = 0; other < warp; ++other) before += sums[other];
  *earlier = before + inclusive - value;
  return before + inclusive;
}

// Sums of blocks of 256 nodes; `scan_blocks` then sums these.
extern "C" __global__ void __launch_bounds__(256) sum_sizes(
    u32 count, u32 unit, const long long* order, const int* first, const int* end, u32* sums) {
  const u32 rank = thread_number();
  u32 earlier;
  const u32 sum = sum_of_block(
      rank < count ? units_of(rank, unit, order, first, end) : 0u, &earlier);
  if (threadIdx.x == blockDim.x - 1u) sums[blockIdx.x] = sum;
}

// start: (count + 1,): units of all nodes before each.
extern "C" __global__ void __launch_bounds__(256) place_nodes(
    u32 count, u32 unit, const long long* order, const int* first, const int* end,
    const u32* sums, int* start) {
  const u32 rank = thread_number();
  u32 earlier;
  const u32 sum = sum_of_block(
      rank < count ? units_of(rank, unit, order, first, end) : 0u, &earlier);
  if (rank >= count) return;
  start[rank] = int(sums[blockIdx.x] + earlier);
  if (rank + 1u == count) start[count] = int(sums[blockIdx.x] + sum);
}

// The last of the ascending numbers value[low] .. value[high] that is not above a bound, if the
// first is not.
__device__ __forceinline__ u32 last_not_above(const int* value, u32 low, u32 high, u32 bound) {
  while (low < high) {
    const u32 middle = low + (high - low + 1u) / 2u;
    if (u32(value[middle]) <= bound) low = middle; else high = middle - 1u;
  }
  return low;
}

// The first short node of each chunk; chunk_first starts as num_nodes: in the last chunk none may
// begin.
extern "C" __global__ void __launch_bounds__(256) find_chunks(
    u32 num_nodes, u32 num_long, u32 tile_size, const int* start, int* chunk_first) {
  const u32 rank = num_long + thread_number();
  if (rank >= num_nodes) return;
  const u32 chunk_size = TILES_OF_CHUNK * tile_size;
  const u32 base = u32(start[num_long]);
  const u32 chunk = (u32(start[rank]) - base) / chunk_size;
  const bool is_first = rank == num_long || (u32(start[rank - 1u]) - base) < chunk * chunk_size;
  if (is_first) chunk_first[chunk] = int(rank);
}

// For a warp: the last place from `rank` to `end` where `start` is not above a bound, if it is not
// at `rank`; at most 1024 places behind that.
__device__ __forceinline__ u32 last_that_fits(
    const int* start, u32 rank, u32 end, u32 bound, u32 lane) {
#pragma unroll
  for (u32 step = 32u; step > 0u; step /= 32u) {
    const u32 place = rank + (lane + 1u) * step;
    const bool fits = place <= end && u32(start[place]) <= bound;
    rank += step * u32(__popc(int(__ballot_sync(0xffffffffu, fits))));
  }
  return rank;
}

// For a warp: which of 32 sizes, one after the other, fit into what is left of `room`, as bits.
__device__ __forceinline__ u32 first_fit(u32 size, u32 room) {
  u32 chosen = 0, may = __ballot_sync(0xffffffffu, size <= room);
  while (may != 0u) {
    const u32 first = u32(__ffs(int(may))) - 1u;
    chosen |= 1u << first;
    room -= __shfl_sync(0xffffffffu, size, int(first));
    may = __ballot_sync(0xffffffffu, size <= room) & ~((2u << first) - 1u);
  }
  return chosen;
}

// A warp a chunk: cuts tiles and packs them, as `memory.tiling.node_tiles` does, by which `order`
// and `start` change. tile_node: (num_chunks, MAX_TILES_OF_CHUNK): first node of each tile.
extern "C" __global__ void __launch_bounds__(32) pack_chunks(
    u32 num_chunks, u32 num_nodes, u32 tile_size, const int* chunk_first, long long* order,
    int* start, int* tile_node, u32* num_tiles) {
  const u32 chunk = blockIdx.x, lane = threadIdx.x;
  u32 count = 0;
  if (chunk < num_chunks) {
    const u32 end = chunk + 1u < num_chunks ? u32(chunk_first[chunk + 1u]) : num_nodes;
    int* own = tile_node + chunk * MAX_TILES_OF_CHUNK;
    u32 rank = u32(chunk_first[chunk]);
    while (rank < end) {
      if (lane == 0u) own[count] = int(rank);
      ++count;
      const u32 full_at = u32(start[rank]) + tile_size;
      rank = last_that_fits(start, rank, end, full_at, lane);
      const u32 near = rank + lane, first = u32(start[rank]);
      const u32 size = near < end ? u32(start[near + 1u]) - u32(start[near]) : 0xffffffffu;
      const u32 chosen = first_fit(size, full_at - first);
      if (chosen != 0u) {
        // up to the last that fits: those that fit, then those that wait
        const u32 waiting = ((2u << (31u - u32(__clz(int(chosen))))) - 1u) & ~chosen;
        const bool fits = (chosen >> lane & 1u) != 0u, waits = (waiting >> lane & 1u) != 0u;
        const u32 of_chosen = inclusive_sum<32>(fits ? size : 0u);
        const u32 of_waiting = inclusive_sum<32>(waits ? size : 0u);
        const u32 of_all_chosen = __shfl_sync(0xffffffffu, of_chosen, 31);
        const long long node = fits || waits ? order[near] : 0;
        __syncwarp();
        const u32 before = (1u << lane) - 1u;
        if (fits || waits) {
          const u32 ahead = fits ? 0u : u32(__popc(int(chosen)));
          const u32 place = rank + ahead + u32(__popc(int((fits ? chosen : waiting) & before)));
          const u32 items = fits ? of_chosen : of_all_chosen + of_waiting;
          order[place] = node;
          // a chunk ends where it did, which the next one's warp reads at the same time
          if (place + 1u < end) start[place + 1u] = int(first + items);
        }
        __syncwarp();
        rank += u32(__popc(int(chosen)));
      }
    }
  }
  if (lane == 0u) num_tiles[chunk] = count;
}

// A block a chunk: its tiles one behind the other.
extern "C" __global__ void __launch_bounds__(256) list_tiles(
    u32 num_nodes, const int* tile_node, const u32* chunk_start, int* first_node) {
  const u32 begin = chunk_start[blockIdx.x], end = chunk_start[blockIdx.x + 1u];
  for (u32 tile = threadIdx.x; tile < end - begin; tile += blockDim.x) {
    first_node[begin + tile] = tile_node[blockIdx.x * MAX_TILES_OF_CHUNK + tile];
  }
  if (blockIdx.x + 1u == gridDim.x && threadIdx.x == 0u) first_node[end] = int(num_nodes);
}

// Of nodes in the order of tiles: the node at each rank, and the rank of each node.
extern "C" __global__ void __launch_bounds__(256) rank_nodes(
    u32 num_nodes, const long long* order, int* node, int* rank) {
  const u32 number = thread_number();
  if (number >= num_nodes) return;
  const int own = int(order[number]);
  node[number] = own;
  rank[own] = int(number);
}

// A block a tile, a thread a position. long_start: (num_long + 1,) first tile of each long node.
// Positions without an item have a partner above all others.
extern "C" __global__ void __launch_bounds__(1024) fill_tiles(
    u32 num_tiles, u32 num_long, u32 num_partners, const int* items, const long long* order,
    const int* first, const int* start, const int* long_start, const int* first_node,
    const int* partner, int* tile_items, int* group_start, int* group_node, int* node_items,
    int* item_at, int* partner_at, u32* place_at) {
  const u32 tile = blockIdx.x, tile_size = blockDim.x, position = threadIdx.x;
  const u32 num_long_tiles = num_long > 0u ? u32(long_start[num_long]) : 0u;
  const bool is_long = tile < num_long_tiles;
  u32 low, high, begin, group;
  if (is_long) {
    low = last_not_above(long_start, 0u, num_long - 1u, tile);
    group = low;
    begin = u32(start[low]) + (tile - u32(long_start[low])) * tile_size;
    high = low + 1u;
  } else {
    const u32 number = tile - num_long_tiles;
    low = u32(first_node[number]);
    high = u32(first_node[number + 1u]);
    begin = u32(start[low]);
    group = num_long + number;
  }
  const u32 size = min(tile_size, u32(start[high]) - begin);
  const u32 at = tile * tile_size + position;
  if (position == 0u) {
    tile_items[tile] = int(size);
    if (!is_long || begin == u32(start[low])) {
      group_start[group] = int(tile);
      group_node[group] = int(low);
    }
    if (tile + 1u == num_tiles) {
      group_start[group + 1u] = int(num_tiles);
      group_node[group + 1u] = int(high);
    }
  }
  u32 place = 0;
  int item = 0, other = int(num_partners);
  if (position < size) {
    const u32 rank = is_long ? low : last_not_above(start, low, high - 1u, begin + position);
    const u32 node_start = u32(start[rank]);
    item = items[u32(first[order[rank]]) + (begin + position - node_start)];
    if (partner != nullptr) other = partner[item];
    const u32 own_begin = is_long ? 0u : node_start - begin;
    place = own_begin | (position << WIDE_BITS);
    if (begin + position == node_start) {
      const u32 length = u32(start[rank + 1u]) - node_start;
      node_items[rank] = is_long ? 0 : int(own_begin | (length << LENGTH_SHIFT));
    }
  }
  item_at[at] = item;
  partner_at[at] = other;
  place_at[at] = place;
}

// A block a tile, a thread a place of `sorted`, the order of the partners in each tile. Replaces
// these by the key that has most rounds first.
extern "C" __global__ void __launch_bounds__(1024) count_rounds(
    const u16* sorted, const int* tile_items, int* partner_at) {
  __shared__ int partners[MAX_TILE_SIZE];
  const u32 tile_size = blockDim.x, at = threadIdx.x, begin = blockIdx.x * tile_size;
  const int own = partner_at[begin + (sorted[begin + at] & PLACE_MASK)];
  partners[at] = own;
  __syncthreads();
  const u32 end = last_not_above(partners, at, tile_size - 1u, u32(own)) + 1u;
  const u32 first =
      partners[0] == own ? 0u : last_not_above(partners, 0u, at, u32(own) - 1u) + 1u;
  const u32 length = end - first;
  const u32 rounds = length > 1u ? 32u - u32(__clz(int(length - 1u))) : 0u;
  const bool has_item = at < u32(tile_items[blockIdx.x]);
  partner_at[begin + at] = int(has_item ? MAX_ROUNDS - rounds : MAX_ROUNDS + 1u);
}

// From positions to slots: places in the order of `by_partner` are put into that of `by_rounds`.
// `wide` is null, or else `narrow`.
extern "C" __global__ void __launch_bounds__(256) sort_slots(
    u32 num_slots, u32 tile_size, const u16* by_partner, const u16* by_rounds,
    const int* tile_items, const int* item_at, const u32* place_at, const int* partner,
    int* order, u32* narrow, u64* wide) {
  const u32 slot = thread_number();
  if (slot >= num_slots) return;
  const u32 tile = slot / tile_size;
  const u32 begin = tile * tile_size;
  const bool is_hole = slot - begin >= u32(tile_items[tile]);
  const u32 sorted = begin + (by_rounds[is_hole ? begin : slot] & PLACE_MASK);
  const u32 at = begin + (by_partner[sorted] & PLACE_MASK);
  const int item = item_at[at];
  order[slot] = item;
  const u32 other = partner == nullptr ? 0u : u32(partner[item]);
  const u32 begin_and_own = is_hole ? HOLE : place_at[at];
  if (wide != nullptr) {
    wide[slot] = begin_and_own | (u64(other) << (2u * WIDE_BITS));
  } else {
    narrow[slot] = (begin_and_own & ((1u << NARROW_BITS) - 1u))
        | (begin_and_own >> WIDE_BITS << NARROW_BITS) | (other << (2u * NARROW_BITS));
  }
}
"""
)
