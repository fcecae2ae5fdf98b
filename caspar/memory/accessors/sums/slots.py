"""Sums over shared objects that are spread over slots, so that atomics seldom wait for each other.

Additions to the same 32 bytes come one after the other, 4.5 ns each on an H200, and some objects
have thousands. So an array may hold every object several times: object o in slot s is row
s * stride + o. `AddRuns(spread=True)` adds to the slot of its tile; here is what begins and sums
all slots. On the processor, which has no atomics, there is one slot.

How many slots: docs/design/0012-elimination.md. Few objects, as the lenses of a few cameras, have
up to 32, since all items meet in them. What reads so many is another text, as it would cost others
time.
"""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, Field
from caspar.memory.accessors.blocked import cuda_base, cuda_lanes, cuda_packed, cuda_vector
from caspar.memory.accessors.scope import CudaScope, converted_all
from caspar.memory.accessors.sequential import ReadSequential, WriteSequential

SLOT_FIELDS = (Field("slots"), Field("stride"))
"""Slots, a power of two, and rows of each."""

USUAL_SLOTS = 8
"""Slots that an object has at most, unless objects are few."""

FEWER_SLOTS = 4
"""Slots that an object has at most if items are few: 36,000 observations of 21 cameras take 8.7 us
with 4 slots, 9.3 with 8."""

BUSY_ITEMS = 1 << 19
"""Items from which on objects have more."""

MAX_OBJECT_SLOTS = 32

FEW_ROWS = 128
"""Rows of all slots that few objects have at most."""

ITEMS_OF_SLOT = 256
"""Items of an object on average for which it gets one more slot."""


def num_object_slots(num_items: int, num_objects: int, items_of_slot: int = ITEMS_OF_SLOT) -> int:
    """A power of two that suits a number of items and of objects that they share."""
    few = FEW_ROWS // max(num_objects, 1)
    usual = USUAL_SLOTS if num_items >= BUSY_ITEMS else FEWER_SLOTS
    limit = min(max(few, usual), MAX_OBJECT_SLOTS)
    slots = 1
    while 2 * slots <= limit and slots * items_of_slot * num_objects < num_items:
        slots *= 2
    return slots


_SLOT_PLACE = """\
#ifndef CASPAR_SLOT_PLACE
#define CASPAR_SLOT_PLACE
// A place that all slots are counted from, one instruction each; the compiler would make the
// address of each by itself, in five.
template <typename V> __device__ __forceinline__ const V* slot_place(const V* place) {
#if defined(__CUDACC_RTC__)
  asm("" : "+l"(place));
#endif
  return place;
}
template <typename V> __device__ __forceinline__ V load_slot(const V* place, u32 rows) {
#if defined(__CUDACC_RTC__)
  __builtin_assume(__isGlobal(place));
#endif
  return place[rows];
}
#endif
"""

_CLEAR_SLOTS = """\
#ifndef CASPAR_CLEAR_SLOTS
#define CASPAR_CLEAR_SLOTS
// Zeros to all slots but the first of objects from `begin` on. Warps share the slots: the first
// ones have the block's items, and clear last.
template <u32 THREADS, typename V>
__device__ __forceinline__ void clear_slots(V* rows, u32 begin, u32 end, u32 slots, u32 stride) {
  constexpr u32 WARPS = THREADS / 32u;
#pragma unroll 1
  for (u32 slot = WARPS - (threadIdx.x >> 5); slot < slots; slot += WARPS) {
#pragma unroll 1
    for (u32 object = begin + (threadIdx.x & 31u); object < end; object += 32u) {
      rows[object + u64(slot * stride)] = V{};
    }
  }
}
#endif
"""


@dataclass(frozen=True)
class ReadSlots(ReadSequential):
    """Item `i` reads the sum over all slots of object `i`; `many` if more than `USUAL_SLOTS`."""

    cuda_functions: ClassVar[str] = _SLOT_PLACE

    many: bool = False

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Return the fields that locate the slots."""
        return SLOT_FIELDS

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """A vector load a slot."""
        vector, place = cuda_vector(arg, chunk), scope.temporary()
        total, row = scope.temporary(), scope.temporary()
        rows = f"reinterpret_cast<const {vector}*>({cuda_base(arg, chunk)})"
        lanes = zip(cuda_lanes(arg, chunk, total), cuda_lanes(arg, chunk, row), strict=True)
        adds = " ".join(f"{whole} += {part};" for whole, part in lanes)
        is_there = f"active && slot < u32({arg.name}_slots)"
        load = f"{row} = load_slot({place}, slot * u32({arg.name}_stride));"
        scope.emit(
            f"const {vector}* const {place} = slot_place({rows} + item);",
            f"{vector} {total} = {{}};",
        )
        if self.many:
            # first, so that the usual ones are loaded together with what comes after them
            scope.emit(
                f"#pragma unroll {USUAL_SLOTS}",
                f"for (u32 slot = {USUAL_SLOTS}u; {is_there}; ++slot) {{",
                f"  const {vector} {load}",
                f"  {adds}",
                "}",
            )
        scope.emit(
            # not a loop over those there are: its loads would wait for each other's additions
            "#pragma unroll",
            f"for (u32 slot = 0; slot < {USUAL_SLOTS}u; ++slot) {{",
            f"  {vector} {row} = {{}};",
            f"  if ({is_there})",
            f"    {load}",
            f"  {adds}",
            "}",
        )
        return cuda_lanes(arg, chunk, total)


@dataclass(frozen=True)
class BeginSlots(WriteSequential):
    """Item `i` writes object `i` in the first slot, and zeros in the others."""

    cuda_functions: ClassVar[str] = _CLEAR_SLOTS

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Return the fields that locate the slots."""
        return SLOT_FIELDS

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """A vector store, and those of the warp's share of the slots."""
        scalars = converted_all(values, scope.dtype, arg.dtype)
        rows = f"reinterpret_cast<{cuda_vector(arg, chunk)}*>({cuda_base(arg, chunk)})"
        begin = "own_item - threadIdx.x"
        scope.emit(f"if (active) {rows}[item] = {cuda_packed(scope, arg, chunk, scalars)};")
        scope.emit_by_itself(
            arg.name,
            f"clear_slots<BLOCK_SIZE>({rows}, {begin}, min({begin} + share, count), "
            f"u32({arg.name}_slots), u32({arg.name}_stride));",
        )
