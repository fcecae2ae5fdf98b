// (header)

#ifndef CASPAR_BLOCK_SUM
#define CASPAR_BLOCK_SUM
// The sums of the warps, for all threads. They are taken in the values' type.
template <int WIDTH, typename T>
__device__ __forceinline__ void warp_sums(const T (&value)[WIDTH], double (&stage)[4][32]) {
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) {
    T total = value[component];
    for (int step = 16; step > 0; step >>= 1) {
      total += __shfl_down_sync(0xffffffffu, total, step);
    }
    if (lane == 0) stage[component][warp] = double(total);
  }
  __syncthreads();
}

// Neighbours are added first: one after the other, each addition would wait for all before it.
template <u32 NUMBER>
__device__ __forceinline__ double sum_by_pairs(double (&part)[NUMBER]) {
#pragma unroll
  for (u32 step = 1u; step < NUMBER; step *= 2u) {
#pragma unroll
    for (u32 place = 0u; place + step < NUMBER; place += 2u * step) {
      part[place] += part[place + step];
    }
  }
  return part[0];
}

// The sum of what warps have found, in float64.
template <u32 THREADS>
__device__ __forceinline__ double sum_of_warps(const double (&stage)[32]) {
  constexpr u32 WARPS = THREADS / 32u, AT_ONCE = WARPS < 8u ? WARPS : 8u;
  double total = 0.0;
#pragma unroll
  for (u32 first = 0u; first < WARPS; first += AT_ONCE) {
    double part[AT_ONCE];
#pragma unroll
    for (u32 warp = 0u; warp < AT_ONCE; ++warp) {
      part[warp] = first + warp < WARPS ? stage[first + warp] : 0.0;
    }
    const double found = sum_by_pairs(part);
    total = first == 0u ? found : total + found;
  }
  return total;
}

// Sum over the block: thread `component` gets that component's total.
template <u32 THREADS, int WIDTH, typename T>
__device__ __forceinline__ double block_sum(const T (&value)[WIDTH], double (&stage)[4][32]) {
  warp_sums<WIDTH>(value, stage);
  return threadIdx.x < WIDTH ? sum_of_warps<THREADS>(stage[threadIdx.x]) : 0.0;
}
#endif

#ifndef CASPAR_ADD_SEGMENTS
#define CASPAR_ADD_SEGMENTS
// Sum the items of each segment of the tile's sorted staging rows into one partial each.
// Threads are spread over (segment, component). Unrolling by 4 is the fastest (H200, linearisation
// of bundle adjustment: 1: 195 us, 2: 145, 4: 127, left to the compiler: 137) and 2,000
// instructions shorter than what the compiler does by itself.
template <int WIDTH, typename Sum, typename Value, int COLUMNS>
__device__ __forceinline__ void add_segments(
    Sum* partials, const Value (&stage)[4][COLUMNS], u32 first, u32 last, const u16* segment_end) {
#pragma unroll 1
  for (u32 work = threadIdx.x; work < (last - first) * WIDTH; work += blockDim.x) {
    const u32 component = work % WIDTH;
    const u32 partial = first + work / WIDTH;
    const u32 begin = partial == first ? 0u : segment_end[partial - 1];
    const u32 end = segment_end[partial];
    Sum total = Sum(0);
#pragma unroll 4
    for (u32 position = begin; position < end; ++position) {
      total += Sum(stage[component][position]);
    }
    partials[u64(partial) * WIDTH + component] = total;
  }
}
#endif

#undef BLOCK_SIZE
#ifdef CHOSEN_BLOCK_SIZE
#define BLOCK_SIZE CHOSEN_BLOCK_SIZE
#else
#define BLOCK_SIZE 256
#endif
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS)
damped_step(
    u32 count,
    const double* done_data,
    u32 done_length,
    float* x_data,
    u32 x_length,
    const float* y_data,
    u32 y_length,
    const int* y_index,
    const double* alpha_data,
    u32 alpha_length,
    float* unit_data,
    u32 unit_length,
    double* total_data,
    u32 total_length,
    int total_offset,
    double* gradient_data,
    u32 gradient_length,
    const u16* gradient_slot,
    const u16* gradient_position,
    const int* gradient_tile_start,
    const u16* gradient_segment_end) {
  if (done_data[0] != 0) return;
  __shared__ double sums[2][4][32];
  __shared__ float stage[2][4][BLOCK_SIZE + 8];
  const u32 tile = blockIdx.x;
  const u32 own_item = tile * BLOCK_SIZE + threadIdx.x;
  const bool active = own_item < count;
  const u32 item = active ? own_item : count - 1u;
  float r0, r1, r2, r3, r4, r5, r6;
  bool p0;
  const u32 y_object = load_once(y_index + item);
  float4 m1 = {};
  if (active) m1 = *reinterpret_cast<const float4*>(x_data + 4ull * item);
  r0 = m1.x;
  r1 = m1.y;
  r2 = m1.z;
  const float4 m2 = *reinterpret_cast<const float4*>(y_data + 4ull * y_object);
  r3 = m2.x;
  r4 = m2.y;
  r5 = m2.z;
  const double m3 = *reinterpret_cast<const double*>(alpha_data + 1ull * 0);
  r6 = float(m3);
  r0 = fmaf(-(r3), r6, r0);
  r1 = fmaf(-(r4), r6, r1);
  r2 = fmaf(-(r5), r6, r2);
  if (active) *reinterpret_cast<float4*>(x_data + 4ull * item) = make_float4(r0, r1, r2, 0.0f);
  if (active) { stage[0][0][gradient_position[item]] = r0; stage[0][1][gradient_position[item]] = r1; }
  __syncthreads();
  add_segments<2>(gradient_data, stage[0], gradient_tile_start[tile], gradient_tile_start[tile + 1], gradient_segment_end);
  r3 = r0 * r0;
  r3 = fmaf(r1, r1, r3);
  r3 = fmaf(r2, r2, r3);
  r3 = sqrtf(r3);
  r4 = __frcp_rn(r3);
  r0 = r0 * r4;
  r1 = r1 * r4;
  r2 = r2 * r4;
  if (active) unit_data[3ull * item + 0u] = r0;
  if (active) unit_data[3ull * item + 1u] = r1;
  if (active) unit_data[3ull * item + 2u] = r2;
  p0 = r3 < 1.0f;
  r0 = p0 ? r3 : 1.0f;
  const float m4[1] = {active ? r0 : 0.0f};
  const double m5 = block_sum<BLOCK_SIZE>(m4, sums[0]);
  if (threadIdx.x < 1u) (total_data)[1ull * (total_offset + tile) + threadIdx.x] = m5;
}
