"""Kernel arguments in memory, written down a second time: where each scalar lies, by brute force.

Independent of `caspar.memory.layout` and `caspar.memory.tiling.tiles`, which it is compared with.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.memory.access import ArgSpec
from caspar.memory.patterns import ReadRows, WriteRows
from caspar.memory.tiling.node_tiles import NodeTiles

Array = NDArray[Any]
IntArray = NDArray[np.int64]

CANARY_BYTES = 64


@dataclass(frozen=True)
class Placement:
    """Where the scalars of an argument lie in its flat array.

    Attributes:
        where: (length, dim) position of each scalar of each object, row or partial.
        pads: (num_pads,) positions that belong to no scalar.
        size: Scalars of the array.
    """

    where: IntArray
    pads: IntArray
    size: int

    @property
    def column(self) -> IntArray:
        """(size,) column of each position, -1 for pads."""
        column = np.full(self.size, -1)
        column[self.where] = np.arange(self.where.shape[1])
        return column


def place(arg: ArgSpec, length: int) -> Placement:
    """Lay out `length` objects, rows or partials of an argument."""
    if arg.read == ReadRows() or arg.write == WriteRows():
        where = np.arange(length * arg.dim).reshape(length, arg.dim)
        return Placement(where, np.empty(0, np.int64), where.size)
    if arg.in_rows:
        return _place_rows(arg, length)
    chunk_length = 4 if arg.holds_partials else 16 // arg.dtype.itemsize
    where = np.empty((length, arg.dim), np.int64)
    start = 0
    for first in range(0, arg.dim, chunk_length):
        width = min(chunk_length, arg.dim - first)
        padded = next(size for size in (1, 2, 4, 8) if size >= width)
        stride = width if arg.holds_partials else padded
        for lane in range(width):
            where[:, first + lane] = start + stride * np.arange(length) + lane
        start += stride * length
    is_pad = np.ones(start, bool)
    is_pad[where] = False
    return Placement(where, np.flatnonzero(is_pad), start)


def _place_rows(arg: ArgSpec, length: int) -> Placement:
    """One object after the other; a store fills no more than the last 16 bytes that it begins."""
    sector, chunk = 32 // arg.dtype.itemsize, 16 // arg.dtype.itemsize
    row = next((size for size in (1, 2, 4, 8) if arg.dim <= size <= sector), None)
    row = -(-arg.dim // sector) * sector if row is None else row
    rest = (arg.dim - 1) % chunk + 1
    stored = arg.dim - rest + next(size for size in (1, 2, 4, 8) if size >= rest)
    first = row * np.arange(length)[:, None]
    pads = (first + np.arange(arg.dim, stored)).reshape(-1)
    return Placement(first + np.arange(arg.dim), pads, row * length)


def tile_partials(index: Array, tile_size: int) -> list[tuple[int, IntArray]]:
    """(object, items) of each partial: tiles in order, in each tile the objects in order."""
    partials = []
    for first in range(0, len(index), tile_size):
        tile = index[first : first + tile_size]
        for number in np.unique(tile):
            partials.append((int(number), first + np.flatnonzero(tile == number)))
    return partials


def block_of_tiles(tiles: NodeTiles, tile: IntArray, stretch: int) -> IntArray:
    """The block that takes each tile: a long group, or up to `stretch` of the others."""
    num_long_tiles = tiles.num_tiles - tiles.num_short
    group = np.searchsorted(tiles.group_start, tile, side="right") - 1
    num_blocks = -(-tiles.num_short // stretch)
    shares = np.array_split(np.arange(tiles.num_short), max(num_blocks, 1))
    block = np.concatenate([np.full(len(share), number) for number, share in enumerate(shares)])
    short = tiles.num_long + block[np.maximum(tile - num_long_tiles, 0)] if len(block) > 0 else 0
    return np.where(tile < num_long_tiles, group, short)


def with_canaries(array: Array) -> Array:
    """A copy of an array that lies between two stretches of known bytes."""
    memory = np.full(array.nbytes + 2 * CANARY_BYTES, 0xA5, np.uint8)
    inner = memory[CANARY_BYTES : CANARY_BYTES + array.nbytes].view(array.dtype)
    inner[:] = array.reshape(-1)
    return inner.reshape(array.shape)


def canaries_live(array: Array) -> bool:
    """Whether the bytes around an array of `with_canaries` are as they were."""
    memory = array
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    assert memory.nbytes == array.nbytes + 2 * CANARY_BYTES
    around = np.concatenate([memory[:CANARY_BYTES], memory[CANARY_BYTES + array.nbytes :]])
    return bool(np.all(around == 0xA5))
