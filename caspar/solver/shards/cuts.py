"""How the nodes of an eliminated type are divided among devices.

Into ranges that have about as many instances of factors. Ranges of the nodes' numbers, where each
partner (a node that remains) then has most of its instances on one device: nothing has to move.
Else ranges of the order in which tiles have the nodes, if that brings more of them together.
Otherwise each device would have a share of all partners' instances, and a tile more partners.

Cost: a pass over the indices of the type, and the order of tiles on one device. Once for a solve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.solver_form import SolverForm
from caspar.frontend.factors.trace import TracedFactor
from caspar.memory.array import Array
from caspar.memory.tiling.partner_labels import FEWEST_PARTNERS, SAMPLE_OF_PARTNER
from caspar.runtime.backend import Backend
from caspar.solver.input.parted_array import PartedArray, on_host, placed
from caspar.solver.input.problem import Problem
from caspar.solver.plan.factor_order import tile_partner
from caspar.solver.plan.shard import Chosen
from caspar.solver.result.quantities import bytes_text

TILE_SIZE = 256
"""Of the tiles whose order is taken; that of other sizes is nearly the same."""

GAIN = 0.1
"""Share of instances that another order must bring together with their partner."""

ORDER_BYTES = 48
"""Of device memory for each instance while they are ordered: both indices, a sort, its copies."""


@dataclass(frozen=True)
class Cut:
    """Nodes of an eliminated type in parts.

    Attributes:
        nodes: By part a range, or (k,) int32 numbers in the order of tiles.
        owner: (nodes,) the part of each node, on the host; None: they are ranges.
        remark: What users should know; or nothing.
    """

    nodes: tuple[Chosen, ...]
    owner: NDArray[Any] | None = None
    remark: str = ""

    def within(self, index: Array, number: int, backend: Backend) -> Chosen:
        """Which entries of an index name a node of a part: as a range if they stand together."""
        nodes = self.nodes[number]
        if isinstance(nodes, slice):
            is_own = (index >= nodes.start) & (index < nodes.stop)
        else:
            assert self.owner is not None
            is_host = isinstance(index, np.ndarray)
            owner = self.owner if is_host else backend.upload(self.owner)
            is_own = owner.take(index) == number
        (found,) = is_own.nonzero()
        size = int(found.shape[0])
        if size == 0:
            return slice(0, 0)
        first, last = int(found[0]), int(found[-1])
        return slice(first, last + 1) if last - first + 1 == size else found


@dataclass(frozen=True)
class _Touching:
    """The factor with the most instances of an eliminated type, if it has partners.

    Attributes:
        node: (n,) eliminated node of each instance.
        partner: (n,) partner of each.
        num_partners: Partners.
    """

    node: Array
    partner: Array
    num_partners: int


def cut_type(
    problem: Problem,
    factors: Sequence[TracedFactor],
    form: SolverForm,
    name: str,
    num_parts: int,
    backend: Backend,
) -> Cut:
    """Divide the nodes of an eliminated type.

    Args:
        problem: The problem.
        factors: Its factors.
        form: How their kernels are made.
        name: Of the type. If it is given in as many parts as there are devices, these are kept.
        num_parts: Devices.
        backend: Where the arrays are, unless they are on the host; where nodes are ordered.
    """
    values = problem.values[name]
    if isinstance(values, PartedArray) and len(values.parts) == num_parts:
        return Cut(tuple(slice(start, end) for start, end in pairwise(values.offsets)))
    count = problem.counts[name]
    if count == 0:
        return Cut((slice(0, 0),) * num_parts)
    sizes = np.zeros(count, np.int64)
    for factor, own in form.factors.items():
        if own.eliminates(name):
            index = problem.factors[factor].nodes[own.eliminated_argument.name]
            assert index is not None
            for part, device in placed(index, backend):
                with device.scope():
                    sizes += _bincount(device, part, count)
    by_number = _ends(sizes, num_parts)
    touching = _touching(problem, factors, form, name)
    if touching is not None and not isinstance(values, PartedArray):
        return _best(name, touching, sizes, by_number, backend)
    return _ranges(by_number)


def _bincount(backend: Backend, index: Array, count: int) -> NDArray[np.int64]:
    """(count,) how often an index names each node, on the host."""
    if isinstance(index, np.ndarray):
        return np.bincount(index, minlength=count)
    return backend.to_host(backend.xp.bincount(index, minlength=count))


def _ends(sizes: NDArray[np.int64], num_parts: int) -> NDArray[np.int64]:
    """(num_parts + 1,) where parts of nodes begin and end, of about as many instances."""
    before = np.cumsum(sizes)
    goals = before[-1] * np.arange(1, num_parts) / num_parts
    ends = np.searchsorted(before, goals, side="left") + 1
    return np.concatenate([[0], np.minimum(ends, len(sizes)), [len(sizes)]])


def _ranges(ends: NDArray[np.int64], remark: str = "") -> Cut:
    nodes = tuple(slice(int(start), int(end)) for start, end in pairwise(ends))
    return Cut(nodes, remark=remark)


def _touching(
    problem: Problem, factors: Sequence[TracedFactor], form: SolverForm, name: str
) -> _Touching | None:
    """None: in any order all parts would have most partners, or arrays are in parts."""
    of_type = [factor for factor in factors if form.factors[factor.name].eliminates(name)]
    if any(problem.factors[factor.name].offsets is not None for factor in of_type):
        return None
    largest = max(of_type, key=lambda factor: problem.factors[factor.name].count)
    eliminated = form.factors[largest.name].eliminated_argument
    partner = tile_partner(largest, eliminated, problem.counts)
    if partner is None:
        return None
    num_partners = problem.counts[partner.node_type.name]
    nodes = problem.factors[largest.name].nodes
    node, other = nodes[eliminated.name], nodes[partner.name]
    if num_partners < FEWEST_PARTNERS or node is None or other is None:
        return None
    return _Touching(node, other, num_partners)


def _best(
    name: str,
    touching: _Touching,
    sizes: NDArray[np.int64],
    by_number: NDArray[np.int64],
    backend: Backend,
) -> Cut:
    """Ranges of numbers, unless the order of tiles brings more together."""
    num_parts, count = len(by_number) - 1, len(sizes)
    num_items = int(touching.node.shape[0])
    step = max(1, num_items // (SAMPLE_OF_PARTNER * touching.num_partners * num_parts))
    with backend.scope():
        node, partner = (
            on_host(backend, array[::step].copy()) for array in (touching.node, touching.partner)
        )
    parts = np.searchsorted(by_number, node, side="right") - 1
    together = _together(parts, partner, num_parts, touching.num_partners)
    if together > 1.0 - GAIN:
        return _ranges(by_number)
    needed, free = ORDER_BYTES * num_items, backend.free_bytes
    if free is not None and needed > free:
        remark = (
            f"Nodes of {name} were divided by their numbers: to order them the first device needs "
            f"{bytes_text(needed)}, and has {bytes_text(free)} left. Iterations are quicker if "
            "those that are seen together have numbers that are close."
        )
        return _ranges(by_number, remark)
    with backend.scope():
        found = backend.node_order(
            backend.upload(touching.node),
            backend.upload(touching.partner),
            count,
            touching.num_partners,
            TILE_SIZE,
        )
        order = backend.to_host(found.node)
    ends = _ends(sizes[order], num_parts)
    nodes = tuple(order[start:end] for start, end in pairwise(ends))
    owner = np.empty(count, np.min_scalar_type(num_parts))
    for number, own in enumerate(nodes):
        owner[own] = number
    if _together(owner[node], partner, num_parts, touching.num_partners) < together + GAIN:
        return _ranges(by_number)
    return Cut(nodes, owner)


def _together(
    part: NDArray[Any], partner: NDArray[Any], num_parts: int, num_partners: int
) -> float:
    """The share of instances that are in the part in which most of their partner's are."""
    pair = part.astype(np.int64) * num_partners + partner
    counts = np.bincount(pair, minlength=num_parts * num_partners)
    return float(counts.reshape(num_parts, num_partners).max(axis=0).sum()) / len(pair)
