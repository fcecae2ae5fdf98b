"""Node tiles: items in an order in which no tile splits an eliminated node.

Every item (factor) touches one *node*, which is to be eliminated, and a *partner*, a node that is
kept. A tile is what one block works on. If all items of a node lie in one tile, the block sums over
them in shared memory; if items of a partner are neighbours there, lanes sum over them by shuffles.
So nodes are put into an order in which neighbours share partners, tiles are cut between nodes, and
inside a tile items are grouped by partner. What is left of a tile at its end are holes.

Once for a structure. Here with NumPy, on the host; the CUDA backend makes the same arrays with
kernels of its own.

Tiles are filled with as many nodes as fit in their order, then smaller ones that follow soon: if
the next node does not fit, the rest of the tile would be holes, half a node in the mean
(docs/design/0012-elimination.md). Tiles have slightly fewer partners then, too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array
from caspar.memory.tiling.partner_labels import (
    NodeSample,
    locality_keys,
    partner_labels,
    sample_stride,
)

NARROW_BITS, WIDE_BITS = 8, 16
"""Bits of a position in an entry of `NodeTiles.place` with 32 bits, and in one with 64."""

NUM_NARROW_PARTNERS = 1 << (32 - 2 * NARROW_BITS)
"""Partners up to which an entry may have 32 bits."""

HOLE = 1
"""The entry of a hole, but for its partner: no item stands before the first of its node."""

LENGTH_SHIFT = 20
"""The first bit of the number of items in an entry of `NodeTiles.node_items`."""

POSITION_BITS = 10
"""Bits of a position in the largest tile."""

MAX_TILE_SIZE = 1 << POSITION_BITS

MAX_ROUNDS = POSITION_BITS
"""Rounds of as many items as the largest tile has, if they were summed by so many lanes."""

_ROUNDS = np.array([number.bit_length() for number in range(MAX_TILE_SIZE)])
"""Rounds of one item more than the index says."""

IntArray = NDArray[np.int64]

PlaceType = np.dtype[Any]
"""uint32 or uint64."""


@dataclass(frozen=True)
class NodeOrder:
    """Nodes in the order in which tiles have them; those without items come last.

    The node at each rank and the rank of each node, (num_nodes,) int32.
    """

    node: Array
    rank: Array

    @property
    def num_bytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.node.nbytes) + int(self.rank.nbytes)


@dataclass(frozen=True)
class NodeTiles:
    """Items in tiles that do not split nodes; see the module.

    Positions of a tile number its items grouped by node; items of a node keep their order. Slots
    number them grouped by partner: first those of the most rounds, ceil(log2 items), as all lanes
    of a warp wait for its longest run, which takes 5 at most (of 29 M items 3.0 rounds instead of
    3.6 on average); then by partner, and where that is the same, by position.

    Attributes:
        num_slots: `num_tiles` times the tile size.
        num_tiles: Tiles.
        num_groups: Groups. A group is the run of tiles that one block walks: one tile, or all
            tiles of a node that has more items than a tile.
        num_long: The latter: groups of two tiles and more, which stand first.
        order: (num_slots,) int32: the item at each slot. Holes repeat the first item of the tile.
        tile_items: (num_tiles,) int32, 1 .. tile size: the first so many slots of a tile have
            items, the others are holes.
        group_start: (num_groups + 1,) int32: first tile of each group.
        group_node: (num_groups + 1,) int32: rank of the first node of each group.
        node_items: (nodes with items,) int32: begin | length << LENGTH_SHIFT of each, by rank: its
            items have the positions [begin, begin + length) of its tile; 0 for those that fill
            several tiles.
        place: (num_slots,) uint32 or uint64, see `place_dtype`: what kernels need of an item in
            one word: begin of its node's items | own position << bits | partner << 2 * bits. Holes
            have HOLE, and the partner of the first item of the tile.
        node_order: Of all nodes.
    """

    num_slots: int
    num_tiles: int
    num_groups: int
    num_long: int
    order: Array
    tile_items: Array
    group_start: Array
    group_node: Array
    node_items: Array
    place: Array
    node_order: NodeOrder

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays, but for the order of the nodes."""
        groups = (self.tile_items, self.group_start, self.group_node)
        arrays = (self.order, *groups, self.node_items, self.place)
        return sum(int(array.nbytes) for array in arrays)

    @property
    def fields(self) -> dict[str, Array | int]:
        """The fields of a tiled kernel: places, where its group's tiles are, and their sizes."""
        return {
            "place": self.place,
            "items": self.tile_items,
            "group_start": self.group_start,
            "num_long": self.num_long,
            "num_long_tiles": self.num_tiles - self.num_short,
        }

    @property
    def node_fields(self) -> dict[str, Array | int]:
        """The fields of exchanges: the nodes of a tile, and where their items are."""
        return {"group_node": self.group_node, "node_items": self.node_items}

    def partners(self, bring: Callable[[Array], Array] = lambda array: array) -> Array:
        """(num_slots,) int32: the partner of each slot, where `bring` brings an array."""
        place = bring(self.place)
        return (place >> (2 * place_bits(place.dtype))).astype(np.int32)

    @property
    def num_short(self) -> int:
        """Groups of one tile."""
        return self.num_groups - self.num_long

    def num_stretches(self, num_resident: int) -> int:
        """Blocks of a kernel that may take several tiles: stretches, and a long group each.

        `num_resident` are the blocks that run at the same time.
        """
        return self.num_long + num_shares(self.num_short, num_resident)

    def stretch_fields(self, num_blocks: int) -> dict[str, Array | int]:
        """Return the fields of stretches: least tiles of a block, and blocks with one more."""
        stretch, num_longer = divmod(self.num_short, max(num_blocks - self.num_long, 1))
        more = {"end": self.num_tiles, "stretch": stretch, "num_longer": num_longer}
        return {**self.fields, **more}


