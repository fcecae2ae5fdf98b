// Checks of every memory access of a kernel. Kernels are compiled with -fsanitize=thread, whose
// pass calls __tsan_* before each access to memory that is not private to a function, and with
// parts of -fsanitize=undefined; the sanitizers' own libraries are not linked, the functions they
// would provide are these.
//
// Bounds: an access must lie inside one argument, the shared memory, the thread's stack or the
// module's own variables. Races: each granule remembers its last writer and two last readers;
// two accesses of different threads conflict if one writes, not both are atomic, and no
// __syncthreads() (same block) or __syncwarp() (same warp) lies between. A partial-mask
// __syncwarp() counts for the whole warp and a warp's shuffles count for nothing, as in CUDA.
#include <link.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "runtime.h"

extern "C" __attribute__((visibility("hidden"))) char cuda_shared_begin[], cuda_shared_end[];

namespace cuda_on_cpu {

namespace {

enum class Access { read, write, atomic };

struct Checks {
  std::vector<CheckedRegion> regions;  // the arguments, by address
  CheckedRegion shared;
  CheckedRegion* last_hit;
  std::uintptr_t image_begin, image_end;  // the module: its constants and variables
  unsigned countdown;                     // accesses until the deadline is looked at
  double deadline_s;
} checks;

constexpr unsigned accesses_between_yields = 1u << 16;

double now_s() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

const char* verb(Access access) {
  if (access == Access::read) return "reads";
  return access == Access::write ? "writes" : "atomically updates";
}

std::uint32_t offset_in_module(void* pc) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(pc) - checks.image_begin);
}

[[noreturn]] void report_out_of_bounds(std::uintptr_t address, std::size_t bytes, Access access,
                                       void* pc) {
  std::string nearest = "; the kernel has no memory near";
  std::uintptr_t least = 1ull << 20;
  const auto consider = [&](const CheckedRegion& region) {
    const std::uintptr_t end = region.begin + region.bytes;
    const bool before = address < region.begin;
    const bool inside = !before && address < end;
    const std::uintptr_t distance = before ? region.begin - address : inside ? 0 : address - end;
    if (distance >= least) return;
    least = distance;
    const std::string size = " (" + std::to_string(region.bytes) + " bytes)";
    nearest = inside   ? ", starting inside and ending after "
              : before ? ", " + std::to_string(distance) + " bytes before the beginning of "
                       : ", " + std::to_string(distance) + " bytes after the end of ";
    nearest += region.name + size;
  };
  for (const CheckedRegion& region : checks.regions) consider(region);
  consider(checks.shared);
  fail("out of bounds: {pc:%x} %s %zu bytes at address 0x%zx%s", offset_in_module(pc),
       verb(access), bytes, static_cast<std::size_t>(address), nearest.c_str());
}

std::string name_of_thread(std::uint32_t number) {
  const LaunchRequest& request = *machine.request;
  const unsigned linear = (number - 1) % machine.num_threads;
  const unsigned block = machine.block_order[(number - 1) / machine.num_threads];
  const auto text = [](unsigned i, const Index3& n) {
    return "(" + std::to_string(i % n.x) + "," + std::to_string(i / n.x % n.y) + "," +
           std::to_string(i / n.x / n.y) + ")";
  };
  return "thread " + text(linear, request.block) + " of block " + text(block, request.grid);
}

[[noreturn]] void report_race(const CheckedRegion& region, std::size_t offset, Access access,
                              void* pc, const Touch& other, const char* other_verb) {
  fail("data race on %s at byte %zu: {pc:%x} %s what %s %s at {pc:%x}, with no barrier between",
       region.name, offset, offset_in_module(pc), verb(access),
       name_of_thread(other.thread).c_str(), other_verb, other.pc);
}

inline bool is_unordered(const Touch& touch, const Self& self, bool is_shared_memory) {
  if (touch.thread == 0 || touch.thread == self.thread) return false;
  if (touch.thread < self.first_of_block) return !is_shared_memory;
  if (touch.clock < machine.last_barrier) return false;
  const bool same_warp = touch.thread - self.first_of_warp < 32u;
  return !same_warp || touch.clock >= machine.warps[machine.running->linear / 32].last_sync;
}

