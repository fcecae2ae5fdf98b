// CUDA's declaration keywords and built-in variables.
#pragma once

#define CUDA_ON_CPU 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

#define __global__
#define __device__
#define __host__
#define __constant__
// Function-local statics of the kernel text are the shared memory of the one block that runs:
// the link script gathers them in one section. `used` keeps the compiler from assuming that it
// sees every access.
#define __shared__ static __attribute__((used))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__

// Inside the headers: a function that may not be moved across or merged with its neighbours.
#define CUDA_ON_CPU_INLINE inline __attribute__((always_inline))
#define CUDA_ON_CPU_FENCE() asm volatile("" ::: "memory")
// A function whose accesses are checked by hand: the check then names the caller's line.
#define CUDA_ON_CPU_CHECKED __attribute__((noinline, no_sanitize_thread))

namespace {

using uint3 = cuda_on_cpu::Index3;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

[[maybe_unused]] constexpr const uint3& threadIdx = cuda_on_cpu::current.thread;
[[maybe_unused]] constexpr const uint3& blockIdx = cuda_on_cpu::current.block;
[[maybe_unused]] constexpr const uint3& blockDim = cuda_on_cpu::current.block_dim;
[[maybe_unused]] constexpr const uint3& gridDim = cuda_on_cpu::current.grid_dim;
[[maybe_unused]] constexpr int warpSize = 32;

[[noreturn]] inline void __trap(int line = __builtin_LINE()) {
  cuda_on_cpu::fail_in_kernel("__trap() was reached", line);
}

// A false assumption is an error here instead of undefined behaviour.
CUDA_ON_CPU_INLINE void __builtin_assume(bool holds, int line = __builtin_LINE()) {
  if (!holds) cuda_on_cpu::fail_in_kernel("a __builtin_assume() does not hold", line);
}

#define assert(...)                                                                     \
  ((__VA_ARGS__) ? (void)0                                                              \
                 : cuda_on_cpu::fail_in_kernel("assertion `" #__VA_ARGS__ "` does not hold", \
                                               __LINE__))

}  // namespace
