"""Which rank has what of a problem.

If each rank has passed its part, and no eliminated node is touched by two of them, all stays where
it is. Otherwise rank 0 gets everything, and cuts it as for several devices of one process. A small
problem is solved by rank 0 alone. Cost: once for a solve; a pass over the indices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.memory.array import Array
from caspar.solver.input.problem import Problem
from caspar.solver.plan.shard import Chosen, Shard
from caspar.solver.plan.untouched import warn_untouched_of
from caspar.solver.ranks.devices import RankDevices
from caspar.solver.ranks.outline import joined, on_host
from caspar.solver.ranks.reading import Reading
from caspar.solver.shards.split import Part, added_of, make_part, split_problem

Nodes = Mapping[str, Chosen]


@dataclass(frozen=True)
class Share:
    """What this rank has.

    Attributes:
        problem: Its part; None: none.
        shard: What it knows of the whole; None: rank 0 has all.
        active: Ranks that have a part.
        nodes: By these and by eliminated type the nodes that they have.
        remarks: What users should know.
        own_nodes: Those of this rank.
    """

    problem: Problem | None
    shard: Shard | None
    active: tuple[int, ...]
    nodes: tuple[Nodes, ...]
    remarks: tuple[str, ...] = ()
    own_nodes: Nodes = field(default_factory=dict)


def share_out(devices: RankDevices, reading: Reading, design: SolverDesign, least: int) -> Share:
    """Decide it, and move what has to be moved; called on all ranks.

    Args:
        devices: Of the ranks.
        reading: What they were given.
        design: How kernels are made.
        least: Instances of factors from which on a rank pays.
    """
    size = devices.peers.size
    total = sum(sum(sizes.values()) for sizes in reading.sizes)
    if total < size * least:
        remark = (
            f"Rank 0 solved this problem, not {size} ranks: with {total:,} instances of factors "
            f"it is quicker (several pay from {size * least:,} on)."
        )
        return Share(_gathered(devices, reading, design), None, (0,), (), (remark,))
    remarks: tuple[str, ...] = ()
    if reading.is_spread:
        kept, remark = _kept(devices, reading, design)
        if kept is not None:
            return kept
        remarks = (remark,)
    whole = _gathered(devices, reading, design)
    return _cut(devices, design, whole, remarks)


def _gathered(devices: RankDevices, reading: Reading, design: SolverDesign) -> Problem | None:
    """All of it, at rank 0; None at the others."""
    own, to_host = reading.own, devices.member.to_host
    if not reading.is_spread:
        return own
    assert own is not None
    parts = devices.peers.collect(lambda: on_host(own, to_host))
    if len(parts) == 0:
        return None
    return replace(joined(parts, design.factors), given=own.given)


def _kept(devices: RankDevices, reading: Reading, design: SolverDesign) -> tuple[Share | None, str]:
    """The parts as they were passed, if they share no eliminated node; else why not."""
    peers, own, form = devices.peers, reading.own, design.form
    assert own is not None
    found = peers.exchange(
        lambda: {name: touched(own, form, name, devices.member.to_host) for name in form.eliminated}
    )
    totals = [sum(sizes.values()) for sizes in reading.sizes]
    active = tuple(rank for rank, number in enumerate(totals) if number > 0)
    if 0 not in active or len(active) == 1:
        return None, "Rank 0 divided the factors: not every rank had passed some."
    for name in form.eliminated:
        flags = np.zeros(reading.whole.counts[name], np.int8)
        for nodes in found:
            flags[nodes[name]] += 1
        several = int((flags > 1).sum())
        if several > 0:
            return None, (
                f"Rank 0 collected and divided the factors: {several:,} instances of {name} were "
                "touched by factors of several ranks. Pass all factors of one to the same rank to "
                "spare that."
            )
    most = {name: max(sizes[name] for sizes in reading.sizes) for name in reading.sizes[0]}
    shard = Shard(
        rank=active.index(devices.ranks.rank) if devices.ranks.rank in active else 0,
        size=len(active),
        group=0,
        counts=own.counts,
        instances={name: sum(sizes[name] for sizes in reading.sizes) for name in most},
        most=most,
        added=added_of(design.factors, form, most),
        chosen={name: slice(0, arrays.count) for name, arrays in own.factors.items()},
    )
    of_all = tuple(found[rank] for rank in active)
    if devices.ranks.rank not in active:
        return Share(None, shard, active, of_all), ""
    part = make_part(own, design.factors, shard, found[devices.ranks.rank], form, devices.member)
    return Share(part.problem, shard, active, of_all, own_nodes=part.nodes), ""


def touched(problem: Problem, form: SolverForm, name: str, to_host: Any) -> Chosen:
    """Nodes of an eliminated type that a part's factors touch: a range, or their numbers."""
    flags = np.zeros(problem.counts[name], bool)
    for factor, own in form.factors.items():
        if own.eliminates(name) and problem.factors[factor].count > 0:
            index: Array | None = problem.factors[factor].nodes[own.eliminated_argument.name]
            assert index is not None
            flags[index if isinstance(index, np.ndarray) else to_host(index)] = True
    found = np.flatnonzero(flags).astype(np.int32)
    if len(found) == 0:
        return slice(0, 0)
    first, last = int(found[0]), int(found[-1])
    return slice(first, last + 1) if last - first + 1 == len(found) else found


@dataclass(frozen=True)
class _Handed:
    """What rank 0 hands out: a part or nothing, its nodes, and how many have one."""

    problem: Problem | None
    shard: Shard | None
    nodes: Nodes
    num_parts: int


def _cut(
    devices: RankDevices, design: SolverDesign, whole: Problem | None, remarks: tuple[str, ...]
) -> Share:
    """Rank 0 cuts the problem and hands out the parts."""
    member, size = devices.member, devices.peers.size
    parts: list[Part] = []

    def handed() -> Sequence[_Handed]:
        assert whole is not None
        warn_untouched_of(member, whole, design.factors)
        parts.extend(
            split_problem(whole, design.factors, design.form, [member] * size, to_devices=False)
        )
        if len(parts) == 1:
            return [_Handed(None, None, {}, 1)] * size
        own = [_Handed(parts[0].problem, parts[0].shard, parts[0].nodes, len(parts))]
        for part in parts[1:]:
            problem = on_host(part.problem, member.to_host)
            own.append(_Handed(problem, part.shard, part.nodes, len(parts)))
        none = _Handed(None, parts[0].shard, {}, len(parts))
        return [*own, *[none] * (size - len(parts))]

    found: _Handed = devices.peers.hand_out(handed)
    if found.num_parts == 1:
        same = "Rank 0 solved this problem: all factors touch the same node."
        return Share(whole, None, (0,), (), (*remarks, same))
    if found.num_parts < size:
        remarks = (*remarks, f"{found.num_parts} of {size} ranks had a part of this problem.")
    remarks = (*remarks, *(remark for part in parts[:1] for remark in part.remarks))
    nodes = tuple(part.nodes for part in parts)
    active = tuple(range(found.num_parts))
    return Share(found.problem, found.shard, active, nodes, remarks, found.nodes)
