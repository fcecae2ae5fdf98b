"""Divide the nodes of an eliminated type among devices.

Parts have about equally many instances. Ranges of the nodes' numbers are used if each
partner (a node that remains) then has most of its instances on one device: nothing has to move.
Otherwise each device would have a share of every partner's instances, and its tiles more partners,
so ranges of the nodes' order in tiles are used if these bring more instances together.

Cost: a pass over the indices of the type, and the order of tiles on one device. Once for a solve.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from caspar.solver.plan.shard import Chosen, as_range

TILE_SIZE = 256
"""Size of the tiles that give the order; other sizes give nearly the same order."""

GAIN = 0.1
"""Share of instances that another order must bring together with their partner."""

ORDER_BYTES = 48
"""Bytes of device memory for each instance during ordering: both indices, a sort, its copies."""

MOST_ITEMS = 1 << 31
"""Instances that are ordered at most: tiles count in 32 bits."""

PIECE = 1 << 26
"""Entries of an index of the host that are looked at on a device at a time."""


@dataclass(frozen=True)
class Cut:
    """Nodes of an eliminated type in parts.

    Attributes:
        nodes: By part a range, or (k,) int32 numbers in the order of tiles.
        owner: (nodes,) the part of each node, on the host; None: they are ranges.
        crowded: By type of partners how many times as many of its instances a partner has on the
            device with most of them as if these were spread evenly; where that is known.
    """

    nodes: tuple[Chosen, ...]
    owner: NDArray[Any] | None = None
    crowded: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""

    def within(self, index: Array, number: int, backend: Backend) -> Chosen:
        """Return the entries of an index that name nodes of a part; a range if contiguous."""
        owner = None if self.owner is None else backend.upload(self.owner)
        count = int(index.shape[0])
        dtype = np.dtype(np.int32 if count < MOST_ITEMS else np.int64)
        found = [backend.xp.zeros(0, dtype)]
        for start in range(0, count, PIECE):
            is_own = self._is_own(backend.upload(index[start : start + PIECE]), owner, number)
            found.append(is_own.nonzero()[0].astype(dtype) + dtype.type(start))
        return as_range(backend.xp.concatenate(found))

    def _is_own(self, index: Array, owner: Array | None, number: int) -> Array:
        nodes = self.nodes[number]
        if isinstance(nodes, slice):
            return (index >= nodes.start) & (index < nodes.stop)
        assert owner is not None
        return owner.take(index) == number


@dataclass(frozen=True)
class _Touching:
    """The factor with the most instances of an eliminated type, if it has partners.

    Attributes:
        node: (n,) eliminated node of each instance.
        partner: (n,) partner of each.
        num_bytes: Of arrays of the type's factors on the device, of which parts have copies if they
            are not ranges.
    """

    node: Array
    partner: Array
    type_name: str
    num_partners: int
    num_bytes: int


def cut_type(
    problem: Problem,
    factors: Sequence[TracedFactor],
    form: SolverForm,
    name: str,
    num_parts: int,
    backend: Backend,
    make_room: Callable[[], None] = lambda: None,
) -> Cut:
    """Divide the nodes of an eliminated type; as they are given, if in as many parts as devices.

    Arrays that are not on the host are on `backend`, which orders nodes. `make_room`: Gives back
    memory of devices that is kept for another solve.
    """
    values = problem.values[name]
    if isinstance(values, PartedArray) and len(values.parts) == num_parts:
        return _ranges(np.array(values.offsets))
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
    with backend.scope():
        by_number = _ends(backend.xp.cumsum(backend.upload(sizes)), num_parts, backend)
    touching = _touching(problem, factors, form, name)
    if touching is not None and not isinstance(values, PartedArray):
        return _best(name, touching, sizes, by_number, backend, make_room)
    return _ranges(by_number)


def _bincount(backend: Backend, index: Array, count: int) -> NDArray[np.int64]:
    """(count,) how often an index names each node, on the host."""
    found = backend.xp.zeros(count, np.int64)
    for start in range(0, int(index.shape[0]), PIECE):
        piece = backend.upload(index[start : start + PIECE])
        found += backend.xp.bincount(piece, minlength=count)
    return backend.to_host(found)


def _ends(before: Array, num_parts: int, backend: Backend) -> NDArray[np.int64]:
    """(num_parts + 1,) ends of parts of about as many instances, by the (nodes,) sums `before`."""
    count, total = int(before.shape[0]), int(before[-1])
    goals = total * np.arange(1, num_parts) / num_parts
    ends = backend.to_host(backend.xp.searchsorted(before, backend.upload(goals))) + 1
    return np.concatenate([[0], np.minimum(ends, count), [count]])


def _ranges(ends: NDArray[np.int64]) -> Cut:
    return Cut(tuple(slice(int(start), int(end)) for start, end in pairwise(ends)))


def _touching(
    problem: Problem, factors: Sequence[TracedFactor], form: SolverForm, name: str
) -> _Touching | None:
    """Find the factor to order nodes by; None: no order helps, or arrays are in parts."""
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
    num_bytes = sum(problem.factors[factor.name].bytes_by_instance for factor in of_type)
    return _Touching(node, other, partner.node_type.name, num_partners, num_bytes)


def _best(
    name: str,
    touching: _Touching,
    sizes: NDArray[np.int64],
    by_number: NDArray[np.int64],
    backend: Backend,
    make_room: Callable[[], None],
) -> Cut:
    """Ranges of numbers, unless the order of tiles brings more together."""
    num_parts, num_items = len(by_number) - 1, int(touching.node.shape[0])
    step = max(1, num_items // (SAMPLE_OF_PARTNER * touching.num_partners * num_parts))
    with backend.scope():
        node, partner = (
            on_host(backend, array[::step].copy()) for array in (touching.node, touching.partner)
        )

    def together(part: NDArray[Any]) -> float:
        """The share of instances that are in the part in which most of their partner's are."""
        pair = part.astype(np.int64) * touching.num_partners + partner
        counts = np.bincount(pair, minlength=num_parts * touching.num_partners)
        return float(counts.reshape(num_parts, -1).max(axis=0).sum()) / len(pair)

    def crowded(share: float) -> dict[str, float]:
        return {touching.type_name: max(share * num_parts, 1.0)}

    by_numbers = together(np.searchsorted(by_number, node, side="right") - 1)
    ranges = replace(_ranges(by_number), crowded=crowded(by_numbers))
    if by_numbers > 1.0 - GAIN or num_items >= MOST_ITEMS:
        return ranges
    needed = ORDER_BYTES * num_items + touching.num_bytes
    if _lacks(backend, needed):
        # what decides is not what an earlier solve has left
        make_room()
    ordered = None
    if not _lacks(backend, needed):
        try:
            ordered = _in_order(touching, sizes, num_parts, backend)
        except MemoryError:
            # a device that tells nothing of its memory may lack it all the same
            backend.trim()
            with suppress(MemoryError):
                ordered = _in_order(touching, sizes, num_parts, backend)
    if ordered is None:
        remark = (
            f"Nodes of {name} were divided by their numbers: the first device lacks memory to "
            f"order them ({needed:,} bytes). Iterations are quicker if those that are seen "
            "together have numbers that are close."
        )
        return replace(ranges, remark=remark)
    nodes, owner = ordered
    in_order = together(owner[node])
    if in_order < by_numbers + GAIN:
        return ranges
    return Cut(nodes, owner, crowded(in_order))


