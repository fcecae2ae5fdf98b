// CUDA's floating-point functions that the C library lacks. Approximate intrinsics (__sinf,
// __fdividef, ...) return the correctly rounded or library value: the harness checks logic, not
// the last bit of a device approximation.
#pragma once

namespace {

#define CUDA_ON_CPU_SAME(type, name, parameters, value) \
  CUDA_ON_CPU_INLINE type name parameters { return value; }

// A function with a float form `<name>f`, and in C++ also an overload of the plain name.
#define CUDA_ON_CPU_REAL1(name, value_of)                                             \
  CUDA_ON_CPU_SAME(double, name, (double x), value_of(x))                              \
  CUDA_ON_CPU_SAME(float, name, (float x), value_of(x))                                \
  CUDA_ON_CPU_SAME(float, name##f, (float x), value_of(x))

template <class T>
CUDA_ON_CPU_INLINE T sin_of_pi_times(T x) {
  const double r = ::remainder(static_cast<double>(x), 2.0);
  const double folded = ::fabs(r) > 0.5 ? ::copysign(1.0 - ::fabs(r), r) : r;
  return static_cast<T>(::sin(3.14159265358979323846 * folded));
}
template <class T>
CUDA_ON_CPU_INLINE T cos_of_pi_times(T x) {
  const double r = ::fabs(::remainder(static_cast<double>(x), 2.0));
  return static_cast<T>(::sin(3.14159265358979323846 * (0.5 - r)));
}
template <class T>
CUDA_ON_CPU_INLINE T reciprocal_square_root(T x) { return T(1) / std::sqrt(x); }
template <class T>
CUDA_ON_CPU_INLINE T reciprocal_cube_root(T x) { return T(1) / std::cbrt(x); }
template <class T>
CUDA_ON_CPU_INLINE T ten_to_the(T x) { return static_cast<T>(::exp10(static_cast<double>(x))); }
template <class T>
CUDA_ON_CPU_INLINE T normal_distribution(T x) {
  return T(0.5) * std::erfc(-x * T(0.70710678118654752440));
}

CUDA_ON_CPU_REAL1(rsqrt, reciprocal_square_root)
CUDA_ON_CPU_REAL1(rcbrt, reciprocal_cube_root)
CUDA_ON_CPU_REAL1(sinpi, sin_of_pi_times)
CUDA_ON_CPU_REAL1(cospi, cos_of_pi_times)
CUDA_ON_CPU_REAL1(exp10, ten_to_the)
CUDA_ON_CPU_REAL1(normcdf, normal_distribution)

// std::hypot of three numbers makes NaN of an infinite one.
#define CUDA_ON_CPU_NORMS(type, suffix)                                                       \
  CUDA_ON_CPU_SAME(type, norm3d##suffix, (type a, type b, type c),                             \
                   std::hypot(std::hypot(a, b), c))                                          \
  CUDA_ON_CPU_SAME(type, norm4d##suffix, (type a, type b, type c, type d),                    \
                   std::hypot(std::hypot(a, b), std::hypot(c, d)))                            \
  CUDA_ON_CPU_SAME(type, rhypot##suffix, (type a, type b), type(1) / std::hypot(a, b))        \
  CUDA_ON_CPU_SAME(type, rnorm3d##suffix, (type a, type b, type c),                           \
                   type(1) / std::hypot(std::hypot(a, b), c))                                \
  CUDA_ON_CPU_SAME(type, rnorm4d##suffix, (type a, type b, type c, type d),                   \
                   type(1) / std::hypot(std::hypot(a, b), std::hypot(c, d)))                  \
  CUDA_ON_CPU_INLINE type norm##suffix(int dim, const type* p) {                              \
    type length = 0;                                                                          \
    for (int i = 0; i < dim; ++i) length = std::hypot(length, p[i]);                          \
    return length;                                                                            \
  }                                                                                           \
  CUDA_ON_CPU_SAME(type, rnorm##suffix, (int dim, const type* p),                             \
                   type(1) / norm##suffix(dim, p))
CUDA_ON_CPU_NORMS(double, )
CUDA_ON_CPU_NORMS(float, )
CUDA_ON_CPU_NORMS(float, f)
#undef CUDA_ON_CPU_NORMS

// Written as two calls so that the targets need not have an address.
#define CUDA_ON_CPU_SINCOS(type, name, sin_of, cos_of)             \
  CUDA_ON_CPU_INLINE void name(type x, type* sine, type* cosine) { \
    *sine = sin_of(x);                                             \
    *cosine = cos_of(x);                                           \
  }
CUDA_ON_CPU_SINCOS(double, sincos, ::sin, ::cos)
CUDA_ON_CPU_SINCOS(float, sincos, ::sinf, ::cosf)
CUDA_ON_CPU_SINCOS(float, sincosf, ::sinf, ::cosf)
CUDA_ON_CPU_SINCOS(float, __sincosf, ::sinf, ::cosf)
CUDA_ON_CPU_SINCOS(double, sincospi, sinpi, cospi)
CUDA_ON_CPU_SINCOS(float, sincospi, sinpif, cospif)
CUDA_ON_CPU_SINCOS(float, sincospif, sinpif, cospif)
#undef CUDA_ON_CPU_SINCOS

CUDA_ON_CPU_SAME(float, __sinf, (float x), ::sinf(x))
CUDA_ON_CPU_SAME(float, __cosf, (float x), ::cosf(x))
CUDA_ON_CPU_SAME(float, __tanf, (float x), ::tanf(x))
CUDA_ON_CPU_SAME(float, __expf, (float x), ::expf(x))
CUDA_ON_CPU_SAME(float, __exp10f, (float x), exp10f(x))
CUDA_ON_CPU_SAME(float, __logf, (float x), ::logf(x))
CUDA_ON_CPU_SAME(float, __log2f, (float x), ::log2f(x))
CUDA_ON_CPU_SAME(float, __log10f, (float x), ::log10f(x))
CUDA_ON_CPU_SAME(float, __powf, (float x, float y), ::powf(x, y))
CUDA_ON_CPU_SAME(float, __fdividef, (float x, float y), x / y)
CUDA_ON_CPU_SAME(float, fdividef, (float x, float y), x / y)
// NaN becomes 0, as on the device.
CUDA_ON_CPU_SAME(float, __saturatef, (float x), ::fminf(::fmaxf(x, 0.0f), 1.0f))

// Round to nearest is the host's mode; other rounding modes are not offered.
CUDA_ON_CPU_SAME(float, __fadd_rn, (float x, float y), x + y)
CUDA_ON_CPU_SAME(float, __fsub_rn, (float x, float y), x - y)
CUDA_ON_CPU_SAME(float, __fmul_rn, (float x, float y), x * y)
CUDA_ON_CPU_SAME(float, __fdiv_rn, (float x, float y), x / y)
CUDA_ON_CPU_SAME(float, __fmaf_rn, (float x, float y, float z), ::fmaf(x, y, z))
CUDA_ON_CPU_SAME(float, __frcp_rn, (float x), 1.0f / x)
CUDA_ON_CPU_SAME(float, __fsqrt_rn, (float x), ::sqrtf(x))
CUDA_ON_CPU_SAME(float, __frsqrt_rn, (float x),
                 static_cast<float>(1.0 / ::sqrt(static_cast<double>(x))))
CUDA_ON_CPU_SAME(double, __dadd_rn, (double x, double y), x + y)
CUDA_ON_CPU_SAME(double, __dsub_rn, (double x, double y), x - y)
CUDA_ON_CPU_SAME(double, __dmul_rn, (double x, double y), x * y)
CUDA_ON_CPU_SAME(double, __ddiv_rn, (double x, double y), x / y)
CUDA_ON_CPU_SAME(double, __fma_rn, (double x, double y, double z), ::fma(x, y, z))
CUDA_ON_CPU_SAME(double, __drcp_rn, (double x), 1.0 / x)
CUDA_ON_CPU_SAME(double, __dsqrt_rn, (double x), ::sqrt(x))

// The overload sets of CUDA: no template, so that an ambiguous call stays an error.
#define CUDA_ON_CPU_MIN_MAX(result, left, right)                                            \
  CUDA_ON_CPU_SAME(result, min, (left a, right b),                                          \
                   static_cast<result>(a) < static_cast<result>(b) ? static_cast<result>(a) \
                                                                   : static_cast<result>(b)) \
  CUDA_ON_CPU_SAME(result, max, (left a, right b),                                          \
                   static_cast<result>(a) > static_cast<result>(b) ? static_cast<result>(a) \
                                                                   : static_cast<result>(b))
#define CUDA_ON_CPU_MIN_MAX_BOTH(s, u)  \
  CUDA_ON_CPU_MIN_MAX(s, s, s)          \
  CUDA_ON_CPU_MIN_MAX(u, u, u)          \
  CUDA_ON_CPU_MIN_MAX(u, s, u)          \
  CUDA_ON_CPU_MIN_MAX(u, u, s)
CUDA_ON_CPU_MIN_MAX_BOTH(int, unsigned)
CUDA_ON_CPU_MIN_MAX_BOTH(long, unsigned long)
CUDA_ON_CPU_MIN_MAX_BOTH(long long, unsigned long long)
#undef CUDA_ON_CPU_MIN_MAX_BOTH
#undef CUDA_ON_CPU_MIN_MAX
CUDA_ON_CPU_SAME(float, min, (float a, float b), ::fminf(a, b))
CUDA_ON_CPU_SAME(float, max, (float a, float b), ::fmaxf(a, b))
CUDA_ON_CPU_SAME(double, min, (double a, double b), ::fmin(a, b))
CUDA_ON_CPU_SAME(double, max, (double a, double b), ::fmax(a, b))
CUDA_ON_CPU_SAME(double, min, (float a, double b), ::fmin(a, b))
CUDA_ON_CPU_SAME(double, max, (float a, double b), ::fmax(a, b))
CUDA_ON_CPU_SAME(double, min, (double a, float b), ::fmin(a, b))
CUDA_ON_CPU_SAME(double, max, (double a, float b), ::fmax(a, b))

#undef CUDA_ON_CPU_REAL1

}  // namespace
