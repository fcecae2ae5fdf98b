"""What a kernel takes of a multiprocessor, and the block size that follows."""

import pytest

from caspar.codegen.source import KernelSource
from caspar.runtime.nvidia.nvrtc import KernelResources
from caspar.runtime.nvidia.occupancy import KernelUsage, kernel_usage

SIZES = (256, 128, 512, 1024, 64, 32)


def usage(
    registers: int, shared: int = 0, sizes: tuple[int, ...] = SIZES, arch: str = "sm_90"
) -> KernelUsage:
    source = KernelSource("k", "", (), sizes)
    return kernel_usage(source, KernelResources(registers, 8, 4, 4, shared), sizes[0], arch)


def test_figures_are_the_compilers() -> None:
    found = usage(40, 2048)
    assert (found.block_size, found.registers) == (256, 40)
    assert (found.local_bytes, found.shared_bytes) == (8, 2048)
    assert tuple(found.occupancies) == SIZES
    assert found.occupancy is found.occupancies[256]
    assert (found.occupancy.warps, found.occupancy.limit) == (48, "registers")


@pytest.mark.parametrize(
    ("registers", "shared", "sizes", "roomiest"),
    [
        (24, 0, SIZES, 256),  # all hold all: the preferred one
        (168, 0, SIZES, 128),  # 12 warps: one block of 8, three of 4
        (72, 0, SIZES, 128),  # 28 warps: three blocks of 8, seven of 4
        (24, 0, (32,), 32),  # nothing else may be
        (24, 0, (1024,), 1024),
        (24, 33_000, SIZES, 128),  # six blocks of 8, thirteen of 4
        (24, 33_000, (512, 1024), 512),  # three blocks of 16, one of 32
    ],
)
def test_the_roomiest_block_size(
    registers: int, shared: int, sizes: tuple[int, ...], roomiest: int
) -> None:
    found = usage(registers, shared, sizes)
    warps = {size: held.warps for size, held in found.occupancies.items()}
    assert found.roomiest == roomiest, warps


def test_shared_memory_grows_with_the_block() -> None:
    held = usage(24, 38_000).occupancies
    assert held[256].limit == "shared memory"
    assert (held[128].warps, held[256].warps, held[1024].warps) == (44, 40, 32)


def test_without_known_limits_the_block_size_stays() -> None:
    found = usage(24, arch="sm_53")
    assert found.occupancies == {}
    assert found.occupancy is None
    assert found.roomiest == 256
