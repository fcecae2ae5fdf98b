// Warp operations: a lane posts what it brings and waits until every lane named in its mask that
// has not returned has posted the same operation with the same mask; then all results are
// computed at once.
#include "runtime.h"

namespace cuda_on_cpu {

namespace {

constexpr std::uint64_t undefined_value = ~0ull;

// The lane a shuffle reads (CUDA C++ programming guide, "Warp Shuffle Functions").
unsigned source_lane(const WarpPost& post, unsigned lane) {
  const unsigned width = static_cast<unsigned>(post.width);
  const unsigned operand = static_cast<unsigned>(post.operand);
  const unsigned begin = lane & ~(width - 1u);
  switch (post.op) {
    case WarpOp::shuffle_index:
      return begin + (operand & (width - 1u));
    case WarpOp::shuffle_up:
      return operand > lane - begin ? lane : lane - operand;
    case WarpOp::shuffle_down:
      return operand >= begin + width - lane ? lane : lane + operand;
    default:  // xor: groups of lower lanes can be read, those of higher lanes cannot
      return (lane ^ operand) >= begin + width ? lane : lane ^ operand;
  }
}

unsigned reduced(WarpOp op, unsigned left, unsigned right) {
  const int signed_left = static_cast<int>(left), signed_right = static_cast<int>(right);
  switch (op) {
    case WarpOp::reduce_add: return left + right;
    case WarpOp::reduce_min_signed: return signed_left < signed_right ? left : right;
    case WarpOp::reduce_max_signed: return signed_left > signed_right ? left : right;
    case WarpOp::reduce_min_unsigned: return left < right ? left : right;
    case WarpOp::reduce_max_unsigned: return left > right ? left : right;
    case WarpOp::reduce_and: return left & right;
    case WarpOp::reduce_or: return left | right;
    default: return left ^ right;
  }
}

struct Group {
  unsigned warp;
  unsigned lanes;  // those that take part

