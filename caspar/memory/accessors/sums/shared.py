"""Items that share objects with others of their tile: `index[i]`, any number of times."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import (
    ArgSpec,
    BoundWrite,
    Kit,
    Options,
    WriteAccessor,
)
from caspar.memory.accessors.indexed import ReadIndexed
from caspar.memory.accessors.sums.partials import AddSharedPartials
from caspar.memory.accessors.sums.shared_atomics import (
    AddSharedPeers,
    AddSharedRuns,
)
from caspar.memory.binding import Binding


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
