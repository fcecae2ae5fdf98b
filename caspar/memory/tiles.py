"""Tiles: which items of a block share an index, and where their partial sums go.

Once per problem structure. A shared add never uses atomics: the items of a tile that share an
index are summed in a fixed order into one *partial*, and a second kernel sums the partials of each
object, again in a fixed order. The result has the same bits in every run. (The paper adds the sums
of a block with atomics; see docs/design for the comparison.)

The arrays are made by `xp` (NumPy or CuPy), on the device that will use them.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

Array = Any
"""An array of the `xp` module in use."""


@dataclass(frozen=True)
class TileIndex:
    """Where the items of each tile add to; see the paper's SharedIndex.

    Attributes:
        num_partials: Distinct (tile, index) pairs.
        slot: (n,) uint16: place of the item's index among the sorted distinct indices of its tile.
        position: (n,) uint16: place of the item in its tile when sorted by index.
        tile_start: (num_tiles + 1,) int32: first partial of each tile.
        segment_end: (num_partials,) uint16: end of the partial's run of positions in its tile.
        object_start: (num_objects + 1,) int32: where each object's run in `object_partials` begins.
        object_partials: (num_partials,) int32: partials grouped by object, in tile order.
    """

    num_partials: int
    slot: Array
    position: Array
    tile_start: Array
    segment_end: Array
    object_start: Array
    object_partials: Array


def build_tile_index(
    xp: ModuleType, index: Array, num_objects: int, tile_size: int
) -> TileIndex:
    """Find the distinct indices of every tile of `tile_size` consecutive items.

    Args:
        xp: NumPy or CuPy.
        index: (n,) object of each item, within 0 .. num_objects - 1, n >= 1.
        num_objects: Number of objects.
        tile_size: Items of a tile, at most 65536.
    """
    num_items = int(index.shape[0])
    num_tiles = -(-num_items // tile_size)
    item = xp.arange(num_items, dtype=xp.int64)
    tile = item // tile_size
    key = tile * num_objects + index
    order = xp.argsort(key, kind="stable")
    key = key[order]
    is_first = xp.ones(num_items, dtype=bool)
    is_first[1:] = key[1:] != key[:-1]
    start = xp.flatnonzero(is_first)
    num_partials = int(start.shape[0])
    tile_of_partial = start // tile_size
    tile_start = xp.searchsorted(tile_of_partial, xp.arange(num_tiles + 1))
    # sorting by (tile, index) permutes within tiles only, so a rank and its item share the tile
    slot = xp.empty(num_items, dtype=xp.uint16)
    slot[order] = (xp.cumsum(is_first) - 1 - tile_start[tile]).astype(xp.uint16)
    position = xp.empty(num_items, dtype=xp.uint16)
    position[order] = (item - tile * tile_size).astype(xp.uint16)
    end = xp.append(start[1:], xp.asarray([num_items], dtype=start.dtype))
    object_of_partial = index[order[start]]
    object_partials = xp.argsort(object_of_partial, kind="stable")
    grouped = object_of_partial[object_partials]
    return TileIndex(
        num_partials=num_partials,
        slot=slot,
        position=position,
        tile_start=tile_start.astype(xp.int32),
        segment_end=(end - tile_of_partial * tile_size).astype(xp.uint16),
        object_start=xp.searchsorted(grouped, xp.arange(num_objects + 1)).astype(xp.int32),
        object_partials=object_partials.astype(xp.int32),
    )


def single_object_tiles(xp: ModuleType, num_tiles: int) -> TileIndex:
    """One partial for each tile, all of one object: for nodes that every factor shares."""
    zero = xp.zeros(num_tiles, dtype=xp.uint16)
    return TileIndex(
        num_partials=num_tiles,
        slot=zero,
        position=zero,
        tile_start=xp.arange(num_tiles + 1, dtype=xp.int32),
        segment_end=zero,
        object_start=xp.asarray([0, num_tiles], dtype=xp.int32),
        object_partials=xp.arange(num_tiles, dtype=xp.int32),
    )
