"""Resources that a kernel takes of a GPU's multiprocessors, and the block size that follows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from caspar.codegen.source import KernelSource
from caspar.runtime.nvidia.nvrtc import KernelResources
from caspar.runtime.nvidia.occupancy import Occupancy, occupancy

MIN_BLOCK_SIZE = 64
"""Smaller blocks are never chosen: a multiprocessor holds at most 16 to 32 of them."""


@dataclass(frozen=True)
class KernelUsage:
    """Resources that one kernel takes, as it was compiled.

    Attributes:
        block_size: Threads of a block that it was compiled for.
        registers: 32-bit registers of a thread.
        local_bytes: Local memory of a thread: spilled registers, and arrays that are no registers.
        shared_bytes: Shared memory of a block.
        occupancies: What a multiprocessor holds of it, by block size, the preferred size first.
            Empty if the architecture's limits are not known.
    """

    block_size: int
    registers: int
    local_bytes: int
    shared_bytes: int
    occupancies: Mapping[int, Occupancy]

    @property
    def occupancy(self) -> Occupancy | None:
        """Return what a multiprocessor holds of it, if that is known."""
        return self.occupancies.get(self.block_size)

    @property
    def roomiest(self) -> int:
        """The block size of which a multiprocessor holds the most threads; of several the first.

        Where limits are not known, the one it was compiled for.
        """
        sizes = [size for size in self.occupancies if size >= MIN_BLOCK_SIZE]
        if len(sizes) == 0:
            return self.block_size
        return max(sizes, key=lambda size: self.occupancies[size].warps)


def kernel_usage(
    source: KernelSource, resources: KernelResources, block_size: int, arch: str
) -> KernelUsage:
    """Return what a kernel takes, with the block sizes it may have.

    Registers of a thread are taken to be the same for all block sizes, shared memory to grow with
    the block.

    Args:
        source: The kernel.
        resources: The compiler's figures.
        block_size: Threads of a block it was compiled for.
        arch: `sm_90` for example.
    """
    found: dict[int, Occupancy] = {}
    for size in source.block_sizes:
        shared = resources.shared_bytes * size // block_size
        held = occupancy(replace(resources, shared_bytes=shared), size, arch)
        if held is not None:
            found[size] = held
    return KernelUsage(
        block_size, resources.registers, resources.stack_bytes, resources.shared_bytes, found
    )
