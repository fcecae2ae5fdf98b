"""The type of arrays: NumPy's or CuPy's, whichever the backend has; and rows not yet copied."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of the backend's library."""


def address(array: Array) -> int:
    """Return the address of an array."""
    pointer = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return int(pointer)


@dataclass(frozen=True)
class PickedRows:
    """Some rows of an array of the host, which are copied when a device takes them.

    It is no array: what does not know of it fails on it.

    Attributes:
        rows: (m, dim), C-contiguous, on the host.
        numbers: (n,) which of them.
    """

    rows: NDArray[Any]
    numbers: NDArray[np.integer[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the chosen rows."""
        return len(self.numbers), *self.rows.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        found: np.dtype[Any] = self.rows.dtype
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the chosen rows."""
        return len(self.numbers) * int(self.rows[:1].nbytes)

    def on_host(self) -> NDArray[Any]:
        """A copy of the chosen rows."""
        return self.rows.take(self.numbers, axis=0)
