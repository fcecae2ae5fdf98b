"""Indices that items of a tile share, prepared once and used by any number of kernels.

Once for each index: sorted tile by tile on the device (paper: Shared Read/Add, `SharedIndex`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.kernels.convert import backend_of
from caspar.memory.tiles import Array, TileIndex
from caspar.runtime.arrays import HOST, Location, location, to_numpy
from caspar.runtime.backend import Backend


class SharedIndices:
    """An index with its tiles.

    Wherever a kernel takes an `index`, it takes this too, and does not prepare or check it again.

    Args:
        index: (n,) integers: the object of each item. NumPy, CuPy, torch, jax.
        size: Objects that may be named: 0 to size - 1.
        backend: `cuda`, `cpu` or `auto`; by default where the index lives.
        check: Whether to test the range, which waits for the device.

    Raises:
        InputError: Not integers, not one-dimensional, or out of range.
    """

    def __init__(
        self, index: Any, size: int, backend: str | None = None, *, check: bool = True
    ) -> None:
        self._backend = backend_of(index, backend)
        self.size = int(size)
        self.index = _read(self._backend, index)
        self._tiles: dict[int, TileIndex] = {}
        if check:
            check_range(self._backend, "SharedIndices", self.index, self.size)

    @property
    def backend(self) -> Backend:
        """Where it is."""
        return self._backend

    @property
    def location(self) -> Location:
        """Where it lives."""
        return location(self.index)

    @property
    def shape(self) -> tuple[int]:
        """(n,)."""
        return (int(self.index.shape[0]),)

    def __len__(self) -> int:
        return self.shape[0]

    def tiles(self, tile_size: int) -> TileIndex:
        """The tiles of a size, built when first asked for."""
        if tile_size not in self._tiles:
            self._tiles[tile_size] = self._backend.tile_index(self.index, self.size, tile_size)
        return self._tiles[tile_size]

    def __repr__(self) -> str:
        return (
            f"SharedIndices({len(self):,} items of {self.size:,} objects, {self._backend.device})"
        )


def _read(backend: Backend, index: Any) -> Array:
    place = location(index)
    array = to_numpy(index) if place == HOST else backend.upload(index)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(
            f"SharedIndices: shape {tuple(array.shape)} and dtype {array.dtype}; an index is "
            "(n,) integers"
        )
    if place == HOST:
        return backend.upload(np.ascontiguousarray(array, dtype=np.int32))
    return backend.xp.ascontiguousarray(array, dtype=np.int32)


def check_range(backend: Backend, where: str, index: Array, size: int) -> None:
    """Raise where an index is outside 0 .. size - 1; waits for the device.

    Raises:
        InputError: Names the first entry that is wrong.
    """
    if index.shape[0] == 0:
        return
    wrong = backend.first_outside(index, size)
    if wrong is None:
        return
    allowed = f"0 to {size - 1} are allowed" if size > 0 else "no index is allowed"
    raise InputError(
        f"{where}: index {int(index[wrong])} at entry {wrong} is out of range; there are {size} "
        f"objects, so {allowed}"
    )
