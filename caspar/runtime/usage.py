"""What a kernel takes of a GPU's multiprocessors, and the block size that follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.codegen.source import KernelSource

MIN_BLOCK_SIZE = 64
"""Smaller blocks are never chosen: a multiprocessor holds at most 16 to 32 of them."""


@dataclass(frozen=True)
class KernelUsage:
    """What one kernel takes, as it was compiled.

    Attributes:
        registers: 32-bit registers of a thread.
        local_bytes: Local memory of a thread: spilled registers, and arrays that are no registers.
        shared_bytes: Shared memory of a block.
        max_threads: Threads a multiprocessor holds of a kernel that needs nothing.
        resident_threads: Threads it holds of this one, by block size, the preferred size first;
            registers and shared memory of a thread are taken to be the same for all.
    """

    registers: int
    local_bytes: int
    shared_bytes: int
    max_threads: int
    resident_threads: Mapping[int, int]

    def occupancy(self, block_size: int) -> float:
        """Threads held over threads that could be: 1 where nothing runs out."""
        return self.resident_threads[block_size] / self.max_threads


def candidate_sizes(source: KernelSource) -> tuple[int, ...]:
    """The block sizes to choose from, the preferred one first."""
    sizes = tuple(size for size in source.block_sizes if size >= MIN_BLOCK_SIZE)
    return sizes if len(sizes) > 0 else (source.block_size,)


def roomiest(resident_threads: Mapping[int, int]) -> int:
    """The block size of which a multiprocessor holds the most threads; of several the first."""
    return max(resident_threads, key=resident_threads.__getitem__)
