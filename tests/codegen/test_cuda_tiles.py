"""The kernels that build tiles on a device, run on the host, against NumPy."""

from dataclasses import fields

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from caspar.codegen.cuda_header import BLOCK_SIZE
from caspar.codegen.cuda_tiles import SCAN_BLOCK_SIZE, TILE_SOURCE
from caspar.memory.tiles import TileIndex, build_tile_index
from tests.harness import CudaModule, KernelArgument, compile_cuda, find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

Index = NDArray[np.int32]

CASES = {
    "one item": (1, 1),
    "a tile less one": (255, 40),
    "a tile": (256, 1000),
    "a tile and one": (257, 3),
    "several": (1025, 300),
    "one of many objects": (300, 3000),
}


def build(module: CudaModule, index: Index, num_objects: int) -> TileIndex:
    """What `runtime.cuda_tiles` does, launch by launch."""
    count, num_tiles = len(index), -(-len(index) // BLOCK_SIZE)
    slot, position = np.zeros(count, np.uint16), np.zeros(count, np.uint16)
    num_distinct, tile_start = np.zeros(num_tiles, np.int32), np.zeros(num_tiles + 1, np.int32)
    args: list[KernelArgument] = [np.uint32(count), index, position, slot, num_distinct]
    module.launch("sort_tiles", num_tiles, BLOCK_SIZE, args)
    module.launch("scan", 1, SCAN_BLOCK_SIZE, [np.uint32(num_tiles), num_distinct, tile_start])
    num_partials = int(tile_start[-1])
    segment_end, of_partial = np.zeros(num_partials, np.uint16), np.zeros(num_partials, np.int32)
    args = [np.uint32(count), index, position, slot, tile_start, segment_end, of_partial]
    module.launch("list_partials", num_tiles, BLOCK_SIZE, args)
    grouped = np.argsort(of_partial, kind="stable")
    object_start = np.zeros(num_objects + 1, np.int32)
    object_partials = np.zeros(num_partials, np.int32)
    num_blocks = -(-(num_partials + 1) // BLOCK_SIZE)
    sizes = (np.uint32(num_partials), np.uint32(num_objects))
    args = [*sizes, of_partial, grouped, object_partials, object_start]
    module.launch("object_bounds", num_blocks, BLOCK_SIZE, args)
    return TileIndex(
        num_partials, slot, position, tile_start, segment_end, object_start, object_partials
    )


def test_tiles_equal_those_of_numpy() -> None:
    module = compile_cuda(TILE_SOURCE)
    for name, (count, num_objects) in CASES.items():
        index = np.random.default_rng(count).integers(0, num_objects, count).astype(np.int32)
        for order in (index, np.sort(index), np.sort(index)[::-1].copy()):
            made = build(module, order, num_objects)
            expected = build_tile_index(order, num_objects, BLOCK_SIZE)
            for field in fields(TileIndex):
                wanted = getattr(expected, field.name)
                assert_array_equal(getattr(made, field.name), wanted, f"{name}: {field.name}")


def test_a_scan_longer_than_its_block() -> None:
    value = np.random.default_rng(0).integers(0, 9, 2500).astype(np.int32)
    start = np.full(2501, -1, np.int32)
    args: list[KernelArgument] = [np.uint32(2500), value, start]
    compile_cuda(TILE_SOURCE).launch("scan", 1, SCAN_BLOCK_SIZE, args)
    assert_array_equal(start, np.concatenate([[0], np.cumsum(value)]))
