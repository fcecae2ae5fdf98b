"""What blocks of a loop tell each other by: a barrier of the grid, or an exchange in a cluster.

Cost tier: text; a loop's kernel waits there two or three times an iteration.
"""

ONE_BLOCK_LOOP_OPTION = "-DONE_BLOCK_LOOP"
"""Compiles a loop for a grid of one block: a barrier of the block is one of the grid then."""

CLUSTER_OPTION = "-DCLUSTER={}"
"""Compiles a loop for a grid of so many blocks, which are one cluster: its barrier is the grid's.
From sm_90 on."""

CLUSTER_BLOCKS = 8
"""Blocks that a cluster may have on any device that is not too small for them."""


# H200, microseconds a barrier with 132, 264, 528 and 1056 blocks of 256 threads: 0.92, 1.15, 1.63,
# 3.2. Without the sleep 0.96, 1.19, 1.68, 3.3; with __threadfence() and volatile reads 1.00, 1.31,
# 2.0, 3.9; a counter and another word that the last block sets 1.38, 1.40, 1.52, 1.93; counters in
# two levels 1.9, 1.9, 2.1, 2.2; a word for each block, gathered by the first 1.6, 1.8, 2.4, 3.0.
# Reading the flag behind it takes 0.15 more.
GRID_BARRIER = """\
#ifndef CASPAR_GRID_BARRIER
#define CASPAR_GRID_BARRIER
// Every block waits for all; what any has written before, all see behind it. `state` counts
// arrivals below its highest bit, which the last one flips: nothing has to be reset.
__device__ __forceinline__ void grid_barrier(u32* state) {
#ifdef CLUSTER
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#ifndef ONE_BLOCK_LOOP
  if (threadIdx.x == 0u) {
    const u32 arrival = blockIdx.x == 0u ? 0x80000000u - (gridDim.x - 1u) : 1u;
    u32 before, now;
    // release: the barrier above has put the block's writes before it
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;"
                 : "=r"(before) : "l"(state), "r"(arrival) : "memory");
    while (true) {
      // acquire: also drops what the multiprocessor's first-level cache holds
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(state) : "memory");
      if (((now ^ before) & 0x80000000u) != 0u) break;
      __nanosleep(20);
    }
  }
  __syncthreads();
#endif
#endif
}
#ifdef CLUSTER
#define IN_A_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_A_CLUSTER
#endif
#endif"""


# names what SUM_PARTIALS and BLOCK_SUM define: who sums partials has them
EXCHANGE = """\
#ifndef CASPAR_EXCHANGE
#define CASPAR_EXCHANGE
// Each block of a cluster sends one number to all, in shared memory; who has all of them knows that
// all blocks have come so far, and their sum. There is no fence: what a block has written to global
// memory before, others need not see behind it.
struct Exchange {
  u64 arrived;
  double number[CLUSTER];
};
__device__ __forceinline__ u32 shared_address(const void* place) {
  return u32(__cvta_generic_to_shared(place));
}
// Once, by all threads: nobody sends before all have begun.
__device__ __forceinline__ void begin_exchange(Exchange& exchange) {
  if (threadIdx.x == 0u) {
    const u32 arrived = shared_address(&exchange.arrived);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(arrived) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(arrived), "n"(8 * CLUSTER) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_begin() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
struct SentPartial {
  Exchange* exchange;
  u32 place;
  __device__ __forceinline__ void operator=(double number) const {
    const u32 target = shared_address(exchange->number + place);
    const u32 arrived = shared_address(&exchange->arrived);
#pragma unroll
    for (u32 block = 0u; block < CLUSTER; ++block) {
      asm volatile(
          "{\\n"
          ".reg .b32 target, arrived;\\n"
          "mapa.shared::cluster.u32 target, %0, %2;\\n"
          "mapa.shared::cluster.u32 arrived, %1, %2;\\n"
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [target], %3, [arrived];\\n"
          "}"
          :: "r"(target), "r"(arrived), "r"(block), "l"(__double_as_longlong(number)) : "memory");
    }
  }
};
// An array of partials, one for each block, for those who write it.
struct SentPartials {
  Exchange* exchange;
  __device__ __forceinline__ SentPartial operator[](u64 place) const {
    return {exchange, u32(place)};
  }
};
// The same for those who sum it.
struct ReceivedPartials {
  const Exchange* exchange;
};
template <int WIDTH, u32 THREADS>
__device__ __forceinline__ OwnPartials<WIDTH, double> own_partials(ReceivedPartials, u32) {
  return {};
}
template <int WIDTH, u32 THREADS>
__device__ __forceinline__ void sum_partials(
    const OwnPartials<WIDTH, double>&, ReceivedPartials received, u32, double (&value)[WIDTH],
    double (&)[4][32]) {
  static_assert(WIDTH == 1);
  asm volatile(
      "{\\n"
      ".reg .pred has_all;\\n"
      "again:\\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 has_all, [%0], 0;\\n"
      "@!has_all bra again;\\n"
      "}"
      :: "r"(shared_address(&received.exchange->arrived)) : "memory");
  double part[CLUSTER];
#pragma unroll
  for (u32 block = 0u; block < CLUSTER; ++block) part[block] = received.exchange->number[block];
  value[0] = sum_by_pairs(part);
}
#endif"""
