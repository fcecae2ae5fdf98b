"""Interface between the solver and a backend.

Cost tiers: `load` and `allocate` once for a solver or plan, `bind` and `sequence` once for a
plan, `run` in the inner loop.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.memory.array import Array, PickedRows
from caspar.memory.binding import Binding, Late
from caspar.memory.tiling.node_tiles import NodeOrder, NodeTiles, PlaceType
from caspar.memory.tiling.tiles import TileIndex, TileOrder
from caspar.runtime.factorization import DenseFactorization, SparseFactorization
from caspar.runtime.traits import BackendTraits

if TYPE_CHECKING:
    from caspar.runtime.nvidia.usage import KernelUsage


class PlainDecision(NamedTuple):
    """The kernel that decides about plain steps.

    Attributes:
        text: A kernel for the processor. Its table holds numbers, of which the first one tells
            whether it takes no step and the second one counts steps; a row of each step; addresses
            of entries of D and how many there are; and scalars.
        num_numbers: Numbers.
        num_scalars: Scalars.
    """

    text: str
    num_numbers: int
    num_scalars: int


class PlainSteps(Protocol):
    """Takes plain steps of Levenberg-Marquardt, see `Factorizations.plain_steps`."""

    def __call__(
        self, numbers: Sequence[float], max_steps: int
    ) -> tuple[list[float], list[list[float]]]:
        """Take steps, at most so many: numbers before and behind them, and a row of each step."""

    def bind_again(self, scalars: Sequence[Array], diagonals: Sequence[Array]) -> bool:
        """Go on with other arrays, once the launches are bound again.

        Returns:
            False: steps take too long there, and the host has to take them.
        """


class Kernel(Protocol):
    """A compiled kernel."""

    @property
    def source(self) -> KernelSource:
        """The source that it was compiled from."""

    @property
    def block_size(self) -> int:
        """Items of a tile."""


class Launch(Protocol):
    """A kernel with everything bound: running it costs one call.

    Attributes:
        values: What is passed for each parameter.
    """

    @property
    def values(self) -> Sequence[int | Array]:
        """The value bound to each parameter: an integer, or an array whose address is passed."""

    def without(self, arrays: Sequence[Array]) -> "Launch":
        """The same, but it does not keep some arrays alive: others take their place."""

    def set_address(self, number: int, address: int) -> None:
        """Pass another address for a parameter; the caller keeps its memory alive."""

    def run(self) -> None:
        """Run once, on CUDA on the caller's current stream."""


class LaunchSequence(Protocol):
    """Launches that run in order."""

    def run(self) -> None:
        """Run once. On CUDA the call returns before the work is done."""

    def run_until(self, flag: Array, max_runs: int) -> None:
        """Run until `flag[0]` is not zero, at most `max_runs` times and a few guarded ones.

        Args:
            flag: (1,) float64 on the device; kernels guarded by it do nothing once it is set.
            max_runs: Upper bound of the runs that do something.
        """


LateNumbers = dict[Late, int]
"""The present late values, as launches pass them."""


@runtime_checkable
class LateSequence(LaunchSequence, Protocol):
    """Launches that can be bound again, by what their late bindings are then."""

    def bind_again(self, numbers: LateNumbers) -> None:
        """Write parameters and numbers of blocks anew.

        Args:
            numbers: What other launches have looked up; more is added.
        """


class Loop(Protocol):
    """Launches that are repeated until a flag on the device is set."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Reasons why the host drives it although the device could, with advice."""

    def run(self, max_runs: int) -> None:
        """Run all phases until the flag is not zero, at most `max_runs` times.

        Nothing is done where the flag is set already. A phase in which it is set is done in full,
        those behind it are not. On CUDA the call returns before the work is done.
        """


class HostScalars(Protocol):
    """Scalars of the device that the host writes and reads while the device works."""

    def write(self, values: Sequence[float]) -> None:
        """Enqueue: the first scalars get new values; at most three times for each `read`."""

    def fetch(self) -> None:
        """Enqueue: what the scalars are now is what `read` returns."""

    def read(self) -> list[float]:
        """All scalars as they were fetched; waits for that, not for what was enqueued since."""


class HostCopies(Protocol):
    """Arrays of the device that the host reads while the device works."""

    def fetch(self) -> None:
        """Enqueue: what the arrays are now is what `read` returns."""

    def read(self) -> list[NDArray[Any]]:
        """The arrays as they were fetched, until the next `fetch`; waits for that alone."""


