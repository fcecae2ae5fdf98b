"""The items of eliminated nodes, and which of them are summed before their pairs are walked.

An item is an instance's argument: it couples an eliminated node with one that remains, by its Z
(see `explicit_kernels`). The matrix has a product for every pair of items of an eliminated node.
Where several items couple the same two nodes, as all corners of a picture couple its view with one
camera, their Z are summed first: sum_a sum_b Z_a Z_b^T = (sum Z_a) (sum Z_b)^T. Then pairs of nodes
count, and not pairs of instances. Once for each structure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.array_tools import ArrayTools
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan

MixedTypes = tuple[str, str]
"""Names of an eliminated type and of one that remains: there is one array of Z for each."""

MIN_MERGED = 2
"""Items for each two nodes that they couple, from which on they are summed first: a sum takes a
kernel more."""


@dataclass(frozen=True)
class MixedWindows:
    """Where the items' Z are: one array for each eliminated and reduced type.

    Attributes:
        counts: Places of each array.
        first: First place of a factor's argument, by their names.
    """

    counts: Mapping[MixedTypes, int]
    first: Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class MergedItems:
    """Items of one array that are summed first.

    Attributes:
        items: (n,) int32 places in the array, sorted by number.
        number: (n,) int32 sum that an item belongs to.
        count: Sums.
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
    """What couples the nodes of an eliminated type: items, or sums of items; (n,) int64 each.

    Attributes:
        eliminated: Name of the type.
        owner: Eliminated node.
        rank: Place of the other node's type among all of the plan.
        node: The other node.
        place: Of Z: in the array of the two types, or among its sums.
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


def mixed_windows(plan: Plan) -> MixedWindows:
    """Where the items' Z are."""
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
    """What couples nodes, by eliminated type, and which items are summed first."""
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
    """By the other node's type: eliminated node, other node and place of each item; int64."""
    xp = tools.xp
    found: dict[str, list[tuple[Array, Array, Array]]] = {}
    for factor in _touching(plan, eliminated):
        slot = xp.flatnonzero(is_item(tools, factor))
        owner = tools.bring(eliminated_nodes(factor))[slot].astype(np.int64)
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


def pairs_within(xp: Any, owner: Array) -> tuple[Array, Array]:
    """All pairs of items of one owner, the later one first, and each item with itself."""
    order = xp.argsort(owner, kind="stable")
    grouped = owner[order]
    start = xp.searchsorted(grouped, grouped, side="left")
    up_to = xp.arange(1, grouped.shape[0] + 1) - start
    ends = xp.cumsum(up_to)
    total = int(ends[-1]) if int(ends.shape[0]) > 0 else 0
    # every item is later than at least itself, so that no two begin at the same pair
    begins = xp.zeros(total + 1, dtype=np.int8)
    begins[ends] = 1
    later = xp.cumsum(begins[:total], dtype=np.int64)
    earlier = xp.arange(total) + (start - (ends - up_to))[later]
    return order[later], order[earlier]


def nodes_of(tools: ArrayTools, factor: FactorPlan, name: str) -> Array:
    """Node of each item, int64; of a unique node always the first."""
    index = factor.order.index(name, tools.bring)
    if index is None:
        return tools.xp.zeros(factor.count, dtype=np.int64)
    return index.astype(np.int64)


def eliminated_nodes(factor: FactorPlan) -> Array:
    """Eliminated node of each slot."""
    return factor.order.nodes[factor.form.eliminated_argument.name]


def is_item(tools: ArrayTools, factor: FactorPlan) -> Array:
    """(num_slots,) which slots are not holes."""
    tiles = factor.order.node_tiles
    assert tiles is not None
    tile_items = tools.bring(tiles.tile_items)
    size = factor.count // max(1, int(tile_items.shape[0]))
    return (tools.xp.arange(size, dtype=np.int32) < tile_items[:, None]).reshape(-1)


def _touching(plan: Plan, eliminated: NodePlan) -> list[FactorPlan]:
    """Factors that touch an eliminated type, and others."""
    return [
        factor
        for factor in plan.factors
        if factor.form.eliminates(eliminated.node.name) and len(factor.reduced) > 0
    ]
