"""A kernel before it is compiled: its arguments and its expression graph."""

from dataclasses import dataclass

from caspar.ir.graph import Graph
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
