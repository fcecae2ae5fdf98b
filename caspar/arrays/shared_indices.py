"""Indices prepared once and used by any number of kernels (paper: Shared Read/Add, SharedIndex).

Input: a user's index; output: it as int32 on a device, and its order and tiles as kernels ask for
them. Once for each index.
"""

from __future__ import annotations

import operator
from html import escape
from typing import Any, SupportsIndex

import numpy as np

import caspar
from caspar.arrays.convert import backend_of, shared_array
from caspar.errors import InputError
from caspar.memory.accessors.sums.shared_atomics import AddSharedRuns
from caspar.memory.array import Array
from caspar.memory.tiling.tiles import TileIndex, TileOrder
from caspar.runtime.arrays import Location, location
from caspar.runtime.backend import Backend

_HIGHEST = np.iinfo(np.int32).max

ORDER_TILE_SIZE = AddSharedRuns.tile_sizes[0]
"""Items of the tiles that kernels prefer to follow on CUDA."""


class SharedIndices:
    """An index, with what kernels need to know of it: which items of a tile share an object.

    Wherever a kernel takes an `index`, it takes this too. It then neither converts nor checks the
    index again, and `AddSharedSum` is faster where neighbouring items share objects:

        camera = caspar.SharedIndices(camera_of_observation, size=len(cameras))
        sums = gradient(points, out={"index": camera})

    Kernels cut the items into *tiles*, one for each block of threads. Two things are known of a
    tile; each is built when the first kernel needs it, and kept:

    * its order (`order`), in which items of one object are neighbours: sums by atomics follow it;
    * its partials (`tiles`), one for each (tile, object) pair: for `deterministic=True`, and for
      all sums on the processor.

    The fewer pairs there are for each item, the less a sum costs: what is printed says how many
    items a pair has on average. Sorting items so that neighbours share objects lowers it.

    The index must not change afterwards: an int32 array is not copied.

    Args:
        index: (n,) integers: the object of each item. NumPy, CuPy, torch, jax, or a sequence.
        size: Number of objects: 0 to size - 1 may be named.
        backend: `cuda`, `cpu` or `auto`; None: where the index lives.
        check: Whether to test the range. On CUDA the order is built for it, and waited for. False
            is unsafe: a kernel that is given an index out of range reads and writes memory that is
            not its array's (a crash, or garbage).

    Raises:
        InputError: Not integers, not one-dimensional, on another device, or out of range.
        BackendError: CUDA was asked for and is not usable.

    Example:
        >>> import caspar
        >>> caspar.SharedIndices([0, 0, 1, 2], size=3, backend="cpu")
        SharedIndices(4 items, 3 objects, ...)
    """

    def __init__(
        self, index: Any, size: int, backend: str | None = None, *, check: bool = True
    ) -> None:
        self._backend = backend_of(index, backend, where="SharedIndices")
        self._size = _checked_size(size)
        given = _read(index)
        self._index = self._backend.upload(narrowed(given, check=check))
        self._orders: dict[int, TileOrder] = {}
        self._tiles: dict[int, TileIndex] = {}
        self._elsewhere: dict[str, SharedIndices] = {}
        if check:
            self._check_range(given)

    def _check_range(self, given: Array) -> None:
        if self._backend.traits.ranges_are_known_by_order:
            order = self.prepare().order(ORDER_TILE_SIZE)
            if order.lowest >= 0 and order.highest < self._size:
                return
        check_range(self._backend, "SharedIndices", self._index, self._size, given)

    def prepare(self, tile_size: int = ORDER_TILE_SIZE) -> SharedIndices:
        """Build an order now, not in a kernel's first call; waits for the device.

        Args:
            tile_size: As of `order`.

        Returns:
            This.
        """
        self.order(tile_size)
        return self

    def on(self, backend: Backend) -> SharedIndices:
        """The same on another backend: copied when first asked for."""
        if backend is self._backend:
            return self
        if backend.name not in self._elsewhere:
            copied = SharedIndices(self.index, self._size, backend.name, check=False)
            self._elsewhere[backend.name] = copied
        return self._elsewhere[backend.name]

    def order(self, tile_size: int) -> TileOrder:
        """The order of tiles of a size; built, and waited for, when first asked for.

        Args:
            tile_size: Items of a tile: 128, 256, 512 or 1024.
        """
        if tile_size not in self._orders:
            self._orders[tile_size] = self._backend.tile_order(self._index, tile_size)
        return self._orders[tile_size]

    def tiles(self, tile_size: int) -> TileIndex:
        """The tiles of a size with their partials; built when first asked for.

        Args:
            tile_size: Items of a tile: 128, 256, 512 or 1024.
        """
        if tile_size not in self._tiles:
            self._tiles[tile_size] = self._backend.tile_index(self._index, self._size, tile_size)
        return self._tiles[tile_size]

    @property
    def index(self) -> Array:
        """(n,) int32, NumPy or CuPy; only to be read."""
        if not isinstance(self._index, np.ndarray):
            return self._index
        view = self._index.view()
        view.flags.writeable = False
        return view

    @property
    def size(self) -> int:
        """Number of objects that may be named."""
        return self._size

    @property
    def shape(self) -> tuple[int]:
        """(n,)."""
        return (int(self._index.shape[0]),)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def backend(self) -> Backend:
        """Backend that holds it."""
        return self._backend

    @property
    def location(self) -> Location:
        """Device and library of its memory."""
        return location(self._index)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """The index, its size and where it was; orders and tiles are built again."""
        return _remade, (type(self), self._index, self._size, self._backend.name)

    def __copy__(self) -> SharedIndices:
        """Return itself: it does not change."""
        return self

    # -- how it looks --------------------------------------------------------------------------

    def __repr__(self) -> str:
        said = [f"{len(self):,} items", f"{self._size:,} objects"]
        said += [
            f"{_mean_text(len(self), pairs)} a (tile, object) pair in tiles of {tile_size}"
            for tile_size, pairs in self._num_pairs[:1]
        ]
        return f"SharedIndices({', '.join([*said, self._backend.device])})"

    def _repr_html_(self) -> str:
        facts = [("items", f"{len(self):,}"), ("objects", f"{self._size:,}")]
        for order in list(self._orders.values())[:1]:
            facts.append(("named", f"{order.lowest:,} to {order.highest:,}"))
        for tile_size, pairs in self._num_pairs:
            mean = _mean_text(len(self), pairs)
            facts.append((f"tiles of {tile_size}", f"{pairs:,} (tile, object) pairs of {mean}"))
        for tile_size, order in sorted(self._orders.copy().items()):
            num_tiles = -(-len(self) // tile_size)
            unsorted = f"{order.num_unsorted_tiles:,} of {num_tiles:,} tiles are not sorted"
            facts.append((f"order of {tile_size}", f"{order.num_bytes:,} bytes; {unsorted}"))
        for tile_size, tiles in sorted(self._tiles.copy().items()):
            facts.append((f"partials of {tile_size}", f"{tiles.num_bytes:,} bytes"))
        table = caspar.inspect.FactTable(tuple(facts))._repr_html_()
        return f"<div><code>{escape(repr(self))}</code>{table}</div>"

    @property
    def _num_pairs(self) -> list[tuple[int, int]]:
        """Sizes of tiles and the pairs that these have, as far as is known."""
        known = {tile_size: tiles.num_partials for tile_size, tiles in self._tiles.copy().items()}
        known |= {tile_size: order.num_partials for tile_size, order in self._orders.copy().items()}
        return sorted(known.items())


def _remade(kind: type[SharedIndices], index: Array, size: int, backend: str) -> SharedIndices:
    """Make one from the contents of a pickle; its range was checked, or was not to be."""
    return kind(index, size, backend, check=False)


def _mean_text(num_items: int, num_pairs: int) -> str:
    if num_pairs == 0:
        return "no items"
    return f"{num_items / num_pairs:.3g} items"


def _checked_size(size: Any) -> int:
    try:
        number = None if isinstance(size, bool) else operator.index(size)
    except TypeError:
        number = None
    if number is None or not 0 <= number <= _HIGHEST:
        raise InputError(
            f"SharedIndices: size={size!r}; it is the number of objects, an integer of 0 to "
            f"{_HIGHEST:,}"
        )
    return number


def _read(index: Any) -> Array:
    """A user's index where it lives, of whatever integers."""
    if isinstance(index, list | tuple) and len(index) == 0:
        return np.zeros(0, dtype=np.int32)  # NumPy would take it for real numbers
    array = shared_array("SharedIndices, index", index)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"SharedIndices, index: shape {tuple(array.shape)} and dtype {array.dtype}; an index "
            "must be (n,) integers"
        )
    if array.shape[0] > _HIGHEST:
        raise InputError(
            f"SharedIndices, index: {array.shape[0]:,} items; at most {_HIGHEST:,} are allowed"
        )
    return array


