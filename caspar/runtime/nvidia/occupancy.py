"""Compute how many warps of a kernel a multiprocessor holds, from the compiler's figures.

The rules and numbers of blocks are those of NVIDIA's cuda_occupancy.h (CUDA 13.0), the other limits
those of the tables of compute capabilities in the CUDA programming guide.
"""

from dataclasses import dataclass

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
    """Limits of a multiprocessor.

    Attributes:
        warps: Warps at once.
        blocks: Blocks at once.
        shared_bytes: Shared memory.
        reserved_bytes: Shared memory that each block takes beside its own.
        shared_step: Shared memory is given out in multiples of this.
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
    """The number of warps of a kernel that a multiprocessor can hold.

    Attributes:
        warps: Warps at once.
        max_warps: Warps that it can hold of a kernel that needs no resources.
        limit: What runs out first: `registers`, `shared memory`, `blocks` or `warps`.
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
    """Theoretical occupancy; None for an architecture whose limits are not known here.

    Args:
        resources: The compiler's figures.
        block_size: Threads of a block.
        arch: `sm_90` for example.
    """
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
