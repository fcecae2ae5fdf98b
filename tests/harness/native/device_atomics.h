// Atomic functions with CUDA's overloads. One thread runs at a time, so a plain update is atomic;
// the check sees that no plain access races with it.
#pragma once

namespace {

// `next` computes the new value from `old` and `value`.
#define CUDA_ON_CPU_ATOMIC(name, type, next)                                         \
  [[maybe_unused]] CUDA_ON_CPU_CHECKED type name(type* address, type value) {        \
    cuda_on_cpu::check_atomic(address, sizeof(type), __builtin_return_address(0));   \
    const type old = *address;                                                       \
    *address = (next);                                                               \
    return old;                                                                      \
  }

// Signed overflow wraps on the device: add in unsigned arithmetic.
CUDA_ON_CPU_ATOMIC(atomicAdd, int,
                   static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
CUDA_ON_CPU_ATOMIC(atomicAdd, unsigned, old + value)
CUDA_ON_CPU_ATOMIC(atomicAdd, unsigned long long, old + value)
CUDA_ON_CPU_ATOMIC(atomicAdd, float, old + value)
#if __CUDA_ARCH__ >= 600
CUDA_ON_CPU_ATOMIC(atomicAdd, double, old + value)
#endif
CUDA_ON_CPU_ATOMIC(atomicSub, int,
                   static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
CUDA_ON_CPU_ATOMIC(atomicSub, unsigned, old - value)

CUDA_ON_CPU_ATOMIC(atomicExch, int, value)
CUDA_ON_CPU_ATOMIC(atomicExch, unsigned, value)
CUDA_ON_CPU_ATOMIC(atomicExch, unsigned long long, value)
CUDA_ON_CPU_ATOMIC(atomicExch, float, value)

#define CUDA_ON_CPU_ATOMIC_ORDER(type)                            \
  CUDA_ON_CPU_ATOMIC(atomicMin, type, value < old ? value : old)  \
  CUDA_ON_CPU_ATOMIC(atomicMax, type, value > old ? value : old)
CUDA_ON_CPU_ATOMIC_ORDER(int)
CUDA_ON_CPU_ATOMIC_ORDER(unsigned)
CUDA_ON_CPU_ATOMIC_ORDER(long long)
CUDA_ON_CPU_ATOMIC_ORDER(unsigned long long)
#undef CUDA_ON_CPU_ATOMIC_ORDER

#define CUDA_ON_CPU_ATOMIC_BITS(type)               \
  CUDA_ON_CPU_ATOMIC(atomicAnd, type, old & value)  \
  CUDA_ON_CPU_ATOMIC(atomicOr, type, old | value)   \
  CUDA_ON_CPU_ATOMIC(atomicXor, type, old ^ value)
CUDA_ON_CPU_ATOMIC_BITS(int)
CUDA_ON_CPU_ATOMIC_BITS(unsigned)
CUDA_ON_CPU_ATOMIC_BITS(unsigned long long)
#undef CUDA_ON_CPU_ATOMIC_BITS

CUDA_ON_CPU_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
CUDA_ON_CPU_ATOMIC(atomicDec, unsigned, old == 0u || old > value ? value : old - 1u)
#undef CUDA_ON_CPU_ATOMIC

#define CUDA_ON_CPU_ATOMIC_CAS(type)                                                       \
  [[maybe_unused]] CUDA_ON_CPU_CHECKED type atomicCAS(type* address, type compare,         \
                                                      type value) {                        \
    cuda_on_cpu::check_atomic(address, sizeof(type), __builtin_return_address(0));         \
    const type old = *address;                                                             \
    if (old == compare) *address = value;                                                  \
    return old;                                                                            \
  }
CUDA_ON_CPU_ATOMIC_CAS(int)
CUDA_ON_CPU_ATOMIC_CAS(unsigned)
CUDA_ON_CPU_ATOMIC_CAS(unsigned long long)
CUDA_ON_CPU_ATOMIC_CAS(unsigned short)
#undef CUDA_ON_CPU_ATOMIC_CAS

#if __CUDA_ARCH__ >= 900
// Each element is atomic on its own.
[[maybe_unused]] CUDA_ON_CPU_CHECKED float2 atomicAdd(float2* address, float2 value) {
  cuda_on_cpu::check_atomic(address, sizeof value, __builtin_return_address(0));
  const float2 old = *address;
  *address = {old.x + value.x, old.y + value.y};
  return old;
}
[[maybe_unused]] CUDA_ON_CPU_CHECKED float4 atomicAdd(float4* address, float4 value) {
  cuda_on_cpu::check_atomic(address, sizeof value, __builtin_return_address(0));
  const float4 old = *address;
  *address = {old.x + value.x, old.y + value.y, old.z + value.z, old.w + value.w};
  return old;
}
#endif

}  // namespace
