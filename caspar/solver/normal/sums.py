"""Sums of rows by index, and work in pieces whose intermediate arrays stay small.

NumPy and CuPy arrays alike. Cost tier: many times for a covariance.
"""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
from scipy.sparse import csc_matrix

from caspar.memory.array import Array

HOST_PIECE_SCALARS = 1 << 20
"""Scalars of the largest intermediate array of a piece: 8 MB, which caches still help with."""

DEVICE_PIECE_SCALARS = 1 << 25
"""The same on a GPU, where a piece costs some twenty launches: 256 MB."""


FEW_SCALARS = 1 << 13
"""Up to which `numpy.bincount` is quicker than a sparse matrix, which takes 50 us to make."""


def piece_scalars(xp: ModuleType) -> int:
    """Scalars that the largest intermediate array of a piece may have."""
    return HOST_PIECE_SCALARS if xp is np else DEVICE_PIECE_SCALARS


def add_rows(xp: ModuleType, target: Array, index: Array, rows: Array) -> None:
    """Add `rows[k]` to `target[index[k]]`; several rows may have one index.

    Args:
        xp: NumPy or CuPy.
        target: (n, ...) float64, contiguous.
        index: (m,) integers.
        rows: (m, ...) float64.
    """
    if len(index) == 0:
        return
    width = int(np.prod(target.shape[1:], dtype=np.int64))
    flat = rows.reshape(len(index), width)
    if xp is not np:
        xp.add.at(target.reshape(-1, width), index, flat)
        return
    if max(target.size, flat.size) <= FEW_SCALARS:
        entry = (index[:, None].astype(np.int64) * width + np.arange(width)).ravel()
        sums = np.bincount(entry, weights=flat.ravel(), minlength=target.size)
        target.reshape(-1)[...] += sums
        return
    places = None
    if len(target) > len(index):
        places, index = np.unique(index, return_inverse=True)
    num_rows = len(target) if places is None else len(places)
    # the product with a matrix of ones: ten times as fast as numpy.add.at
    ones = csc_matrix(
        (np.ones(len(index)), index, np.arange(len(index) + 1)), shape=(num_rows, len(index))
    )
    sums = ones @ flat
    if places is None:
        target.reshape(-1, width)[...] += sums
    else:
        target.reshape(-1, width)[places] += sums


def pieces(xp: ModuleType, num_items: int, scalars_of_item: int) -> Iterator[slice]:
    """Ranges of items whose arrays together have about `piece_scalars` scalars."""
    step = max(1, piece_scalars(xp) // max(scalars_of_item, 1))
    for first in range(0, num_items, step):
        yield slice(first, min(first + step, num_items))
