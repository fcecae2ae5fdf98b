"""Look through the arrays of a structure on the host, as long as that is quick.

CuPy compiles a kernel for each array operation, one after the other, and a structure needs dozens
of them.
"""

import hashlib
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from caspar.memory.array import Array
from caspar.runtime.backend import Backend

MAX_ON_HOST = 1 << 20
"""Items that the host may look through once for a structure, which takes it 2 to 7 ms."""


class ArrayTools:
    """`xp`, NumPy or CuPy, for arrays of about `num_items`, and the way to it and back."""

    def __init__(self, backend: Backend, num_items: int) -> None:
        self._backend = backend
        self._is_away = backend.xp is not np and num_items <= MAX_ON_HOST
        self.xp: ModuleType = np if self._is_away else backend.xp

    def bring(self, array: Array) -> Array:
        """An array of the device as one of the library."""
        return self._backend.to_host(array) if self._is_away else array

    def send(self, array: Array) -> Array:
        """An array of the library as one of the device."""
        return self._backend.upload(array) if self._is_away else array


def host_checksum(arrays: Sequence[Array]) -> int:
    """A number of 64 bits that tells whether arrays of the host are still the same."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest(), "little")
