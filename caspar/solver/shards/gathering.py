"""Values of all devices, brought together where start values were given.

Each device has all nodes that remain, and its own ones of the eliminated types. Cost tier: once for
a solve, and for each time that a callback reads values. Of what stays on its device nothing is
copied here.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.group.member import Member
from caspar.solver.input.parted_array import PartedArray
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.plan.shard import Chosen


def gathered(
    system: NormalEquations, rows: Mapping[str, Array], starts: Mapping[str, Array]
) -> Mapping[str, Array]:
    """Values of all nodes on the first device, where all devices call this; nothing on the others.

    Args:
        system: Of this device.
        rows: Its values by node type.
        starts: The whole problem's, before the solve.
    """
    communicator, shard = system.communicator, system.plan.shard
    if shard is None or communicator.group is None:
        return rows
    member = cast(Member, system.plan.library.backend)
    own: dict[str, Any] = {name: rows[name] for name in shard.nodes}
    if not (communicator.group.shares_memory or communicator.is_first):
        own = {name: member.to_host(end) for name, end in own.items()}
    ends = communicator.collect((shard.nodes, own))
    if not communicator.is_first:
        return {}
    moved = {}
    for name, end in rows.items():
        of_type = [(nodes[name], found[name]) for nodes, found in ends if name in nodes]
        start = starts[name]
        if isinstance(start, PartedArray):
            moved[name] = in_parts(start, of_type or [(slice(None), end)])
        else:
            moved[name] = _whole(start, of_type, member) if len(of_type) > 0 else end
    member.synchronize()
    return moved


def _whole(start: Array, ends: Sequence[tuple[Chosen, Array]], member: Member) -> Array:
    """Values of an eliminated type; nodes that no device has were touched by no factor."""
    whole = member.xp.array(member.upload(start))
    member.synchronize()
    for place, rows in ends:
        # of another process they are on the host
        end = member.upload(rows) if isinstance(rows, np.ndarray) else rows
        if not isinstance(place, slice):
            whole[member.upload(place)] = member.bring(end)
        elif place.stop > place.start:
            member.receive(whole[place], end)
    return whole


def last_values(
    system: NormalEquations, starts: Mapping[str, Array], member: Member
) -> dict[str, Any] | None:
    """Values of the last accepted step, as far as a device has them, on the host; see `GroupError`.

    Args:
        system: Of this device.
        starts: The whole problem's, before the solve.
        member: The device.
    """
    shard = system.plan.shard
    try:
        with member.scope():
            found = {name: member.to_host(rows) for name, rows in system.values().items()}
            whole = {}
            for name, given in starts.items():
                rows = np.array(given if isinstance(given, np.ndarray) else member.to_host(given))
                if name in found:
                    nodes = slice(None) if shard is None else shard.nodes.get(name, slice(None))
                    rows[nodes] = found[name]
                whole[name] = rows
    except Exception:
        # a device that has failed has none
        return None
    return whole


def in_parts(start: PartedArray, ends: Sequence[tuple[Chosen, Array]]) -> PartedArray:
    """Values after a solve in the parts in which start values were given, each where that is.

    Args:
        start: (n, dim) start values.
        ends: By device the range of nodes that it has, and their values there.
    """
    parts = []
    for (first, last), part, member in zip(
        pairwise(start.offsets), start.parts, start.members, strict=True
    ):
        pieces = []
        for nodes, rows in ends:
            assert isinstance(nodes, slice)
            begin, _, _ = nodes.indices(start.shape[0])
            low, high = max(begin, first), min(begin + int(rows.shape[0]), last)
            if low < high:
                pieces.append((low - first, rows[low - begin : high - begin]))
        with member.scope():
            parts.append(_part(part, pieces, member))
            member.synchronize()
    return PartedArray(tuple(parts), start.members)


def _part(start: Array, pieces: Sequence[tuple[int, Array]], member: Member) -> Array:
    """One part: pieces by their first rows; the rest was touched by no factor."""
    is_host = isinstance(start, np.ndarray)
    if len(pieces) == 1 and int(pieces[0][1].shape[0]) == int(start.shape[0]):
        rows = pieces[0][1]
        return member.to_host(rows) if is_host else member.bring(rows)
    whole = (np if is_host else member.xp).array(start)
    member.synchronize()
    for first, rows in pieces:
        place = whole[first : first + int(rows.shape[0])]
        if is_host:
            place[...] = member.to_host(rows)
        else:
            member.receive(place, rows)
    return whole
