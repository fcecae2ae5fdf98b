"""Sums over items: of all to one object, or of those whose `index[i]` names an object to it."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import (
    ArgSpec,
    BoundWrite,
    Finish,
    Kit,
    Options,
    WriteAccessor,
)
from caspar.memory.accessors.indexed import ReadIndexed
from caspar.memory.accessors.sequential import ReadUnique, WriteUnique
from caspar.memory.accessors.sums.partials import AddSharedPartials, AddSumPartials, ReadPartials
from caspar.memory.accessors.sums.shared_atomics import (
    AddSharedPeers,
    AddSharedRuns,
)
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder


@dataclass(frozen=True)
class WriteSum(AddSumPartials):
    """Object 0 gets the sum over all items.

    Each tile leaves its sum in scratch memory; a second kernel sums those in a fixed order. Both
    sums are taken in float64: the same bits in every run. (An atomic add for each tile needs no
    second kernel but sums in any order, and in the type of the output.)
    """

    writes_all: ClassVar[bool] = True
    has_one_object: ClassVar[bool] = True

    def num_objects(self, count: int, options: Options) -> int:
        """One."""
        return 1

    def in_kernel(self, options: Options, is_atomic: bool) -> WriteAccessor:
        """Sums of tiles."""
        return AddSumPartials()

    def stored_dtype(self, dtype: DType) -> DType:
        """Partial sums are float64."""
        return DType.FLOAT64

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Room for a partial of each tile; a kernel that sums them."""
        num_tiles = -(-kit.count // kit.tile_size)
        partials = Binding(kit.allocate(arg.dim * num_tiles, DType.FLOAT64), num_tiles)
        dtype = DType(str(output.data.dtype))
        spec = _total(arg.dim, dtype, self.adds)
        finish = Finish(spec, {"partials": partials, "output": output}, 1)
        return BoundWrite(partials.with_fields({"offset": 0}), (finish,))


@dataclass(frozen=True)
class AddSum(WriteSum):
    """Add to object 0 the sum over all items."""

    adds: ClassVar[bool] = True


@dataclass(frozen=True)
class AddUnique(AddSum):
    """All items add to object 0: the same as `AddSum`."""


def _total(dim: int, dtype: DType, adds: bool) -> KernelSpec:
    """Sums the partials of all tiles to one object."""
    verb = "add" if adds else "write"
    kernel = KernelBuilder(f"{verb}_total_{dtype.value}_{dim}", DType.FLOAT64)
    sums = kernel.read("partials", dim, DType.FLOAT64, ReadPartials())
    if adds:
        old = kernel.read("output", dim, dtype, ReadUnique(), windowed=True)
        sums = [a + b for a, b in zip(old, sums, strict=True)]
    kernel.write("output", sums, dtype, WriteUnique(), windowed=True)
    return kernel.build()


@dataclass(frozen=True)
class ReadShared(ReadIndexed):
    """Item `i` reads object `index[i]`, which other items of its tile read too.

    By itself the same text as `ReadIndexed`: staging in shared memory, as in the paper, was slower
    than the caches are (docs/design/0010). Where the kernel also adds to the objects, its threads
    follow the order of their index, and these reads are sorted too.
    """


@dataclass(frozen=True)
class AddSharedSum(AddSharedPartials):
    """Add to object `index[i]` the value of item `i`, for all items that name it."""

    adds: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("index",)

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each index."""
        return int(options["index"].shape[0])

    def in_kernel(self, options: Options, is_atomic: bool) -> WriteAccessor:
        """Atomics, or partials of tiles that are summed in order."""
        if not is_atomic:
            return AddSharedPartials()
        return AddSharedRuns() if "prepared" in options else AddSharedPeers()

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Bind an output as the kernel's access needs it."""
        assert arg.write is not None
        return arg.write.bind(arg, output, options, kit)
