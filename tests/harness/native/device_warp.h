// Barriers, votes and shuffles. Each takes the line of the call as a hidden last argument, for
// messages and for telling barriers apart.
#pragma once

namespace {

CUDA_ON_CPU_INLINE int sync_and_count(bool predicate, int line) {
  CUDA_ON_CPU_FENCE();
  const int count = cuda_on_cpu::sync_threads(predicate, line);
  CUDA_ON_CPU_FENCE();
  return count;
}

CUDA_ON_CPU_INLINE void __syncthreads(int line = __builtin_LINE()) { sync_and_count(true, line); }
CUDA_ON_CPU_INLINE int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return sync_and_count(predicate != 0, line);
}
CUDA_ON_CPU_INLINE int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return sync_and_count(predicate != 0, line) != 0;
}
CUDA_ON_CPU_INLINE int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return sync_and_count(predicate == 0, line) == 0;
}
CUDA_ON_CPU_INLINE void __nanosleep(unsigned) { cuda_on_cpu::yield_thread(); }

CUDA_ON_CPU_INLINE unsigned warp_bits(cuda_on_cpu::WarpOp op, unsigned mask,
                                      unsigned long long value, int line) {
  CUDA_ON_CPU_FENCE();
  const auto result = cuda_on_cpu::warp_collective(op, mask, value, 0, 32, line);
  CUDA_ON_CPU_FENCE();
  return static_cast<unsigned>(result);
}

CUDA_ON_CPU_INLINE void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
  warp_bits(cuda_on_cpu::WarpOp::sync, mask, 0, line);
}
CUDA_ON_CPU_INLINE unsigned __activemask(int line = __builtin_LINE()) {
  return warp_bits(cuda_on_cpu::WarpOp::active_mask, 0, 0, line);
}
CUDA_ON_CPU_INLINE unsigned __ballot_sync(unsigned mask, int predicate,
                                          int line = __builtin_LINE()) {
  return warp_bits(cuda_on_cpu::WarpOp::ballot, mask, predicate != 0, line);
}
CUDA_ON_CPU_INLINE int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return warp_bits(cuda_on_cpu::WarpOp::ballot, mask, predicate != 0, line) != 0u;
}
CUDA_ON_CPU_INLINE int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return warp_bits(cuda_on_cpu::WarpOp::ballot, mask, predicate == 0, line) == 0u;
}

#define CUDA_ON_CPU_SHUFFLE(name, op, type, operand_type)                                   \
  CUDA_ON_CPU_INLINE type name(unsigned mask, type value, operand_type operand,             \
                               int width = 32, int line = __builtin_LINE()) {               \
    unsigned long long bits = 0;                                                            \
    __builtin_memcpy(&bits, &value, sizeof value);                                          \
    CUDA_ON_CPU_FENCE();                                                                    \
    bits = cuda_on_cpu::warp_collective(cuda_on_cpu::WarpOp::op, mask, bits,                \
                                        static_cast<int>(operand), width, line);            \
    CUDA_ON_CPU_FENCE();                                                                    \
    __builtin_memcpy(&value, &bits, sizeof value);                                          \
    return value;                                                                           \
  }
#define CUDA_ON_CPU_SHUFFLES(type)                                        \
  CUDA_ON_CPU_SHUFFLE(__shfl_sync, shuffle_index, type, int)              \
  CUDA_ON_CPU_SHUFFLE(__shfl_up_sync, shuffle_up, type, unsigned)         \
  CUDA_ON_CPU_SHUFFLE(__shfl_down_sync, shuffle_down, type, unsigned)     \
  CUDA_ON_CPU_SHUFFLE(__shfl_xor_sync, shuffle_xor, type, int)
CUDA_ON_CPU_SHUFFLES(int)
CUDA_ON_CPU_SHUFFLES(unsigned)
CUDA_ON_CPU_SHUFFLES(long)
CUDA_ON_CPU_SHUFFLES(unsigned long)
CUDA_ON_CPU_SHUFFLES(long long)
CUDA_ON_CPU_SHUFFLES(unsigned long long)
CUDA_ON_CPU_SHUFFLES(float)
CUDA_ON_CPU_SHUFFLES(double)
#undef CUDA_ON_CPU_SHUFFLES
#undef CUDA_ON_CPU_SHUFFLE

#if __CUDA_ARCH__ >= 700
#define CUDA_ON_CPU_MATCH(type)                                                        \
  CUDA_ON_CPU_INLINE unsigned __match_any_sync(unsigned mask, type value,              \
                                               int line = __builtin_LINE()) {          \
    unsigned long long bits = 0;                                                       \
    __builtin_memcpy(&bits, &value, sizeof value);                                     \
    return warp_bits(cuda_on_cpu::WarpOp::match_any, mask, bits, line);                \
  }
CUDA_ON_CPU_MATCH(int)
CUDA_ON_CPU_MATCH(unsigned)
CUDA_ON_CPU_MATCH(long long)
CUDA_ON_CPU_MATCH(unsigned long long)
CUDA_ON_CPU_MATCH(float)
CUDA_ON_CPU_MATCH(double)
#undef CUDA_ON_CPU_MATCH
#endif

#if __CUDA_ARCH__ >= 800
#define CUDA_ON_CPU_REDUCE(name, op, type)                                                   \
  CUDA_ON_CPU_INLINE type name(unsigned mask, type value, int line = __builtin_LINE()) {     \
    return static_cast<type>(                                                                \
        warp_bits(cuda_on_cpu::WarpOp::op, mask, static_cast<unsigned>(value), line));       \
  }
CUDA_ON_CPU_REDUCE(__reduce_add_sync, reduce_add, int)
CUDA_ON_CPU_REDUCE(__reduce_add_sync, reduce_add, unsigned)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, reduce_min_signed, int)
CUDA_ON_CPU_REDUCE(__reduce_min_sync, reduce_min_unsigned, unsigned)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, reduce_max_signed, int)
CUDA_ON_CPU_REDUCE(__reduce_max_sync, reduce_max_unsigned, unsigned)
CUDA_ON_CPU_REDUCE(__reduce_and_sync, reduce_and, unsigned)
CUDA_ON_CPU_REDUCE(__reduce_or_sync, reduce_or, unsigned)
CUDA_ON_CPU_REDUCE(__reduce_xor_sync, reduce_xor, unsigned)
#undef CUDA_ON_CPU_REDUCE
#endif

}  // namespace