class Memory(Protocol):
    """Memory of a device, and arrays on their way to it and back."""

    @property
    def xp(self) -> ModuleType:
        """NumPy or CuPy."""

    def allocate(self, num_bytes: int) -> Array:
        """Uninitialised memory as a (num_bytes,) uint8 array.

        Raises:
            OutOfMemoryError: Names needed and available bytes.
        """

    @property
    def free_bytes(self) -> int | None:
        """Bytes that `allocate` can give now; None: not known. It may fail for fewer."""

    def trim(self) -> None:
        """Give memory that no array uses back, where it is much."""

    def clear(self, array: Array) -> None:
        """Fill a contiguous array with zero bytes."""

    def copy(self, target: Array, source: Array) -> None:
        """Copy between contiguous arrays of one type and size."""

    def write(self, target: Array, host: NDArray[Any] | PickedRows) -> None:
        """Copy an array of the host, or rows of one, to the device."""

    def upload(self, array: Any) -> Array:
        """An array of this backend's device: the same memory where possible, else a copy.

        Args:
            array: A NumPy array, or an array of a device the backend accepts.
        """

    def accepts_device(self, kind: str, number: int) -> bool:
        """Return whether arrays of a device, such as ("cuda", 0), can be read without a copy."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """A NumPy copy, after all work is done."""

    def take_rows(self, target: Array, rows: Array, order: Array) -> None:
        """Set `target[i]` to `rows[order[i]]`.

        Args:
            target: (n, width), contiguous.
            rows: (m, width) of the same type.
            order: (n,) int32 or int64, within 0 .. m - 1.
        """

    def largest(self, arrays: Sequence[Array]) -> list[NDArray[np.float64]]:
        """Return the largest magnitude of each column of arrays; waits for the device.

        Args:
            arrays: (n, width) each, on the device or the host.

        Returns:
            (width,) each; 0 if there are no rows, NaN if a column has a NaN.
        """

    def move(
        self, target: Array, source: Array, added: Sequence[float], draw: int | None = None
    ) -> None:
        """Set `target` to `source`, moved column by column, perhaps by a rounding as well.

        Args:
            target: (n, width) float32 or float64, contiguous.
            source: The same.
            added: (width,) what is added to each column, of at most 4.
            draw: 0 to 31: each number but zero also moves by a rounding, up or down, and by the
                size of what is added in the same direction; a bit of a multiple of its place says
                which. None: no rounding.
        """

    def host_copies(self, arrays: Sequence[Array]) -> HostCopies:
        """Lets the host read contiguous arrays of the device while that works."""

    def host_scalars(self, scalars: Array) -> HostScalars:
        """Lets the host write and read (n,) float64 of the device while that works."""


class Indexing(Protocol):
    """Work on indices on the device: tiles, orders, checks."""

    def tile_index(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an index; see `memory.tiling.tiles.build_tile_index`."""

    def tile_order(self, index: Array, tile_size: int) -> TileOrder:
        """Order of an index within tiles; waits for the device.

        Args:
            index: (n,) int32, any numbers.
            tile_size: Items of a tile, one of `memory.tiling.tiles.ORDER_TILE_SIZES`.
        """

    def first_outside(self, index: Array, size: int) -> int | None:
        """Entry of an index that is outside 0 .. size - 1, the first; None: all are inside.

        Args:
            index: (n,) int32.
            size: Objects that may be named.
        """

    def first_repeated(self, index: Array, size: int) -> int | None:
        """Entry whose object an earlier entry names too; None: no object is named twice.

        Args:
            index: (n,) int32, within 0 .. size - 1.
            size: Objects that may be named.
        """

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """Order of items in which tiles have few partials: `memory.tiling.tiles.locality_order`."""

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
        """Tiles that do not split nodes; see `memory.tiling.node_tiles.build_node_tiles`.

        Args:
            node: (n,) int32, within 0 .. num_nodes - 1.
            partner: (n,) int32, within 0 .. num_partners - 1, or None.
            num_nodes: Number of nodes.
            num_partners: Number of partners.
            tile_size: Items of a tile, one of `memory.tiling.tiles.ORDER_TILE_SIZES`.
            dtype: Of the items' places; None: the narrowest that takes them.
            keep_order: Nodes stand in the order that tiles shall have.
        """

    def node_order(
        self, node: Array, partner: Array, num_nodes: int, num_partners: int, tile_size: int
    ) -> NodeOrder:
        """The order in which such tiles would have the nodes, by the same arguments."""

    def checksum(self, arrays: Sequence[Array]) -> int:
        """A number of 64 bits that tells whether arrays are still the same.

        It depends on every byte, its place, types and lengths; each backend has its own.
        """

    def single_object_tiles(self, num_tiles: int) -> TileIndex:
        """One partial for each tile, all of one object: for nodes that every factor shares."""


