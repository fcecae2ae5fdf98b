"""Building tiles on a CUDA device."""

from typing import Any

import cupy
import numpy as np

from caspar.codegen.cuda_header import BLOCK_SIZE
from caspar.codegen.cuda_tiles import SCAN_BLOCK_SIZE, TILE_KERNELS, TILE_SOURCE
from caspar.memory.tiles import Array, TileIndex

_LARGE_BYTE = 0x7F
"""Four of them are a number above all indices that fit in memory."""


_NO_ENTRY = 0xFFFFFFFF


def _entry(first: Array) -> int | None:
    entry = int(first[0])
    return None if entry == _NO_ENTRY else entry


class TileBuilder:
    """The compiled kernels of `codegen.cuda_tiles`.

    Args:
        options: Options of the compiler.
    """

    def __init__(self, options: tuple[str, ...]) -> None:
        module = cupy.RawModule(code=TILE_SOURCE, options=options)
        self._kernels: dict[str, Any] = {name: module.get_function(name) for name in TILE_KERNELS}

    def build(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an (n,) int32 index on the device; reads one number back."""
        assert tile_size == BLOCK_SIZE
        count = int(index.shape[0])
        num_tiles = -(-count // BLOCK_SIZE)
        slot = cupy.empty(count, dtype=cupy.uint16)
        position = cupy.empty(count, dtype=cupy.uint16)
        num_distinct = cupy.empty(num_tiles, dtype=cupy.int32)
        tile_start = cupy.empty(num_tiles + 1, dtype=cupy.int32)
        self._run("sort_tiles", num_tiles, count, index, position, slot, num_distinct)
        scan = self._kernels["scan"]
        scan((1,), (SCAN_BLOCK_SIZE,), (np.uint32(num_tiles), num_distinct, tile_start))
        num_partials = int(tile_start[num_tiles])
        segment_end = cupy.empty(num_partials, dtype=cupy.uint16)
        of_partial = cupy.empty(num_partials, dtype=cupy.int32)
        self._run(
            "list_partials",
            num_tiles,
            count,
            *(index, position, slot, tile_start, segment_end, of_partial),
        )
        # a stable sort by a precompiled radix sort: equal objects keep the order of the tiles
        grouped = cupy.argsort(of_partial, kind="stable")
        object_start = cupy.empty(num_objects + 1, dtype=cupy.int32)
        object_partials = cupy.empty(num_partials, dtype=cupy.int32)
        num_blocks = -(-(num_partials + 1) // BLOCK_SIZE)
        bounds = (np.uint32(num_objects), of_partial, grouped, object_partials, object_start)
        self._run("object_bounds", num_blocks, num_partials, *bounds)
        return TileIndex(
            num_partials=num_partials,
            slot=slot,
            position=position,
            tile_start=tile_start,
            segment_end=segment_end,
            object_start=object_start,
            object_partials=object_partials,
        )

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """See `memory.tiles.locality_order`."""
        if partner is None:
            return cupy.argsort(main, kind="stable")
        count = int(main.shape[0])
        num_blocks = -(-count // BLOCK_SIZE)
        lowest = cupy.empty(num_main, dtype=cupy.int32)
        lowest.data.memset_async(_LARGE_BYTE, lowest.nbytes)
        key = cupy.empty(count, dtype=cupy.int64)
        self._run("lowest_partner", num_blocks, count, main, partner, lowest)
        self._run("locality_keys", num_blocks, count, main, lowest, key)
        return cupy.argsort(key, kind="stable")

    def first_outside(self, index: Array, size: int) -> int | None:
        """First entry outside 0 .. size - 1; waits for the device."""
        count = int(index.shape[0])
        first = cupy.full(1, _NO_ENTRY, dtype=cupy.uint32)
        num_blocks = -(-count // BLOCK_SIZE)
        self._run("first_outside", num_blocks, count, index, np.uint32(size), first)
        return _entry(first)

    def first_repeated(self, index: Array, size: int) -> int | None:
        """First entry whose object an earlier one names; waits for the device."""
        count = int(index.shape[0])
        owner = cupy.full(size, _NO_ENTRY, dtype=cupy.uint32)
        first = cupy.full(1, _NO_ENTRY, dtype=cupy.uint32)
        num_blocks = -(-count // BLOCK_SIZE)
        for find in (0, 1):
            self._run("first_repeated", num_blocks, count, index, owner, np.uint32(find), first)
        return _entry(first)

    def _run(self, name: str, num_blocks: int, count: int, *arguments: Any) -> None:
        self._kernels[name]((num_blocks,), (BLOCK_SIZE,), (np.uint32(count), *arguments))
