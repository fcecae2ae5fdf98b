"""Item `i` touches object `i`, or every item touches object 0."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, Options
from caspar.memory.accessors.blocked import OneForEach, ReadObject, WriteObject, cuda_stream
from caspar.memory.accessors.scope import CudaScope


@dataclass(frozen=True)
class ReadSequential(OneForEach, ReadObject):
    """Item `i` reads object `i`.

    Attributes:
        once: What is read is not needed again soon: it leaves the caches to others. Only where
            nothing is written.
        rows: As in `Accessor`.
    """

    once: bool = False
    rows: bool = False

    touches_own_object: ClassVar[bool] = True

    def touched(self, arg: ArgSpec) -> str:
        """The object of its own number."""
        return "item"

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One vector load."""
        return cuda_stream(scope, arg, chunk) if self.once else super().cuda_read(scope, arg, chunk)


@dataclass(frozen=True)
class WriteSequential(OneForEach, WriteObject):
    """Item `i` writes object `i`.

    Attributes:
        rows: As in `Accessor`.
    """

    rows: bool = False

    writes_all: ClassVar[bool] = True
    touches_own_object: ClassVar[bool] = True

    def touched(self, arg: ArgSpec) -> str:
        """The object of its own number."""
        return "item"


@dataclass(frozen=True)
class AddSequential(WriteSequential):
    """Item `i` adds to object `i`."""

    adds: ClassVar[bool] = True


@dataclass(frozen=True)
class ReadUnique(ReadObject):
    """Every item reads object 0.

    One broadcast load for a warp, out of the first-level cache: staging in shared memory would
    need two barriers.
    """

    has_one_object: ClassVar[bool] = True

    def num_objects(self, count: int, options: Options) -> int:
        """One."""
        return 1

    def table_start(self, arg: ArgSpec) -> str:
        """The only table is the first."""
        return arg.object("0")

    def touched(self, arg: ArgSpec) -> str:
        """The only object."""
        return "0"


@dataclass(frozen=True)
class WriteUnique(WriteObject):
    """The only item writes object 0: for kernels of one item."""

    writes_all: ClassVar[bool] = True
    has_one_object: ClassVar[bool] = True

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One: more would write the same place."""
        return 1

    def num_objects(self, count: int, options: Options) -> int:
        """One."""
        return 1

    def touched(self, arg: ArgSpec) -> str:
        """The only object."""
        return "0"
