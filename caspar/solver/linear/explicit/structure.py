"""List the blocks of the system's matrix, and the items that add to each.

Input: a plan. Output: lists of blocks, and for the items of factors and the pairs of items of
eliminated nodes the number of the block they add to. Once for each structure, on the host where
that is quick.

An item is an instance's argument: it couples an eliminated node with one that remains, by its Z
(see `explicit_kernels`). The matrix has a product for every pair of items of an eliminated node:
k (k + 1) / 2 of k items. Where several items couple the same two nodes, as all corners of a picture
couple its view with one camera, their Z are summed first: sum_a sum_b Z_a Z_b^T = (sum Z_a)
(sum Z_b)^T. Then pairs of nodes count, and not pairs of instances.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.errors import OutOfMemoryError
from caspar.memory.array import Array
from caspar.runtime.array_tools import ArrayTools
from caspar.solver.linear.explicit.explicit_kernels import ArgumentPair, argument_pairs
from caspar.solver.normal.blocks import (
    CHUNK,
    BlockList,
    Coupling,
    TypePair,
    Unknowns,
    block_lists,
    pairs_within,
)
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan

MixedTypes = tuple[str, str]
"""Names of an eliminated type and of one that remains: there is one array of Z for each."""

MIN_MERGED = 2
"""Items for each two nodes that they couple, from which on they are summed first: a sum takes a
kernel more."""


@dataclass(frozen=True)
class MixedWindows:
    """The places of the items' Z, in one array for each eliminated and reduced type."""

    counts: Mapping[MixedTypes, int]
    first: Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class MergedItems:
    """Items of one array that are summed first.

    Attributes:
        items: (n,) int32 places in the array, sorted by number.
    """

    items: Array
    number: Array
    count: int

    @property
    def num_bytes(self) -> int:
        """Bytes of both arrays."""
        return int(self.items.nbytes) + int(self.number.nbytes)


@dataclass(frozen=True)
class CoupledItems:
    """Items, or sums of items, that couple nodes of an eliminated type; (n,) int64 each.

    Attributes:
        rank: Place of the other node's type among all of the plan.
        place: Place of Z in the array of the two types, or among its sums.
    """

    eliminated: str
    owner: Array
    rank: Array
    node: Array
    place: Array

    def num_pairs(self, xp: Any) -> int:
        """Pairs within the eliminated nodes, each with itself too."""
        counts = xp.bincount(self.owner) if int(self.owner.shape[0]) > 0 else self.owner
        return int((counts * (counts + 1)).sum()) // 2


@dataclass(frozen=True)
class FactorBlocks:
    """Blocks that the items of a factor add to.

    Attributes:
        number: (num_slots,) int32 block of each item.
        weights: (2 * num_slots,) of the storage type, of each item's block and of its transpose;
            None where the arguments are of two types, or one and the same.
    """

    plan: FactorPlan
    pair: ArgumentPair
    types: TypePair
    number: Array
    weights: Array | None


@dataclass(frozen=True)
class FillBlocks:
    """Blocks that pairs of items of eliminated nodes add to, sorted by block.

    Attributes:
        first: (n,) int32 item of the rows: its place in the array of Z, or among its sums.
        second: (n,) int32 item of the columns.
        number: (n,) int32 block.
    """

    eliminated: str
    types: TypePair
    first: Array
    second: Array
    number: Array


