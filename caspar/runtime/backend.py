"""Interface between the solver and a backend.

Cost tiers: `load` and `allocate` once for a solver or plan, `bind` and `sequence` once for a
plan, `run` in the inner loop.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding, Late, PickedRows
from caspar.memory.tiling.node_tiles import NodeOrder, NodeTiles, PlaceType
from caspar.memory.tiling.tiles import TileIndex, TileOrder
from caspar.runtime.factorization import DenseFactorization, SparseFactorization

if TYPE_CHECKING:
    from caspar.runtime.nvidia.occupancy import KernelUsage


@dataclass(frozen=True)
class BackendTraits:
    """Properties of a backend on which decisions outside of it rest.

    Attributes:
        target: What kernels are generated for, a key of `codegen.targets.TARGETS`: `cuda` or
            `cpu`.
        launches_are_asynchronous: Whether a call returns before its work is done, so that the
            device can work while the host decides.
        host_arrays_are_copied: Whether arrays of the host must be copied before kernels read them.
        prices_are_known: Whether the prices of ops and `Backend.machine_balance` are those of the
            device: only then is deriving Jacobians again weighed against reading them.
        factorizes_in_parallel: Whether sparse matrices are formed and factorised by the whole
            device. Where one core does it, full matrices and long lists of pairs are avoided, and
            small matrices are sparse ones.
        dense_replaces_sparse: Whether the sparse library is optional; a dense matrix takes its
            place where it is missing.
        ranges_are_known_by_order: Whether kernels follow the order of an index, which tells its
            range too: the range is then tested by building that order.
        members_share_memory: Whether devices that share a problem are parts of one host, so that
            more of them have no more memory.
        adds_up_by_nccl: Whether devices add up by NCCL; else through the memory of the host, or by
            sockets.
    """

    target: str
    launches_are_asynchronous: bool
    host_arrays_are_copied: bool
    prices_are_known: bool
    factorizes_in_parallel: bool
    dense_replaces_sparse: bool
    ranges_are_known_by_order: bool
    members_share_memory: bool
    adds_up_by_nccl: bool


CUDA_TRAITS = BackendTraits(
    target="cuda",
    launches_are_asynchronous=True,
    host_arrays_are_copied=True,
    prices_are_known=True,
    factorizes_in_parallel=True,
    dense_replaces_sparse=True,
    ranges_are_known_by_order=True,
    members_share_memory=False,
    adds_up_by_nccl=True,
)

CPU_TRAITS = BackendTraits(
    target="cpu",
    launches_are_asynchronous=False,
    host_arrays_are_copied=False,
    prices_are_known=False,
    factorizes_in_parallel=False,
    dense_replaces_sparse=False,
    ranges_are_known_by_order=False,
    members_share_memory=True,
    adds_up_by_nccl=False,
)


class PlainDecision(NamedTuple):
    """The kernel that decides about plain steps.

    It gets numbers, of which the first one tells whether it takes no step and the second one counts
    steps; a row of each step; where the entries of D are and how many; and scalars.
    """

    text: str
    num_numbers: int
    num_scalars: int


MOST_STEPS = 64
"""Steps of a run at most: between two of them Ctrl-C is noticed."""

ROW = 3
"""Numbers that are recorded of a step."""

STOP, COUNT = 0, 1
"""Numbers that the decision sets: whether it took no step, and how many it took before."""


class PlainSteps(Protocol):
    """Takes plain steps of Levenberg-Marquardt, see `Factorizations.plain_steps`."""

    def __call__(
        self, numbers: Sequence[float], max_steps: int
    ) -> tuple[list[float], list[list[float]]] | None:
        """Take steps, at most so many: numbers before and behind them, and a row of each step.

        None: the host has to take them.
        """

    def bind_again(self, scalars: Sequence[Array], diagonals: Sequence[Array]) -> bool:
        """Go on with other arrays after a new binding; False: the host has to take the steps."""


class Kernel(Protocol):
    """A compiled kernel."""

    @property
    def source(self) -> KernelSource:
        """The source that it was compiled from."""

    @property
    def block_size(self) -> int:
        """Items of a tile."""


class Launch(Protocol):
    """A kernel bound to the `values` of its parameters: running it costs one call."""

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

        Kernels guarded by the flag, (1,) float64 on the device, do nothing once it is set.
        """


LateNumbers = dict[Late, int]
"""The present late values, as launches pass them."""


