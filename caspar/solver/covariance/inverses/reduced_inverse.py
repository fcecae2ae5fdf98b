"""The inverse of the reduced system, however it was found."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ReducedInverse:
    """The inverse of the scaled reduced system, in which free directions are pinned.

    Attributes:
        method: How it was found, in words.
        free: (size, k) orthonormal free directions of the reduced system, on the host.
        solve: The inverse times (size, k), on the host.
        blocks: Blocks, (k, width, width) on the device, of pairs of objects with first <= second
            between which the system has a block; None: only columns can be had, by `solve`.
    """

    method: str
    free: FloatArray
    solve: Callable[[FloatArray], FloatArray]
    blocks: Callable[[Array, Array], Array] | None


def with_padding(rows: FloatArray, places: NDArray[np.int64], size: int) -> FloatArray:
    """Rows of unknowns among those of padding, which are zero."""
    result = np.zeros((size, *rows.shape[1:]))
    result[places] = rows
    return result
