"""Compute how many warps of a kernel a multiprocessor holds, from the compiler's figures.

The rules and numbers of blocks are those of NVIDIA's cuda_occupancy.h (CUDA 13.0), the other limits
those of the tables of compute capabilities in the CUDA programming guide.

Also here: the resources that a kernel takes, and the block size that follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from caspar.codegen.source import KernelSource
from caspar.runtime.nvidia.nvrtc import KernelResources

_PARTITIONS = 4
_REGISTERS_OF_PARTITION = 16_384
"""32-bit registers of a quarter of a multiprocessor; a warp has its own in one quarter."""

_REGISTER_STEP = 256
"""Registers of a warp are given out in multiples of this."""

WARP = 32
_KIB = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of a multiprocessor: warps and blocks at once, and shared memory.

    Each block takes `reserved_bytes` beside its own, in multiples of `shared_step`.
    """

    warps: int
    blocks: int
    shared_bytes: int
    reserved_bytes: int = _KIB
    shared_step: int = 128


MULTIPROCESSORS = {
    "sm_75": Multiprocessor(32, 16, 64 * _KIB, reserved_bytes=0, shared_step=256),
    "sm_80": Multiprocessor(64, 32, 164 * _KIB),
    "sm_86": Multiprocessor(48, 16, 100 * _KIB),
    "sm_87": Multiprocessor(48, 16, 164 * _KIB),
    "sm_89": Multiprocessor(48, 24, 100 * _KIB),
    "sm_90": Multiprocessor(64, 32, 228 * _KIB),
    "sm_100": Multiprocessor(64, 32, 228 * _KIB),
    "sm_103": Multiprocessor(64, 32, 228 * _KIB),
    "sm_120": Multiprocessor(48, 24, 100 * _KIB),
    "sm_121": Multiprocessor(48, 24, 100 * _KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """The number of warps of a kernel that a multiprocessor can hold, and of one without needs.

    `limit` runs out first: `registers`, `shared memory`, `blocks` or `warps`.
    """

    warps: int
    max_warps: int
    limit: str

    @property
    def fraction(self) -> float:
        """Warps held over warps that could be: 1 where nothing runs out."""
        return self.warps / self.max_warps

    def blocks(self, block_size: int) -> int:
        """Blocks at once, of the size it was found for."""
        return self.warps // -(-block_size // WARP)


def occupancy(resources: KernelResources, block_size: int, arch: str) -> Occupancy | None:
    """Theoretical occupancy; None for an architecture whose limits are not known here."""
    limits = MULTIPROCESSORS.get(arch)
    if limits is None:
        return None
    warps = -(-block_size // WARP)
    registers = _rounded_up(resources.registers * WARP, _REGISTER_STEP)
    shared = _rounded_up(resources.shared_bytes, limits.shared_step) + limits.reserved_bytes
    blocks = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _REGISTERS_OF_PARTITION // registers * _PARTITIONS // warps,
        "shared memory": limits.shared_bytes // shared if shared > 0 else limits.blocks,
    }
    limit = min(blocks, key=lambda name: blocks[name])
    return Occupancy(blocks[limit] * warps, limits.warps, limit)


def _rounded_up(amount: int, step: int) -> int:
    return -(-amount // step) * step


MIN_BLOCK_SIZE = 64
"""Smaller blocks are never chosen: a multiprocessor holds at most 16 to 32 of them."""


@dataclass(frozen=True)
class KernelUsage:
    """Resources that one kernel takes, as it was compiled: of a thread, and of a block.

    Local memory has spilled registers, and arrays that are no registers. `occupancies` are by block
    size, the preferred size first; empty if the architecture's limits are not known.
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
    """Return what a kernel takes, compiled for blocks of that size, with the sizes it may have.

    Registers of a thread are taken to be the same for all block sizes, shared memory to grow with
    the block.
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
