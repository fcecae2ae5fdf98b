// CUDA's vector types with CUDA's alignment, and their make_* functions.
#pragma once

namespace {

#define CUDA_ON_CPU_VECTORS(name, scalar, align1, align2, align4)                     \
  struct __align__(align1) name##1 { scalar x; };                                     \
  struct __align__(align2) name##2 { scalar x, y; };                                  \
  struct __align__(align4) name##4 { scalar x, y, z, w; };                            \
  CUDA_ON_CPU_INLINE name##1 make_##name##1(scalar x) { return {x}; }                 \
  CUDA_ON_CPU_INLINE name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }    \
  CUDA_ON_CPU_INLINE name##3 make_##name##3(scalar x, scalar y, scalar z) {           \
    return {x, y, z};                                                                 \
  }                                                                                   \
  CUDA_ON_CPU_INLINE name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { \
    return {x, y, z, w};                                                              \
  }

struct char3 { signed char x, y, z; };
struct uchar3 { unsigned char x, y, z; };
struct short3 { short x, y, z; };
struct ushort3 { unsigned short x, y, z; };
struct int3 { int x, y, z; };
struct longlong3 { long long x, y, z; };
struct ulonglong3 { unsigned long long x, y, z; };
struct float3 { float x, y, z; };
struct double3 { double x, y, z; };
// uint3 is declared with threadIdx.

CUDA_ON_CPU_VECTORS(char, signed char, 1, 2, 4)
CUDA_ON_CPU_VECTORS(uchar, unsigned char, 1, 2, 4)
CUDA_ON_CPU_VECTORS(short, short, 2, 4, 8)
CUDA_ON_CPU_VECTORS(ushort, unsigned short, 2, 4, 8)
CUDA_ON_CPU_VECTORS(int, int, 4, 8, 16)
CUDA_ON_CPU_VECTORS(uint, unsigned, 4, 8, 16)
CUDA_ON_CPU_VECTORS(longlong, long long, 8, 16, 16)
CUDA_ON_CPU_VECTORS(ulonglong, unsigned long long, 8, 16, 16)
CUDA_ON_CPU_VECTORS(float, float, 4, 8, 16)
CUDA_ON_CPU_VECTORS(double, double, 8, 16, 16)

#undef CUDA_ON_CPU_VECTORS

static_assert(alignof(float2) == 8 && alignof(float3) == 4 && alignof(float4) == 16);
static_assert(alignof(double2) == 16 && alignof(double4) == 16 && sizeof(double4) == 32);
static_assert(alignof(int2) == 8 && alignof(uint4) == 16 && alignof(uchar4) == 4);

}  // namespace
