"""Building node tiles on a CUDA device, on CuPy's current stream."""

from types import ModuleType
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.structure.node_tiles import NODE_TILE_KERNELS, NODE_TILE_SOURCE
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.modules import load_functions
from caspar.runtime.cuda.structure.tiles import TileBuilder


class NodeTileTools:
    """What `runtime.cuda.structure.node_tile_steps` needs: the compiled kernels, and CuPy.

    Args:
        tiles: Sorts tiles.
    """

    def __init__(self, tiles: TileBuilder) -> None:
        self._kernels = load_functions(NODE_TILE_SOURCE, NODE_TILE_KERNELS)
        self._tiles = tiles

    @property
    def xp(self) -> ModuleType:
        """CuPy."""
        module: ModuleType = cupy
        return module

    def launch(self, name: str, num_blocks: int, block_size: int, *arguments: Any) -> None:
        """Enqueue a kernel."""
        values = tuple(np.uint64(0) if value is None else value for value in arguments)
        self._kernels[name].function((num_blocks,), (block_size,), values)

    def scan(self, values: Array) -> None:
        """Replace numbers by the sums of all before each."""
        self._tiles.scan(values)

    def sorted_places(self, index: Array, tile_size: int) -> Array:
        """Order of an index within tiles, perhaps not yet."""
        return self._tiles.sorted_places(index, tile_size)

    def to_host(self, array: Array) -> NDArray[Any]:
        """A copy, after the work of the current stream."""
        host: NDArray[Any] = array.get()
        return host

    def upload(self, array: NDArray[Any]) -> Array:
        """A copy on the device."""
        return cupy.asarray(array)