@dataclass(frozen=True)
class _Nodes:
    """Nodes that have items, in the order in which tiles have them: long ones first.

    `items` are in the order of their nodes, which begin at `start`, (num + 1,); `first_short` is
    the first node of each tile of nodes that fit into one.
    """

    order: NodeOrder
    items: IntArray
    start: IntArray
    num_long: int
    first_short: IntArray


def place_dtype(
    num_partners: int, tile_size: int, max_narrow: int = NUM_NARROW_PARTNERS
) -> PlaceType:
    """Type of the places of items that touch one of so many partners, in tiles of so many."""
    is_wide = tile_size > 1 << NARROW_BITS or needs_wide_places(num_partners, max_narrow)
    return np.dtype(np.uint64 if is_wide else np.uint32)


def needs_wide_places(num_partners: int, max_narrow: int = NUM_NARROW_PARTNERS) -> bool:
    """Return whether so many partners take places of 64 bits, whatever the size of tiles."""
    return num_partners > max_narrow


def place_bits(dtype: PlaceType) -> int:
    """Bits of a position in a place of a type."""
    return NARROW_BITS if dtype == np.uint32 else WIDE_BITS


def build_node_tiles(
    node: NDArray[np.int32],
    partner: NDArray[np.int32] | None,
    num_nodes: int,
    num_partners: int,
    tile_size: int,
    dtype: PlaceType | None = None,
    *,
    keep_order: bool = False,
) -> NodeTiles:
    """Make node tiles of (n,) nodes and partners, which are numbers below those counts.

    Nodes without items do not appear; `partner` None: no partner matters. A tile has at most
    `MAX_TILE_SIZE` items. `dtype` is of the places; None: the narrowest that takes them,
    `place_dtype`. `keep_order`: nodes are numbered in the order in which tiles shall have them, as
    `build_node_order` found it.
    """
    assert 0 < tile_size <= MAX_TILE_SIZE
    by = None if keep_order else partner
    nodes = _ordered_nodes(node, by, num_nodes, num_partners, tile_size)
    size = np.diff(nodes.start)
    long_tiles = -(-size[: nodes.num_long] // tile_size)
    long_start = np.concatenate([[0], np.cumsum(long_tiles)])
    num_long_tiles = int(long_start[-1])
    # tiles of a long node: full ones from its first item on
    of_long = np.repeat(np.arange(nodes.num_long), long_tiles)
    number = np.arange(num_long_tiles) - long_start[of_long]
    first_short = nodes.first_short
    tile_begin = np.concatenate(
        [nodes.start[of_long] + number * tile_size, nodes.start[first_short], nodes.start[-1:]]
    )
    group_start = np.concatenate([long_start, num_long_tiles + 1 + np.arange(len(first_short))])
    group_node = np.concatenate([np.arange(nodes.num_long), first_short, [len(nodes.start) - 1]])
    groups = (group_start, group_node)
    dtype = place_dtype(num_partners, tile_size) if dtype is None else dtype
    return _sorted_tiles(nodes, partner, tile_begin, groups, tile_size, dtype)


def build_node_order(
    node: NDArray[np.int32],
    partner: NDArray[np.int32],
    num_nodes: int,
    num_partners: int,
    tile_size: int,
) -> NodeOrder:
    """The order in which node tiles would have the nodes; see `build_node_tiles`."""
    return _ordered_nodes(node, partner, num_nodes, num_partners, tile_size).order


def _ordered_nodes(
    node: NDArray[np.int32],
    partner: NDArray[np.int32] | None,
    num_nodes: int,
    num_partners: int,
    tile_size: int,
) -> _Nodes:
    items = _grouped(node)
    of_item = node[items]
    is_first = np.ones(len(node), dtype=bool)
    is_first[1:] = of_item[1:] != of_item[:-1]
    start = np.flatnonzero(is_first)
    size = np.diff(start, append=len(node))
    is_long = size > tile_size
    # the key, then the number of the node: all different, so that any sort will do
    code = np.arange(len(start), dtype=np.int64)
    if partner is not None and len(start) > 0:
        touched = partner[items]
        stride = sample_stride(len(node), num_partners)
        is_sampled = (of_item[start] % stride == 0) & ~is_long
        labels = partner_labels(_sample(touched, size, is_sampled), num_partners)
        key = locality_keys(touched, start, labels, num_partners)
        code |= (key + 1) << 32
    else:
        code |= 1 << 32
    code[is_long] &= 0xFFFFFFFF
    order = np.sort(code) & 0xFFFFFFFF
    ends = np.concatenate([[0], np.cumsum(size[order])])
    num_long = int(np.count_nonzero(is_long))
    first_short = pack_tiles(order, ends, num_long, tile_size)
    return _Nodes(
        order=_all_nodes(of_item[start[order]], num_nodes),
        items=items[np.repeat(start[order] - ends[:-1], size[order]) + np.arange(len(node))],
        start=ends,
        num_long=num_long,
        first_short=first_short,
    )


def _all_nodes(present: NDArray[np.int32], num_nodes: int) -> NodeOrder:
    is_absent = np.ones(num_nodes, dtype=bool)
    is_absent[present] = False
    nodes = np.concatenate([present, np.flatnonzero(is_absent)]).astype(np.int32)
    ranks = np.empty_like(nodes)
    ranks[nodes] = np.arange(num_nodes, dtype=np.int32)
    return NodeOrder(nodes, ranks)


def _sample(
    touched: NDArray[np.int32], size: IntArray, is_sampled: NDArray[np.bool_]
) -> NodeSample:
    sizes = size[is_sampled]
    return NodeSample(touched[np.repeat(is_sampled, size)], np.cumsum(sizes) - sizes)


def _grouped(node: NDArray[np.int32]) -> IntArray:
    """Items sorted by node, otherwise in their order.

    NumPy sorts numbers several times faster than it finds a stable order.
    """
    item = np.arange(len(node), dtype=np.int64)
    if np.all(node[1:] >= node[:-1]):
        return item
    return np.sort((node.astype(np.int64) << 32) | item) & 0xFFFFFFFF


def _sorted_tiles(
    nodes: _Nodes,
    partner: NDArray[np.int32] | None,
    tile_begin: IntArray,
    groups: tuple[IntArray, IntArray],
    tile_size: int,
    dtype: PlaceType,
) -> NodeTiles:
    """Sort every tile by partner; `groups`: first tile and first node of each."""
    tile_items = np.diff(tile_begin)
    num_tiles = len(tile_items)
    count = len(nodes.items)
    position = np.arange(count) - np.repeat(tile_begin[:-1], tile_items)
    size = np.diff(nodes.start)
    begin = np.repeat(nodes.start[:-1], size) - (np.arange(count) - position)
    num_of_long = int(nodes.start[nodes.num_long])
    begin[:num_of_long] = 0
    bits = place_bits(dtype)
    own = 0 if partner is None else partner[nodes.items].astype(np.int64)
    place = begin | (position << bits) | (own << (2 * bits))
    node_items = begin[nodes.start[:-1]] | (size << LENGTH_SHIFT)
    node_items[: nodes.num_long] = 0

    holes = np.iinfo(np.int64).max
    key = np.full((num_tiles, tile_size), holes, dtype=np.int64)
    has_item = np.arange(tile_size) < tile_items[:, None]
    key[has_item] = position | (own << POSITION_BITS)
    if partner is not None:
        key.sort(axis=1)
        key = np.take_along_axis(key, _most_rounds_first(key >> POSITION_BITS, has_item), axis=1)
    source = (key & (MAX_TILE_SIZE - 1)) + tile_begin[:-1, None]
    source[~has_item] = np.broadcast_to(source[:, :1], source.shape)[~has_item]
    places = place[source]
    places[~has_item] = (places[~has_item] >> (2 * bits) << (2 * bits)) | HOLE
    return NodeTiles(
        num_slots=num_tiles * tile_size,
        num_tiles=num_tiles,
        num_groups=len(groups[0]) - 1,
        num_long=nodes.num_long,
        order=nodes.items[source].astype(np.int32).reshape(-1),
        tile_items=tile_items.astype(np.int32),
        group_start=groups[0].astype(np.int32),
        group_node=groups[1].astype(np.int32),
        node_items=node_items.astype(np.int32),
        place=places.astype(dtype).reshape(-1),
        node_order=nodes.order,
    )


def _most_rounds_first(partner: IntArray, has_item: NDArray[np.bool_]) -> IntArray:
    """Order slots of sorted (num_tiles, tile_size) partners: most rounds first, holes last."""
    is_first = np.ones(partner.shape, dtype=bool)
    is_first[:, 1:] = partner[:, 1:] != partner[:, :-1]
    begin = np.flatnonzero(is_first)
    length = np.diff(begin, append=partner.size)
    own = np.repeat(_ROUNDS[length - 1], length).reshape(partner.shape)
    key = np.where(has_item, MAX_ROUNDS - own, MAX_ROUNDS + 1)
    return np.argsort(key, axis=1, kind="stable")


MOST_TILES = 6
"""Tiles that a block takes one after the other, at most: it has the indices of the next before it
is done with one, and fewer blocks have to begin. Iterations of PCG on bundle adjustment, H200, us,
with 2, 3, 4 and 6 turns of blocks, and in parentheses with stretches of 3: 3 M observations 76.1,
75.7, 74.9 and 75.5 recomputed (76.0), 100.5, 99.1, 96.1 and 95.6 stored (94.9); 5.0 M stored with
2, 3, 5 and 7 turns 156, 159, 152 and 149 (152 with stretches of 8)."""

LEAST_TURNS = 2
"""Blocks that a multiprocessor has one after the other in each of its places, at least, where not
all tiles are begun at the same time. With 1, 2 and 3, and in parentheses with stretches of two,
whose last turn is not full: 0.7 M observations 27.4, 20.3 and 21.0 recomputed (21.4), 33.0, 19.3
and 19.4 with float16 (19.9), 32.4, 23.1 and 23.6 stored (24.2); 1.3 M with 2, 3 and 4: 33.1, 34.4
and 33.9 recomputed (34.6), 31.2, 29.0 and 29.6 with float16 (30.1)."""


def num_shares(num_tiles: int, num_resident: int) -> int:
    """Blocks that take equal parts of the tiles, so that the last to run are as many as others."""
    if num_tiles <= num_resident:
        return num_tiles
    if num_tiles <= 2 * num_resident:
        # two for each block: all run at the same time, and a loop may be one kernel
        return -(-num_tiles // 2)
    turns = -(-num_tiles // (MOST_TILES * num_resident))
    return max(turns, LEAST_TURNS) * num_resident


TILES_OF_CHUNK = 256
"""Tiles are cut one after the other within a chunk of as many full tiles of items, and chunks at
the same time. The last tile of a chunk is half empty in the mean: 0.2 % of all slots."""

LOOKAHEAD = 32
"""Nodes that are looked at when the next one does not fit: a warp's, on a device."""


_LANE = np.arange(LOOKAHEAD)


def pack_tiles(order: IntArray, start: IntArray, num_long: int, tile_size: int) -> IntArray:
    """Cut tiles of short nodes, and put these into the order in which tiles have them.

    `order` has the nodes, long ones first, and `start` the items of all nodes before each; both are
    changed. Returns the place in `order` of the first node of each tile, (num_tiles,).
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

    `order` and `start` as in `pack_tiles`; `first` is the node that does not fit into each tile,
    `end` past the last node of its chunk, `full_at` the value of `start` after a full tile.
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
