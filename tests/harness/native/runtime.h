// State shared by the parts of the runtime: scheduler (runtime.cpp), warp operations
// (collectives.cpp) and memory checks (checks.cpp).
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <vector>

#include "interface.h"

namespace cuda_on_cpu {

enum class FiberState : std::uint8_t { ready, at_barrier, in_warp_op, returned };

// What a lane brings to a warp operation, and what it takes away.
struct WarpPost {
  WarpOp op;
  unsigned mask;
  std::uint64_t value;
  int operand;
  int width;
  std::uint64_t result;
};

// One thread of the block. What the scheduler looks at in turn is small, apart from the contexts.
struct Fiber {
  bool started;
  FiberState state;
  bool predicate;
  Index3 index;
  unsigned linear;
  int line;  // of the call it waits in
  WarpPost post;
  char* stack;
};

struct Warp {
  unsigned alive;           // lanes that exist and have not returned
  std::uint32_t last_sync;  // clock of its last __syncwarp()
  unsigned waiting;         // lanes in a warp operation, other than __activemask()
  bool mixed;               // some of those wait in another operation, or with another mask
  WarpOp op;                // of all that wait, unless mixed
  unsigned mask;            // likewise
};

// Thread numbers of who runs, of its block and of its warp.
struct Self {
  std::uint32_t thread, first_of_block, first_of_warp;
};

// Who touched a granule of memory last, for the race check; thread numbers count from 1 over the
// whole launch, 0 is nobody.
struct Touch {
  std::uint32_t thread;
  std::uint32_t clock;
  std::uint32_t pc;  // offset in the module
};
struct Shadow {
  Touch writer, reader, other_reader;
  bool atomic;  // the write was
};

// Memory a kernel may touch. Layout known to the Python side (module.py: _Region), up to `name`.
struct Region {
  std::uintptr_t begin;
  std::uint64_t bytes;
  std::uint32_t writable;
  std::uint32_t granule;  // bytes that one shadow cell stands for
  const char* name;
};

struct CheckedRegion : Region {
  bool is_shared_memory;
  Shadow* shadow;  // null when races are not checked; zeroed as it is touched
};

enum class Order : std::uint32_t { forward, reversed, shuffled };

// Layout known to the Python side (module.py: _Request).
struct LaunchRequest {
  void (*call)(void**);
  void** arguments;
  const Region* regions;
  std::uint32_t num_regions;
  Index3 grid, block;
  Order order;
  std::uint64_t seed;
  std::uint32_t check_races;
  double timeout_s;
  char* stacks;  // of cuda_on_cpu_make_stacks
  char* message;
  std::uint64_t message_bytes;
};

struct Machine {
  const LaunchRequest* request;
  unsigned num_threads;  // of a block
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<unsigned> thread_order, block_order;
  Fiber* running;  // null in the scheduler
  Self self;
  jmp_buf scheduler;
  sigjmp_buf escape;  // where a failure ends
  unsigned num_arrived, num_returned;
  bool released;            // a barrier opened during this pass
  unsigned block_serial;    // blocks started before this one
  std::uint32_t clock;      // counts synchronisations
  std::uint32_t last_barrier;
  std::uint64_t random_state;
};
extern Machine machine;

constexpr std::size_t stack_bytes = 256 * 1024;
constexpr unsigned max_threads = 1024;

void suspend();
void complete_waiting_warp_ops(unsigned warp);
bool resolve_active_masks();

void begin_checks();
void begin_block_checks();
void end_checks();
void check_deadline();

// Ends the launch with a message; `{pc:hex}` and `{line:n}` in it are made readable by Python.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

inline Fiber& lane_of_warp(unsigned warp, unsigned lane) {
  return machine.fibers[32 * warp + lane];
}

}  // namespace cuda_on_cpu
