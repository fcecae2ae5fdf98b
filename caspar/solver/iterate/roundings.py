"""Values that are moved by a rounding each: how much a cost changes by them is no progress.

Cost: some passes over the nodes of a type.
"""

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from caspar.memory.array import Array

DRAWS = range(13, 21)
"""Bits that draw roundings: one draw may change a cost by a tenth of what others do."""

_GOLDEN = 2654435761
"""2**32 over the golden ratio: bits of multiples look random (Knuth, volume 3, 6.4)."""

_LAST_THIRD = 2.0**-30
"""Relative to the largest start value of a column: more than the last third of the digits."""

AT_ONCE = 1 << 22
"""Scalars: some 20 bytes are needed for each."""


def last_third(rows: Array) -> list[float]:
    """What the last third of the digits of the largest value of each column tell."""
    if rows.size == 0:
        return [0.0] * int(rows.shape[1])
    largest: list[float] = abs(rows).max(axis=0).tolist()
    return [_LAST_THIRD * size for size in largest]


def write_rounded(
    xp: ModuleType,
    nodes: Array,
    candidate: Array,
    draw: int,
    sizes: Sequence[float],
    at_once: int = AT_ONCE,
) -> None:
    """Candidates that are the nodes, moved by a rounding and a size, but for zeros.

    In pieces: there is little memory.

    Args:
        xp: NumPy or CuPy.
        nodes: (n, width) scalars.
        candidate: (n, width) scalars, written.
        draw: Of `DRAWS`: whether each is moved up or down.
        sizes: What each column is moved by beside the rounding: (width,).
        at_once: Scalars of a piece.
    """
    width = int(nodes.shape[1])
    added = xp.asarray(np.array(sizes, dtype=nodes.dtype.name))
    num_rows = max(1, at_once // width)
    for start in range(0, nodes.shape[0], num_rows):
        piece = nodes[start : start + num_rows]
        first, count = start * width, int(piece.shape[0]) * width
        number = xp.arange(first, first + count, dtype=np.uint32).reshape(piece.shape)
        ups = ((number * np.uint32(_GOLDEN)) >> np.uint32(draw)) % 2 == 1
        ends = xp.where(ups, piece.dtype.type(np.inf), piece.dtype.type(-np.inf))
        # padding may hold any bits, such as a signalling NaN
        with np.errstate(invalid="ignore", over="ignore"):
            moved = xp.nextafter(piece, ends) + xp.copysign(added, ends)
            moved = xp.where(piece == 0.0, piece, moved)
        candidate[start : start + num_rows] = moved
