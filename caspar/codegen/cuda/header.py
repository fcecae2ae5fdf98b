"""The device functions in front of every generated CUDA kernel.

NVRTC ships no cooperative_groups.h and no libcu++, so nothing is included. Every sum is taken in
a fixed order: the same input gives the same bits.
"""

COMPILE_OPTIONS = ("--std=c++17",)
"""Options of every NVRTC compilation."""

MIN_BLOCKS_OPTION = "-DMIN_BLOCKS=,{}"
"""Blocks a multiprocessor must hold at the same time, whatever has to be spilled for it."""

ONE_BLOCK_OPTION = MIN_BLOCKS_OPTION.format(1)
"""Tells the compiler that one resident block is enough. By default it may spill registers to let
one more run at a time; a kernel that spills is compiled again with this option, and then does not,
up to 255 registers."""

BLOCK_SIZES = (256, 128, 512, 1024, 64, 32)
"""Threads a block may have, the preferred number first. The text leaves it open: `BLOCK_SIZE`."""

BLOCK_SIZE_OPTION = "-DCHOSEN_BLOCK_SIZE={}"
"""Chooses another number than the preferred one."""

BLOCK_SIZE = BLOCK_SIZES[0]
"""Items of a tile of the solver."""

AWAIT_LAUNCH = """\
#ifndef CASPAR_AWAIT_LAUNCH
#define CASPAR_AWAIT_LAUNCH
// Wait until the launch ahead has ended, where this one could begin before; what it has written is
// seen behind it. Then the launch behind this one may begin: so whoever begins early may read what
// was written before the launch ahead of it.
__device__ __forceinline__ void await_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// A first look at a flag that is never taken back, for a warp: whether there is nothing to do. The
// launch ahead may be about to set it, so who goes on looks again once it has waited. Then all see
// it if one has seen it before, and leave too: before the first barrier of the block.
__device__ __forceinline__ bool is_done_already(const double* flag) {
  const bool is_set = *static_cast<const volatile double*>(flag) != 0.0;
  if (__ballot_sync(0xffffffffu, is_set) == 0u) return false;
  await_launch();
  return true;
}
#endif"""
"""The code of kernels that may begin before the preceding launch has ended: programmatic dependent
launches (CUDA Programming Guide, 4.5)."""

HEADER = """\
#ifndef MIN_BLOCKS
#define MIN_BLOCKS
#endif
#ifndef CASPAR_HEADER
#define CASPAR_HEADER

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
// What is not read again soon leaves the caches to what is.
template <typename T> __device__ __forceinline__ T load_once(const T* place) {
#if !defined(__CUDA_ARCH__)
  return *place;
#else
  return __ldcs(place);
#endif
}
template <typename T> __device__ __forceinline__ T sign_of(T a) {
  return a != a ? a : T((a > T(0)) - (a < T(0)));
}
#endif
"""
