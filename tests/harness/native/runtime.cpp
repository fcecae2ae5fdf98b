// Runs a launch: blocks one after another, the threads of a block as fibers that hand over at
// barriers and warp operations only. Fibers start by ucontext and switch by _setjmp/_longjmp,
// which make no system call.
#include "runtime.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <numeric>
#include <string>
#include <utility>

namespace cuda_on_cpu {

Context current;
Machine machine;

namespace {

constexpr std::size_t guard_bytes = 4096;
constexpr int caught_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr std::size_t num_caught_signals = sizeof caught_signals / sizeof caught_signals[0];

constexpr std::size_t stack_pitch = guard_bytes + stack_bytes;

jmp_buf contexts[max_threads];
ucontext_t first_context;  // that a fiber starts with, written anew for each

struct HostState {
  pthread_t thread;
  stack_t old_signal_stack;
  struct sigaction old_actions[num_caught_signals];
  bool handlers_installed;
} host;
alignas(64) char signal_stack[64 * 1024];

std::string text_of(const Index3& i) {
  return "(" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) + ")";
}

unsigned random_below(unsigned bound) {  // splitmix64
  std::uint64_t z = (machine.random_state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<unsigned>((z ^ (z >> 31)) % bound);
}

// A fiber serves one thread of every block, so that it is set up once a launch.
void fiber_main() {
  for (;;) {
    machine.request->call(machine.request->arguments);
    Fiber& self = *machine.running;
    self.state = FiberState::returned;
    ++machine.num_returned;
    machine.warps[self.linear / 32].alive &= ~(1u << (self.linear % 32));
    complete_waiting_warp_ops(self.linear / 32);
    suspend();
  }
}

void set_order(std::vector<unsigned>& order) {
  const Order kind = machine.request->order;
  std::iota(order.begin(), order.end(), 0u);
  if (kind == Order::reversed) std::iota(order.rbegin(), order.rend(), 0u);
  if (kind != Order::shuffled) return;
  for (unsigned left = static_cast<unsigned>(order.size()); left > 1; --left) {
    std::swap(order[left - 1], order[random_below(left)]);
  }
}

Index3 unflatten(unsigned linear, const Index3& extent) {
  return {linear % extent.x, linear / extent.x % extent.y, linear / extent.x / extent.y};
}

void start(Fiber& fiber) {
  fiber.started = true;
  first_context.uc_stack.ss_sp = fiber.stack;
  first_context.uc_stack.ss_size = stack_bytes;
  first_context.uc_link = nullptr;
  makecontext(&first_context, fiber_main, 0);
  setcontext(&first_context);
}

// Apart from its caller, whose variables a longjmp could otherwise leave undefined.
__attribute__((noinline)) void resume(Fiber& fiber) {
  if (_setjmp(machine.scheduler) != 0) return;
  machine.running = &fiber;
  machine.self.thread = machine.self.first_of_block + fiber.linear;
  machine.self.first_of_warp = machine.self.first_of_block + (fiber.linear & ~31u);
  current.thread = fiber.index;
  if (fiber.started) _longjmp(contexts[fiber.linear], 1);
  start(fiber);
}

[[noreturn]] void report_deadlock() {
  std::string text = "deadlock: no thread of the block can go on";
  std::vector<bool> told(machine.num_threads, false);
  for (unsigned first = 0; first < machine.num_threads; ++first) {
    if (told[first]) continue;
    const Fiber& leader = machine.fibers[first];
    const bool in_warp_op = leader.state == FiberState::in_warp_op;
    unsigned count = 0;
    for (unsigned other = first; other < machine.num_threads; ++other) {
      const Fiber& fiber = machine.fibers[other];
      if (fiber.state != leader.state) continue;
      if (leader.state != FiberState::returned && fiber.line != leader.line) continue;
      if (in_warp_op && (other / 32 != first / 32 || fiber.post.mask != leader.post.mask)) continue;
      told[other] = true;
      ++count;
    }
    text += "; " + std::to_string(count) + " (first: " + text_of(leader.index) + ")";
    if (leader.state == FiberState::returned) text += " returned";
    if (leader.state == FiberState::at_barrier) text += " at the block barrier on {line:";
    if (in_warp_op) {
      char mask[32];
      snprintf(mask, sizeof mask, "0x%08x", leader.post.mask);
      text += std::string(" in a warp operation with mask ") + mask + " on {line:";
    }
    if (leader.state != FiberState::returned) text += std::to_string(leader.line) + "}";
  }
  fail("%s", text.c_str());
}

void run_block(unsigned block) {
  current.block = unflatten(block, machine.request->grid);
  machine.self.first_of_block = machine.block_serial * machine.num_threads + 1;
  machine.num_arrived = machine.num_returned = 0;
  for (Fiber& fiber : machine.fibers) fiber.state = FiberState::ready;
  for (unsigned w = 0; w < machine.warps.size(); ++w) {
    const unsigned num_lanes = machine.num_threads - 32 * w;
    machine.warps[w].alive = num_lanes >= 32 ? ~0u : (1u << num_lanes) - 1u;
    machine.warps[w].waiting = 0;
    machine.warps[w].mixed = false;
  }
  begin_block_checks();
  while (machine.num_returned < machine.num_threads) {
    bool progress = false;
    machine.released = false;
    if (machine.request->order == Order::shuffled) set_order(machine.thread_order);
    for (const unsigned thread : machine.thread_order) {
      Fiber& fiber = machine.fibers[thread];
      if (fiber.state != FiberState::ready) continue;
      progress = true;
      resume(fiber);
      machine.running = nullptr;
      if (machine.released) break;  // the phase after a barrier begins with the first in order
    }
    if (!progress && !resolve_active_masks()) report_deadlock();
  }
}

void make_fibers() {
  getcontext(&first_context);
  machine.fibers.assign(machine.num_threads, Fiber{});
  for (unsigned i = 0; i < machine.num_threads; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.linear = i;
    fiber.index = unflatten(i, machine.request->block);
    fiber.stack = machine.request->stacks + i * stack_pitch + guard_bytes;
  }
}

void on_signal(int number, siginfo_t* info, void*) {
  if (pthread_equal(pthread_self(), host.thread) == 0) {
    signal(number, SIG_DFL);  // not ours: the instruction repeats and the default applies
    return;
  }
  if (machine.running != nullptr && number == SIGSEGV) {
    const char* address = static_cast<const char*>(info->si_addr);
    const char* stack = machine.running->stack;
    if (address < stack && address >= stack - guard_bytes) {
      fail("a thread overflowed its stack of %zu bytes", stack_bytes);
    }
  }
  fail("the kernel died of signal %d (%s) at address %p", number, strsignal(number),
       info->si_addr);
}

void install_handlers() {
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &host.old_signal_stack);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (std::size_t i = 0; i < num_caught_signals; ++i) {
    sigaction(caught_signals[i], &action, &host.old_actions[i]);
  }
  host.handlers_installed = true;
}

void clean_up() {
  if (host.handlers_installed) {
    for (std::size_t i = 0; i < num_caught_signals; ++i) {
      sigaction(caught_signals[i], &host.old_actions[i], nullptr);
    }
    sigaltstack(&host.old_signal_stack, nullptr);
  }
  end_checks();
  host = HostState{};
}

void run(const LaunchRequest& request) {
  host.thread = pthread_self();
  machine.num_threads = request.block.x * request.block.y * request.block.z;
  machine.random_state = request.seed;
  machine.clock = 1;
  machine.running = nullptr;
  machine.warps.assign((machine.num_threads + 31) / 32, Warp{});
  machine.thread_order.resize(machine.num_threads);
  machine.block_order.resize(request.grid.x * request.grid.y * request.grid.z);
  current = {{0, 0, 0}, {0, 0, 0}, request.block, request.grid};
  make_fibers();
  begin_checks();
  install_handlers();
  if (request.order != Order::shuffled) set_order(machine.thread_order);
  set_order(machine.block_order);
  for (machine.block_serial = 0; machine.block_serial < machine.block_order.size();
       ++machine.block_serial) {
    run_block(machine.block_order[machine.block_serial]);
    check_deadline();
  }
}

}  // namespace