class Executor(Protocol):
    """Kernels of a device: compiled, bound to memory, run, timed."""

    @property
    def tile_size(self) -> int:
        """Items of a tile."""

    def begin(
        self, source: KernelSource, block_size: int | None = None, *, is_settled: bool = False
    ) -> None:
        """Compile a kernel ahead of `load`, while the next one is generated; may do nothing.

        Args:
            source: What to compile.
            block_size: Threads of a block with which it will probably be loaded; None: the
                preferred number.
            is_settled: As `load` will be told.
        """

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, Kernel]:
        """Compile (or fetch from the cache) kernels, by name.

        Args:
            sources: What to compile.
            block_size: Threads of a block, of the kernels that allow it; None: chosen for each
                kernel by the registers and the shared memory it needs.
            is_settled: Whether kernels must be the same in every run. Else a backend may look for
                better ones in the background, which later calls and processes get.

        Raises:
            CompileError: A source did not compile.
        """

    def bind(
        self, kernel: Kernel | Late, bindings: Mapping[str, Binding], count: int | Late
    ) -> Launch:
        """Fix the parameters of a kernel for `count` items, by what is late at present."""

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row."""

    def loop(self, phases: Sequence[Sequence[Launch]], flag: Array, scalars: Array) -> Loop:
        """Repeat launches, on CUDA without the host: as one kernel.

        Args:
            phases: Launches that run at the same time, or in any order: what one writes, no other
                of its phase may touch. One that sets the flag makes it of sums, and has a phase of
                its own. Several blocks have the same size in all launches, for which their kernels
                were loaded.
            flag: (1,) float64 on the device; the launches set it.
            scalars: (n,) float64, the flag among them: what launches of one block, which write
                nothing else, make of sums, and others read.

        Raises:
            ValueError: No launches, blocks of several sizes, or a launch that writes scalars and
                something else.
            ResourceError: The device has too little for all of them in one kernel.
        """

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A call that runs launches in order, on CUDA on the caller's current stream."""

    def repeated_runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """The same for many runs, each as cheap as can be."""

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Seconds of a run, measured some times.

        Args:
            run: Enqueues the work, as `runner` does; it is run many more times than that.
            num_samples: How often. Each sample is the mean over runs that take about a
                millisecond together, on CUDA without what their launches cost the host.
        """

    @property
    def clock(self) -> str:
        """The clock that `time` uses, in words."""

    def usage(self, kernel: Kernel) -> "KernelUsage | None":
        """Return the resources that a kernel takes of the device; None if they are not known."""

    def resident_blocks(self, kernel: Kernel) -> int:
        """Blocks of a kernel, tiles on the processor, that run at the same time."""

    def machine_balance(self, dtype: DType) -> float:
        """Multiplications that the device does in the time in which it moves a byte."""

    @property
    def num_multiprocessors(self) -> int:
        """Number of units that run at the same time: multiprocessors, or threads."""

    @property
    def current_stream(self) -> int:
        """The stream that gets the caller's work; 0 on the processor."""

    def scope(self) -> AbstractContextManager[object]:
        """Everything a solve enqueues happens inside it, after the caller's own work."""

    def synchronize(self) -> None:
        """Wait for all work."""


class Factorizations(Protocol):
    """Direct solvers for matrices on the device."""

    def plain_steps(
        self,
        decision: Callable[[], PlainDecision],
        step: Sequence[LaunchSequence],
        accept: LaunchSequence,
        scalars: Sequence[Array],
        diagonals: Sequence[Array],
    ) -> PlainSteps | None:
        """Return a driver of plain Levenberg-Marquardt steps without the host; None: there is none.

        Args:
            decision: Returns the kernel that decides.
            step: Launches that lead from scored values to a scored candidate.
            accept: Makes the candidate the current values.
            scalars: The solver's scalars that it reads, (1,) each.
            diagonals: (n, lanes) each, the entries of D.
        """

    def dense_factorization(self, size: int, outcome: Array | None = None) -> DenseFactorization:
        """Cholesky factorisation of dense matrices of one size, in float64.

        Args:
            size: Rows and columns.
            outcome: (2,) float64 on the device, written by every solve; None: one of its own.
        """

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> SparseFactorization:
        """Cholesky factorisation of sparse matrices of one pattern, in float64.

        The pattern is analysed here.

        Args:
            indptr: (size + 1,) int32 on the device: where the rows of the lower triangle begin.
            indices: (nnz,) int32 columns, ascending within a row; each row ends with its diagonal
                entry, which must be there.
            size: Rows and columns.
            outcome: (2,) float64 on the device, written by every solve; None: one of its own.

        Raises:
            BackendError: The library it needs is not installed, or refuses.
        """


class Backend(Memory, Indexing, Executor, Factorizations, Protocol):
    """A device and the ways to use it."""

    @property
    def name(self) -> str:
        """`cuda` or `cpu`, for reports; what decisions depend on is in `traits`."""

    @property
    def traits(self) -> BackendTraits:
        """Properties that solver, kernels and arrays need to know of it."""

    @property
    def device(self) -> str:
        """The device in words."""


def view(arena: Array, first_byte: int, num_scalars: int, dtype: str) -> Array:
    """A typed view of a stretch of bytes."""
    num_bytes = num_scalars * np.dtype(dtype).itemsize
    return arena[first_byte : first_byte + num_bytes].view(dtype)
