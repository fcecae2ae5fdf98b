"""The CPU backend: the same scheduled programs, compiled by LLVM, spread over cores.

Also here: what is found out about indices and values on the processor: tiles, orders, checks.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import CPU_TILE_SIZE, KernelSource
from caspar.errors import OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding, Late, PickedRows
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
from caspar.runtime.backend import (
    CPU_TRAITS,
    HostCopies,
    HostScalars,
    Kernel,
    Launch,
    LaunchSequence,
    Loop,
    PlainDecision,
    PlainSteps,
    SequenceLoop,
)
from caspar.runtime.cpu.compile import function_address
from caspar.runtime.cpu.driver import num_threads
from caspar.runtime.cpu.launch import (
    CpuCopies,
    CpuKernel,
    CpuLaunch,
    CpuPlainSteps,
    CpuScalars,
    CpuSequence,
)
from caspar.runtime.factorization import DenseFactorization, SparseFactorization
from caspar.runtime.parameters import bound_parts
from caspar.runtime.timing import time_on_host


class CpuIndexing:
    """Work on indices with NumPy and SciPy."""

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
        """Compute the largest entries with NumPy."""
        return [largest_of_columns(rows) for rows in arrays]

    def move(
        self, target: Array, source: Array, added: Sequence[float], draw: int | None = None
    ) -> None:
        """Move values with NumPy."""
        write_moved(target, source, added, draw)


class CpuBackend(CpuIndexing):
    """The host's cores."""

    name = "cpu"
    traits = CPU_TRAITS
    clock = "the host's clock"
    tile_size = CPU_TILE_SIZE

    @property
    def xp(self) -> ModuleType:
        """NumPy."""
        return np

    @property
    def device(self) -> str:
        """Processor and number of threads."""
        return f"{platform.machine()} CPU, {num_threads()} threads"

    def begin(
        self, source: KernelSource, block_size: int | None = None, *, is_settled: bool = False
    ) -> None:
        """Do nothing: `load` compiles."""

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, Kernel]:
        """Compile kernels, or fetch them from the cache; tiles have the size they have."""
        return {source.name: CpuKernel(source, function_address(source)) for source in sources}

    def allocate(self, num_bytes: int) -> Array:
        """Uninitialised host memory."""
        physical, unused = _memory_bytes("SC_PHYS_PAGES"), _memory_bytes("SC_AVPHYS_PAGES")
        try:
            if physical is not None and num_bytes > physical:
                raise MemoryError
            memory = np.empty(num_bytes, dtype=np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"the plan needs {num_bytes:,} bytes of host memory; the machine has "
                f"{_amount(physical)}, of which {_amount(unused)} are unused. Use fewer factors, "
                "or precision='float32'."
            ) from error
        return memory

    @property
    def free_bytes(self) -> int | None:
        """The machine's memory: what is not in use now is mostly full of files, and given up."""
        return _memory_bytes("SC_PHYS_PAGES")

    def trim(self) -> None:
        """Do nothing: no memory is kept back."""

    def clear(self, array: Array) -> None:
        """Fill with zeros."""
        array[...] = 0

    def copy(self, target: Array, source: Array) -> None:
        """Copy an array."""
        target[...] = source

    def write(self, target: Array, host: NDArray[Any] | PickedRows) -> None:
        """Copy an array, or rows of one."""
        target[...] = host.on_host() if isinstance(host, PickedRows) else host

    def host_scalars(self, scalars: Array) -> HostScalars:
        """The scalars themselves."""
        return CpuScalars(scalars)

    def bind(
        self, kernel: Kernel | Late, bindings: Mapping[str, Binding], count: int | Late
    ) -> Launch:
        """Fill the parameter table."""
        return CpuLaunch(*bound_parts(kernel, bindings, count))

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row."""
        return CpuSequence([launch for launch in launches if isinstance(launch, CpuLaunch)])

    def loop(self, phases: Sequence[Sequence[Launch]], flag: Array, scalars: Array) -> Loop:
        """The compiled driver repeats them."""
        return SequenceLoop(self.sequence([launch for phase in phases for launch in phase]), flag)

    def plain_steps(
        self,
        decision: PlainDecision,
        step: Sequence[LaunchSequence],
        accept: LaunchSequence,
        scalars: Sequence[Array],
        diagonals: Sequence[Array],
    ) -> PlainSteps | None:
        """Return the compiled driver, unless a step takes far longer than the host's part in it."""
        launches = [one for part in step if isinstance(part, CpuSequence) for one in part.launches]
        assert isinstance(accept, CpuSequence)
        made = CpuPlainSteps(decision, launches, accept)
        return made if made.bind_again(scalars, diagonals) else None

    def dense_factorization(self, size: int, outcome: Array | None = None) -> DenseFactorization:
        """Cholesky factorisation by LAPACK."""
        from caspar.runtime.cpu.direct import LapackCholesky

        return LapackCholesky(size, outcome)

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> SparseFactorization:
        """L D L^T by RSLAB, or by QDLDL if the factor has few operations an entry."""
        from caspar.runtime.cpu.supernodal import sparse_factorization

        return sparse_factorization(indptr, indices, size, outcome)

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A call that runs launches in order."""
        return self.sequence(launches).run

    def repeated_runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """The same."""
        return self.runner(launches)

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Seconds of a run."""
        return time_on_host(run, num_samples)

    def usage(self, kernel: Kernel) -> None:
        """Return None: LLVM and the operating system decide."""
        return None

    def resident_blocks(self, kernel: Kernel) -> int:
        """Threads."""
        return self.num_multiprocessors

    @property
    def current_stream(self) -> int:
        """The number 0: there are no streams."""
        return 0

    @property
    def num_multiprocessors(self) -> int:
        """Threads."""
        return num_threads()

    def machine_balance(self, dtype: DType) -> float:
        """Return 0: nothing is computed twice."""
        return 0.0

    def accepts_device(self, kind: str, number: int) -> bool:
        """Return False: it reads arrays of the host only."""
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

    def take_rows(self, target: Array, rows: Array, order: Array) -> None:
        """Take rows with NumPy."""
        np.take(rows, order, axis=0, out=target)

    def host_copies(self, arrays: Sequence[Array]) -> HostCopies:
        """Copies, made at once."""
        return CpuCopies(arrays)

    def synchronize(self) -> None:
        """Do nothing: every run returns when it is done."""


def _memory_bytes(pages: str) -> int | None:
    """Memory of the host by the name of `os.sysconf`; None where the system does not tell."""
    try:
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, KeyError, ValueError, OSError):  # Windows; macOS has no unused pages
        return None


def _amount(num_bytes: int | None) -> str:
    return "an unknown number" if num_bytes is None else f"{num_bytes:,}"