def narrowed(array: Array, *, check: bool) -> Array:
    """An index as int32 where it lives; the same memory if it is that. Waits for nothing.

    `array`: (n,) integers, NumPy or CuPy. `check`: Whether the range is tested afterwards: numbers
    that int32 does not hold then become numbers that no object has, instead of losing bits and
    perhaps becoming valid.
    """
    xp = backend_of(array).xp
    if np.can_cast(array.dtype, np.int32) or not check:
        return xp.ascontiguousarray(array, dtype=np.int32)
    result = xp.empty(array.shape, dtype=np.int32)
    lowest = -1 if array.dtype.kind == "i" else 0
    xp.clip(array, lowest, _HIGHEST, out=result)
    return result


def check_range(
    backend: Backend, where: str, index: Array, size: int, given: Array | None = None
) -> None:
    """Raise where an (n,) int32 index is outside 0 .. size - 1; waits for the device."""
    if index.shape[0] == 0:
        return
    wrong = backend.first_outside(index, size)
    if wrong is None:
        return
    number = int((index if given is None else given)[wrong])
    allowed = f"0 to {size - 1} are allowed" if size > 0 else "no index is allowed"
    raise InputError(
        f"{where}: index {number} at entry {wrong} is out of range; there are {size} objects, so "
        f"{allowed}"
    )
