"""The kernels that build tiles on a device, run on the host, against NumPy."""

from dataclasses import fields
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.tiles import (
    SCAN_BLOCK_SIZE,
    SORT_KERNELS,
    TILE_KERNELS,
    TILE_SOURCE,
    WARPS_OF_BLOCK,
    sort_source,
)
from caspar.memory.tiling.tiles import (
    ORDER_TILE_SIZES,
    TileIndex,
    TileOrder,
    build_tile_index,
    build_tile_order,
)
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.covering import alternating, newest
from tests.harness import CudaModule, KernelArgument, compile_cuda, find_compiler
from tests.kernels.patterns import INDEX_KINDS
from tests.memory.tiling.test_tiles import FAR_APART

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")
tile_sizes = pytest.mark.parametrize("tile_size", ORDER_TILE_SIZES)

Index = NDArray[np.int32]

SIZES = (1, 31, 32, 33, 255, 256, 257, 1023, 1025)
MANY = 10_003
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90")
INT32 = np.iinfo(np.int32)


@cache
def common_kernels() -> CudaModule:
    """Of any tile size."""
    return compile_cuda(TILE_SOURCE)


def sort_tiles(
    module: CudaModule, index: Index, tile_size: int
) -> tuple[TileOrder, NDArray[np.int32], NDArray[np.uint32]]:
    """The order, the tiles' starts in their block and the blocks' partials, as on a device."""
    count, num_tiles = len(index), -(-len(index) // tile_size)
    num_blocks = -(-num_tiles // WARPS_OF_BLOCK)
    order = np.full(num_tiles * tile_size, 0xFFFF, np.uint16)
    tile_start, block_start = np.zeros(num_tiles + 1, np.int32), np.zeros(num_blocks, np.uint32)
    stats = np.array([0, 0, INT32.max, INT32.min], np.int32)
    args: list[KernelArgument] = [np.uint32(count), index, order, tile_start, block_start, stats]
    module.launch("sort_tiles", num_blocks, 32 * WARPS_OF_BLOCK, args)
    return TileOrder(order, *(int(number) for number in stats)), tile_start, block_start


def list_tiles(module: CudaModule, index: Index, num_objects: int, tile_size: int) -> TileIndex:
    """What `runtime.cuda.structure.tiles` does, launch by launch."""
    order, tile_start, block_start = sort_tiles(module, index, tile_size)
    num_blocks = len(block_start)
    args: list[KernelArgument] = [np.uint32(num_blocks), block_start]
    common_kernels().launch("scan_blocks", 1, SCAN_BLOCK_SIZE, args)
    count, num_partials = len(index), order.num_partials
    slot, position = np.zeros(count, np.uint16), np.zeros(count, np.uint16)
    segment_end, of_partial = np.zeros(num_partials, np.uint16), np.zeros(num_partials, np.int32)
    args = [np.uint32(count), index, order.order, block_start, tile_start, segment_end, of_partial]
    module.launch("list_partials", num_blocks, 32 * WARPS_OF_BLOCK, [*args, position, slot])
    grouped = np.argsort(of_partial, kind="stable")
    object_start = np.zeros(num_objects + 1, np.int32)
    object_partials = np.zeros(num_partials, np.int32)
    sizes = (np.uint32(num_partials), np.uint32(num_objects))
    args = [*sizes, of_partial, grouped, object_partials, object_start]
    common_kernels().launch("object_bounds", -(-(num_partials + 1) // BLOCK_SIZE), BLOCK_SIZE, args)
    return TileIndex(
        num_partials, slot, position, tile_start, segment_end, object_start, object_partials
    )


def assert_same(made: TileOrder | TileIndex, expected: TileOrder | TileIndex, what: str) -> None:
    for field in fields(expected):
        wanted = getattr(expected, field.name)
        assert_array_equal(getattr(made, field.name), wanted, f"{what}: {field.name}")


@needs_compiler
@pytest.mark.parametrize(("tile_size", "arch"), alternating(ORDER_TILE_SIZES, [80, 75]))
def test_tiles_equal_those_of_numpy(tile_size: int, arch: int) -> None:
    """Warps have instructions for sums and bounds since sm_80."""
    module = compile_cuda(sort_source(tile_size), arch=arch)
    rng = np.random.default_rng(tile_size)
    for count in (*SIZES, MANY) if arch == 80 else (*SIZES[-2:], MANY):
        num_objects = count + 2
        for name, draw in INDEX_KINDS.items():
            index = draw(rng, count, num_objects)
            what = f"{count} {name}"
            expected = build_tile_index(index, num_objects, tile_size)
            assert_same(list_tiles(module, index, num_objects, tile_size), expected, what)
            order = sort_tiles(module, index, tile_size)[0]
            assert_same(order, build_tile_order(index, tile_size), what)


@needs_compiler
@tile_sizes
@pytest.mark.parametrize("name", sorted(FAR_APART))
def test_numbers_that_lie_far_apart(tile_size: int, name: str) -> None:
    """Negative ones too: the bounds then tell that they are wrong."""
    module = compile_cuda(sort_source(tile_size))
    for count in (1, 33, tile_size, 2 * tile_size + 7):
        index = FAR_APART[name](np.random.default_rng(count), count)
        order = sort_tiles(module, index, tile_size)[0]
        assert_same(order, build_tile_order(index, tile_size), f"{count}")


@needs_compiler
@tile_sizes
def test_an_index_that_is_not_aligned(tile_size: int) -> None:
    module = compile_cuda(sort_source(tile_size))
    count = WARPS_OF_BLOCK * tile_size + 5
    whole = np.random.default_rng(0).integers(0, 300, count + 4).astype(np.int32)
    for offset in range(1, 4):
        index = whole[offset : offset + count]
        assert index.ctypes.data % 16 != whole.ctypes.data % 16
        expected = build_tile_index(index, 300, tile_size)
        assert_same(list_tiles(module, index, 300, tile_size), expected, f"{offset}")


@needs_compiler
def test_every_schedule_gives_the_same() -> None:
    module = compile_cuda(sort_source(128))
    index = np.random.default_rng(0).integers(0, 50, 3000).astype(np.int32)
    num_tiles = -(-len(index) // 128)
    args: list[KernelArgument] = [
        np.uint32(len(index)),
        index,
        np.zeros(num_tiles * 128, np.uint16),
        np.zeros(num_tiles + 1, np.int32),
        np.zeros(-(-num_tiles // WARPS_OF_BLOCK), np.uint32),
        np.array([0, 0, INT32.max, INT32.min], np.int32),
    ]
    num_blocks = -(-num_tiles // WARPS_OF_BLOCK)
    module.launch_under_schedules("sort_tiles", num_blocks, 32 * WARPS_OF_BLOCK, args)
    assert_array_equal(args[2], build_tile_order(index, 128).order)


@needs_compiler
@pytest.mark.parametrize("count", [1, 2, 31, 1023, 4096, 4097, 9001])
def test_scan(count: int) -> None:
    """Also of more numbers than its block takes at once."""
    value = np.random.default_rng(0).integers(0, 9000, count).astype(np.uint32)
    expected = np.cumsum(value) - value
    args: list[KernelArgument] = [np.uint32(count), value]
    common_kernels().launch("scan_blocks", 1, SCAN_BLOCK_SIZE, args)
    assert_array_equal(value, expected)


@pytest.mark.parametrize("arch", newest(ARCHITECTURES))
def test_nothing_is_in_local_memory(arch: str) -> None:
    sources = {TILE_SOURCE: TILE_KERNELS} | {
        sort_source(tile_size): SORT_KERNELS for tile_size in ORDER_TILE_SIZES
    }
    for source, names in sources.items():
        compiled = compile_text(source, arch)
        assert compiled.warnings == (), compiled.log
        assert set(compiled.resources) == set(names)
        assert all(entry.stack_bytes == 0 for entry in compiled.resources.values())
