"""Detect values so far from zero that float32 rounds their differences noticeably.

Input: the start values of a node type. Output: yes or no. Cost tier: a look at a thousand rows,
once for each solve in mixed precision on CUDA.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from caspar.frontend.factors.trace import NodeType
from caspar.memory.array import Array

LOOKED_AT = 1000
"""Rows that are looked at, evenly apart."""

FAR = 32.0
"""Times its spread that a number is from zero, from which on rounding it shows: float32 then moves
differences of a thousandth of the spread by 2e-3 of themselves (docs/design/0002)."""


def is_far_from_zero(node: NodeType, rows: Array, every: Callable[[Array, int], Any]) -> bool:
    """Return whether some number of a node is far from zero in all nodes, as map coordinates are.

    Args:
        node: The type.
        rows: (n, storage_dim) values.
        every: Copies each so many rows of an array to NumPy.
    """
    units = {place for part in node.unit_ranges for place in range(part.start, part.stop)}
    places = [place for place in range(node.storage_dim) if place not in units]
    if len(places) == 0 or int(rows.shape[0]) < 2:
        return False
    step = max(1, int(rows.shape[0]) // LOOKED_AT)
    numbers = np.asarray(every(rows, step))[:, places]
    low, middle, high = np.percentile(numbers, (5, 50, 95), axis=0)
    spread = high - low
    return bool(((spread > 0.0) & (np.abs(middle) > FAR * spread)).any())