void check_races(CheckedRegion& region, std::size_t offset, std::size_t bytes, Access access,
                 void* pc) {
  const Self& self = machine.self;
  const bool shared = region.is_shared_memory;
  const Touch touch{self.thread, machine.clock, offset_in_module(pc)};
  const std::size_t last = (offset + bytes - 1) / region.granule;
  for (std::size_t cell = offset / region.granule; cell <= last; ++cell) {
    Shadow& shadow = region.shadow[cell];
    const bool both_atomic = access == Access::atomic && shadow.atomic;
    if (!both_atomic && is_unordered(shadow.writer, self, shared)) {
      report_race(region, cell * region.granule, access, pc, shadow.writer,
                  shadow.atomic ? "updated atomically" : "wrote");
    }
    if (access == Access::read) {
      const bool replace = !is_unordered(shadow.reader, self, shared);
      (replace ? shadow.reader : shadow.other_reader) = touch;
      continue;
    }
    for (const Touch* reader : {&shadow.reader, &shadow.other_reader}) {
      if (is_unordered(*reader, self, shared)) {
        report_race(region, cell * region.granule, access, pc, *reader, "read");
      }
    }
    shadow.writer = touch;
    shadow.atomic = access == Access::atomic;
  }
}

CheckedRegion* find_region(std::uintptr_t address) {
  if (address - checks.shared.begin < checks.shared.bytes) return &checks.shared;
  const auto after = std::upper_bound(
      checks.regions.begin(), checks.regions.end(), address,
      [](std::uintptr_t value, const CheckedRegion& region) { return value < region.begin; });
  if (after == checks.regions.begin()) return nullptr;
  CheckedRegion& region = *(after - 1);
  return address - region.begin < region.bytes ? &region : nullptr;
}

bool is_private_or_constant(std::uintptr_t address, std::size_t bytes) {
  const auto stack = reinterpret_cast<std::uintptr_t>(machine.running->stack);
  if (address - stack < stack_bytes && address + bytes <= stack + stack_bytes) return true;
  return address >= checks.image_begin && address + bytes <= checks.image_end;
}

void on_access(const void* pointer, std::size_t bytes, Access access, void* pc) {
  if (--checks.countdown == 0) {
    checks.countdown = accesses_between_yields;
    check_deadline();
    suspend();  // a thread that spins on memory lets the others run
  }
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  CheckedRegion* region = checks.last_hit;
  if (address - region->begin >= region->bytes) region = find_region(address);
  if (region == nullptr) {
    if (!is_private_or_constant(address, bytes)) report_out_of_bounds(address, bytes, access, pc);
    return;
  }
  checks.last_hit = region;
  const std::size_t offset = address - region->begin;
  if (bytes > region->bytes - offset) report_out_of_bounds(address, bytes, access, pc);
  if (access != Access::read && region->writable == 0) {
    fail("{pc:%x} %s %s, which is const", offset_in_module(pc), verb(access), region->name);
  }
  if (region->shadow != nullptr) check_races(*region, offset, bytes, access, pc);
}

int find_image(dl_phdr_info* info, std::size_t, void*) {
  const auto here = reinterpret_cast<std::uintptr_t>(&machine);
  std::uintptr_t end = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD) continue;
    end = std::max<std::uintptr_t>(end, info->dlpi_addr + header.p_vaddr + header.p_memsz);
  }
  if (here < info->dlpi_addr || here >= end) return 0;
  checks.image_begin = info->dlpi_addr;
  checks.image_end = end;
  return 1;
}

void make_shadow(CheckedRegion& region) {
  region.shadow = nullptr;
  const std::size_t cells = (region.bytes + region.granule - 1) / region.granule;
  if (machine.request->check_races == 0 || cells == 0) return;
  region.shadow = static_cast<Shadow*>(std::calloc(cells, sizeof(Shadow)));
  if (region.shadow == nullptr) fail("no memory for the check of races");
}

}  // namespace

