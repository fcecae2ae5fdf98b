"""The device functions in front of every generated CUDA kernel.

NVRTC ships no cooperative_groups.h and no libcu++, so nothing is included. Every sum is taken in
a fixed order: the same input gives the same bits.
"""

COMPILE_OPTIONS = ("--std=c++17",)
"""Options of every NVRTC compilation."""

ONE_BLOCK_OPTION = "-DMIN_BLOCKS=,1"
"""Tells the compiler that one resident block is enough. By default it may spill registers to let
one more run at a time; a kernel that spills is compiled again with this option, and then does not,
up to 255 registers."""

BLOCK_SIZE = 256
"""Threads of a block: the items of a tile."""

SUM_BLOCK_SIZE = 1024
"""Threads of the single block that sums arrays of partials."""

STAGE_PADDING = 8
"""Extra columns of the staging array: keeps its 4 rows in different banks."""

HEADER = """\
#ifndef MIN_BLOCKS
#define MIN_BLOCKS
#endif

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

// a < b, but a NaN on either side is kept: a NaN must never be compared away
template <typename T> __device__ __forceinline__ T min_nan(T a, T b) {
  return (a < b || a != a) ? a : b;
}
template <typename T> __device__ __forceinline__ T max_nan(T a, T b) {
  return (a > b || a != a) ? a : b;
}
template <typename T> __device__ __forceinline__ T sign_of(T a) {
  return a != a ? a : T((a > T(0)) - (a < T(0)));
}

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

// Sum over the block: thread `component` gets that component's total in value[0].
template <int WIDTH>
__device__ __forceinline__ void block_sum(double (&value)[WIDTH], double (&stage)[4][32]) {
  const u32 lane = threadIdx.x & 31u, warp = threadIdx.x >> 5;
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) {
    double total = value[component];
    for (int step = 16; step > 0; step >>= 1) {
      total += __shfl_down_sync(0xffffffffu, total, step);
    }
    if (lane == 0) stage[component][warp] = total;
  }
  __syncthreads();
  if (threadIdx.x < WIDTH) {
    double total = 0.0;
    for (u32 other = 0; other < blockDim.x / 32; ++other) total += stage[threadIdx.x][other];
    value[0] = total;
  }
}

// The sum of all partials of one chunk, in every thread.
template <int WIDTH, typename T>
__device__ __forceinline__ void sum_partials(
    const T* partials, u32 count, double (&value)[WIDTH], double (&stage)[4][32]) {
  for (int component = 0; component < WIDTH; ++component) value[component] = 0.0;
  for (u32 partial = threadIdx.x; partial < count; partial += blockDim.x) {
    for (int component = 0; component < WIDTH; ++component) {
      value[component] += double(partials[u64(partial) * WIDTH + component]);
    }
  }
  block_sum<WIDTH>(value, stage);
  __syncthreads();
  if (threadIdx.x < WIDTH) stage[threadIdx.x][0] = value[0];
  __syncthreads();
  for (int component = 0; component < WIDTH; ++component) value[component] = stage[component][0];
  __syncthreads();
}
"""
