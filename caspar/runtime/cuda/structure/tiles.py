"""Building tiles on a CUDA device, on CuPy's current stream."""

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.tiles import (
    SCAN_BLOCK_SIZE,
    SORT_KERNELS,
    TILE_KERNELS,
    TILE_SOURCE,
    WARPS_OF_BLOCK,
    sort_source,
)
from caspar.memory.array import Array
from caspar.memory.tiling.tiles import TileIndex, TileOrder
from caspar.runtime.cuda.compile.modules import load_functions

_MANY = 1 << 22

_LARGE_BYTE = 0x7F
"""Four of them are a number above all indices that fit in memory."""

_FIRST_STATS = np.array([0, 0, np.iinfo(np.int32).max, np.iinfo(np.int32).min], dtype=np.int32)
"""Partials, unsorted tiles, lowest and highest index before any tile is seen."""


@dataclass(frozen=True)
class _SortedTiles:
    """What the sort writes, see its text; perhaps not yet."""

    places: Array
    tile_start: Array
    block_start: Array
    stats: Array

    def order(self) -> TileOrder:
        """Wait for the sort."""
        return TileOrder(self.places, *(int(number) for number in self.stats.get()))


def _no_tiles(num_objects: int) -> TileIndex:
    """Of an index without items."""
    none = cupy.empty(0, dtype=cupy.uint16)
    zeros = cupy.zeros(num_objects + 1, dtype=cupy.int32)
    partials = cupy.empty(0, dtype=cupy.int32)
    return TileIndex(0, none, none, zeros[:1], none, zeros, partials)


def _sort_keys(objects: Array, num_objects: int) -> Array:
    """Many numbers of objects in the smallest type that CuPy sorts by a precompiled radix sort.

    30 million on an H200: 0.95 ms with 16 bits, 1.33 with 32, 2.1 as 64-bit pairs with the place.
    For few it is not worth the kernel that CuPy compiles to change the type.
    """
    is_short = num_objects <= 2**16 and objects.shape[0] > _MANY
    return objects.astype(cupy.uint16) if is_short else objects


class TileBuilder:
    """The kernels of `codegen.cuda.structure.tiles`, compiled when first used."""

    def __init__(self) -> None:
        self._kernels = load_functions(TILE_SOURCE, TILE_KERNELS)

    def order(self, index: Array, tile_size: int) -> TileOrder:
        """Order of an (n,) int32 index on the device; reads its statistics back."""
        if index.shape[0] == 0:
            return TileOrder(cupy.empty(0, dtype=cupy.uint16), 0, 0, 0, -1)
        return self._sort(index, tile_size).order()

    def sorted_places(self, index: Array, tile_size: int) -> Array:
        """The array of `order`, perhaps not yet: nothing is read back. `index` has some entry."""
        return self._sort(index, tile_size).places

    def scan(self, values: Array) -> None:
        """Replace (n,) uint32 by the sums of all before each; one block."""
        scan = self._kernels["scan_blocks"].function
        scan((1,), (SCAN_BLOCK_SIZE,), (np.uint32(values.shape[0]), values))

    def build(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an (n,) int32 index on the device; reads one number back."""
        count = int(index.shape[0])
        if count == 0:
            return _no_tiles(num_objects)
        tiles = self._sort(index, tile_size)
        self.scan(tiles.block_start)
        num_partials = tiles.order().num_partials
        slot = cupy.empty(count, dtype=cupy.uint16)
        position = cupy.empty(count, dtype=cupy.uint16)
        segment_end = cupy.empty(num_partials, dtype=cupy.uint16)
        of_partial = cupy.empty(num_partials, dtype=cupy.int32)
        found = (tiles.tile_start, segment_end, of_partial, position, slot)
        self._run_sorter(
            "list_partials", tile_size, count, index, tiles.places, tiles.block_start, *found
        )
        grouped = cupy.argsort(_sort_keys(of_partial, num_objects), kind="stable")
        object_start = cupy.empty(num_objects + 1, dtype=cupy.int32)
        object_partials = cupy.empty(num_partials, dtype=cupy.int32)
        num_blocks = -(-(num_partials + 1) // BLOCK_SIZE)
        bounds = (np.uint32(num_objects), of_partial, grouped, object_partials, object_start)
        self._run("object_bounds", num_blocks, num_partials, *bounds)
        return TileIndex(
            num_partials=num_partials,
            slot=slot,
            position=position,
            tile_start=tiles.tile_start,
            segment_end=segment_end,
            object_start=object_start,
            object_partials=object_partials,
        )

    def _sort(self, index: Array, tile_size: int) -> _SortedTiles:
        """Enqueue the sort of every tile."""
        count = int(index.shape[0])
        num_tiles = -(-count // tile_size)
        num_blocks = -(-num_tiles // WARPS_OF_BLOCK)
        tiles = _SortedTiles(
            places=cupy.empty(num_tiles * tile_size, dtype=cupy.uint16),
            tile_start=cupy.empty(num_tiles + 1, dtype=cupy.int32),
            block_start=cupy.empty(num_blocks, dtype=cupy.uint32),
            stats=cupy.asarray(_FIRST_STATS),
        )
        written = (tiles.places, tiles.tile_start, tiles.block_start, tiles.stats)
        self._run_sorter("sort_tiles", tile_size, count, index, *written)
        return tiles

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """See `memory.tiling.tiles.locality_order`."""
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

    def _run_sorter(self, name: str, tile_size: int, count: int, *arguments: Any) -> None:
        num_blocks = -(-count // (WARPS_OF_BLOCK * tile_size))
        kernel = load_functions(sort_source(tile_size), SORT_KERNELS)[name].function
        kernel((num_blocks,), (32 * WARPS_OF_BLOCK,), (np.uint32(count), *arguments))

    def _run(self, name: str, num_blocks: int, count: int, *arguments: Any) -> None:
        kernel = self._kernels[name].function
        kernel((num_blocks,), (BLOCK_SIZE,), (np.uint32(count), *arguments))