@dataclass(frozen=True)
class Structure:
    """All blocks of the system.

    Attributes:
        blocks: By types; of every reduced type with itself at least; arrays of `tools`.
    """

    unknowns: Unknowns
    blocks: Mapping[TypePair, BlockList]
    factors: tuple[FactorBlocks, ...]
    fills: tuple[FillBlocks, ...]
    windows: MixedWindows
    merged: Mapping[MixedTypes, MergedItems]
    tools: ArrayTools

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of structures that are formed by the same launches."""
        factors = [(id(one.plan.form), one.pair, one.weights is None) for one in self.factors]
        fills = [(one.eliminated, one.types) for one in self.fills]
        return *self.blocks, *factors, *fills, *self.merged

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [one.keys for one in self.blocks.values()]
        arrays += [array for one in self.fills for array in (one.first, one.second, one.number)]
        arrays += [array for one in self.factors for array in (one.number, one.weights)]
        merged = sum(one.num_bytes for one in self.merged.values())
        return merged + sum(int(array.nbytes) for array in arrays if array is not None)


def build_structure(plan: Plan) -> Structure:
    """Find all blocks."""
    num_items = sum(one.count for one in plan.factors) + sum(one.count for one in plan.nodes)
    tools, windows = ArrayTools(plan.library.backend, num_items), mixed_windows(plan)
    coupled, merged = coupled_items(plan, tools, windows)
    num_pairs = sum(items.num_pairs(tools.xp) for items in coupled)
    allowed = plan.limits.max_fill_pairs
    if num_pairs > allowed:
        raise OutOfMemoryError(
            f"the reduced system has {num_pairs:,} pairs of factors that share an eliminated node; "
            f"at most {allowed:,} are allowed: use linear_solver='schur_pcg', which does not list "
            "them"
        )
    if num_pairs > num_items:
        # what is quick on the host for items may not be for pairs
        tools = ArrayTools(plan.library.backend, num_pairs)
        coupled, merged = coupled_items(plan, tools, windows)
    ranks = {node.node.name: rank for rank, node in enumerate(plan.nodes)}
    pairs = [
        (factor, pair)
        for factor in plan.factors
        for pair in argument_pairs(factor.factor, factor.form, ranks)
    ]
    direct = [_factor_coupling(tools, factor, pair) for factor, pair in pairs]
    fills = [fill for items in coupled for fill in _fills(plan, tools, items, windows)]
    couplings = [*direct, *(coupling for _, coupling, _, _ in fills)]
    unknowns = reduced_unknowns(plan)
    blocks = block_lists(tools.xp, unknowns, couplings)
    return Structure(
        unknowns=unknowns,
        blocks=blocks,
        factors=tuple(
            _factor_blocks(plan, tools, factor, pair, coupling, blocks[coupling.types])
            for (factor, pair), coupling in zip(pairs, direct, strict=True)
        ),
        fills=tuple(
            _fill_blocks(tools, name, coupling, first, second, blocks[coupling.types])
            for name, coupling, first, second in fills
        ),
        windows=windows,
        merged=merged,
        tools=tools,
    )


def reduced_unknowns(plan: Plan) -> Unknowns:
    """Number the reduced unknowns in the order of blocked float64 arrays, one for each type.

    Right-hand side and solution are such arrays, so this is the order of the equations.
    """
    return Unknowns.of(
        {one.node.name: (one.count, one.node.tangent_dim) for one in plan.reduced}, CHUNK
    )


def _block_numbers(tools: ArrayTools, coupling: Coupling, blocks: BlockList) -> Array:
    return blocks.numbers(tools.xp, coupling.rows, coupling.columns).astype(np.int32)


# -- factors -------------------------------------------------------------------------------------


def _factor_coupling(tools: ArrayTools, factor: FactorPlan, pair: ArgumentPair) -> Coupling:
    rows = nodes_of(tools, factor, pair.row.name)
    columns = nodes_of(tools, factor, pair.column.name)
    types = (pair.row.node_type.name, pair.column.node_type.name)
    if pair.is_of_one_type:
        xp = tools.xp
        rows, columns = xp.maximum(rows, columns), xp.minimum(rows, columns)
    return Coupling(types, rows, columns)


def _factor_blocks(
    plan: Plan,
    tools: ArrayTools,
    factor: FactorPlan,
    pair: ArgumentPair,
    coupling: Coupling,
    blocks: BlockList,
) -> FactorBlocks:
    number = tools.send(_block_numbers(tools, coupling, blocks))
    weights = None
    if pair.is_of_one_type and not pair.is_of_one_argument:
        rows = nodes_of(tools, factor, pair.row.name)
        columns = nodes_of(tools, factor, pair.column.name)
        order = tools.xp.stack([rows >= columns, rows <= columns], axis=1)
        weights = tools.send(order.astype(plan.types.storage.value)).reshape(-1)
    return FactorBlocks(factor, pair, coupling.types, number, weights)


# -- eliminated nodes ----------------------------------------------------------------------------


def _fills(
    plan: Plan, tools: ArrayTools, items: CoupledItems, windows: MixedWindows
) -> list[tuple[str, Coupling, Array, Array]]:
    """Pairs of items: the type, the nodes they couple, and the places of both."""
    xp, name = tools.xp, items.eliminated
    ranks = {node.node.name: rank for rank, node in enumerate(plan.nodes)}
    rank, node, place = items.rank, items.node, items.place
    first, second = pairs_within(xp, items.owner)
    types = [plan.nodes[number] for number in sorted({ranks[type_] for _, type_ in windows.counts})]
    fills = []
    for row in types:
        for column in types:
            wanted = (ranks[row.node.name], ranks[column.node.name])
            if wanted[0] < wanted[1] or (name, row.node.name) not in windows.counts:
                continue
            chosen = _oriented(xp, rank, node, first, second, wanted)
            coupling = Coupling((row.node.name, column.node.name), node[chosen[0]], node[chosen[1]])
            fills.append((name, coupling, place[chosen[0]], place[chosen[1]]))
    return [fill for fill in fills if int(fill[2].shape[0]) > 0]


def _oriented(
    xp: Any, rank: Array, node: Array, first: Array, second: Array, wanted: tuple[int, int]
) -> tuple[Array, Array]:
    """Pairs of two types, the row's item first; two items of one node both ways round."""
    is_row, is_column = rank == wanted[0], rank == wanted[1]
    ahead = is_row[first] & is_column[second]
    back = is_row[second] & is_column[first]
    if wanted[0] == wanted[1]:
        chosen = xp.flatnonzero(ahead)
        first, second = first[chosen], second[chosen]
        difference = node[first] - node[second]
        ahead, back = difference >= 0, (difference <= 0) & (first != second)
    return (
        xp.concatenate([first[ahead], second[back]]),
        xp.concatenate([second[ahead], first[back]]),
    )


