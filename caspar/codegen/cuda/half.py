"""Device functions between float32 and float16, which arrays hold as its bits.

NVRTC ships cuda_fp16.h apart from itself, so the instructions are named here. An unpacked number
takes a register, a packed one half of it: what a kernel reads before an exchange and uses behind it
is unpacked twice, which takes one instruction each (product of bundle adjustment: 48 registers
instead of 63, five blocks of 256 threads on a multiprocessor instead of four).
"""

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec

HALF = """\
#ifndef CASPAR_HALF
#define CASPAR_HALF
__device__ __forceinline__ float float_of_half(u16 bits) {
#ifdef __CUDACC_VER_MAJOR__
  float value;
  // volatile: unpacking again is not undone
  asm volatile("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  // where there is no PTX: the exponent's bias by a product, which is exact for small numbers too
  const u32 magnitude = (bits & 0x7fffu) << 13;
  const float value = __uint_as_float(magnitude) * 0x1p112f;
  const u32 finite = magnitude < 0x0f800000u ? __float_as_uint(value) : magnitude | 0x7f800000u;
  return __uint_as_float(finite | (bits & 0x8000u) << 16);
#endif
}

// To nearest, ties to even. What is too large becomes the largest number, never infinity.
__device__ __forceinline__ u16 half_of_float(float value) {
  value = value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
#ifdef __CUDACC_VER_MAJOR__
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const u32 word = __float_as_uint(value), magnitude = word & 0x7fffffffu;
  u32 half;
  if (magnitude > 0x7f800000u) {
    half = 0x7fffu;
  } else if (magnitude < 0x38800000u) {
    // below 2^-14 numbers are multiples of 2^-24, which is the last bit of 0.5f
    half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return u16(word >> 16 & 0x8000u | half);
#endif
}
#endif
"""


def half_functions(args: tuple[ArgSpec, ...]) -> tuple[str, ...]:
    """What a kernel with such arguments calls."""
    return (HALF,) if any(arg.dtype is DType.FLOAT16 for arg in args) else ()
