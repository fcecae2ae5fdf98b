"""Arrays that grow at their end and lose rows anywhere.

Cost tier: amortised constant time a row that is added; time of the whole array for a removal.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MIN_CAPACITY = 16


class GrowingRows:
    """(count, width) rows in memory for more.

    Args:
        width: Scalars of a row.
        dtype: Their type.

    Attributes:
        count: Rows in use.
    """

    def __init__(self, width: int, dtype: DTypeLike = np.float64) -> None:
        self.count = 0
        self._memory: NDArray[Any] = np.zeros((MIN_CAPACITY, width), dtype)

    @property
    def rows(self) -> NDArray[Any]:
        """(count, width), a view that the next growth leaves behind."""
        return self._memory[: self.count]

    @property
    def column(self) -> NDArray[Any]:
        """(count,), a view of the first column."""
        return self._memory[: self.count, 0]

    @property
    def capacity(self) -> int:
        """Rows that fit without moving."""
        return len(self._memory)

    @property
    def memory(self) -> NDArray[Any]:
        """(capacity, width): zeros or former rows behind those in use."""
        return self._memory

    def append(self, rows: NDArray[Any]) -> None:
        """Add (k, width) rows, or (k,) of one column."""
        end = self.count + len(rows)
        if end > self.capacity:
            # half as much again, so that a row is moved three times at most on average
            grown = np.zeros((max(end, self.capacity * 3 // 2), self._memory.shape[1]))
            grown = grown.astype(self._memory.dtype)
            grown[: self.count] = self.rows
            self._memory = grown
        self._memory[self.count : end] = rows.reshape(len(rows), -1)
        self.count = end

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop the rows that are not kept, (count,); the others stay in order."""
        remaining = self.rows[kept]
        self._memory[: len(remaining)] = remaining
        self._memory[len(remaining) : self.count] = 0
        self.count = len(remaining)
