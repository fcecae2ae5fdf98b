"""The kernels that prepare a structure, each compiled when it is first needed."""

from functools import cached_property
from typing import Any

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
        """Tiles of indices."""
        with self._device:
            return TileBuilder()

    @cached_property
    def node_tiles(self) -> NodeTileTools:
        """Tiles that do not split nodes."""
        with self._device:
            return NodeTileTools(self.tiles)

    @cached_property
    def checksum(self) -> Checksum:
        """Checksums of indices."""
        with self._device:
            return Checksum(self._num_multiprocessors)

    @cached_property
    def checker(self) -> IndexChecker:
        """Checks of indices."""
        with self._device:
            return IndexChecker()
