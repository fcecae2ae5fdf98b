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

#undef BLOCK_SIZE
#ifdef CHOSEN_BLOCK_SIZE
#define BLOCK_SIZE CHOSEN_BLOCK_SIZE
#else
#define BLOCK_SIZE 256
#endif
extern "C" __global__ void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS)
distance__score(
    u32 count,
    const double* place__value_data,
    u32 place__value_length,
    const int* place__value_index,
    const double* measured__value_data,
    u32 measured__value_length,
    float* residual_data,
    u32 residual_length,
    double* cost_data,
    u32 cost_length,
    int cost_offset) {
  __shared__ double sums[2][4][32];
  const u32 tile = blockIdx.x;
  const u32 own_item = tile * BLOCK_SIZE + threadIdx.x;
  const bool active = own_item < count;
  const u32 item = active ? own_item : count - 1u;
  double r0, r1, r2, r3;
  const u32 place__value_object = load_once(place__value_index + item);
  const double2 m1 = *reinterpret_cast<const double2*>(place__value_data + 2ull * place__value_object);
  r0 = m1.x;
  r1 = m1.y;
  const double2 m2 = *reinterpret_cast<const double2*>(measured__value_data + 2ull * item);
  r2 = m2.x;
  r3 = m2.y;
  // distance: offset = place - measured
  r0 = r0 - r2;
  r1 = r1 - r3;
  // distance: length = sf.sqrt(offset.squared_norm() + sf.epsilon())
  r0 = fma(r0, r0, 2.2204460492503131e-15);
  r0 = fma(r1, r1, r0);
  r0 = sqrt(r0);
  // squashed: return limit * sf.tanh(value / limit)
  r0 = r0 * 0.33333333333333331;
  r0 = tanh(r0);
  r0 = r0 * 3.0;
  // distance: residual
  if (active) *reinterpret_cast<float*>(residual_data + 1ull * item) = float(r0);
  // distance: cost
  r0 = r0 * r0;
  r0 = r0 * 0.5;
  const double m3[1] = {active ? r0 : 0.0};
  const double m4 = block_sum<BLOCK_SIZE>(m3, sums[0]);
  if (threadIdx.x < 1u) (cost_data)[1ull * (cost_offset + tile) + threadIdx.x] = m4;
}
