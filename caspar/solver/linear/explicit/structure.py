"""Which blocks the system has as a matrix, and what adds to each.

Input: a plan. Output: lists of blocks, and for the items of factors and the pairs of items of
eliminated nodes the number of the block they add to. Once for each structure, on the host where
that is quick. The number of pairs is the sum over eliminated nodes of k (k + 1) / 2 with k items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.errors import OutOfMemoryError
from caspar.memory.array import Array
from caspar.runtime.array_tools import ArrayTools
from caspar.solver.linear.explicit.coupled_items import (
    CoupledItems,
    MergedItems,
    MixedTypes,
    MixedWindows,
    coupled_items,
    mixed_windows,
    nodes_of,
    pairs_within,
)
from caspar.solver.linear.explicit.pair_kernels import ArgumentPair, argument_pairs
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan

TypePair = tuple[str, str]
"""Names of the node types of the rows and of the columns of a block."""


SMALL_TABLE = 1 << 14
"""Entries of a table that takes less time than sorting a few numbers."""


@dataclass(frozen=True)
class BlockList:
    """The blocks of two node types.

    Of one type all diagonal blocks are first, in the order of the nodes, and the others are below
    the diagonal.

    Attributes:
        row: Type of the rows.
        column: Type of the columns; the same or an earlier one.
        num_diagonal: Diagonal blocks.
        rows: (n,) int64 node of the rows of each block off the diagonal; of `Structure.tools`.
        columns: (n,) int64 node of its columns; likewise.
    """

    row: NodePlan
    column: NodePlan
    num_diagonal: int
    rows: Array
    columns: Array

    @property
    def num_blocks(self) -> int:
        """All of them."""
        return self.num_diagonal + int(self.rows.shape[0])

    @property
    def dim(self) -> int:
        """Scalars of a block."""
        return self.row.node.tangent_dim * self.column.node.tangent_dim


@dataclass(frozen=True)
class FactorBlocks:
    """Blocks that the items of a factor add to.

    Attributes:
        plan: The factor.
        pair: Its arguments.
        types: Their types.
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
        eliminated: The nodes' type.
        types: Of rows and columns.
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
        blocks: By types; of every reduced type with itself at least.
        factors: What factors add.
        fills: What eliminated nodes add.
        windows: Where the items' Z are.
        merged: Items whose Z are summed first.
        tools: What it was found with.
    """

    blocks: Mapping[TypePair, BlockList]
    factors: tuple[FactorBlocks, ...]
    fills: tuple[FillBlocks, ...]
    windows: MixedWindows
    merged: Mapping[MixedTypes, MergedItems]
    tools: ArrayTools

    @property
    def kind(self) -> tuple[object, ...]:
        """What structures have in common that are formed by the same launches."""
        factors = [(id(one.plan.form), one.pair, one.weights is None) for one in self.factors]
        fills = [(one.eliminated, one.types) for one in self.fills]
        return *self.blocks, *factors, *fills, *self.merged

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [array for one in self.blocks.values() for array in (one.rows, one.columns)]
        arrays += [array for one in self.fills for array in (one.first, one.second, one.number)]
        arrays += [array for one in self.factors for array in (one.number, one.weights)]
        merged = sum(one.num_bytes for one in self.merged.values())
        return merged + sum(int(array.nbytes) for array in arrays if array is not None)


@dataclass(frozen=True)
class _Coupling:
    """Nodes that share blocks: (n,) int64 each."""

    types: TypePair
    rows: Array
    columns: Array


def build_structure(plan: Plan) -> Structure:
    """Find all blocks.

    Raises:
        OutOfMemoryError: Eliminated nodes have too many pairs of items.
    """
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
    blocks = _block_lists(plan, tools, couplings)
    return Structure(
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


# -- factors -------------------------------------------------------------------------------------


def _factor_coupling(tools: ArrayTools, factor: FactorPlan, pair: ArgumentPair) -> _Coupling:
    rows = nodes_of(tools, factor, pair.row.name)
    columns = nodes_of(tools, factor, pair.column.name)
    types = (pair.row.node_type.name, pair.column.node_type.name)
    if pair.is_of_one_type:
        xp = tools.xp
        rows, columns = xp.maximum(rows, columns), xp.minimum(rows, columns)
    return _Coupling(types, rows, columns)


def _factor_blocks(
    plan: Plan,
    tools: ArrayTools,
    factor: FactorPlan,
    pair: ArgumentPair,
    coupling: _Coupling,
    blocks: BlockList,
) -> FactorBlocks:
    number = tools.send(_block_numbers(tools.xp, coupling, blocks))
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
) -> list[tuple[str, _Coupling, Array, Array]]:
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
            coupling = _Coupling(
                (row.node.name, column.node.name), node[chosen[0]], node[chosen[1]]
            )
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
    tools: ArrayTools,
    name: str,
    coupling: _Coupling,
    first: Array,
    second: Array,
    blocks: BlockList,
) -> FillBlocks:
    number = _block_numbers(tools.xp, coupling, blocks)
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


# -- blocks --------------------------------------------------------------------------------------


def _block_lists(
    plan: Plan, tools: ArrayTools, couplings: Sequence[_Coupling]
) -> dict[TypePair, BlockList]:
    """Distinct pairs of nodes, by types."""
    xp, nodes = tools.xp, plan.node_plans
    names = [node.node.name for node in plan.reduced]
    pairs = [(name, name) for name in names]
    pairs += list(dict.fromkeys(one.types for one in couplings if one.types not in pairs))
    lists = {}
    for row, column in pairs:
        is_diagonal = row == column
        keys = [xp.empty(0, dtype=np.int64)]
        for one in couplings:
            if one.types == (row, column):
                key = one.rows * nodes[column].count + one.columns
                keys.append(key[one.rows != one.columns] if is_diagonal else key)
        size = nodes[row].count * nodes[column].count
        distinct = _distinct(xp, xp.concatenate(keys), size)
        rows, columns = xp.divmod(distinct, nodes[column].count)
        num_diagonal = nodes[row].count if is_diagonal else 0
        lists[row, column] = BlockList(nodes[row], nodes[column], num_diagonal, rows, columns)
    return lists


def _distinct(xp: Any, keys: Array, size: int) -> Array:
    """Return which of the numbers below `size` are among the keys, ascending."""
    if size > max(keys.shape[0], SMALL_TABLE):
        return xp.unique(keys)
    is_there = xp.zeros(size, dtype=np.bool_)
    is_there[keys] = True
    return xp.flatnonzero(is_there)


def _block_numbers(xp: Any, coupling: _Coupling, blocks: BlockList) -> Array:
    """(n,) int32."""
    key = coupling.rows * blocks.column.count + coupling.columns
    known = blocks.rows * blocks.column.count + blocks.columns
    size = blocks.row.count * blocks.column.count
    if size <= max(key.shape[0], SMALL_TABLE):
        table = xp.zeros(size, dtype=np.int64)
        table[known] = xp.arange(known.shape[0])
        place = table[key]
    else:
        place = xp.searchsorted(known, key)
    number = blocks.num_diagonal + place
    if blocks.num_diagonal > 0:
        number = xp.where(coupling.rows == coupling.columns, coupling.rows, number)
    return number.astype(np.int32)
