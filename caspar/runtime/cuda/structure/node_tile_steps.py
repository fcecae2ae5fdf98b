"""The launches that build node tiles with the kernels of `codegen.cuda.structure.node_tiles`.

Apart from CuPy, so that they run on the host too, where tests compile the kernels for it. Reads
four numbers back, and the places of the partners where these get labels.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.structure.node_tiles import MAX_TILES_OF_CHUNK, NODE_BLOCK_SIZE
from caspar.codegen.cuda.structure.partner_labels import NORMALISE_BLOCK_SIZE
from caspar.memory.array import Array
from caspar.memory.tiling.node_tiles import (
    LOOKAHEAD,
    TILES_OF_CHUNK,
    NodeOrder,
    NodeTiles,
    PlaceType,
    place_dtype,
)
from caspar.memory.tiling.partner_labels import (
    FEWEST_PARTNERS,
    MOST_PARTNERS,
    NUM_ROUNDS,
    first_coordinates,
    key_bits,
    labels_along_curve,
    ranks,
    sample_stride,
)


class Tools(Protocol):
    """Operations of a device that the steps need."""

    @property
    def xp(self) -> ModuleType:
        """NumPy or CuPy."""

    def launch(self, name: str, num_blocks: int, block_size: int, *arguments: Any) -> None:
        """Enqueue a kernel; None is the null pointer."""

    def scan(self, values: Array) -> None:
        """Replace (n,) uint32 by the sums of all before each."""

    def sorted_places(self, index: Array, tile_size: int) -> Array:
        """Sort as `memory.tiling.tiles.TileOrder.order` does; the result may not be ready yet."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """A copy, when it is there."""

    def upload(self, array: NDArray[Any]) -> Array:
        """A copy on the device."""


@dataclass(frozen=True)
class _Grouped:
    """Items grouped by node: node k has items[first[k] : end[k]]."""

    num_nodes: int
    tile_size: int
    items: Array
    first: Array
    end: Array


@dataclass(frozen=True)
class _Labels:
    """Labels and rarities of partners, (2, num_partners), and the measure of both numberings."""

    numbers: Array
    spans: Array


@dataclass(frozen=True)
class _Ordered:
    """Nodes in their order, see `memory.tiling.node_tiles`. `_pack` changes `order` and `start`."""

    order: Array
    num_nodes: int
    num_long: int
    num_long_tiles: int
    start: Array
    long_start: Array


def make_node_tiles(
    tools: Tools,
    node: Array,
    partner: Array | None,
    num_nodes: int,
    num_partners: int,
    tile_size: int,
    dtype: PlaceType | None = None,
    *,
    keep_order: bool = False,
) -> NodeTiles:
    """Build what `memory.tiling.node_tiles.build_node_tiles` builds, to the last number."""
    dtype = place_dtype(num_partners, tile_size) if dtype is None else dtype
    if node.shape[0] == 0:
        none = tools.xp.empty(0, dtype=np.int32)
        start, order = tools.xp.zeros(1, dtype=np.int32), _given_order(tools, num_nodes)
        place = tools.xp.empty(0, dtype=dtype)
        return NodeTiles(0, 0, 0, 0, none, none, start, start, none, place, order)
    grouped = _group(tools, node, num_nodes, tile_size)
    nodes = _put_in_order(tools, grouped, None if keep_order else partner, num_partners)
    first_node, num_short_tiles = _pack(tools, nodes, int(node.shape[0]), tile_size)
    place = tools.xp.empty((nodes.num_long_tiles + num_short_tiles) * tile_size, dtype=dtype)
    return _fill(tools, grouped, nodes, partner, num_partners, first_node, place)


def make_node_order(
    tools: Tools, node: Array, partner: Array, num_nodes: int, num_partners: int, tile_size: int
) -> NodeOrder:
    """Build what `memory.tiling.node_tiles.build_node_order` builds, to the last number."""
    if node.shape[0] == 0:
        return _given_order(tools, num_nodes)
    grouped = _group(tools, node, num_nodes, tile_size)
    nodes = _put_in_order(tools, grouped, partner, num_partners)
    _pack(tools, nodes, int(node.shape[0]), tile_size)
    return _node_order(tools, grouped, nodes)


def _given_order(tools: Tools, num_nodes: int) -> NodeOrder:
    number = tools.xp.arange(num_nodes, dtype=np.int32)
    return NodeOrder(number, number)


def _blocks(count: int) -> int:
    return -(-count // NODE_BLOCK_SIZE)


def _group(tools: Tools, node: Array, num_nodes: int, tile_size: int) -> _Grouped:
    count = int(node.shape[0])
    by_node = tools.xp.argsort(node, kind="stable")
    items = tools.xp.empty(count, dtype=np.int32)
    first = tools.xp.zeros(num_nodes, dtype=np.int32)
    end = tools.xp.zeros(num_nodes, dtype=np.int32)
    found = (node, items, first, end)
    tools.launch("find_nodes", _blocks(count), NODE_BLOCK_SIZE, np.uint32(count), by_node, *found)
    return _Grouped(num_nodes, tile_size, items, first, end)


def _find_labels(
    tools: Tools, grouped: _Grouped, partner: Array, num_partners: int
) -> _Labels | None:
    """Run `memory.tiling.partner_labels.partner_labels`; the device picks old or new labels."""
    if not FEWEST_PARTNERS <= num_partners <= MOST_PARTNERS:
        return None
    stride = sample_stride(int(partner.shape[0]), num_partners)
    num_blocks = _blocks(-(-grouped.num_nodes // stride))
    sizes = (np.uint32(grouped.num_nodes), np.uint32(stride), np.uint32(grouped.tile_size))
    nodes = (grouped.items, grouped.first, grouped.end, partner)
    # places of both axes, then the number of items of each partner: one copy each way
    found = np.zeros((3, num_partners), dtype=np.int32)
    found[:2] = first_coordinates(num_partners)
    state = tools.upload(found)
    place, count = state[:2], state[2]
    sums = tools.xp.zeros((2, num_partners), dtype=np.uint64)
    size = np.uint32(num_partners)
    for number in range(NUM_ROUNDS):
        read = (*nodes, place, sums, count if number == 0 else None)
        tools.launch("average_places", num_blocks, NODE_BLOCK_SIZE, *sizes, size, *read)
        tools.launch("normalise_places", 1, NORMALISE_BLOCK_SIZE, size, count, sums, place)
    found = tools.to_host(state).astype(np.int64)
    labels = np.stack([labels_along_curve(found[:2]), ranks(found[2]).astype(np.int32)])
    numbers = tools.upload(labels)
    spans = tools.xp.zeros(2, dtype=np.uint64)
    tools.launch("measure_labels", num_blocks, NODE_BLOCK_SIZE, *sizes, *nodes, numbers, spans)
    return _Labels(numbers, spans)


def _put_in_order(
    tools: Tools, grouped: _Grouped, partner: Array | None, num_partners: int
) -> _Ordered:
    """Sort nodes by key; reads how many there are, and how many are long."""
    labels = None if partner is None else _find_labels(tools, grouped, partner, num_partners)
    partner_bits, curve_bits = key_bits(num_partners, has_labels=False)
    _, label_curve_bits = key_bits(num_partners, has_labels=True)
    key = tools.xp.empty(grouped.num_nodes, dtype=np.int32)
    stats = tools.xp.zeros(3, dtype=np.uint32)
    tools.launch(
        "make_keys",
        _blocks(grouped.num_nodes),
        NODE_BLOCK_SIZE,
        np.uint32(grouped.num_nodes),
        np.uint32(grouped.tile_size),
        np.uint32(num_partners),
        np.uint32(partner_bits),
        np.uint32(curve_bits),
        np.uint32(label_curve_bits),
        grouped.items,
        grouped.first,
        grouped.end,
        partner,
        None if labels is None else labels.numbers,
        None if labels is None else labels.spans,
        key,
        stats,
    )
    order = tools.xp.argsort(key, kind="stable")
    num_nodes, num_long, num_long_tiles = (int(number) for number in tools.to_host(stats))
    start = _starts(tools, grouped, order, num_nodes, 1)
    long_start = _starts(tools, grouped, order, num_long, grouped.tile_size)
    return _Ordered(order, num_nodes, num_long, num_long_tiles, start, long_start)


def _starts(tools: Tools, grouped: _Grouped, order: Array, count: int, unit: int) -> Array:
    """(count + 1,): where each of the first nodes begins, in runs of `unit` items."""
    if count == 0:
        return tools.xp.zeros(1, dtype=np.int32)
    num_blocks = _blocks(count)
    sums = tools.xp.empty(num_blocks, dtype=np.uint32)
    start = tools.xp.empty(count + 1, dtype=np.int32)
    nodes = (np.uint32(count), np.uint32(unit), order, grouped.first, grouped.end)
    tools.launch("sum_sizes", num_blocks, NODE_BLOCK_SIZE, *nodes, sums)
    tools.scan(sums)
    tools.launch("place_nodes", num_blocks, NODE_BLOCK_SIZE, *nodes, sums, start)
    return start


def _pack(tools: Tools, nodes: _Ordered, num_items: int, tile_size: int) -> tuple[Array, int]:
    """First node of each tile of short nodes, and one past the last; how many such tiles."""
    num_short = nodes.num_nodes - nodes.num_long
    if num_short == 0:
        return tools.xp.empty(1, dtype=np.int32), 0
    # long nodes count as none here: more chunks than needed have no node, and none in between
    num_chunks = -(-num_items // (TILES_OF_CHUNK * tile_size))
    chunk_first = tools.upload(np.full(num_chunks, nodes.num_nodes, dtype=np.int32))
    tile_node = tools.xp.empty(num_chunks * MAX_TILES_OF_CHUNK, dtype=np.int32)
    num_tiles = tools.xp.empty(num_chunks + 1, dtype=np.uint32)
    size, num_nodes = np.uint32(tile_size), np.uint32(nodes.num_nodes)
    short = (num_nodes, np.uint32(nodes.num_long), size, nodes.start, chunk_first)
    tools.launch("find_chunks", _blocks(num_short), NODE_BLOCK_SIZE, *short)
    packed = (nodes.order, nodes.start, tile_node, num_tiles)
    chunks = (np.uint32(num_chunks), num_nodes, size, chunk_first, *packed)
    tools.launch("pack_chunks", num_chunks + 1, LOOKAHEAD, *chunks)
    tools.scan(num_tiles)
    total = int(tools.to_host(num_tiles[-1:])[0])
    first_node = tools.xp.empty(total + 1, dtype=np.int32)
    listed = (num_nodes, tile_node, num_tiles, first_node)
    tools.launch("list_tiles", num_chunks, NODE_BLOCK_SIZE, *listed)
    return first_node, total


def _fill(
    tools: Tools,
    grouped: _Grouped,
    nodes: _Ordered,
    partner: Array | None,
    num_partners: int,
    first_node: Array,
    place: Array,
) -> NodeTiles:
    tile_size, num_slots = grouped.tile_size, int(place.shape[0])
    num_tiles = num_slots // tile_size
    num_groups = nodes.num_long + num_tiles - nodes.num_long_tiles
    tile_items = tools.xp.empty(num_tiles, dtype=np.int32)
    group_start, group_node = (tools.xp.empty(num_groups + 1, dtype=np.int32) for _ in range(2))
    node_items = tools.xp.empty(nodes.num_nodes, dtype=np.int32)
    item_at, partner_at, order = (tools.xp.empty(num_slots, dtype=np.int32) for _ in range(3))
    place_at = tools.xp.empty(num_slots, dtype=np.uint32)
    sizes = (np.uint32(num_tiles), np.uint32(nodes.num_long), np.uint32(num_partners))
    read = (grouped.items, nodes.order, grouped.first, nodes.start, nodes.long_start, first_node)
    groups = (tile_items, group_start, group_node, node_items)
    filled = (*groups, item_at, partner_at, place_at)
    tools.launch("fill_tiles", num_tiles, tile_size, *sizes, *read, partner, *filled)
    by_partner = tools.sorted_places(partner_at, tile_size)
    # partners are not needed any more
    tools.launch("count_rounds", num_tiles, tile_size, by_partner, tile_items, partner_at)
    by_rounds = tools.sorted_places(partner_at, tile_size)
    slots = (np.uint32(num_slots), np.uint32(tile_size), by_partner, by_rounds, tile_items)
    places = (None, place) if place.dtype == np.uint64 else (place, None)
    moved = (item_at, place_at, partner, order, *places)
    tools.launch("sort_slots", _blocks(num_slots), NODE_BLOCK_SIZE, *slots, *moved)
    counts = (num_slots, num_tiles, num_groups, nodes.num_long)
    return NodeTiles(*counts, order, *groups, place, _node_order(tools, grouped, nodes))


def _node_order(tools: Tools, grouped: _Grouped, nodes: _Ordered) -> NodeOrder:
    """Both ways; nodes without items come last."""
    node, rank = (tools.xp.empty(grouped.num_nodes, dtype=np.int32) for _ in range(2))
    all_nodes = (np.uint32(grouped.num_nodes), nodes.order, node, rank)
    tools.launch("rank_nodes", _blocks(grouped.num_nodes), NODE_BLOCK_SIZE, *all_nodes)
    return NodeOrder(node, rank)
