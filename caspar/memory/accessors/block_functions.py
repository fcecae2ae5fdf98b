"""CUDA functions that sum over a block: what its threads have, and partials."""

BLOCK_SUM = """\
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
"""

SUM_PARTIALS = """\
#ifndef CASPAR_SUM_PARTIALS
#define CASPAR_SUM_PARTIALS
// Partials of one chunk that a thread sums, on their way at the same time: one after the other is
// what a loop would take.
template <int WIDTH, typename T> struct OwnPartials {
  static constexpr u32 AT_ONCE = WIDTH == 1 ? 5u : 2u;
  T value[AT_ONCE][WIDTH];
};

// Those that begin with partial `first` of each thread.
template <int WIDTH, u32 THREADS, typename T>
__device__ __forceinline__ OwnPartials<WIDTH, T> own_partials(
    const T* partials, u32 count, u32 first = 0u) {
  OwnPartials<WIDTH, T> own;
  const T* const place = partials + u64(first + threadIdx.x) * WIDTH;
#pragma unroll
  for (u32 turn = 0; turn < own.AT_ONCE; ++turn) {
    const bool is_there = first + threadIdx.x + turn * THREADS < count;
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      own.value[turn][component] = is_there ? place[turn * THREADS * WIDTH + component] : T(0);
    }
  }
  return own;
}

template <int WIDTH, typename T>
__device__ __forceinline__ void add_partials(
    const OwnPartials<WIDTH, T>& own, double (&value)[WIDTH]) {
#pragma unroll
  for (u32 turn = 0; turn < own.AT_ONCE; ++turn) {
#pragma unroll
    for (int component = 0; component < WIDTH; ++component) {
      value[component] += double(own.value[turn][component]);
    }
  }
}

// The sum of all partials of one chunk, in every thread; `first` are those it sums first.
template <int WIDTH, u32 THREADS, typename T>
__device__ __forceinline__ void sum_partials(
    const OwnPartials<WIDTH, T>& first, const T* partials, u32 count, double (&value)[WIDTH],
    double (&stage)[4][32]) {
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) value[component] = 0.0;
  add_partials(first, value);
#pragma unroll 1
  for (u32 done = first.AT_ONCE * THREADS; done < count; done += first.AT_ONCE * THREADS) {
    add_partials(own_partials<WIDTH, THREADS>(partials, count, done), value);
  }
  warp_sums<WIDTH>(value, stage);
#pragma unroll
  for (int component = 0; component < WIDTH; ++component) {
    value[component] = sum_of_warps<THREADS>(stage[component]);
  }
}
#endif
"""

ADD_SEGMENTS = """\
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
"""
