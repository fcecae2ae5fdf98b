"""The barrier of a loop's kernel, which is a cooperative grid, a thread block cluster or one block.

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
