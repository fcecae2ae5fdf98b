"""Values of eliminated nodes, from the devices that have them to where start values were given.

Cost tier: once for a solve, and for each time that a callback reads values. Of what stays on its
device nothing is copied here.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.group.member import Member
from caspar.solver.input.parted_array import PartedArray
from caspar.solver.plan.shard import Chosen


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
