"""Sums over shared objects that are spread over slots, so that atomics seldom wait for each other.

Additions to the same 32 bytes come one after the other, 4.5 ns each on an H200, and some objects
have thousands. So an array may hold every object several times: object o in slot s is row
s * stride + o. `AddRuns(spread=True)` adds to the slot of its tile; here is what begins and sums
all slots. On the processor, which has no atomics, there is one slot.

5 M observations of 1,778 cameras, Schur product without its curvature, recomputed Jacobians and
float16, us: 167 and 170 with one slot, 149 and 147 with 2, 146 and 144 with 4 to 32; 136 and 121
without the additions. 1.3 M observations of 356 cameras, a PCG iteration: 90 and 95 with one slot,
53 and 53 with 4. Of 36,000 it takes 13.8 and 13.4 with one slot, 12.7 and 11.5 with 4, 14.7 and
14.2 with 16 (H200).
"""

from dataclasses import dataclass

from caspar.memory.access import ArgSpec, Field
from caspar.memory.accessors.blocked import cuda_address, cuda_lanes, cuda_packed, cuda_vector
from caspar.memory.accessors.scope import CudaScope, converted
from caspar.memory.accessors.sequential import ReadSequential, WriteSequential

SLOT_FIELDS = (Field("slots"), Field("stride"))
"""Slots, a power of two, and rows of each."""

MAX_SLOTS = 4

ITEMS_OF_SLOT = 256
"""Items of an object on average for which it gets one more slot."""


def num_object_slots(num_items: int, num_objects: int) -> int:
    """A power of two that suits a number of items and of objects that they share."""
    slots = 1
    while slots < MAX_SLOTS and slots * ITEMS_OF_SLOT * num_objects < num_items:
        slots *= 2
    return slots


@dataclass(frozen=True)
class ReadSlots(ReadSequential):
    """Item `i` reads the sum over all slots of object `i`."""

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Where the slots are."""
        return SLOT_FIELDS

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """A vector load a slot."""
        vector, total, row = cuda_vector(arg, chunk), scope.temporary(), scope.temporary()
        address = cuda_address(arg, chunk, f"(item + slot * u32({arg.name}_stride))")
        lanes = zip(cuda_lanes(arg, chunk, total), cuda_lanes(arg, chunk, row), strict=True)
        adds = " ".join(f"{whole} += {part};" for whole, part in lanes)
        scope.emit(
            f"{vector} {total} = {{}};",
            # not a loop over those there are: its loads would wait for each other's additions
            "#pragma unroll",
            f"for (u32 slot = 0; slot < {MAX_SLOTS}u; ++slot) {{",
            f"  {vector} {row} = {{}};",
            f"  if (slot < u32({arg.name}_slots))",
            f"    {row} = *reinterpret_cast<const {vector}*>({address});",
            f"  {adds}",
            "}",
        )
        return cuda_lanes(arg, chunk, total)


@dataclass(frozen=True)
class BeginSlots(WriteSequential):
    """Item `i` writes object `i` in the first slot, and zeros in the others."""

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Where the slots are."""
        return SLOT_FIELDS

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """A vector store a slot."""
        vector = cuda_vector(arg, chunk)
        scalars = [converted(value, scope.dtype, arg.dtype) for value in values]
        address = cuda_address(arg, chunk, f"(item + slot * u32({arg.name}_stride))")
        row = scope.temporary()
        scope.emit(
            f"{vector} {row} = {cuda_packed(scope, arg, chunk, scalars)};",
            f"for (u32 slot = 0; active && slot < u32({arg.name}_slots); ++slot) {{",
            f"  *reinterpret_cast<{vector}*>({address}) = {row};",
            f"  {row} = {{}};",
            "}",
        )
