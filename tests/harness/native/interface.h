// What generated kernels (compiled with the headers of this folder) ask of the runtime
// (runtime.cpp, collectives.cpp, checks.cpp, compiled apart and without instrumentation).
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_on_cpu {

struct Index3 {
  unsigned x, y, z;
};

// The built-in variables of the thread that runs now; the scheduler rewrites `thread` and
// `block` at every switch.
struct Context {
  Index3 thread, block, block_dim, grid_dim;
};
extern Context current;

enum class WarpOp : int {
  sync,
  ballot,
  shuffle_index,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  match_any,
  active_mask,
  reduce_add,
  reduce_min_signed,
  reduce_max_signed,
  reduce_min_unsigned,
  reduce_max_unsigned,
  reduce_and,
  reduce_or,
  reduce_xor,
};

// Waits for all threads of the block; returns for how many of them `predicate` held.
int sync_threads(bool predicate, int line);

// Waits for the lanes of `mask`; returns this lane's result, all bits set where CUDA leaves the
// value undefined (a NaN in float and in double).
std::uint64_t warp_collective(WarpOp op, unsigned mask, std::uint64_t value, int operand,
                              int width, int line);

// Lets the other threads run: a spin loop makes progress.
void yield_thread();

// Bounds and race check of an access that the compiler does not instrument. `pc` is the address
// that names the source line.
void check_atomic(const void* address, std::size_t bytes, void* pc);
void check_read(const void* address, std::size_t bytes, void* pc);
void check_write(const void* address, std::size_t bytes, void* pc);

[[noreturn]] void fail_in_kernel(const char* what, int line);

// How a kernel parameter is passed; read by the Python side (arguments.py: NativeParameter).
enum class ParameterKind : std::uint32_t { boolean, integer, natural, real, pointer, structure };

struct Parameter {
  ParameterKind kind;
  std::uint32_t bytes;          // of the parameter itself
  ParameterKind pointee_kind;   // of a pointer: what it points to
  std::uint32_t pointee_bytes;  // 0 for void
  std::uint32_t pointee_is_const;
};

struct Kernel {
  const char* name;
  void (*call)(void** arguments);
  std::uint32_t num_parameters;
  const Parameter* parameters;
};

}  // namespace cuda_on_cpu
