"""What is found out about indices and values on the processor: tiles, orders, checks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array
from caspar.memory.host_values import largest_of_columns, write_moved
from caspar.memory.tiling.node_tiles import (
    NodeOrder,
    NodeTiles,
    PlaceType,
    build_node_order,
    build_node_tiles,
)
from caspar.memory.tiling.tiles import (
    TileIndex,
    TileOrder,
    build_tile_index,
    build_tile_order,
    locality_order,
    single_object_tiles,
)
from caspar.runtime.array_tools import host_checksum


class CpuIndexing:
    """By NumPy and SciPy."""

    def tile_index(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an index."""
        return build_tile_index(index, num_objects, tile_size)

    def tile_order(self, index: Array, tile_size: int) -> TileOrder:
        """Order of an index within tiles."""
        return build_tile_order(index, tile_size)

    def first_outside(self, index: Array, size: int) -> int | None:
        """First entry outside 0 .. size - 1."""
        wrong = np.flatnonzero((index < 0) | (index >= size))
        return int(wrong[0]) if wrong.shape[0] > 0 else None

    def first_repeated(self, index: Array, size: int) -> int | None:
        """First entry whose object an earlier one names."""
        first = np.full(size, -1, dtype=np.int64)
        first[index[::-1]] = np.arange(index.shape[0])[::-1]
        repeated = np.flatnonzero(first[index] != np.arange(index.shape[0]))
        return int(repeated[0]) if repeated.shape[0] > 0 else None

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """Order of items in which tiles have few partials."""
        return locality_order(main, partner, num_main)

    def node_tiles(
        self,
        node: Array,
        partner: Array | None,
        num_nodes: int,
        num_partners: int,
        tile_size: int,
        dtype: PlaceType | None = None,
        *,
        keep_order: bool = False,
    ) -> NodeTiles:
        """Tiles that do not split nodes."""
        sizes = (num_nodes, num_partners, tile_size)
        return build_node_tiles(node, partner, *sizes, dtype, keep_order=keep_order)

    def node_order(
        self, node: Array, partner: Array, num_nodes: int, num_partners: int, tile_size: int
    ) -> NodeOrder:
        """The order in which such tiles have the nodes."""
        return build_node_order(node, partner, num_nodes, num_partners, tile_size)

    def checksum(self, arrays: Sequence[Array]) -> int:
        """A number that tells whether arrays are still the same; a gigabyte a second."""
        return host_checksum(arrays)

    def single_object_tiles(self, num_tiles: int) -> TileIndex:
        """One partial for each tile, all of one object."""
        return single_object_tiles(num_tiles)

    def largest(self, arrays: Sequence[Array]) -> list[NDArray[np.float64]]:
        """By NumPy."""
        return [largest_of_columns(rows) for rows in arrays]

    def move(
        self, target: Array, source: Array, added: Sequence[float], draw: int | None = None
    ) -> None:
        """By NumPy."""
        write_moved(target, source, added, draw)
