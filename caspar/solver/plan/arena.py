"""One allocation for everything a solve writes.

Regions are reserved first, then the arena is allocated and handed out as typed views. Nothing is
allocated inside an iteration.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.runtime.backend import Backend, view

ALIGNMENT = 256
"""Bytes; CUDA's own alignment of allocations."""

Entry = tuple[str, int, DType]
"""A region to be reserved: name, scalars, type."""


@dataclass(frozen=True)
class Region:
    """A reserved stretch of the arena."""

    first_byte: int
    num_scalars: int
    dtype: DType


@dataclass
class ArenaPlan:
    """Reserves regions one behind the other.

    Attributes:
        regions: By name.
        num_bytes: Size so far.
    """

    regions: dict[str, Region] = field(default_factory=dict)
    num_bytes: int = 0

    def reserve(self, name: str, num_scalars: int, dtype: DType) -> None:
        """Reserve a region of its own."""
        self.regions[name] = Region(self.num_bytes, num_scalars, dtype)
        size = num_scalars * dtype.itemsize
        self.num_bytes += -(-size // ALIGNMENT) * ALIGNMENT

    def reserve_shared(self, groups: Sequence[Sequence[Entry]]) -> None:
        """Reserve groups that are never in use at the same time: they share their bytes."""
        start = end = self.num_bytes
        for group in groups:
            self.num_bytes = start
            for name, num_scalars, dtype in group:
                self.reserve(name, num_scalars, dtype)
            end = max(end, self.num_bytes)
        self.num_bytes = end

    def join(self, name: str, first: str, last: str) -> None:
        """Name everything from one region to another, as 4-byte scalars, in whole 16 bytes."""
        start, end = self.regions[first], self.regions[last]
        size = end.first_byte + end.num_scalars * end.dtype.itemsize - start.first_byte
        self.regions[name] = Region(start.first_byte, -(-size // 16) * 4, DType.FLOAT32)

    def reserve_over(self, name: str, first_byte: int) -> None:
        """Name everything reserved from a byte on, as 4-byte scalars."""
        size = self.num_bytes - first_byte
        self.regions[name] = Region(first_byte, size // 4, DType.FLOAT32)

    def allocate(self, backend: Backend) -> dict[str, Array]:
        """The views, by name."""
        memory = backend.allocate(self.num_bytes)
        return {
            name: view(memory, region.first_byte, region.num_scalars, region.dtype.value)
            for name, region in self.regions.items()
        }


class Scratch:
    """Hands out a region piece by piece; where it is used up, arrays of their own.

    Args:
        backend: Whose arrays they are.
        region: Nothing else uses it meanwhile.
    """

    def __init__(self, backend: Backend, region: Array) -> None:
        self._backend = backend
        self._bytes = region.view(np.uint8)
        self._first_byte = 0

    def take(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array with any numbers in it, C-contiguous."""
        num_scalars = math.prod(shape)
        size = num_scalars * np.dtype(dtype).itemsize
        if self._first_byte + size > self._bytes.shape[0]:
            return self._backend.xp.empty(shape, dtype=dtype)
        taken = view(self._bytes, self._first_byte, num_scalars, dtype)
        self._first_byte += -(-size // ALIGNMENT) * ALIGNMENT
        return taken.reshape(shape)
