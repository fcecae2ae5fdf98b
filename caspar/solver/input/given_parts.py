"""Node values that were given in parts, and how they go back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.arrays import Moved, give_back
from caspar.runtime.backend import Backend
from caspar.solver.input.parted_array import PartedArray


@dataclass(frozen=True)
class GivenParts:
    """The user's values of a node type, if they are in parts."""

    parts: tuple[Any, ...]


def back_in_parts(
    given: GivenParts,
    start: Array,
    end: Array,
    dtype: Any,
    backend: Backend,
    *,
    has_held: bool,
) -> list[Any]:
    """Values after a solve in the parts that were given, each of the kind and where that was.

    Args:
        given: What was given.
        start: (n, dim) values the solve began with, also a `PartedArray`.
        end: The same after it.
        dtype: NumPy type of the result.
        backend: Where the values are, unless they are in parts.
        has_held: See `Moved`.
    """
    members: Sequence[Backend] = [backend] * len(given.parts)
    if isinstance(start, PartedArray):
        members, starts = start.members, start.parts
        ends = end.parts if isinstance(end, PartedArray) else start.cut(end).parts
    else:
        places = np.cumsum([0, *(int(part.shape[0]) for part in given.parts)]).tolist()
        starts, ends = (
            tuple(rows[first:last] for first, last in pairwise(places)) for rows in (start, end)
        )
    found = []
    for part, begun, ended, member in zip(given.parts, starts, ends, members, strict=True):
        with member.scope():
            moved = Moved(begun, ended.copy(), has_held=has_held)
            found.append(give_back(moved, part, dtype, member.to_host, member.upload))
            member.synchronize()
    return found