void suspend() {
  Fiber& self = *machine.running;
  if (_setjmp(contexts[self.linear]) == 0) _longjmp(machine.scheduler, 1);
}

void yield_thread() {
  check_deadline();
  suspend();
}

int sync_threads(bool predicate, int line) {
  Fiber& self = *machine.running;
  self.predicate = predicate;
  self.line = line;
  self.state = FiberState::at_barrier;
  if (++machine.num_arrived == machine.num_threads) {
    for (const Fiber& fiber : machine.fibers) {
      if (fiber.line == line) continue;
      fail("barrier divergence: thread %s waits on {line:%d}, thread %s on {line:%d}",
           text_of(self.index).c_str(), line, text_of(fiber.index).c_str(), fiber.line);
    }
    for (Fiber& fiber : machine.fibers) fiber.state = FiberState::ready;
    machine.num_arrived = 0;
    machine.released = true;
    machine.last_barrier = ++machine.clock;
    int count = 0;
    for (const Fiber& fiber : machine.fibers) count += fiber.predicate ? 1 : 0;
    for (Fiber& fiber : machine.fibers) fiber.post.result = static_cast<std::uint64_t>(count);
  }
  suspend();
  return static_cast<int>(self.post.result);
}

void fail(const char* format, ...) {
  const LaunchRequest& request = *machine.request;
  std::string place;
  if (machine.running != nullptr) place = "thread " + text_of(current.thread) + " of ";
  if (!machine.fibers.empty()) place += "block " + text_of(current.block);
  va_list values;
  va_start(values, format);
  const int used = vsnprintf(request.message, request.message_bytes, format, values);
  va_end(values);
  if (used >= 0 && static_cast<std::uint64_t>(used) < request.message_bytes) {
    snprintf(request.message + used, request.message_bytes - static_cast<std::uint64_t>(used),
             " [%s]", place.c_str());
  }
  place = std::string();  // its destructor does not run
  siglongjmp(machine.escape, 1);
}

void fail_in_kernel(const char* what, int line) { fail("%s on {line:%d}", what, line); }

// Stacks for the fibers of any launch, which modules share and which stay: a page below each may
// not be touched. Null if there is no memory.
extern "C" __attribute__((visibility("default"))) void* cuda_on_cpu_make_stacks() {
  const std::size_t bytes = stack_pitch * max_threads;
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  char* stacks = static_cast<char*>(made);
  for (unsigned i = 0; i < max_threads; ++i) {
    if (mprotect(stacks + i * stack_pitch, guard_bytes, PROT_NONE) == 0) continue;
    munmap(made, bytes);
    return nullptr;
  }
  return made;
}

extern "C" __attribute__((visibility("default"))) int cuda_on_cpu_launch(
    const LaunchRequest* request) {
  machine.request = request;
  machine.fibers.clear();
  const int failed = sigsetjmp(machine.escape, 1);
  if (failed == 0) run(*request);
  clean_up();
  return failed;
}

}  // namespace cuda_on_cpu