def _fill_blocks(
    tools: ArrayTools, name: str, coupling: Coupling, first: Array, second: Array, blocks: BlockList
) -> FillBlocks:
    number = _block_numbers(tools, coupling, blocks)
    order = _order(tools.xp, number, blocks.num_blocks)
    return FillBlocks(
        eliminated=name,
        types=coupling.types,
        first=tools.send(first[order].astype(np.int32)),
        second=tools.send(second[order].astype(np.int32)),
        number=tools.send(number[order]),
    )


def _order(xp: Any, number: Array, num_blocks: int) -> Array:
    """Stable order by block; NumPy sorts 16-bit integers by radix, several times as fast."""
    narrow = number.astype(np.uint16) if num_blocks <= np.iinfo(np.uint16).max else number
    return xp.argsort(narrow, kind="stable")


# -- items ---------------------------------------------------------------------------------------


def mixed_windows(plan: Plan) -> MixedWindows:
    """Find where the items' Z are."""
    counts: dict[MixedTypes, int] = {}
    first: dict[tuple[str, str], int] = {}
    for eliminated in plan.eliminated:
        for factor in _touching(plan, eliminated):
            for argument in factor.reduced:
                array = (eliminated.node.name, argument.node_type.name)
                first[factor.factor.name, argument.name] = counts.get(array, 0)
                counts[array] = counts.get(array, 0) + factor.count
    return MixedWindows(counts, first)


