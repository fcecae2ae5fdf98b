"""A kernel before it is compiled: its arguments and its expression graph.

Also a prediction from graphs how long kernels take to compile; those that are too large are
refused. Code is unrolled: every operation and every scalar that is read or written is a line or
more, and LLVM and NVRTC take time for each. Cost tier: once for a kernel that no cache has.

Also here: kernels without a graph, properties of a target that decide how kernels are made, and a
builder that declares arguments, reads, computes and stores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from caspar.errors import SizeError
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar
from caspar.memory.access import Accessor, ArgSpec, ExchangeAccessor, ReadAccessor, WriteAccessor
from caspar.memory.accessors.blocked import ReadRows, WriteRows
from caspar.memory.accessors.sequential import ReadSequential, ReadUnique, WriteSequential
from caspar.memory.layout import partial_chunk_widths


@dataclass(frozen=True)
class KernelSpec:
    """A kernel to compile.

    Attributes:
        name: A C and Python identifier, unique among the kernels of a solver.
        args: Arguments in the order of the signature; the graph's reads and stores name them.
        graph: What one item computes.
        guard: Name of a 1-scalar `ReadUnique` argument; the kernel does nothing while it is
            not zero. None: it always runs.
        tiled: Whether its items are in node tiles, with holes; see `memory.tiling.node_tiles`.
        stretches: Whether a block may take several tiles one after the other: what the next one
            begins with is then on its way before it is needed.
        few_items: Whether its items may be too few to fill a device: then they are dealt to many
            blocks, and everything is read at first, as far as registers allow, since nothing
            else hides that one load waits for another.
        awaited: Arguments that the launch ahead may still write, beside the guard. Where there
            are any, the kernel may begin before that launch has ended, and waits for it where it
            first needs one of them (CUDA; kernels with stretches).
    """

    name: str
    args: tuple[ArgSpec, ...]
    graph: Graph
    guard: str | None = None
    tiled: bool = False
    few_items: bool = False
    stretches: bool = False
    awaited: tuple[str, ...] = ()

    def arg(self, name: str) -> ArgSpec:
        """The argument of that name."""
        return next(arg for arg in self.args if arg.name == name)

    @property
    def accessors(self) -> tuple[Accessor, ...]:
        """The accesses by which its arguments are read and written."""
        return tuple(access for arg in self.args for access in arg.accessors)


READ_SIZE = 4
WRITE_SIZE = 5
"""Operations that take as long to compile as one scalar that is read or written."""

MAX_SIZE = 55_000
"""Operations of all kernels of a solver, or of one `caspar.kernel`: a minute at most, see design
record 0018."""

_FREE_OPS = frozenset({Op.CONST, Op.NEG})


def kernel_size(spec: KernelSpec) -> int:
    """Operations of a kernel; the multiply-adds of a sum of products count once each."""
    return sum(_call_sizes(spec.graph))


def check_sizes(specs: Sequence[KernelSpec]) -> None:
    """Refuse kernels that would take minutes to compile; a `SizeError` names the largest."""
    sizes = {spec.name: kernel_size(spec) for spec in specs}
    total = sum(sizes.values())
    if total > MAX_SIZE:
        largest = max(sizes, key=lambda name: sizes[name])
        together = "" if len(sizes) == 1 else f", and all kernels {total:,}"
        raise SizeError(
            f"kernel {largest} has {sizes[largest]:,} operations{together}; at most {MAX_SIZE:,} "
            "are compiled, because more would take minutes",
            largest,
        )


def _call_sizes(graph: Graph) -> Iterator[int]:
    for call in graph.calls:
        if call.op is Op.GATHER:
            yield READ_SIZE
        elif call.op is Op.READ:
            yield READ_SIZE * len(call.outputs)
        elif call.op is Op.STORE:
            yield WRITE_SIZE * len(call.operands)
        elif call.op is Op.SUM:
            products = sum(graph.call_of(value).op is Op.PROD for value in call.operands)
            yield max(1, len(call.operands) - 1 - products)
        elif call.op not in _FREE_OPS:
            yield max(1, len(call.operands) - 1)


@dataclass(frozen=True)
class Dialect:
    """Properties of a target on which its kernels depend; a row of `codegen.targets.TARGETS`.

    Attributes:
        adds_atomically: Whether items add to the objects that they share by atomics, in any order,
            unless equal input must give equal bits. Else partials of tiles are summed in order.
        recomputes_jacobians: Whether PCG usually derives Jacobians again: arithmetic takes less
            time than reading them.
        has_warps: Whether several threads can solve a problem of a batch together.
    """

    adds_atomically: bool
    recomputes_jacobians: bool
    has_warps: bool

    def sums_are_atomic(self, deterministic: bool) -> bool:
        """Return whether sums over shared objects are taken by atomics."""
        return self.adds_atomically and not deterministic


LANES = ((256, 128), (4, 32))
"""Partials an object has on average, from which on so many threads sum them instead of one. The
most that any block has: one node that all factors share has a partial for each tile."""


def num_lanes(num_partials: int, num_objects: int) -> int:
    """Threads that suit a number of partials and of objects that they are of."""
    return next((lanes for least, lanes in LANES if num_partials > least * num_objects), 1)


@dataclass(frozen=True)
class ReduceSpec:
    """A kernel whose items are objects: output[i] += the sum of the object's partials.

    On CUDA `lanes` threads share the partials of one object, see `num_lanes`; `rows`: an object's
    scalars stand together in the output, see `layout.row_scalars`.
    """

    dim: int
    dtype: DType
    lanes: int
    rows: bool = False

    @property
    def name(self) -> str:
        """Entry point: equal specs are the same kernel."""
        layout = "_in_rows" if self.rows else ""
        return f"accumulate_{self.dtype.value}_{self.dim}_by_{self.lanes}{layout}"

    @property
    def output(self) -> ArgSpec:
        """The output; it may be a window of a larger array."""
        access = WriteSequential(rows=self.rows)
        return ArgSpec("output", self.dim, self.dtype, write=access, windowed=True)

    @property
    def partial_chunk_widths(self) -> tuple[int, ...]:
        """Scalars in each chunk of a partial."""
        return partial_chunk_widths(self.dim)


class Direction(Enum):
    """Direction of a conversion: to the blocked layout, or from it."""

    PACK = "pack"
    UNPACK = "unpack"


@dataclass(frozen=True)
class ConvertSpec:
    """A kernel whose items are objects: row `i` to object `i` of a window, or back."""

    direction: Direction
    dim: int
    dtype: DType

    @property
    def name(self) -> str:
        """Entry point: equal specs are the same kernel."""
        return f"{self.direction.value}_{self.dim}_{self.dtype.value}"

    @property
    def rows(self) -> ArgSpec:
        """(n, dim) rows, C-contiguous; on CUDA they may begin at any scalar."""
        if self.direction is Direction.PACK:
            return ArgSpec("rows", self.dim, self.dtype, read=ReadRows())
        return ArgSpec("rows", self.dim, self.dtype, write=WriteRows())

    @property
    def blocked(self) -> ArgSpec:
        """The blocked array, or a window of it; on CUDA it begins at 16 bytes."""
        if self.direction is Direction.PACK:
            return ArgSpec("blocked", self.dim, self.dtype, write=WriteSequential(), windowed=True)
        return ArgSpec("blocked", self.dim, self.dtype, read=ReadSequential(), windowed=True)

    @property
    def args(self) -> tuple[ArgSpec, ArgSpec]:
        """The arguments in the order of the signature."""
        return self.rows, self.blocked


MAX_CALLS = 60_000
"""Operations of one kernel: more are refused before they cost time. Of kernels that are smaller
`kernel_size` decides."""


class KernelBuilder:
    """Grows a `KernelSpec`, see there, argument by argument."""

    def __init__(
        self,
        name: str,
        dtype: DType,
        *,
        tiled: bool = False,
        few_items: bool = False,
        stretches: bool = False,
    ) -> None:
        self.name = name
        self._tiled = tiled
        self._few_items = few_items
        self._stretches = stretches
        self.graph = GraphBuilder(dtype, name, MAX_CALLS)
        self._args: dict[str, ArgSpec] = {}
        self._awaited: list[str] = []
        self._guard: str | None = None

    def _declare(self, new: ArgSpec) -> ArgSpec:
        old = self._args.get(new.name)
        if old is not None:
            new = ArgSpec(
                new.name,
                new.dim,
                new.dtype,
                old.read if new.read is None else new.read,
                old.write if new.write is None else new.write,
                new.windowed,
            )
        self._args[new.name] = new
        return new

    def guard(self, name: str) -> None:
        """Do nothing while the float64 scalar `name` is not zero."""
        self._declare(ArgSpec(name, 1, DType.FLOAT64, read=ReadUnique()))
        self._guard = name

    def await_launch(self, *names: str) -> None:
        """Begin before the launch ahead has ended, which writes the arguments of these names."""
        self._awaited += names

    def read(
        self, name: str, dim: int, dtype: DType, access: ReadAccessor, *, windowed: bool = False
    ) -> list[Scalar]:
        """The scalars of an object."""
        arg = self._declare(ArgSpec(name, dim, dtype, read=access, windowed=windowed))
        return [
            Scalar(self.graph, value)
            for chunk, width in enumerate(arg.chunk_widths)
            for value in self.graph.read(name, chunk, width)
        ]

    def scalar(self, name: str) -> Scalar:
        """One float64 number, the same for all items."""
        return self.read(name, 1, DType.FLOAT64, ReadUnique())[0]

    def write(
        self,
        name: str,
        values: Sequence[Scalar],
        dtype: DType,
        access: WriteAccessor,
        *,
        windowed: bool = False,
        skips_zeros: bool = False,
    ) -> None:
        """Write or add an object (of a pair: both); nothing where it has no scalars.

        `skips_zeros`: chunks that are always zero are left as they are, in an array that was
        cleared or that is added to.
        """
        if len(values) == 0:
            return
        dim = len(values) // access.store_width(1)
        arg = self._declare(ArgSpec(name, dim, dtype, write=access, windowed=windowed))
        for chunk, chosen in enumerate(access.store_order(arg.chunk_widths, values)):
            stored = [scalar.value for scalar in chosen]
            if not skips_zeros or any(self.graph.literal(value) != 0.0 for value in stored):
                self.graph.store(name, chunk, stored)

    def exchange(
        self, name: str, values: Sequence[Scalar], access: ExchangeAccessor
    ) -> list[Scalar]:
        """Sums of the values over the items that share a node, or what is made of sums."""
        self._declare(ArgSpec(name, len(values), DType.INT32, read=access))
        sums = self.graph.exchange(name, [scalar.value for scalar in values])
        return [Scalar(self.graph, value) for value in sums]

    def build(self) -> KernelSpec:
        """The finished kernel."""
        args = tuple(self._args.values())
        return KernelSpec(
            self.name,
            args,
            self.graph.build(),
            self._guard,
            tiled=self._tiled,
            few_items=self._few_items,
            stretches=self._stretches,
            awaited=tuple(self._awaited),
        )
