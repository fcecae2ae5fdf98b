"""Writing a kernel: declare arguments, read, compute, store."""

from collections.abc import Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.access import ArgSpec, Read, Write
from caspar.memory.kernel import KernelSpec


class KernelBuilder:
    """Grows a `KernelSpec` argument by argument.

    Args:
        name: Name of the kernel.
        dtype: Type it computes in.
    """

    def __init__(self, name: str, dtype: DType) -> None:
        self.name = name
        self.graph = GraphBuilder(dtype)
        self._args: dict[str, ArgSpec] = {}
        self._guard: str | None = None

    def _declare(self, new: ArgSpec) -> ArgSpec:
        old = self._args.get(new.name)
        if old is not None:
            new = ArgSpec(
                new.name, new.dim, new.dtype, old.read or new.read, old.write or new.write
            )
        self._args[new.name] = new
        return new

    def guard(self, name: str) -> None:
        """Do nothing while the float64 scalar `name` is not zero."""
        self._declare(ArgSpec(name, 1, DType.FLOAT64, read=Read.UNIQUE))
        self._guard = name

    def read(self, name: str, dim: int, dtype: DType, access: Read) -> list[Scalar]:
        """The scalars of an object."""
        arg = self._declare(ArgSpec(name, dim, dtype, read=access))
        return [
            Scalar(self.graph, value)
            for chunk, width in enumerate(arg.chunk_widths)
            for value in self.graph.read(name, chunk, width)
        ]

    def scalar(self, name: str) -> Scalar:
        """One float64 number, the same for all items."""
        return self.read(name, 1, DType.FLOAT64, Read.UNIQUE)[0]

    def write(self, name: str, values: Sequence[Scalar], dtype: DType, access: Write) -> None:
        """Write or add an object; nothing where it has no scalars."""
        if len(values) == 0:
            return
        arg = self._declare(ArgSpec(name, len(values), dtype, write=access))
        start = 0
        for chunk, width in enumerate(arg.chunk_widths):
            chosen = values[start : start + width]
            self.graph.store(name, chunk, [scalar.value for scalar in chosen])
            start += width

    def build(self) -> KernelSpec:
        """The finished kernel."""
        return KernelSpec(self.name, tuple(self._args.values()), self.graph.build(), self._guard)