def coupled_items(
    plan: Plan, tools: ArrayTools, windows: MixedWindows
) -> tuple[list[CoupledItems], dict[MixedTypes, MergedItems]]:
    """Return the coupling items by eliminated type, and the items that are summed first."""
    xp = tools.xp
    ranks = {node.node.name: rank for rank, node in enumerate(plan.nodes)}
    coupled, merged = [], {}
    for eliminated in plan.eliminated:
        parts = []
        for name, (owner, node, place) in _items(plan, tools, eliminated, windows).items():
            keys, number = xp.unique(
                owner * plan.node_plans[name].count + node, return_inverse=True
            )
            if MIN_MERGED * keys.shape[0] <= owner.shape[0]:
                order = xp.argsort(number, kind="stable")
                merged[eliminated.node.name, name] = MergedItems(
                    tools.send(place[order].astype(np.int32)),
                    tools.send(number[order].astype(np.int32)),
                    int(keys.shape[0]),
                )
                owner, node = xp.divmod(keys, plan.node_plans[name].count)
                place = xp.arange(keys.shape[0])
            parts.append((owner, xp.full(owner.shape, ranks[name]), node, place))
        if len(parts) > 0:
            arrays = (xp.concatenate(part) for part in zip(*parts, strict=True))
            coupled.append(CoupledItems(eliminated.node.name, *arrays))
    return coupled, merged


def _items(
    plan: Plan, tools: ArrayTools, eliminated: NodePlan, windows: MixedWindows
) -> dict[str, tuple[Array, Array, Array]]:
    """Return (eliminated node, other node, place) of items, by the other's type; int64."""
    xp = tools.xp
    found: dict[str, list[tuple[Array, Array, Array]]] = {}
    for factor in _touching(plan, eliminated):
        slot = xp.flatnonzero(is_item(tools, factor))
        owner = nodes_of(tools, factor, factor.form.eliminated_argument.name)[slot].astype(np.int64)
        for argument in factor.reduced:
            node = nodes_of(tools, factor, argument.name)[slot]
            place = slot + windows.first[factor.factor.name, argument.name]
            found.setdefault(argument.node_type.name, []).append((owner, node, place))
    return {name: _joined(xp, parts) for name, parts in found.items()}


def _joined(xp: Any, parts: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    owner, node, place = (xp.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return owner, node, place


def most_fill_pairs(plan: Plan) -> int:
    """More than `num_fill_pairs`, by counts alone."""
    windows = mixed_windows(plan).counts
    most = 0
    for eliminated in plan.eliminated:
        name = eliminated.node.name
        num_items = sum(count for types, count in windows.items() if types[0] == name)
        most += num_items * (num_items + 1) // 2
    return most


def num_fill_pairs(plan: Plan) -> int:
    """Pairs that the matrix has a product for, each item with itself too."""
    num_items = sum(one.count for one in plan.factors) + sum(one.count for one in plan.nodes)
    tools = ArrayTools(plan.library.backend, num_items)
    coupled, _ = coupled_items(plan, tools, mixed_windows(plan))
    return sum(one.num_pairs(tools.xp) for one in coupled)


def nodes_of(tools: ArrayTools, factor: FactorPlan, name: str) -> Array:
    """Node of each item, int64; of a unique node always the first."""
    index = factor.order.index(name, tools.bring)
    if index is None:
        return tools.xp.zeros(factor.count, dtype=np.int64)
    return index.astype(np.int64)


def is_item(tools: ArrayTools, factor: FactorPlan) -> Array:
    """(num_slots,) which slots are not holes."""
    tiles = factor.order.node_tiles
    assert tiles is not None
    tile_items = tools.bring(tiles.tile_items)
    size = factor.count // max(1, int(tile_items.shape[0]))
    return (tools.xp.arange(size, dtype=np.int32) < tile_items[:, None]).reshape(-1)


def _touching(plan: Plan, eliminated: NodePlan) -> list[FactorPlan]:
    return [
        factor
        for factor in plan.factors
        if factor.form.eliminates(eliminated.node.name) and len(factor.reduced) > 0
    ]