void begin_checks() {
  const LaunchRequest& request = *machine.request;
  dl_iterate_phdr(find_image, nullptr);
  checks.regions.clear();
  for (std::uint32_t i = 0; i < request.num_regions; ++i) {
    CheckedRegion region{};
    static_cast<Region&>(region) = request.regions[i];
    checks.regions.push_back(region);
    make_shadow(checks.regions.back());
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(cuda_shared_begin);
  const auto end = reinterpret_cast<std::uintptr_t>(cuda_shared_end);
  checks.shared = CheckedRegion{};
  static_cast<Region&>(checks.shared) = {begin, end - begin, 1, 1, "shared memory"};
  checks.shared.is_shared_memory = true;
  make_shadow(checks.shared);
  checks.last_hit = &checks.shared;
  checks.countdown = accesses_between_yields;
  checks.deadline_s = now_s() + request.timeout_s;
}

// A block finds its shared memory full of set bits: NaN in float and double, -1 in int.
void begin_block_checks() {
  std::fill(cuda_shared_begin, cuda_shared_end, '\xff');
  machine.last_barrier = ++machine.clock;
  for (Warp& warp : machine.warps) warp.last_sync = machine.clock;
}

void end_checks() {
  for (CheckedRegion& region : checks.regions) std::free(region.shadow);
  checks.regions.clear();
  std::free(checks.shared.shadow);
  checks.shared.shadow = nullptr;
}

void check_deadline() {
  if (now_s() < checks.deadline_s) return;
  fail("the launch did not end within %g s; a spin on another block never ends, since blocks run "
       "one after another",
       machine.request->timeout_s);
}

void check_atomic(const void* address, std::size_t bytes, void* pc) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fail("misaligned atomic at {pc:%x}: address %p, %zu bytes", offset_in_module(pc), address,
         bytes);
  }
  on_access(address, bytes, Access::atomic, pc);
}
void check_read(const void* address, std::size_t bytes, void* pc) {
  if (bytes != 0) on_access(address, bytes, Access::read, pc);
}
void check_write(const void* address, std::size_t bytes, void* pc) {
  if (bytes != 0) on_access(address, bytes, Access::write, pc);
}

}  // namespace cuda_on_cpu

// What the compiler's sanitizer passes call.
using cuda_on_cpu::check_read;
using cuda_on_cpu::check_write;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define CUDA_ON_CPU_HOOKS(bytes)                                                                \
  void __tsan_read##bytes(void* p) { check_read(p, bytes, __builtin_return_address(0)); }       \
  void __tsan_write##bytes(void* p) { check_write(p, bytes, __builtin_return_address(0)); }     \
  void __tsan_volatile_read##bytes(void* p) { check_read(p, bytes, __builtin_return_address(0)); } \
  void __tsan_volatile_write##bytes(void* p) { check_write(p, bytes, __builtin_return_address(0)); }
CUDA_ON_CPU_HOOKS(1)
CUDA_ON_CPU_HOOKS(2)
CUDA_ON_CPU_HOOKS(4)
CUDA_ON_CPU_HOOKS(8)
CUDA_ON_CPU_HOOKS(16)
void __tsan_read_range(void* p, std::size_t bytes) {
  check_read(p, bytes, __builtin_return_address(0));
}
void __tsan_write_range(void* p, std::size_t bytes) {
  check_write(p, bytes, __builtin_return_address(0));
}

// Every report of -fsanitize=undefined begins with where it happened.
struct SourcePlace {
  const char* file;
  std::uint32_t line, column;
};
void __ubsan_handle_out_of_bounds_abort(const SourcePlace* place, std::size_t index) {
  cuda_on_cpu::fail("out of bounds: index %zd of an array on {line:%u}",
                    static_cast<ssize_t>(index), place->line);
}
void __ubsan_handle_type_mismatch_v1_abort(const SourcePlace* place, std::size_t address) {
  if (address == 0) cuda_on_cpu::fail("a null pointer is used on {line:%u}", place->line);
  cuda_on_cpu::fail("misaligned access on {line:%u}: address 0x%zx", place->line, address);
}
void __ubsan_handle_shift_out_of_bounds_abort(const SourcePlace* place, std::size_t, std::size_t) {
  cuda_on_cpu::fail("a shift by more bits than there are, or a negative number, on {line:%u}",
                    place->line);
}
void __ubsan_handle_divrem_overflow_abort(const SourcePlace* place, std::size_t, std::size_t) {
  cuda_on_cpu::fail("an integer division by zero or that overflows on {line:%u}", place->line);
}
void __ubsan_handle_float_cast_overflow_abort(const SourcePlace* place, std::size_t) {
  cuda_on_cpu::fail("a number is converted to an integer type that cannot hold it on {line:%u}",
                    place->line);
}

}  // extern "C"
