"""The checks of values that backends do, by NumPy: what the kernels for devices are compared with.

Input: arrays of the host. Cost: some passes over them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 2654435761
"""2**32 over the golden ratio: bits of multiples look random (Knuth, volume 3, 6.4)."""

AT_ONCE = 1 << 22
"""Numbers that are moved at once: some 20 bytes are needed for each."""


def largest_of_columns(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest magnitude of each column of (n, width) numbers; NaN if it has a NaN."""
    return np.asarray(np.abs(rows).max(axis=0, initial=0), np.float64)


def write_moved(
    target: NDArray[Any],
    source: NDArray[Any],
    added: Sequence[float],
    draw: int | None,
    at_once: int = AT_ONCE,
) -> None:
    """Write the numbers of an array, moved; see `caspar.runtime.backend.Memory.move`.

    In pieces: there is little memory.
    """
    width = int(source.shape[1])
    sizes = np.array(added, dtype=source.dtype)
    num_rows = max(1, at_once // width)
    for start in range(0, source.shape[0], num_rows):
        piece = source[start : start + num_rows]
        first, count = start * width, int(piece.shape[0]) * width
        # padding may hold any bits, such as a signalling NaN
        with np.errstate(invalid="ignore", over="ignore"):
            if draw is None:
                moved = piece + sizes
            else:
                number = np.arange(first, first + count, dtype=np.uint32).reshape(piece.shape)
                ups = ((number * np.uint32(_GOLDEN)) >> np.uint32(draw)) % 2 == 1
                ends = np.where(ups, piece.dtype.type(np.inf), piece.dtype.type(-np.inf))
                moved = np.nextafter(piece, ends) + np.copysign(sizes, ends)
                moved = np.where(piece == 0.0, piece, moved)
        target[start : start + num_rows] = moved
