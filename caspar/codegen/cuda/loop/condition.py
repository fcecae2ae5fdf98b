"""CUDA kernels by which a graph decides whether to repeat a part of itself."""

BEGIN_KERNEL = "begin_runs"
"""Entry point that says how many runs there may be."""

CONDITION_KERNEL = "decide_runs"
"""Entry point that lets more runs begin, or ends the loop."""

# NVRTC takes no header that declares the function, and the driver puts its code in when the machine
# code is loaded: CUDA 12.4 and newer.
CONDITION_SOURCE = """\
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(u64 handle, u32 value);

// Both are one thread. left: runs that may still begin.
extern "C" __global__ void begin_runs(u32* left, u32 runs) { left[0] = runs; }

// runs: those that would begin.
extern "C" __global__ void decide_runs(u64 handle, const double* flag, u32* left, u32 runs) {
  const bool begin = flag[0] == 0.0 && runs <= left[0];
  if (begin) left[0] -= runs;
  cudaGraphSetConditional(handle, begin ? 1u : 0u);
}
"""