  template <class Visit>
  void for_each(Visit visit) const {
    for (unsigned left = lanes; left != 0; left &= left - 1) {
      const unsigned lane = static_cast<unsigned>(__builtin_ctz(left));
      visit(lane, lane_of_warp(warp, lane).post);
    }
  }
};

std::uint64_t shared_result(const Group& group, WarpOp op) {
  bool first = true;
  unsigned result = 0;
  group.for_each([&](unsigned lane, const WarpPost& post) {
    if (op == WarpOp::ballot) {
      result |= static_cast<unsigned>(post.value) << lane;
    } else {
      const unsigned value = static_cast<unsigned>(post.value);
      result = first ? value : reduced(op, result, value);
    }
    first = false;
  });
  return result;
}

void compute_results(const Group& group, WarpOp op) {
  switch (op) {
    case WarpOp::sync:
      machine.warps[group.warp].last_sync = ++machine.clock;
      return;
    case WarpOp::shuffle_index:
    case WarpOp::shuffle_up:
    case WarpOp::shuffle_down:
    case WarpOp::shuffle_xor:
      group.for_each([&](unsigned lane, WarpPost& post) {
        const unsigned source = source_lane(post, lane);
        post.result = (group.lanes >> source & 1u) != 0u
                          ? lane_of_warp(group.warp, source).post.value
                          : undefined_value;
      });
      return;
    case WarpOp::match_any:
      group.for_each([&](unsigned, WarpPost& post) {
        post.result = 0;
        group.for_each([&](unsigned lane, const WarpPost& other) {
          if (other.value == post.value) post.result |= 1u << lane;
        });
      });
      return;
    default: {
      const std::uint64_t result = shared_result(group, op);
      group.for_each([&](unsigned, WarpPost& post) { post.result = result; });
    }
  }
}

bool complete_if_all_posted(unsigned warp, unsigned mask, WarpOp op) {
  Warp& state = machine.warps[warp];
  const Group group{warp, mask & state.alive};
  if ((group.lanes & ~state.waiting) != 0u) return false;
  if (state.mixed) {
    bool all_posted = true;
    group.for_each([&](unsigned, const WarpPost& post) {
      all_posted = all_posted && post.op == op && post.mask == mask;
    });
    if (!all_posted) return false;
  }
  compute_results(group, op);
  group.for_each([&](unsigned lane, const WarpPost&) {
    lane_of_warp(warp, lane).state = FiberState::ready;
  });
  state.waiting &= ~group.lanes;
  state.mixed = state.mixed && state.waiting != 0u;
  return true;
}

// Two lanes that wait for each other in different operations never meet.
void refuse_mismatch(unsigned warp, unsigned lane, const Fiber& self) {
  const Group group{warp, self.post.mask & machine.warps[warp].alive};
  group.for_each([&](unsigned other_lane, const WarpPost& other) {
    const Fiber& fiber = lane_of_warp(warp, other_lane);
    if (fiber.state != FiberState::in_warp_op || other.op == WarpOp::active_mask) return;
    if ((other.mask >> lane & 1u) == 0u) return;
    if (other.op == self.post.op && other.mask == self.post.mask) return;
    fail("lanes of one warp meet in different warp operations: lane %u with mask 0x%08x on "
         "{line:%d}, lane %u with mask 0x%08x on {line:%d}",
         lane, self.post.mask, self.line, other_lane, other.mask, fiber.line);
  });
}

}  // namespace

std::uint64_t warp_collective(WarpOp op, unsigned mask, std::uint64_t value, int operand,
                              int width, int line) {
  Fiber& self = *machine.running;
  const unsigned warp = self.linear / 32, lane = self.linear % 32;
  self.line = line;
  self.post = {op, mask, value, operand, width, 0};
  if (op == WarpOp::active_mask) {
    self.state = FiberState::in_warp_op;
    suspend();
    return self.post.result;
  }
  if ((mask >> lane & 1u) == 0u) {
    fail("lane %u is not in its own mask 0x%08x on {line:%d}", lane, mask, line);
  }
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    fail("the width of a shuffle must be a power of two up to 32, not %d, on {line:%d}", width,
         line);
  }
  Warp& state = machine.warps[warp];
  if (state.waiting == 0u) {
    state.op = op;
    state.mask = mask;
  }
  state.mixed = state.mixed || op != state.op || mask != state.mask;
  if (state.mixed) refuse_mismatch(warp, lane, self);
  self.state = FiberState::in_warp_op;
  state.waiting |= 1u << lane;
  if (!complete_if_all_posted(warp, mask, op)) suspend();
  return self.post.result;
}

// A lane has returned: others may have waited for it alone.
void complete_waiting_warp_ops(unsigned warp) {
  const Warp& state = machine.warps[warp];
  for (unsigned left = state.waiting; left != 0; left &= left - 1) {
    const Fiber& fiber = lane_of_warp(warp, static_cast<unsigned>(__builtin_ctz(left)));
    if (fiber.state != FiberState::in_warp_op) continue;  // completed by one before
    complete_if_all_posted(warp, fiber.post.mask, fiber.post.op);
    if (!state.mixed) return;  // all wait for the same
  }
}

// __activemask() answers when nothing else can run: the lanes that wait for it on one line are
// taken to have converged, as much as a device ever converges them.
bool resolve_active_masks() {
  bool any = false;
  for (unsigned warp = 0; warp < machine.warps.size(); ++warp) {
    int line = -1;
    Group converged{warp, 0};
    Group{warp, machine.warps[warp].alive}.for_each([&](unsigned lane, const WarpPost& post) {
      const Fiber& fiber = lane_of_warp(warp, lane);
      if (fiber.state != FiberState::in_warp_op || post.op != WarpOp::active_mask) return;
      if (line == -1) line = fiber.line;
      if (fiber.line == line) converged.lanes |= 1u << lane;
    });
    converged.for_each([&](unsigned lane, WarpPost& post) {
      post.result = converged.lanes;
      lane_of_warp(warp, lane).state = FiberState::ready;
    });
    any = any || converged.lanes != 0;
  }
  return any;
}

}  // namespace cuda_on_cpu
