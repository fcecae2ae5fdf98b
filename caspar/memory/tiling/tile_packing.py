"""Fill node tiles: as many nodes as fit in their order, then smaller ones that follow soon.

If the next node does not fit, the rest of the tile would be holes: half a node in the mean, with
nodes weighted by their items, or 3.8 % of all slots of 29 M observations of bundle adjustment and
3.2 % of 0.7 M. So the tile takes those of the next nodes that still fit; the others wait for the
next tile. With 8, 16, 32 and 64 nodes looked at, 1.3, 0.9, 0.7 and 0.5 % of 29 M are holes. Tiles
have slightly fewer partners, too: 0.272 for each item instead of 0.277.
"""

import numpy as np
from numpy.typing import NDArray

TILES_OF_CHUNK = 256
"""Tiles are cut one after the other within a chunk of as many full tiles of items, and chunks at
the same time. The last tile of a chunk is half empty in the mean: 0.2 % of all slots."""

LOOKAHEAD = 32
"""Nodes that are looked at when the next one does not fit: a warp's, on a device."""

IntArray = NDArray[np.int64]

_LANE = np.arange(LOOKAHEAD)


def pack_tiles(order: IntArray, start: IntArray, num_long: int, tile_size: int) -> IntArray:
    """Cut tiles of short nodes, and put these into the order in which tiles have them.

    Args:
        order: (num_nodes,) nodes, long ones first; changed.
        start: (num_nodes + 1,) items of all nodes before each; changed likewise.
        num_long: Nodes with more items than a tile.
        tile_size: Items of a tile.

    Returns:
        (num_tiles,) the place in `order` of the first node of each tile.
    """
    num_nodes = len(order)
    if num_nodes == num_long:
        return np.empty(0, dtype=np.int64)
    chunk = np.arange(start[num_long], start[-1], TILES_OF_CHUNK * tile_size)
    first = np.searchsorted(start, chunk)
    end = np.append(first[1:], num_nodes)
    # a chunk has no node if the last one begins before it
    goes_on = first < end
    found = []
    while np.any(goes_on):
        first, end = first[goes_on], end[goes_on]
        found.append(first)
        full_at = start[first] + tile_size
        following = np.minimum(np.searchsorted(start, full_at, side="right") - 1, end)
        first = following + _fill_up(order, start, following, end, full_at)
        goes_on = first < end
    return np.sort(np.concatenate(found))


def _fill_up(
    order: IntArray, start: IntArray, first: IntArray, end: IntArray, full_at: IntArray
) -> IntArray:
    """Move nodes that fit before those that wait, for tiles that lack items; count them.

    Args:
        order: See `pack_tiles`; changed.
        start: Likewise.
        first: (n,) the node that does not fit into each tile.
        end: (n,) past the last node of its chunk.
        full_at: (n,) the value of `start` after a full tile.
    """
    place = first[:, None] + _LANE
    is_near = place < end[:, None]
    near = np.minimum(place, len(order) - 1)
    size = start[near + 1] - start[near]
    fits = _first_fit(np.where(is_near, size, np.iinfo(np.int64).max), full_at - start[first])
    last = LOOKAHEAD - 1 - np.argmax(fits[:, ::-1], axis=1)
    moves = np.any(fits, axis=1, keepdims=True) & (last[:, None] >= _LANE)
    # those that fit, those that wait, those that stay where they are
    turn = np.argsort(np.where(moves, ~fits, 2), axis=1, kind="stable")
    moved = order[np.take_along_axis(near, turn, axis=1)]
    ends = start[first][:, None] + np.cumsum(np.take_along_axis(size, turn, axis=1), axis=1)
    order[place[moves]] = moved[moves]
    start[place[moves] + 1] = ends[moves]
    count: IntArray = fits.sum(axis=1)
    return count


def _first_fit(size: IntArray, room: IntArray) -> NDArray[np.bool_]:
    """(n, LOOKAHEAD) nodes, one after the other: whether each fits into what is left of `room`."""
    fits = np.zeros(size.shape, dtype=bool)
    may = size <= room[:, None]
    while np.any(may):
        column = np.argmax(may, axis=1)
        chosen = may & (column[:, None] == _LANE)
        fits |= chosen
        room = room - np.sum(size, axis=1, where=chosen)
        may &= (column[:, None] < _LANE) & (size <= room[:, None])
    return fits
