"""The kernels that prepare a structure, each compiled when it is first needed."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from caspar.codegen.cuda.header import COMPILE_OPTIONS
from caspar.memory.accessors.nodes.node_sums import NODE_TILE_SIZES
from caspar.runtime.cuda.structure.checksum import Checksum
from caspar.runtime.cuda.structure.indices import IndexChecker
from caspar.runtime.cuda.structure.node_tiles import NodeTileTools
from caspar.runtime.cuda.structure.tiles import TileBuilder


class StructureTools:
    """All of a device.

    Args:
        device: CuPy's.
        num_multiprocessors: Of the device.
    """

    def __init__(self, device: Any, num_multiprocessors: int) -> None:
        self._device = device
        self._num_multiprocessors = num_multiprocessors

    @cached_property
    def tiles(self) -> TileBuilder:
        """Tiles of indices.

        The first compilation of a process makes CuPy preprocess an empty file to know NVRTC's
        version; in parallel every thread would do it. So this one is made before any other.
        """
        with self._device:
            return TileBuilder(COMPILE_OPTIONS)

    @cached_property
    def node_tiles(self) -> NodeTileTools:
        """Tiles that do not split nodes."""
        with self._device:
            return NodeTileTools(COMPILE_OPTIONS, self.tiles)

    @cached_property
    def checksum(self) -> Checksum:
        """Checksums of indices."""
        with self._device:
            return Checksum(COMPILE_OPTIONS, self._num_multiprocessors)

    @cached_property
    def checker(self) -> IndexChecker:
        """Checks of indices."""
        with self._device:
            return IndexChecker(COMPILE_OPTIONS)

    def jobs(self, *, tiled: bool) -> list[Callable[[], object]]:
        """What compiles all that a structure takes, side by side; the first is made at once.

        Args:
            tiled: Whether there are tiles that do not split nodes.
        """
        tiles = self.tiles
        found: list[Callable[[], object]] = [lambda: self.checksum]
        if tiled:
            found += [lambda: self.node_tiles, lambda: self.checker]
            found += [partial(self._prepare_sorter, tiles, size) for size in NODE_TILE_SIZES]
        return found

    def _prepare_sorter(self, tiles: TileBuilder, tile_size: int) -> None:
        with self._device:
            tiles.prepare(tile_size)
