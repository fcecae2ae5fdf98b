"""CUDA kernels of `memory.tiling.partner_labels`: the same integers as there.

Part of `cuda_node_tiles.NODE_TILE_SOURCE`. A sampled node has a thread; it walks over its items.
"""

from caspar.memory.tiling.partner_labels import CENTRE, SPREAD

LABEL_KERNELS = ("average_places", "normalise_places", "measure_labels")
"""Entry points of `LABEL_TEXT`."""

NORMALISE_BLOCK_SIZE = 1024

LABEL_TEXT = (
    f"""
const long long CENTRE = {CENTRE}ll;
const double SPREAD = {SPREAD}.0;
const double HIGHEST_OFFSET = {CENTRE - 1}.0;
"""
    + """
// The items of a sampled node that is not long; none if there is no such node.
__device__ __forceinline__ u32 sampled_items(
    u32 num_nodes, u32 stride, u32 longest, const int* first, const int* end, u32* start) {
  const u64 node = u64(thread_number()) * stride;
  if (node >= num_nodes) return 0u;
  *start = u32(first[node]);
  const u32 size = u32(end[node]) - *start;
  return size <= longest ? size : 0u;
}

// One round: sums: (2, num_partners) of nodes' places; count: (num_partners,) items, if not null.
extern "C" __global__ void __launch_bounds__(256) average_places(
    u32 num_nodes, u32 stride, u32 longest, u32 num_partners, const int* items, const int* first,
    const int* end, const int* partner, const int* place, u64* sums, int* count) {
  u32 start = 0;
  const u32 size = sampled_items(num_nodes, stride, longest, first, end, &start);
  if (size == 0u) return;
  u64 x = 0, y = 0;
  for (u32 i = start; i < start + size; ++i) {
    const int other = partner[items[i]];
    x += u64(place[other]);
    y += u64(place[num_partners + other]);
  }
  x /= size;
  y /= size;
  for (u32 i = start; i < start + size; ++i) {
    const int other = partner[items[i]];
    atomicAdd(&sums[other], x);
    atomicAdd(&sums[num_partners + other], y);
    if (count != nullptr) atomicAdd(&count[other], 1);
  }
}

// The sum over a block of 1024, for all its threads.
__device__ __forceinline__ long long total_of_block(long long value) {
  __shared__ long long totals[32];
  for (u32 step = 16; step > 0u; step >>= 1) {
    value += (long long)(__shfl_xor_sync(0xffffffffu, u64(value), int(step)));
  }
  __syncthreads();
  if ((threadIdx.x & 31u) == 0u) totals[threadIdx.x >> 5] = value;
  __syncthreads();
  long long total = 0;
  for (u32 warp = 0; warp < 32u; ++warp) total += totals[warp];
  return total;
}

__device__ __forceinline__ double scale_of(long long squares, long long total) {
  if (squares <= 0) return 0.0;
  const double variance = __ddiv_rn(__ll2double_rn(squares), __ll2double_rn(total));
  return __ddiv_rn(SPREAD, __dsqrt_rn(variance));
}

__device__ __forceinline__ int scaled(long long offset, double scale) {
  const double wanted = __dmul_rn(__ll2double_rn(offset), scale);
  const double within = fmin(fmax(wanted, -HIGHEST_OFFSET), HIGHEST_OFFSET);
  return int(CENTRE + __double2ll_rn(within));
}

// From sums to places with mean CENTRE, deviation SPREAD, no correlation; one block. The sums
// become zeros again. Operations are rounded one by one, as on the host.
extern "C" __global__ void __launch_bounds__(1024) normalise_places(
    u32 num_partners, const int* count, u64* sums, int* place) {
  long long weight = 0, total_x = 0, total_y = 0;
  for (u32 i = threadIdx.x; i < num_partners; i += blockDim.x) {
    const long long own = count[i];
    const long long x = own > 0 ? (long long)(sums[i] / u64(own)) : CENTRE;
    const long long y = own > 0 ? (long long)(sums[num_partners + i] / u64(own)) : CENTRE;
    sums[i] = 0;
    sums[num_partners + i] = 0;
    place[i] = int(x);
    place[num_partners + i] = int(y);
    weight += own;
    total_x += own * x;
    total_y += own * y;
  }
  weight = total_of_block(weight);
  total_x = total_of_block(total_x);
  total_y = total_of_block(total_y);
  if (weight == 0) return;
  const long long mean_x = total_x / weight, mean_y = total_y / weight;
  long long squares = 0, mixed = 0;
  for (u32 i = threadIdx.x; i < num_partners; i += blockDim.x) {
    const long long x = place[i] - mean_x, y = place[num_partners + i] - mean_y;
    squares += count[i] * x * x;
    mixed += count[i] * x * y;
  }
  squares = total_of_block(squares);
  mixed = total_of_block(mixed);
  double slope = 0.0;
  if (squares > 0) slope = __ddiv_rn(__ll2double_rn(mixed), __ll2double_rn(squares));
  long long left = 0;
  for (u32 i = threadIdx.x; i < num_partners; i += blockDim.x) {
    const long long x = place[i] - mean_x, y = place[num_partners + i] - mean_y;
    const long long rest = y - __double2ll_rn(__dmul_rn(slope, __ll2double_rn(x)));
    place[num_partners + i] = int(rest);
    left += count[i] * rest * rest;
  }
  left = total_of_block(left);
  const double scale_x = scale_of(squares, weight), scale_y = scale_of(left, weight);
  for (u32 i = threadIdx.x; i < num_partners; i += blockDim.x) {
    place[i] = scaled(place[i] - mean_x, scale_x);
    place[num_partners + i] = scaled(place[num_partners + i], scale_y);
  }
}

// spans: bits of highest minus lowest partner, over the sampled nodes: as given, and with labels.
extern "C" __global__ void __launch_bounds__(256) measure_labels(
    u32 num_nodes, u32 stride, u32 longest, const int* items, const int* first, const int* end,
    const int* partner, const int* label, u64* spans) {
  u32 start = 0;
  const u32 size = sampled_items(num_nodes, stride, longest, first, end, &start);
  u32 bits = 0;  // of both, 16 bits each: a warp's sum is at most 32 * 32
  if (size > 0u) {
    int low = 0x7fffffff, high = 0, new_low = 0x7fffffff, new_high = 0;
    for (u32 i = start; i < start + size; ++i) {
      const int other = partner[items[i]], number = label[other];
      low = min(low, other);
      high = max(high, other);
      new_low = min(new_low, number);
      new_high = max(new_high, number);
    }
    bits = u32(32 - __clz(high - low)) | (u32(32 - __clz(new_high - new_low)) << 16);
  }
  const u32 sum = inclusive_sum<32>(bits);
  if ((threadIdx.x & 31u) == 31u && sum > 0u) {
    atomicAdd(&spans[0], u64(sum & 0xffffu));
    atomicAdd(&spans[1], u64(sum >> 16));
  }
}
"""
)
