"""Tiles: which items of a block share an index, and where their partial sums go.

Once for each index. Two forms:

* `TileOrder`: the order in which items of a tile that share an index are neighbours. Threads that
  follow it sum neighbours and add the sums with atomics.
* `TileIndex`, for sums without atomics, which have the same bits in every run: the items of a tile
  that share an index are summed in a fixed order into one *partial*, and a second kernel sums the
  partials of each object, again in a fixed order. (docs/design compares the two.)

Here with NumPy, on the host; the CUDA backend makes the same arrays with kernels of its own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array

ORDER_TILE_SIZES = (128, 256, 512, 1024)
"""Items of a tile that both forms can be had for on every backend."""

PLACE_MASK = 0x7FFF
"""Bits of an entry of `TileOrder.order` that hold the item's place in its tile."""

NEW_INDEX = 0x8000
"""Bit of an entry of `TileOrder.order`: an index begins here."""


@dataclass(frozen=True)
class TileOrder:
    """The items of each tile sorted by index; items of one index keep their order.

    Attributes:
        order: (num_tiles * tile_size,) uint16. `order[tile * tile_size + place] & PLACE_MASK` says
            which item of its tile stands at a place of the sorted tile; `NEW_INDEX` is set where
            an index begins. Places of the last tile that no item has hold themselves.
        num_partials: Distinct (tile, index) pairs.
        num_unsorted_tiles: Tiles whose items are not sorted as they are given.
        lowest: The lowest index; 0 if there are no items.
        highest: The highest index; -1 if there are no items.
    """

    order: Array
    num_partials: int
    num_unsorted_tiles: int
    lowest: int
    highest: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return int(self.order.nbytes)


@dataclass(frozen=True)
class TileIndex:
    """The objects that the items of each tile add to; see the paper's SharedIndex.

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

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (
            self.slot,
            self.position,
            self.tile_start,
            self.segment_end,
            self.object_start,
            self.object_partials,
        )
        return sum(int(array.nbytes) for array in arrays)


def build_tile_order(index: NDArray[np.int32], tile_size: int) -> TileOrder:
    """Sort every tile of `tile_size` consecutive items, at most 32768, by their (n,) object."""
    num_items = int(index.shape[0])
    num_tiles = -(-num_items // tile_size)
    missing = np.iinfo(np.int64).max
    value = np.full(num_tiles * tile_size, missing, dtype=np.int64)
    value[:num_items] = index
    tiles = value.reshape(num_tiles, tile_size)
    place = np.argsort(tiles, axis=1, kind="stable")
    ranked = np.take_along_axis(tiles, place, axis=1)
    is_first = ranked != missing
    is_first[:, 1:] &= ranked[:, 1:] != ranked[:, :-1]
    return TileOrder(
        order=(place | np.where(is_first, NEW_INDEX, 0)).astype(np.uint16).reshape(-1),
        num_partials=int(np.count_nonzero(is_first)),
        num_unsorted_tiles=int(np.count_nonzero((tiles[:, 1:] < tiles[:, :-1]).any(axis=1))),
        lowest=int(index.min()) if num_items > 0 else 0,
        highest=int(index.max()) if num_items > 0 else -1,
    )


def build_tile_index(index: NDArray[np.int32], num_objects: int, tile_size: int) -> TileIndex:
    """Find the distinct indices of every tile of `tile_size` consecutive items, at most 65535.

    `index` is (n,), within 0 .. num_objects - 1.
    """
    num_items = int(index.shape[0])
    num_tiles = -(-num_items // tile_size)
    item = np.arange(num_items, dtype=np.int64)
    tile = item // tile_size
    key = tile * num_objects + index
    order = np.argsort(key, kind="stable")
    key = key[order]
    is_first = np.ones(num_items, dtype=bool)
    is_first[1:] = key[1:] != key[:-1]
    start = np.flatnonzero(is_first)
    num_partials = int(start.shape[0])
    tile_of_partial = start // tile_size
    tile_start = np.searchsorted(tile_of_partial, np.arange(num_tiles + 1))
    # sorting by (tile, index) permutes within tiles only, so a rank and its item share the tile
    slot = np.empty(num_items, dtype=np.uint16)
    slot[order] = (np.cumsum(is_first) - 1 - tile_start[tile]).astype(np.uint16)
    position = np.empty(num_items, dtype=np.uint16)
    position[order] = (item - tile * tile_size).astype(np.uint16)
    end = np.append(start, num_items)[1:]
    object_of_partial = index[order[start]]
    object_partials = np.argsort(object_of_partial, kind="stable")
    grouped = object_of_partial[object_partials]
    return TileIndex(
        num_partials=num_partials,
        slot=slot,
        position=position,
        tile_start=tile_start.astype(np.int32),
        segment_end=(end - tile_of_partial * tile_size).astype(np.uint16),
        object_start=np.searchsorted(grouped, np.arange(num_objects + 1)).astype(np.int32),
        object_partials=object_partials.astype(np.int32),
    )


def locality_order(
    main: NDArray[np.int32], partner: NDArray[np.int32] | None, num_main: int
) -> NDArray[np.int64]:
    """The order of items in which tiles have few distinct indices of two kinds, (n,).

    Items of one `main` object stay together, and these groups are sorted by the lowest partner any
    item of the group has: neighbouring groups then share partners. (For bundle adjustment:
    observations of a point stay together, and points seen by the same cameras are neighbours.)
    Objects of `main` have few items each, those of `partner` many; None: sort by `main` alone.
    """
    if partner is None:
        return np.argsort(main, kind="stable")
    lowest = np.full(num_main, np.iinfo(np.int32).max, dtype=np.int32)
    np.minimum.at(lowest, main, partner)
    key = (lowest[main].astype(np.int64) << 32) | main
    return np.argsort(key, kind="stable")


def single_object_tiles(num_tiles: int) -> TileIndex:
    """One partial for each tile, all of one object: for nodes that every factor shares."""
    zero = np.zeros(num_tiles, dtype=np.uint16)
    return TileIndex(
        num_partials=num_tiles,
        slot=zero,
        position=zero,
        tile_start=np.arange(num_tiles + 1, dtype=np.int32),
        segment_end=zero,
        object_start=np.asarray([0, num_tiles], dtype=np.int32),
        object_partials=np.arange(num_tiles, dtype=np.int32),
    )
