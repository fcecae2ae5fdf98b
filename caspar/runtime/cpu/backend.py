"""The CPU backend: the same scheduled programs, compiled by Numba, spread over cores.

A launch is an entry in three integer arrays (function, parameter table, tiles), so that one
compiled driver runs a whole list without returning to Python.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numba import get_num_threads, prange
from numpy.typing import NDArray

from caspar.codegen.cpu.kernel import TILE_SIZE
from caspar.codegen.source import KernelSource
from caspar.errors import OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.tiling.node_tiles import NodeTiles, PlaceType, build_node_tiles
from caspar.memory.tiling.tiles import (
    TileIndex,
    TileOrder,
    build_tile_index,
    build_tile_order,
    locality_order,
    single_object_tiles,
)
from caspar.runtime.backend import (
    HostScalars,
    Kernel,
    Launch,
    LaunchSequence,
    Loop,
    bound_blocks,
    parameter_values,
)
from caspar.runtime.cpu.compile import SUPPORT_DIGEST, function_address
from caspar.runtime.cpu.machine_code import stored_njit
from caspar.runtime.cpu.support import call_tile
from caspar.runtime.cpu.threads import turn
from caspar.runtime.factorization import (
    DenseFactorization,
    SparseFactorization,
    load_direct_solver,
)
from caspar.runtime.sequence_loop import SequenceLoop
from caspar.runtime.timing import time_on_host
from caspar.runtime.traits import CPU_TRAITS
from caspar.runtime.usage import KernelUsage

IntArray = NDArray[np.int64]

_stored = partial(stored_njit, Path(__file__).read_bytes() + SUPPORT_DIGEST.encode())


@dataclass(frozen=True)
class CpuKernel:
    """A compiled kernel: the address of `f(parameter table, tile)`."""

    source: KernelSource
    address: int

    @property
    def block_size(self) -> int:
        """Items of a tile."""
        return self.source.block_size


@dataclass(frozen=True)
class CpuLaunch:
    """A kernel with its parameter table.

    Attributes:
        kernel: The kernel.
        table: (num_params,) int64: addresses and integers.
        num_tiles: Tiles to run.
        values: What the table was made of.
    """

    kernel: CpuKernel
    table: IntArray
    num_tiles: int
    values: tuple[int | Array, ...]

    def without(self, arrays: Sequence[Array]) -> "CpuLaunch":
        """The same, but it does not keep some arrays alive."""
        kept = tuple(
            0 if any(value is array for array in arrays) else value for value in self.values
        )
        return replace(self, values=kept)

    def set_address(self, number: int, address: int) -> None:
        """Pass another address."""
        self.table[number] = address

    def run(self) -> None:
        """Run every tile."""
        CpuSequence([self]).run()


@_stored("void(int64[::1], int64[::1], int64[::1])", parallel=True, nogil=True)
def _run(functions: IntArray, tables: IntArray, num_tiles: IntArray) -> None:
    for number in range(functions.shape[0]):
        function, table = functions[number], tables[number]
        if num_tiles[number] == 1:
            call_tile(function, table, 0)
        else:
            for tile in prange(num_tiles[number]):
                call_tile(function, table, tile)


@_stored("void(int64[::1], int64[::1], int64[::1], float64[::1], int64)", nogil=True)
def _run_until(
    functions: IntArray,
    tables: IntArray,
    num_tiles: IntArray,
    flag: NDArray[np.float64],
    max_runs: int,
) -> None:
    for _ in range(max_runs):
        if flag[0] != 0.0:
            return
        _run(functions, tables, num_tiles)


class CpuSequence:
    """Launches that the compiled driver runs in order."""

    def __init__(self, launches: Sequence[CpuLaunch]) -> None:
        self._launches = tuple(launches)
        self._arrays = (
            np.array([launch.kernel.address for launch in launches], dtype=np.int64),
            np.array([launch.table.ctypes.data for launch in launches], dtype=np.int64),
            np.array([launch.num_tiles for launch in launches], dtype=np.int64),
        )
        self._is_parallel = any(launch.num_tiles > 1 for launch in launches)

    def run(self) -> None:
        """Run every launch once."""
        with turn(self._is_parallel):
            _run(*self._arrays)

    def run_until(self, flag: Array, max_runs: int) -> None:
        """Run until the flag is set, at most `max_runs` times."""
        with turn(self._is_parallel):
            _run_until(*self._arrays, flag, max_runs)


class CpuScalars:
    """Scalars of the host, see `HostScalars`: nothing is under way when a call returns."""

    def __init__(self, scalars: Array) -> None:
        self._scalars = scalars
        self._fetched: list[float] = []

    def write(self, values: Sequence[float]) -> None:
        """Set the first."""
        self._scalars[: len(values)] = values

    def fetch(self) -> None:
        """Copy all of them."""
        self._fetched = self._scalars.tolist()

    def read(self) -> list[float]:
        """What was copied."""
        return self._fetched


class CpuBackend:
    """The host's cores."""

    name = "cpu"
    traits = CPU_TRAITS
    clock = "the host's clock"
    tile_size = TILE_SIZE

    @property
    def xp(self) -> ModuleType:
        """NumPy."""
        return np

    @property
    def device(self) -> str:
        """Processor and number of threads."""
        return f"{platform.machine()} CPU, {get_num_threads()} threads"

    def load(
        self, sources: Sequence[KernelSource], block_size: int | None = None
    ) -> Mapping[str, Kernel]:
        """Compile kernels, or fetch them from the cache; tiles have the size they have."""
        return {source.name: CpuKernel(source, function_address(source)) for source in sources}

    def allocate(self, num_bytes: int) -> Array:
        """Uninitialised host memory."""
        page = os.sysconf("SC_PAGE_SIZE")
        physical = os.sysconf("SC_PHYS_PAGES") * page
        unused = os.sysconf("SC_AVPHYS_PAGES") * page
        try:
            if num_bytes > physical:
                raise MemoryError
            memory = np.empty(num_bytes, dtype=np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"the plan needs {num_bytes:,} bytes of host memory; the machine has "
                f"{physical:,}, of which {unused:,} are unused. Use fewer factors, or "
                "precision='float32'."
            ) from error
        return memory

    def trim(self) -> None:
        """Nothing is kept back."""

    def clear(self, array: Array) -> None:
        """Fill with zeros."""
        array[...] = 0

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array."""
        target[...] = source

    def write(self, target: Array, host: NDArray[Any]) -> None:
        """Copy an array."""
        target[...] = host

    def host_scalars(self, scalars: Array) -> HostScalars:
        """The scalars themselves."""
        return CpuScalars(scalars)

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
    ) -> NodeTiles:
        """Tiles that do not split nodes."""
        return build_node_tiles(node, partner, num_nodes, num_partners, tile_size, dtype)

    def checksum(self, arrays: Sequence[Array]) -> int:
        """A number that tells whether indices are still the same; a gigabyte a second."""
        digest = hashlib.blake2b(digest_size=8)
        for array in arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return int.from_bytes(digest.digest(), "little")

    def single_object_tiles(self, num_tiles: int) -> TileIndex:
        """One partial for each tile, all of one object."""
        return single_object_tiles(num_tiles)

    def bind(self, kernel: Kernel, bindings: Mapping[str, Binding], count: int) -> Launch:
        """Fill the parameter table."""
        assert isinstance(kernel, CpuKernel)
        values = parameter_values(kernel.source.params, bindings, count)
        table = [value if isinstance(value, int) else value.ctypes.data for value in values]
        num_tiles = bound_blocks(kernel.source, bindings, count, kernel.block_size)
        return CpuLaunch(kernel, np.array(table, dtype=np.int64), num_tiles, tuple(values))

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row."""
        return CpuSequence([launch for launch in launches if isinstance(launch, CpuLaunch)])

    def loop(
        self, phases: Sequence[Sequence[Launch]], flag: Array, scalars: Array | None = None
    ) -> Loop:
        """The compiled driver repeats them."""
        return SequenceLoop(self.sequence([launch for phase in phases for launch in phase]), flag)

    def dense_factorization(self, size: int, failed: Array | None = None) -> DenseFactorization:
        """Cholesky factorisation by LAPACK."""
        solver = load_direct_solver("cpu.direct", "LapackCholesky")
        factorization: DenseFactorization = solver(size, failed)
        return factorization

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, failed: Array | None = None
    ) -> SparseFactorization:
        """Cholesky factorisation by QDLDL."""
        solver = load_direct_solver("cpu.direct", "QdldlFactorization")
        factorization: SparseFactorization = solver(indptr, indices, size, failed)
        return factorization

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A call that runs launches in order."""
        return self.sequence(launches).run

    def repeated_runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """The same."""
        return self.runner(launches)

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Seconds of a run."""
        return time_on_host(run, num_samples)

    def usage(self, kernel: Kernel) -> KernelUsage | None:
        """Not known: Numba and the operating system decide."""
        return None

    def resident_blocks(self, kernel: Kernel) -> int:
        """Threads."""
        return self.num_multiprocessors

    @property
    def current_stream(self) -> int:
        """None."""
        return 0

    @property
    def num_multiprocessors(self) -> int:
        """Threads."""
        return int(get_num_threads())

    def machine_balance(self, dtype: DType) -> float:
        """Not known: nothing is computed twice."""
        return 0.0

    def accepts_device(self, kind: str, number: int) -> bool:
        """None but the host."""
        return False

    def upload(self, array: Any) -> Array:
        """The array itself: it is already on the host."""
        return np.asarray(array)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Errors of NumPy that there is no memory are caspar's; BLAS has its threads afterwards."""
        try:
            yield
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"a solve needs more host memory than is left: {error}. Use fewer factors, "
                "precision='float32', or conjugate gradients, which form no matrix."
            ) from error
        finally:
            # loaded where a system is factorised, and nowhere else
            direct = sys.modules.get("caspar.runtime.cpu.direct")
            if direct is not None:
                direct.give_threads_back()

    def to_host(self, array: Array) -> NDArray[Any]:
        """A copy."""
        return np.array(array)

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], list[NDArray[Any]]]:
        """Copies, made at once."""
        copies = [np.array(array) for array in arrays]
        return lambda: copies

    def synchronize(self) -> None:
        """Nothing to wait for: every run returns when it is done."""
