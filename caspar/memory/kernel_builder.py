"""Writing a kernel: declare arguments, read, compute, store."""

from collections.abc import Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.scalar import Scalar
from caspar.memory.access import ArgSpec, ExchangeAccessor, ReadAccessor, WriteAccessor
from caspar.memory.accessors.sequential import ReadUnique
from caspar.memory.kernel import KernelSpec

MAX_CALLS = 60_000
"""Operations of one kernel: more are refused before they cost time. Of kernels that are smaller
`kernel_size` decides."""


class KernelBuilder:
    """Grows a `KernelSpec` argument by argument.

    Args:
        few_items: Whether its items may be too few to fill a device.
        stretches: Whether a block may take several tiles one after the other.
    """

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
