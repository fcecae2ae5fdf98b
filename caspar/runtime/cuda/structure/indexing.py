"""What is found out about indices on the device: tiles, orders, checks."""

from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property

from caspar.memory.array import Array
from caspar.memory.tiling.node_tiles import NodeOrder, NodeTiles, PlaceType
from caspar.memory.tiling.tiles import TileIndex, TileOrder, single_object_tiles
from caspar.runtime.cuda.memory import CudaMemory
from caspar.runtime.cuda.structure.node_tile_steps import make_node_order, make_node_tiles
from caspar.runtime.cuda.structure.tools import StructureTools


class CudaIndexing(CudaMemory):
    """By kernels that are written by hand."""

    @cached_property
    def _structure(self) -> StructureTools:
        return StructureTools(self._device, self.num_multiprocessors)

    def tile_index(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an index."""
        return self._structure.tiles.build(index, num_objects, tile_size)

    def tile_order(self, index: Array, tile_size: int) -> TileOrder:
        """Order of an index within tiles; waits for the device."""
        return self._structure.tiles.order(index, tile_size)

    def first_outside(self, index: Array, size: int) -> int | None:
        """First entry outside 0 .. size - 1."""
        return self._structure.checker.first_outside(index, size)

    def first_repeated(self, index: Array, size: int) -> int | None:
        """An entry whose object another one names."""
        return self._structure.checker.first_repeated(index, size)

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """Order of items in which tiles have few partials."""
        return self._structure.tiles.locality_order(main, partner, num_main)

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
        """Tiles that do not split nodes; waits for the device."""
        sizes = (num_nodes, num_partners, tile_size)
        tools = self._structure.node_tiles
        return make_node_tiles(tools, node, partner, *sizes, dtype, keep_order=keep_order)

    def node_order(
        self, node: Array, partner: Array, num_nodes: int, num_partners: int, tile_size: int
    ) -> NodeOrder:
        """The order in which such tiles have the nodes; waits for the device."""
        sizes = (num_nodes, num_partners, tile_size)
        return make_node_order(self._structure.node_tiles, node, partner, *sizes)

    def checksum(self, arrays: Sequence[Array]) -> int:
        """A number that tells whether indices are still the same; waits for the device."""
        return self._structure.checksum.of(arrays)

    def single_object_tiles(self, num_tiles: int) -> TileIndex:
        """One partial for each tile, all of one object."""
        host = single_object_tiles(num_tiles)
        arrays = {
            field.name: self.upload(getattr(host, field.name))
            for field in fields(host)
            if field.name != "num_partials"
        }
        return TileIndex(num_partials=num_tiles, **arrays)
