"""Prepare indices on the device: tiles, orders, checks.

Also here: the kernels that prepare a structure, each compiled when it is first needed.

Also here: building tiles on a CUDA device, on CuPy's current stream.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from threading import Lock
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.checks import (
    CHECKSUM_KERNEL,
    CHECKSUM_SOURCE,
    INDEX_KERNELS,
    INDEX_SOURCE,
)
from caspar.codegen.cuda.structure.node_tiles import NODE_TILE_KERNELS, NODE_TILE_SOURCE
from caspar.codegen.cuda.structure.tiles import (
    SCAN_BLOCK_SIZE,
    SORT_KERNELS,
    TILE_KERNELS,
    TILE_SOURCE,
    WARPS_OF_BLOCK,
    sort_source,
)
from caspar.memory.array import Array
from caspar.memory.tiling.node_tiles import NodeOrder, NodeTiles, PlaceType
from caspar.memory.tiling.tiles import TileIndex, TileOrder, single_object_tiles
from caspar.runtime.cuda.compile.modules import load_functions
from caspar.runtime.cuda.memory import CudaMemory
from caspar.runtime.cuda.structure.node_tile_steps import make_node_order, make_node_tiles

_MANY = 1 << 22

_LARGE_BYTE = 0x7F
"""Four of them are a number above all indices that fit in memory."""

_FIRST_STATS = np.array([0, 0, np.iinfo(np.int32).max, np.iinfo(np.int32).min], dtype=np.int32)
"""Partials, unsorted tiles, lowest and highest index before any tile is seen."""


@dataclass(frozen=True)
class _SortedTiles:
    """The arrays that the sort writes, see its text; they may not be ready yet."""

    places: Array
    tile_start: Array
    block_start: Array
    stats: Array

    def order(self) -> TileOrder:
        return TileOrder(self.places, *(int(number) for number in self.stats.get()))


def _no_tiles(num_objects: int) -> TileIndex:
    none = cupy.empty(0, dtype=cupy.uint16)
    zeros = cupy.zeros(num_objects + 1, dtype=cupy.int32)
    partials = cupy.empty(0, dtype=cupy.int32)
    return TileIndex(0, none, none, zeros[:1], none, zeros, partials)


def _sort_keys(objects: Array, num_objects: int) -> Array:
    """Many numbers of objects in the smallest type that CuPy sorts by a precompiled radix sort.

    30 million on an H200: 0.95 ms with 16 bits, 1.33 with 32, 2.1 as 64-bit pairs with the place.
    For few it is not worth the kernel that CuPy compiles to change the type.
    """
    is_short = num_objects <= 2**16 and objects.shape[0] > _MANY
    return objects.astype(cupy.uint16) if is_short else objects


class TileBuilder:
    """The kernels of `codegen.cuda.structure.tiles`, compiled when first used."""

    def __init__(self) -> None:
        self._kernels = load_functions(TILE_SOURCE, TILE_KERNELS)

    def order(self, index: Array, tile_size: int) -> TileOrder:
        """Order of an (n,) int32 index on the device; reads its statistics back."""
        if index.shape[0] == 0:
            return TileOrder(cupy.empty(0, dtype=cupy.uint16), 0, 0, 0, -1)
        return self._sort(index, tile_size).order()

    def sorted_places(self, index: Array, tile_size: int) -> Array:
        """The array of `order`, perhaps not yet: nothing is read back. `index` has some entry."""
        return self._sort(index, tile_size).places

    def scan(self, values: Array) -> None:
        """Replace (n,) uint32 by the sums of all before each; one block."""
        scan = self._kernels["scan_blocks"].function
        scan((1,), (SCAN_BLOCK_SIZE,), (np.uint32(values.shape[0]), values))

    def build(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an (n,) int32 index on the device; reads one number back."""
        count = int(index.shape[0])
        if count == 0:
            return _no_tiles(num_objects)
        tiles = self._sort(index, tile_size)
        self.scan(tiles.block_start)
        num_partials = tiles.order().num_partials
        slot = cupy.empty(count, dtype=cupy.uint16)
        position = cupy.empty(count, dtype=cupy.uint16)
        segment_end = cupy.empty(num_partials, dtype=cupy.uint16)
        of_partial = cupy.empty(num_partials, dtype=cupy.int32)
        found = (tiles.tile_start, segment_end, of_partial, position, slot)
        self._run_sorter(
            "list_partials", tile_size, count, index, tiles.places, tiles.block_start, *found
        )
        grouped = cupy.argsort(_sort_keys(of_partial, num_objects), kind="stable")
        object_start = cupy.empty(num_objects + 1, dtype=cupy.int32)
        object_partials = cupy.empty(num_partials, dtype=cupy.int32)
        num_blocks = -(-(num_partials + 1) // BLOCK_SIZE)
        bounds = (np.uint32(num_objects), of_partial, grouped, object_partials, object_start)
        self._run("object_bounds", num_blocks, num_partials, *bounds)
        return TileIndex(
            num_partials=num_partials,
            slot=slot,
            position=position,
            tile_start=tiles.tile_start,
            segment_end=segment_end,
            object_start=object_start,
            object_partials=object_partials,
        )

    def _sort(self, index: Array, tile_size: int) -> _SortedTiles:
        count = int(index.shape[0])
        num_tiles = -(-count // tile_size)
        num_blocks = -(-num_tiles // WARPS_OF_BLOCK)
        tiles = _SortedTiles(
            places=cupy.empty(num_tiles * tile_size, dtype=cupy.uint16),
            tile_start=cupy.empty(num_tiles + 1, dtype=cupy.int32),
            block_start=cupy.empty(num_blocks, dtype=cupy.uint32),
            stats=cupy.asarray(_FIRST_STATS),
        )
        written = (tiles.places, tiles.tile_start, tiles.block_start, tiles.stats)
        self._run_sorter("sort_tiles", tile_size, count, index, *written)
        return tiles

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """See `memory.tiling.tiles.locality_order`."""
        if partner is None:
            return cupy.argsort(main, kind="stable")
        count = int(main.shape[0])
        num_blocks = -(-count // BLOCK_SIZE)
        lowest = cupy.empty(num_main, dtype=cupy.int32)
        lowest.data.memset_async(_LARGE_BYTE, lowest.nbytes)
        key = cupy.empty(count, dtype=cupy.int64)
        self._run("lowest_partner", num_blocks, count, main, partner, lowest)
        self._run("locality_keys", num_blocks, count, main, lowest, key)
        return cupy.argsort(key, kind="stable")

    def _run_sorter(self, name: str, tile_size: int, count: int, *arguments: Any) -> None:
        num_blocks = -(-count // (WARPS_OF_BLOCK * tile_size))
        kernel = load_functions(sort_source(tile_size), SORT_KERNELS)[name].function
        kernel((num_blocks,), (32 * WARPS_OF_BLOCK,), (np.uint32(count), *arguments))

    def _run(self, name: str, num_blocks: int, count: int, *arguments: Any) -> None:
        kernel = self._kernels[name].function
        kernel((num_blocks,), (BLOCK_SIZE,), (np.uint32(count), *arguments))


class NodeTileTools:
    """Compiled kernels and CuPy for `runtime.cuda.structure.node_tile_steps`."""

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


_NO_ENTRY = 0xFFFFFFFF


def _entry(first: Array) -> int | None:
    entry = int(first[0])
    return None if entry == _NO_ENTRY else entry


class IndexChecker:
    """The compiled kernels of `codegen.cuda.structure.checks` for indices."""

    def __init__(self) -> None:
        self._kernels = load_functions(INDEX_SOURCE, INDEX_KERNELS)
        self._flag = np.frombuffer(cupy.cuda.alloc_pinned_memory(4), np.uint32, 1)
        self._lock = Lock()

    def first_outside(self, index: Array, size: int) -> int | None:
        """First entry outside 0 .. size - 1; waits for the device.

        A word on the host says whether there is one: 9 us, where reading a minimum back takes 54.
        """
        count = int(index.shape[0])
        with self._lock:
            self._flag[0] = 0
            num_blocks = -(-count // BLOCK_SIZE)
            where = np.uint64(self._flag.ctypes.data)
            self._run("any_outside", num_blocks, count, index, np.uint32(size), where)
            cupy.cuda.get_current_stream().synchronize()
            if self._flag[0] == 0:
                return None
        first = cupy.asarray(np.full(1, _NO_ENTRY, dtype=np.uint32))
        num_blocks = -(-count // BLOCK_SIZE)
        self._run("first_outside", num_blocks, count, index, np.uint32(size), first)
        return _entry(first)

    def first_repeated(self, index: Array, size: int) -> int | None:
        """First entry whose object an earlier one names; waits for the device."""
        count = int(index.shape[0])
        owner = cupy.empty(size, dtype=cupy.uint32)
        owner.data.memset_async(0xFF, owner.nbytes)
        first = cupy.asarray(np.full(1, _NO_ENTRY, dtype=np.uint32))
        num_blocks = -(-count // BLOCK_SIZE)
        for find in (0, 1):
            self._run("first_repeated", num_blocks, count, index, owner, np.uint32(find), first)
        return _entry(first)

    def _run(self, name: str, num_blocks: int, count: int, *arguments: Any) -> None:
        kernel = self._kernels[name].function
        kernel((num_blocks,), (BLOCK_SIZE,), (np.uint32(count), *arguments))


_WORDS_OF_THREAD = 8
"""At least, if there is more than one block."""

_BLOCKS_OF_MULTIPROCESSOR = 8


def _pinned(num_words: int) -> NDArray[np.uint64]:
    """Memory of the host that the device reads and writes at the same address."""
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(8 * num_words), np.uint64, num_words)


class Checksum:
    """The compiled checksum kernel of `codegen.cuda.structure.checks`."""

    def __init__(self, num_multiprocessors: int) -> None:
        loaded = load_functions(CHECKSUM_SOURCE, (CHECKSUM_KERNEL,))
        self._kernel = loaded[CHECKSUM_KERNEL].function
        self._most_blocks = _BLOCKS_OF_MULTIPROCESSOR * num_multiprocessors
        self._state = cupy.zeros(2, dtype=cupy.uint64)
        self._words = _pinned(1 + 2 * 16)
        self._lock = Lock()
        cupy.cuda.get_current_stream().synchronize()

    def of(self, arrays: Sequence[Array]) -> int:
        """A number of 64 bits; one launch, then waits for the device."""
        kept = [_aligned(cupy.ascontiguousarray(array)) for array in arrays]
        lengths = [array.nbytes // 4 for array in kept]
        wanted = -(-max(lengths, default=0) // (_WORDS_OF_THREAD * BLOCK_SIZE))
        num_blocks = min(max(wanted, 1), self._most_blocks)
        with self._lock:
            if 1 + 2 * len(kept) > len(self._words):
                self._words = _pinned(1 + 2 * len(kept))
            self._words[1 : 1 + 2 * len(kept) : 2] = [array.data.ptr for array in kept]
            self._words[2 : 2 + 2 * len(kept) : 2] = lengths
            address = self._words.ctypes.data
            places = (np.uint64(address + 8), self._state, np.uint64(address))
            self._kernel((num_blocks,), (BLOCK_SIZE,), (np.uint32(len(kept)), *places))
            cupy.cuda.get_current_stream().synchronize()
            total = int(self._words[0])
        # the kernel does not see where one array ends and the next begins
        text = f"{total} {[(array.dtype.str, array.shape, _rest(array)) for array in kept]}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _aligned(array: Array) -> Array:
    """A contiguous array that words of four bytes can be read from."""
    return array if array.data.ptr % 4 == 0 else array.copy()


def _rest(array: Array) -> bytes:
    """The bytes behind the last whole word, such as of an odd number of booleans."""
    num_bytes = array.nbytes % 4
    if num_bytes == 0:
        return b""
    return bytes(cupy.asnumpy(array.reshape(-1).view(np.uint8)[-num_bytes:]))


class StructureTools:
    """All of a device."""

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


class CudaIndexing(CudaMemory):
    """Work on indices by hand-written kernels."""

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