@runtime_checkable
class LateSequence(LaunchSequence, Protocol):
    """Launches that can be bound again, by what their late bindings are then."""

    def bind_again(self, numbers: LateNumbers) -> None:
        """Write parameters and numbers of blocks anew; looks up `numbers`, and adds to them."""


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
        """Uninitialised memory as (num_bytes,) uint8; `OutOfMemoryError` names both sizes."""

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
        """An array of the host or the device: the same memory where possible, else a copy."""

    def accepts_device(self, kind: str, number: int) -> bool:
        """Return whether arrays of a device, such as ("cuda", 0), can be read without a copy."""

    def to_host(self, array: Array) -> NDArray[Any]:
        """A NumPy copy, after all work is done."""

    def take_rows(self, target: Array, rows: Array, order: Array) -> None:
        """Set `target[i]` to `rows[order[i]]`.

        All are contiguous rows of one width and type; the order is int32 or int64.
        """

    def largest(self, arrays: Sequence[Array]) -> list[NDArray[np.float64]]:
        """Return the largest magnitude of each column of arrays; waits for the device.

        0 if there are no rows, NaN if a column has a NaN.
        """

    def move(
        self, target: Array, source: Array, added: Sequence[float], draw: int | None = None
    ) -> None:
        """Set `target` to `source`, moved column by column, perhaps by a rounding as well.

        Both are (n, width) float32 or float64, contiguous; `added` is what is added to each of at
        most 4 columns. `draw`, 0 to 31: each number but zero also moves by a rounding, up or down,
        and by the size of what is added in the same direction; a bit of a multiple of its place
        says which. None: no rounding.
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
        """Order of an (n,) int32 index within tiles of that size; waits for the device."""

    def first_outside(self, index: Array, size: int) -> int | None:
        """Entry of an (n,) int32 index outside 0 .. size - 1, the first; None: all are inside."""

    def first_repeated(self, index: Array, size: int) -> int | None:
        """Entry whose object an earlier entry names too; None: no object is named twice."""

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

        `dtype` is of the items' places; None: the narrowest that takes them. With `keep_order`,
        nodes stand in the order that tiles shall have.
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

        Arguments as `load` will get them; `block_size` None: the preferred number of threads.
        """

    def load(
        self,
        sources: Sequence[KernelSource],
        block_size: int | None = None,
        *,
        is_settled: bool = False,
    ) -> Mapping[str, Kernel]:
        """Compile (or fetch from the cache) kernels, by name; `CompileError` if a source does not.

        `block_size`: threads of a block, of the kernels that allow it; None: chosen for each kernel
        by the registers and the shared memory it needs. `is_settled`: kernels must be the same in
        every run. Else a backend may look for better ones in the background, which later calls and
        processes get.
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
        """Seconds of a run that enqueues work, measured some times, each over about a millisecond.

        On CUDA without what the launches cost the host.
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
        decision: PlainDecision,
        step: Sequence[LaunchSequence],
        accept: LaunchSequence,
        scalars: Sequence[Array],
        diagonals: Sequence[Array],
    ) -> PlainSteps | None:
        """Return a driver of plain Levenberg-Marquardt steps without the host; None: there is none.

        `decision` is the kernel that decides; `step` leads from scored values to a scored
        candidate, and `accept` makes it the current values. Where launches are asynchronous `step`
        itself accepts the candidate that it finds, which at first is the current values. The
        decision reads the solver's scalars, (1,) each, and the entries of D, (n, lanes) each.
        """

    def dense_factorization(self, size: int, outcome: Array | None = None) -> DenseFactorization:
        """Cholesky factorisation of dense matrices of one size, in float64.

        `outcome`, (2,) float64 on the device, is written by every solve; None: one of its own.
        """

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> SparseFactorization:
        """Cholesky factorisation of sparse matrices of one pattern, analysed here, in float64.

        `indptr`, (size + 1,) int32 on the device, says where the rows of the lower triangle begin;
        `indices` are (nnz,) int32 columns, ascending within a row; each row ends with its diagonal
        entry, which must be there. `outcome` as of `dense_factorization`. Raises a `BackendError`
        if the library it needs is not installed, or refuses.
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


@dataclass(frozen=True)
class SequenceLoop:
    """A loop that the host drives; `remarks` say why, where the device could."""

    sequence: LaunchSequence
    flag: Array
    remarks: tuple[str, ...] = ()

    def run(self, max_runs: int) -> None:
        """Run until the flag is set, at most `max_runs` times; may wait for the device."""
        self.sequence.run_until(self.flag, max_runs)
