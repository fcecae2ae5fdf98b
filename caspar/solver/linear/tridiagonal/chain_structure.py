"""Chains of a node type: which nodes follow each other, and in which order they are eliminated.

Input: the indices of factors that join two nodes of the type. Output: a slot for each node, and the
levels of the elimination (`equations.linear.chain_kernels` says what they are for). Once for each
structure, on the host, a few passes over the nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.equations.linear.chain_form import chain_pairs
from caspar.equations.linear.chain_kernels import RUN
from caspar.equations.linear.explicit_kernels import ArgumentPair
from caspar.errors import InputError
from caspar.memory.array import Array
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan

Index = NDArray[np.int32]


@dataclass(frozen=True)
class ChainLevel:
    """Segments that are eliminated at the same time.

    Attributes:
        first_slot: Of the first node of each segment that is eliminated; the second ones follow
            behind `num_segments` slots.
        num_segments: Segments.
        separator: (num_segments,) slot of the node in front of a segment's others.
        following: (num_segments,) slot of the next separator, or of an end.
    """

    first_slot: int
    num_segments: int
    separator: Index
    following: Index


@dataclass(frozen=True)
class ChainOrder:
    """In which order nodes are eliminated.

    Slots are those of the levels, where short segments leave holes, the *roots*, which are joined
    to nothing that is left, and *ends*, one behind each chain and one in front of all nodes: what
    is in holes and ends is zero.

    Attributes:
        slot: (num_nodes,) of each node.
        front_slot: (num_nodes,) of the node before it by number.
        levels: In the order of the elimination.
        first_root: Slot of the first root.
        num_roots: Roots.
        num_slots: All of them.
    """

    slot: Index
    front_slot: Index
    levels: tuple[ChainLevel, ...]
    first_root: int
    num_roots: int
    num_slots: int


@dataclass(frozen=True)
class FactorLinks:
    """What the items of a factor add to links.

    Attributes:
        plan: The factor.
        pair: Its arguments.
        number: (num_items,) int32 node of each item that comes later, on the device.
        weights: (num_items, 2) of the storage type, of the item's block and of its transpose; both
            are 0 where it joins no neighbours.
    """

    plan: FactorPlan
    pair: ArgumentPair
    number: Array
    weights: Array


@dataclass(frozen=True)
class ChainStructure:
    """The chains of a node type.

    Attributes:
        node: The type.
        order: Of the elimination.
        links: What adds to links between neighbours.
    """

    node: NodePlan
    order: ChainOrder
    links: tuple[FactorLinks, ...]


def build_chains(plan: Plan) -> tuple[ChainStructure, ...]:
    """The chains of every node type that has some.

    Raises:
        InputError: There are none.
    """
    chains = []
    candidates: dict[str, list[str]] = {}
    for node in plan.reduced:
        links, is_linked = [], np.zeros(node.count, dtype=bool)
        for factor in plan.factors:
            own = _factor_links(plan, factor, node, is_linked)
            if len(own) > 0:
                candidates.setdefault(node.node.name, []).append(factor.factor.name)
            links += own
        if bool(is_linked.any()):
            chains.append(ChainStructure(node, eliminate(is_linked), tuple(links)))
    if len(chains) == 0:
        named = "; ".join(f"{name}: {', '.join(own)}" for name, own in candidates.items())
        raise InputError(
            "preconditioner='block_tridiagonal': no instance of a factor joins nodes k and k + 1 "
            f"of one type ({named}). Number the nodes along their chains, or use "
            "preconditioner='block_jacobi'"
        )
    return tuple(chains)


def _factor_links(
    plan: Plan, factor: FactorPlan, node: NodePlan, is_linked: NDArray[np.bool_]
) -> list[FactorLinks]:
    """Of one factor; marks the nodes that it joins to the one in front."""
    backend = plan.library.backend
    xp = backend.xp
    pairs = [
        pair
        for pair in chain_pairs(factor.factor, factor.form)
        if pair.row.node_type.name == node.node.name
    ]
    ends = []
    joins: dict[str, Array] = {}
    for pair in pairs:
        row, column = factor.order.index(pair.row.name), factor.order.index(pair.column.name)
        assert row is not None
        assert column is not None
        joined = xp.abs(row - column) == 1
        ends.append((row, column, joined))
        for name in (pair.row.name, pair.column.name):
            joins[name] = joins.get(name, 0) + joined.astype(np.float64)
    links = []
    for pair, (row, column, joined) in zip(pairs, ends, strict=True):
        number = xp.maximum(row, column)
        is_linked[backend.to_host(number[joined])] = True
        # an item's node that is in two links has a half of its block for each: M stays a sum of
        # positive semidefinite matrices
        shares = joins[pair.row.name] * joins[pair.column.name]
        weight = joined / xp.sqrt(xp.maximum(shares, 1.0))
        weights = xp.stack([weight * (row > column), weight * (row < column)], axis=1)
        stored = weights.astype(plan.types.storage.value)
        links.append(FactorLinks(factor, pair, number.astype(np.int32), stored))
    return links


def eliminate(is_linked: NDArray[np.bool_]) -> ChainOrder:
    """Slots and levels.

    Args:
        is_linked: (num_nodes,) whether a node is joined to the one before it; the first is not.
    """
    count = len(is_linked)
    slot = np.empty(count, dtype=np.int64)
    nodes = np.arange(count)
    chain = np.cumsum(~is_linked) - 1
    found: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
    roots = []
    num_slots = 0
    while True:
        is_first = np.diff(chain, prepend=-1) != 0
        is_alone = is_first & np.append(is_first[1:], True)
        roots.append(nodes[is_alone])
        nodes, chain, is_first = (array[~is_alone] for array in (nodes, chain, is_first))
        if len(nodes) == 0:
            break
        starts = np.flatnonzero(is_first)
        place = (np.arange(len(nodes)) - starts[np.cumsum(is_first) - 1]) % (RUN + 1)
        is_separator = place == 0
        segment = np.cumsum(is_separator) - 1
        num_segments = int(segment[-1]) + 1
        others = ~is_separator
        slot[nodes[others]] = num_slots + (place[others] - 1) * num_segments + segment[others]
        nodes, chain = nodes[is_separator], chain[is_separator]
        # the end of the chain where no separator follows
        follows = np.append(chain[1:] == chain[:-1], False)
        following = np.where(follows, np.append(nodes[1:], 0), count + chain)
        found.append((num_slots, nodes, following))
        num_slots += RUN * num_segments
    all_roots = np.concatenate(roots)
    slot[all_roots] = num_slots + np.arange(len(all_roots))
    first_end = num_slots + len(all_roots)
    num_chains = int((~is_linked).sum())
    by_number = np.concatenate([slot, first_end + np.arange(num_chains + 1)])
    levels = (
        ChainLevel(first, len(own), _index(by_number[own]), _index(by_number[following]))
        for first, own, following in found
    )
    return ChainOrder(
        _index(slot),
        _index(np.append(first_end + num_chains, slot[:-1])),
        tuple(levels),
        num_slots,
        len(all_roots),
        first_end + num_chains + 1,
    )


def _index(numbers: Sequence[int] | NDArray[np.int64]) -> Index:
    return np.asarray(numbers, dtype=np.int32)
