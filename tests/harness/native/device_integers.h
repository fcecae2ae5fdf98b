// Integer intrinsics, conversions and bit casts.
#pragma once

namespace {

CUDA_ON_CPU_SAME(int, __popc, (unsigned x), __builtin_popcount(x))
CUDA_ON_CPU_SAME(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
CUDA_ON_CPU_SAME(int, __ffs, (int x), __builtin_ffs(x))
CUDA_ON_CPU_SAME(int, __ffsll, (long long x), __builtin_ffsll(x))
CUDA_ON_CPU_SAME(int, __clz, (int x), x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)))
CUDA_ON_CPU_SAME(int, __clzll, (long long x),
                 x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)))
CUDA_ON_CPU_INLINE unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= ((x >> bit) & 1u) << (31 - bit);
  return reversed;
}
CUDA_ON_CPU_SAME(unsigned long long, __brevll, (unsigned long long x),
                 (static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32) |
                     __brev(static_cast<unsigned>(x >> 32)))
// Four bytes of y | x by their numbers; that a number may repeat a byte's sign is left out.
CUDA_ON_CPU_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned numbers) {
  const unsigned long long bytes = (static_cast<unsigned long long>(y) << 32) | x;
  unsigned taken = 0;
  for (int place = 0; place < 4; ++place) {
    const unsigned number = numbers >> (4 * place) & 7u;
    taken |= static_cast<unsigned>(bytes >> (8 * number) & 0xffu) << (8 * place);
  }
  return taken;
}
CUDA_ON_CPU_SAME(int, __mulhi, (int x, int y),
                 static_cast<int>((static_cast<long long>(x) * y) >> 32))
CUDA_ON_CPU_SAME(unsigned, __umulhi, (unsigned x, unsigned y),
                 static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32))

#define CUDA_ON_CPU_BIT_CAST(name, to, from)         \
  CUDA_ON_CPU_INLINE to name(from value) {           \
    static_assert(sizeof(to) == sizeof(from));       \
    to result;                                       \
    __builtin_memcpy(&result, &value, sizeof result); \
    return result;                                   \
  }
CUDA_ON_CPU_BIT_CAST(__int_as_float, float, int)
CUDA_ON_CPU_BIT_CAST(__uint_as_float, float, unsigned)
CUDA_ON_CPU_BIT_CAST(__float_as_int, int, float)
CUDA_ON_CPU_BIT_CAST(__float_as_uint, unsigned, float)
CUDA_ON_CPU_BIT_CAST(__longlong_as_double, double, long long)
CUDA_ON_CPU_BIT_CAST(__double_as_longlong, long long, double)
#undef CUDA_ON_CPU_BIT_CAST

CUDA_ON_CPU_SAME(int, __double2hiint, (double x),
                 static_cast<int>(__double_as_longlong(x) >> 32))
CUDA_ON_CPU_SAME(int, __double2loint, (double x), static_cast<int>(__double_as_longlong(x)))
CUDA_ON_CPU_SAME(double, __hiloint2double, (int high, int low),
                 __longlong_as_double(static_cast<long long>(
                     (static_cast<unsigned long long>(static_cast<unsigned>(high)) << 32) |
                     static_cast<unsigned>(low))))

// Conversions to integers saturate and turn NaN into 0 (into the lowest value for 64 bits).
template <class Integer>
CUDA_ON_CPU_INLINE Integer saturated(double rounded) {
  constexpr bool is_signed = std::is_signed<Integer>::value;
  constexpr int bits = 8 * sizeof(Integer) - (is_signed ? 1 : 0);
  constexpr Integer highest = static_cast<Integer>(~0ull >> (64 - bits));
  constexpr Integer lowest = is_signed ? static_cast<Integer>(-highest - 1) : Integer(0);
  const double limit = ::ldexp(1.0, bits);
  if (rounded != rounded) {
    return sizeof(Integer) == 4 ? Integer(0) : static_cast<Integer>(1ull << 63);
  }
  if (rounded >= limit) return highest;
  if (rounded <= (is_signed ? -limit : 0.0)) return lowest;
  return static_cast<Integer>(rounded);
}

#define CUDA_ON_CPU_TO_INTEGER(type, from, prefix)                             \
  CUDA_ON_CPU_SAME(type, prefix##_rn, (from x), saturated<type>(::rint(x)))    \
  CUDA_ON_CPU_SAME(type, prefix##_rz, (from x), saturated<type>(::trunc(x)))   \
  CUDA_ON_CPU_SAME(type, prefix##_rd, (from x), saturated<type>(::floor(x)))   \
  CUDA_ON_CPU_SAME(type, prefix##_ru, (from x), saturated<type>(::ceil(x)))
CUDA_ON_CPU_TO_INTEGER(int, float, __float2int)
CUDA_ON_CPU_TO_INTEGER(unsigned, float, __float2uint)
CUDA_ON_CPU_TO_INTEGER(long long, float, __float2ll)
CUDA_ON_CPU_TO_INTEGER(unsigned long long, float, __float2ull)
CUDA_ON_CPU_TO_INTEGER(int, double, __double2int)
CUDA_ON_CPU_TO_INTEGER(unsigned, double, __double2uint)
CUDA_ON_CPU_TO_INTEGER(long long, double, __double2ll)
CUDA_ON_CPU_TO_INTEGER(unsigned long long, double, __double2ull)
#undef CUDA_ON_CPU_TO_INTEGER

CUDA_ON_CPU_SAME(float, __int2float_rn, (int x), static_cast<float>(x))
CUDA_ON_CPU_SAME(float, __uint2float_rn, (unsigned x), static_cast<float>(x))
CUDA_ON_CPU_SAME(float, __ll2float_rn, (long long x), static_cast<float>(x))
CUDA_ON_CPU_SAME(float, __ull2float_rn, (unsigned long long x), static_cast<float>(x))
CUDA_ON_CPU_SAME(double, __int2double_rn, (int x), static_cast<double>(x))
CUDA_ON_CPU_SAME(double, __uint2double_rn, (unsigned x), static_cast<double>(x))
CUDA_ON_CPU_SAME(double, __ll2double_rn, (long long x), static_cast<double>(x))
CUDA_ON_CPU_SAME(double, __ull2double_rn, (unsigned long long x), static_cast<double>(x))
CUDA_ON_CPU_SAME(float, __double2float_rn, (double x), static_cast<float>(x))

}  // namespace
