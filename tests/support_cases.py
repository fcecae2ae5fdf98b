"""What a kernel is run on, and what NumPy makes of it.

A `KernelCase` says what a kernel is bound to. Each way of running it gets fresh memory from it:
outputs are poisoned with NaN, arrays are longer than needed and lie between canaries, so that
comparing whole arrays shows what was written where nothing should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph
from caspar.memory.access import TILES, ArgSpec
from caspar.memory.accessors.nodes.exchanges import ReadForNode, SpreadOverNode, SumOverNode
from caspar.memory.accessors.nodes.node_sums import AddOwnNode, WriteOwnNode
from caspar.memory.accessors.sums.partials import MIN_SLOTS, AddSumSlots, tile_fields
from caspar.memory.accessors.sums.runs import AddRuns
from caspar.memory.accessors.sums.slots import BeginSlots, ReadSlots
from caspar.memory.array import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.patterns import (
    AddSharedPartials,
    AddStretchPartials,
    AddSumPartials,
    ReadIndexed,
    ReadPartials,
    ReadSequential,
    ReadUnique,
    WriteUnique,
)
from caspar.memory.tiling.node_tiles import NodeTiles, build_node_tiles
from caspar.memory.tiling.tiles import TileIndex, build_tile_index
from tests.support_memory import (
    Placement,
    block_of_tiles,
    place,
    tile_partials,
    with_canaries,
)

Array = NDArray[Any]
Index = NDArray[np.int32]

SPARE = 3
"""Objects, rows or partials an array has beyond those the kernel needs."""

WARP_SIZE = 32

OFFSET = 1
"""Partial of tile 0 of a `AddSumPartials()`."""


@dataclass(frozen=True)
class KernelCase:
    """What a kernel is run on.

    Attributes:
        spec: The kernel.
        count: Items.
        rows: (length, dim) values of each argument that is read.
        index: (count,) object of each item, of each argument that has an index of its own.
        num_objects: Objects that the indices of sums may name.
        node: (count,) eliminated node of each item, of a tiled kernel.
        partner: (count,) node by which the items of a tile are sorted, of a tiled kernel.
        copies: Slots of every object, of arrays that have several; rows come slot by slot.
        stretch: Tiles that a block takes one after the other, of a kernel that may.
    """

    spec: KernelSpec
    count: int
    rows: Mapping[str, Array]
    index: Mapping[str, Index] = field(default_factory=dict)
    num_objects: int = 1
    node: Index | None = None
    partner: Index | None = None
    copies: int = 1
    stretch: int = 1

    @property
    def coarsest_eps(self) -> float:
        """Machine epsilon of the coarsest type the kernel uses."""
        dtypes = {self.spec.graph.dtype, *(arg.dtype for arg in self.spec.args)} - {DType.INT32}
        return max(float(np.finfo(dtype.value).eps) for dtype in dtypes)

    def perturbed(self, relative: float, seed: int) -> KernelCase:
        """The same with every input off by a relative error, up or down."""
        rng = np.random.default_rng(seed)
        rows = {
            name: values * (1.0 + relative * rng.choice([-1.0, 1.0], values.shape))
            for name, values in self.rows.items()
        }
        return replace(self, rows=rows)

    def node_tiles(self, tile_size: int) -> NodeTiles | None:
        """Slots of a tiled kernel."""
        if self.node is None:
            return None
        partner = None if self.partner is None else self.partner.astype(np.int32).tobytes()
        return _node_tiles(self.node.astype(np.int32).tobytes(), partner, tile_size)

    def objects_of(self, arg: ArgSpec) -> Index:
        """(count,) object of each item, by the index that an argument goes by."""
        owners = [access.index_of for access in arg.accessors if access.index_of != ""]
        if TILES in owners:
            return np.zeros(self.count, np.int32) if self.partner is None else self.partner
        return self.index[owners[0] if len(owners) > 0 else arg.name]

    def places_of(self, arg: ArgSpec, tile_size: int) -> Index:
        """(count,) row of each item's object: nodes are in the order of the tiles."""
        tiles = self.node_tiles(tile_size)
        objects = self.objects_of(arg)
        return objects if tiles is None else self._placed(arg, objects, tiles)

    def _placed(self, arg: ArgSpec, objects: Index, tiles: NodeTiles) -> Index:
        return tiles.node_order.rank[objects] if self._is_of_node(arg) else objects

    def _is_of_node(self, arg: ArgSpec) -> bool:
        """Whether an argument goes by the index of the eliminated nodes, in their order."""
        if _is_apart(arg) or not any(_is_in_order(one) for one in self.spec.args):
            return False
        owners = [access.index_of for access in arg.accessors if access.index_of != ""]
        owner = owners[0] if len(owners) > 0 else arg.name
        return self.index.get(owner) is self.node and self.node is not None

    def num_slots(self, tile_size: int) -> int:
        """Items, and holes of node tiles."""
        tiles = self.node_tiles(tile_size)
        return self.count if tiles is None else tiles.num_slots

    def bindings(self, tile_size: int, *, stretches: bool = False) -> dict[str, Binding]:
        """Fresh memory for a target whose tiles have this size; `stretches`: see `stretch`."""
        tiles = self.node_tiles(tile_size)
        made = {arg.name: self._binding(arg, tile_size, tiles) for arg in self.spec.args}
        if tiles is not None:
            stretch = self.stretch if stretches else 1
            num_blocks = tiles.num_long - (-tiles.num_short // stretch)
            fields = tiles.stretch_fields(num_blocks) if stretches else tiles.fields
            made[TILES] = Binding(tiles.tile_items, num_blocks, fields=fields)
        return made

    def _binding(self, arg: ArgSpec, tile_size: int, tiles: NodeTiles | None) -> Binding:
        if isinstance(arg.read, SumOverNode | SpreadOverNode):
            assert tiles is not None
            return Binding(with_canaries(np.empty(0)), 0, fields=tiles.node_fields)
        fields, length = self._layout(arg, tile_size, tiles)
        placement = place(arg, length)
        data = np.full(placement.size, np.nan, arg.dtype.value)
        if arg.name in self.rows:
            data[placement.where] = self._slot_rows(arg, tiles)
            if tiles is not None and self._is_of_node(arg):
                node = tiles.node_order.node
                data[placement.where[: len(node)]] = data[placement.where[node]]
        return Binding(with_canaries(data.view(arg.dtype.in_arrays.value)), length, fields=fields)

    def _layout(
        self, arg: ArgSpec, tile_size: int, tiles: NodeTiles | None
    ) -> tuple[dict[str, Array | int], int]:
        """What its access needs besides the array, and the array's length."""
        num_slots = self.count if tiles is None else tiles.num_slots
        fields: dict[str, Array | int] = {}
        index = self.index.get(arg.name)
        if index is not None:
            # holes name the object of the first item of their tile
            index = index if tiles is None else self._placed(arg, index, tiles)[tiles.order]
            fields = {"index": index}
        if isinstance(arg.write, AddOwnNode | WriteOwnNode):
            assert tiles is not None
            fields |= tiles.node_fields
            fields["node_at"] = tiles.node_order.node[: len(tiles.node_items)]
        if isinstance(arg.write, AddSumSlots):
            fields["slots"] = MIN_SLOTS
        if arg.write == AddSharedPartials():
            assert index is not None
            partial_tiles = self._partial_tiles(index, tile_size, tiles)
            return tile_fields(partial_tiles), partial_tiles.num_partials + SPARE
        if isinstance(arg.write, AddSumPartials):
            return {"offset": OFFSET}, OFFSET + -(-num_slots // tile_size) + SPARE
        if has_slots(arg):
            fields |= {"slots": self.copies, "stride": self.stride(arg)}
            return fields, self.copies * self.stride(arg)
        if arg.name in self.rows:
            return fields, len(self.rows[arg.name]) + self._num_holes(arg, num_slots)
        if isinstance(arg.write, WriteOwnNode):
            return fields, int(self.objects_of(arg).max()) + 1 + SPARE
        return fields, (1 if arg.write == WriteUnique() else num_slots) + SPARE

    def stride(self, arg: ArgSpec) -> int:
        """Rows of a slot."""
        rows = self.rows.get(arg.name)
        return self.count + SPARE if rows is None else len(rows) // self.copies

    def _partial_tiles(self, index: Index, tile_size: int, tiles: NodeTiles | None) -> TileIndex:
        if tiles is None:
            return build_tile_index(index, self.num_objects, tile_size)
        is_hole = np.arange(tile_size) >= tiles.tile_items[:, None]
        named = np.where(is_hole.reshape(-1), self.num_objects, index).astype(np.int32)
        return build_tile_index(named, self.num_objects + 1, tile_size)

    def _num_holes(self, arg: ArgSpec, num_slots: int) -> int:
        return num_slots - self.count if isinstance(arg.read, ReadSequential) else 0

    def _slot_rows(self, arg: ArgSpec, tiles: NodeTiles | None) -> Array:
        """The rows of an argument; of a sequential one in the order of the slots, holes NaN."""
        rows = self.rows[arg.name]
        if tiles is None or not isinstance(arg.read, ReadSequential):
            return rows
        slots = np.full((tiles.num_slots, arg.dim), np.nan, rows.dtype)
        filled = slots_of_items(tiles, self.count)
        slots[filled] = rows[: self.count]
        return np.concatenate([slots, rows[self.count :]])


@lru_cache(maxsize=64)
def _node_tiles(nodes: bytes, partners: bytes | None, tile_size: int) -> NodeTiles:
    """Node tiles of the bytes of two int32 indices: every run of a case asks many times."""
    node = np.frombuffer(nodes, np.int32)
    partner = None if partners is None else np.frombuffer(partners, np.int32)
    num_partners = 0 if partner is None else int(partner.max()) + 1
    return build_node_tiles(node, partner, int(node.max()) + 1, num_partners, tile_size)


def _is_in_order(arg: ArgSpec) -> bool:
    """Whether an array must be in the order of the tiles' nodes."""
    adds = isinstance(arg.write, AddOwnNode) and arg.write.in_order
    return adds or isinstance(arg.write, WriteOwnNode) or isinstance(arg.read, ReadForNode)


def _is_apart(arg: ArgSpec) -> bool:
    """Whether an array of nodes may have another order than their tiles."""
    return isinstance(arg.write, AddOwnNode) and not arg.write.in_order


def slots_of_items(tiles: NodeTiles, count: int) -> Array:
    """(count,) slot of each item."""
    tile_size = tiles.num_slots // tiles.num_tiles
    has_item = (np.arange(tile_size) < tiles.tile_items[:, None]).reshape(-1)
    slots = np.empty(count, np.int64)
    slots[tiles.order[has_item]] = np.flatnonzero(has_item)
    return slots


def has_slots(arg: ArgSpec) -> bool:
    """Whether an array may hold every object several times."""
    write = arg.write
    is_spread = isinstance(write, AddRuns) and write.spread
    return is_spread or isinstance(write, BeginSlots) or isinstance(arg.read, ReadSlots)


@dataclass(frozen=True)
class Run:
    """What a kernel left behind.

    Attributes:
        case: What it ran on.
        bindings: The memory afterwards.
        tile_size: Items of a tile.
        writes_pads: Whether a store fills the pad of a chunk with zeros.
    """

    case: KernelCase
    bindings: Mapping[str, Binding]
    tile_size: int
    writes_pads: bool

    def on(self, case: KernelCase) -> Run:
        """The same way of running on another case."""
        return replace(self, case=case)

    def expected(self, dtype: DType) -> dict[str, Array]:
        """What NumPy makes of the same case, computing in a type: flat arrays."""
        before = self.case.bindings(self.tile_size)
        stored = _evaluate(self.case, before, dtype)
        return {
            arg.name: self._written(arg, before[arg.name], stored.get(arg.name))
            for arg in self.case.spec.args
        }

    def _blocks(self, slots: Array, tiles: NodeTiles | None) -> Array:
        """The block that has each slot, on CUDA."""
        tile: Array = slots // self.tile_size
        if tiles is None:
            return tile
        stretch = self.case.stretch if self.case.spec.stretches else 1
        return block_of_tiles(tiles, tile, stretch)

    def _warps(self, slots: Array, tiles: NodeTiles | None) -> Array:
        """The warp that has each slot, on CUDA."""
        first = self._blocks(slots, tiles) * (self.tile_size // WARP_SIZE)
        warp: Array = first + slots % self.tile_size // WARP_SIZE
        return warp

    def _written(self, arg: ArgSpec, binding: Binding, stored: Array | None) -> Array:
        data: Array = binding.data
        if stored is None:
            return data
        case, values = self.case, stored.astype(arg.dtype.value)
        placement = place(arg, binding.length)
        tiles = case.node_tiles(self.tile_size)
        slots = np.arange(case.count) if tiles is None else slots_of_items(tiles, case.count)
        if arg.write == AddSharedPartials():
            self._add_partials(arg, data, placement, slots, values)
        elif isinstance(arg.write, AddStretchPartials):
            totals = np.zeros((len(placement.where), arg.dim), np.longdouble)
            np.add.at(totals, OFFSET + self._blocks(slots, tiles), values)
            written = np.unique(OFFSET + self._blocks(slots, tiles))
            data[placement.where[written]] = totals[written]
        elif arg.write == AddSumPartials():
            for tile in range(-(-case.num_slots(self.tile_size) // self.tile_size)):
                total = values[slots // self.tile_size == tile].sum(axis=0, dtype=np.longdouble)
                data[placement.where[OFFSET + tile]] = total
        elif isinstance(arg.write, AddSumSlots):
            np.add.at(data, self._warps(slots, tiles) % MIN_SLOTS, values[:, 0])
        elif isinstance(arg.write, AddOwnNode | AddRuns):
            objects = case.places_of(arg, self.tile_size)
            if has_slots(arg):
                objects = objects + slots // self.tile_size % case.copies * case.stride(arg)
            np.add.at(data, placement.where[objects], values)
        elif isinstance(arg.write, BeginSlots):
            for first in range(0, case.copies * case.stride(arg), case.stride(arg)):
                data[placement.where[first + slots]] = 0.0 if first > 0 else values
                self._write_pads(data, placement, first + slots)
        elif isinstance(arg.write, WriteOwnNode):
            moved = case.places_of(arg, self.tile_size)
            data[placement.where[moved]] = values
            self._write_pads(data, placement, np.unique(moved))
        else:
            written = slots[:1] if arg.write == WriteUnique() else slots
            data[placement.where[written]] = values[: len(written)]
            self._write_pads(data, placement, written)
        return data

    def _write_pads(self, data: Array, placement: Placement, written: Array) -> None:
        if self.writes_pads and len(placement.pads) > 0:
            data[placement.pads.reshape(len(placement.where), -1)[written]] = 0.0

    def _add_partials(
        self, arg: ArgSpec, data: Array, placement: Placement, slots: Array, values: Array
    ) -> None:
        """A partial for each object of a tile; that of the holes, which nobody reads, is open."""
        objects = np.full(self.case.num_slots(self.tile_size), self.case.num_objects)
        objects[slots] = self.case.index[arg.name]
        by_slot = np.zeros((len(objects), arg.dim), values.dtype)
        by_slot[slots] = values
        found = self.bindings[arg.name].data
        for number, (owner, items) in enumerate(tile_partials(objects, self.tile_size)):
            if owner < self.case.num_objects:
                data[placement.where[number]] = by_slot[items].sum(axis=0, dtype=np.longdouble)
            else:
                data[placement.where[number]] = found[placement.where[number]]


def _evaluate(case: KernelCase, bindings: Mapping[str, Binding], dtype: DType) -> dict[str, Array]:
    """(count, dim) values that each argument's store gets."""
    inputs, objects = {}, {}
    for arg in case.spec.args:
        if arg.read is None:
            continue
        if isinstance(arg.read, SumOverNode):
            assert case.node is not None
            objects[arg.name] = case.node
            continue
        if isinstance(arg.read, SpreadOverNode):
            continue
        rows = case.rows[arg.name]
        if isinstance(arg.read, ReadPartials):
            rows = rows.astype(np.float64).sum(axis=0, keepdims=True)
        elif isinstance(arg.read, ReadSlots):
            rows = rows.reshape(case.copies, -1, arg.dim).sum(axis=0)
        elif arg.read == ReadUnique():
            rows = rows[:1]
        elif isinstance(arg.read, ReadIndexed | ReadForNode):
            rows = rows[case.objects_of(arg)]
        inputs[arg.name] = np.broadcast_to(rows[: case.count], (case.count, arg.dim))
    lengths = {arg.name: arg.chunk_length for arg in case.spec.args}
    return evaluate_graph(replace(case.spec.graph, dtype=dtype), inputs, lengths, objects)
