// Loads and stores with cache hints (plain ones here), memory fences, memcpy and memset.
#pragma once

namespace {

template <class T, class... Candidates>
constexpr bool is_one_of = (std::is_same<T, Candidates>::value || ...);

// CUDA overloads the cached loads and stores for these types and no others.
template <class T>
constexpr bool has_cache_hints =
    is_one_of<T, char, signed char, unsigned char, short, unsigned short, int, unsigned, long,
              unsigned long, long long, unsigned long long, float, double> ||
    is_one_of<T, char2, char4, uchar2, uchar4, short2, short4, ushort2, ushort4, int2, int4,
              uint2, uint4, longlong2, ulonglong2, float2, float4, double2>;

#define CUDA_ON_CPU_LOAD(name)                                          \
  template <class T>                                                    \
  CUDA_ON_CPU_INLINE T name(const T* address) {                         \
    static_assert(has_cache_hints<T>, #name " has no overload for this type"); \
    return *address;                                                    \
  }
CUDA_ON_CPU_LOAD(__ldg)
CUDA_ON_CPU_LOAD(__ldca)
CUDA_ON_CPU_LOAD(__ldcg)
CUDA_ON_CPU_LOAD(__ldcs)
CUDA_ON_CPU_LOAD(__ldlu)
CUDA_ON_CPU_LOAD(__ldcv)
#undef CUDA_ON_CPU_LOAD

// Whether an address is that of an array. Nothing asks for one of shared memory.
CUDA_ON_CPU_INLINE unsigned __isGlobal(const void*) { return 1u; }

template <class T>
struct Identity {
  using type = T;
};
#define CUDA_ON_CPU_STORE(name)                                                \
  template <class T>                                                           \
  CUDA_ON_CPU_INLINE void name(T* address, typename Identity<T>::type value) { \
    static_assert(has_cache_hints<T>, #name " has no overload for this type"); \
    *address = value;                                                          \
  }
CUDA_ON_CPU_STORE(__stwb)
CUDA_ON_CPU_STORE(__stcg)
CUDA_ON_CPU_STORE(__stcs)
CUDA_ON_CPU_STORE(__stwt)
#undef CUDA_ON_CPU_STORE

CUDA_ON_CPU_INLINE void __threadfence() { CUDA_ON_CPU_FENCE(); }
CUDA_ON_CPU_INLINE void __threadfence_block() { CUDA_ON_CPU_FENCE(); }
CUDA_ON_CPU_INLINE void __threadfence_system() { CUDA_ON_CPU_FENCE(); }

CUDA_ON_CPU_CHECKED void* memcpy(void* to, const void* from, size_t bytes) {
  cuda_on_cpu::check_read(from, bytes, __builtin_return_address(0));
  cuda_on_cpu::check_write(to, bytes, __builtin_return_address(0));
  return __builtin_memcpy(to, from, bytes);
}

CUDA_ON_CPU_CHECKED void* memset(void* to, int value, size_t bytes) {
  cuda_on_cpu::check_write(to, bytes, __builtin_return_address(0));
  return __builtin_memset(to, value, bytes);
}

}  // namespace