def _lacks(backend: Backend, needed: int) -> bool:
    free = backend.free_bytes
    return free is not None and needed > free


def _in_order(
    touching: _Touching, sizes: NDArray[np.int64], num_parts: int, backend: Backend
) -> tuple[tuple[NDArray[Any], ...], NDArray[Any]]:
    """Numbers of the nodes of each part, and the part of each node."""
    with backend.scope():
        xp = backend.xp
        found = backend.node_order(
            backend.upload(touching.node),
            backend.upload(touching.partner),
            len(sizes),
            touching.num_partners,
            TILE_SIZE,
        )
        ends = _ends(xp.cumsum(backend.upload(sizes)[found.node]), num_parts, backend)
        # nodes without instances, which come last, are dealt out
        num_used = int(np.count_nonzero(sizes))
        ends = np.minimum(ends, num_used)
        rest = np.linspace(num_used, len(sizes), num_parts + 1).astype(np.int64)
        numbers = np.arange(num_parts, dtype=np.min_scalar_type(num_parts))
        of_rank = np.concatenate([np.repeat(numbers, np.diff(each)) for each in (ends, rest)])
        owner = backend.to_host(backend.upload(of_rank)[found.rank])
        order = backend.to_host(found.node)
    parts = zip(pairwise(ends), pairwise(rest), strict=True)
    return tuple(np.concatenate([order[a:b], order[c:d]]) for (a, b), (c, d) in parts), owner
