"""Values that are moved by a rounding each: how much a cost changes by them is no progress.

Cost: some passes over the nodes of a type.
"""

from types import ModuleType

import numpy as np

from caspar.memory.array import Array

DRAWS = range(13, 21)
"""Bits that draw roundings: one draw may change a cost by a tenth of what others do."""

_GOLDEN = 2654435761
"""2**32 over the golden ratio: bits of multiples look random (Knuth, volume 3, 6.4)."""

_LAST_THIRD = 2.0**-30
"""Relative to the largest start value of a node type: more than the last third of the digits."""

AT_ONCE = 1 << 22
"""Scalars: some 20 bytes are needed for each."""


def last_third(rows: Array) -> float:
    """What the last third of the digits of the largest of these values tell."""
    return _LAST_THIRD * float(abs(rows).max()) if rows.size > 0 else 0.0


def write_rounded(
    xp: ModuleType, nodes: Array, candidate: Array, draw: int, size: float, at_once: int = AT_ONCE
) -> None:
    """Candidates that are the nodes, moved by a rounding and `size`, but for zeros.

    In pieces: there is little memory.

    Args:
        xp: NumPy or CuPy.
        nodes: (n,) scalars.
        candidate: (n,) scalars, written.
        draw: Of `DRAWS`: whether each is moved up or down.
        size: What each is moved by beside the rounding.
        at_once: Scalars of a piece.
    """
    for start in range(0, nodes.shape[0], at_once):
        piece = nodes[start : start + at_once]
        number = xp.arange(start, start + piece.shape[0], dtype=np.uint32)
        ups = ((number * np.uint32(_GOLDEN)) >> np.uint32(draw)) % 2 == 1
        ends = xp.where(ups, piece.dtype.type(np.inf), piece.dtype.type(-np.inf))
        # padding may hold any bits, such as a signalling NaN
        with np.errstate(invalid="ignore", over="ignore"):
            moved = xp.nextafter(piece, ends) + xp.copysign(piece.dtype.type(size), ends)
            moved = xp.where(piece == 0.0, piece, moved)
        candidate[start : start + at_once] = moved
