"""A kernel before it is compiled: its arguments and its expression graph.

Also a prediction from graphs how long kernels take to compile; those that are too large are
refused. Code is unrolled: every operation and every scalar that is read or written is a line or
more, and LLVM and NVRTC take time for each. Cost tier: once for a kernel that no cache has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caspar.errors import SizeError
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.memory.access import Accessor, ArgSpec


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
    """Refuse kernels that would take minutes to compile.

    Raises:
        SizeError: Names the largest kernel.
    """
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
