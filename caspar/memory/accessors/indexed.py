"""Item `i` touches object `index[i]`."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import AnyObjects, ArgSpec, Field, Options
from caspar.memory.accessors.blocked import ReadObject, WriteObject
from caspar.memory.accessors.scope import CpuScope, CudaScope
from caspar.memory.array import Array


def owner(arg: ArgSpec, other: str) -> str:
    """The argument that has what several share: another one; empty: this one."""
    return arg.name if other == "" else other


def object_name(arg: ArgSpec, index_of: str = "") -> str:
    """The variable that holds an item's object; `index_of` names an argument of the same index."""
    return f"{owner(arg, index_of)}_object"


def indexed_fields(index_of: str) -> tuple[Field, ...]:
    """The object of each item, unless another argument has it."""
    return (Field("index", DType.INT32),) if index_of == "" else ()


def read_index(scope: CudaScope | CpuScope, arg: ArgSpec, index_of: str) -> None:
    """Read the index, unless another argument does."""
    if index_of == "":
        scope.index(object_name(arg), f"{arg.name}_index")


class ByIndex(AnyObjects):
    """A pattern that has an index, or goes by that of another argument: `index_of`."""

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item."""
        return indexed_fields(self.index_of)

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Read the index once."""
        read_index(scope, arg, self.index_of)


@dataclass(frozen=True)
class _Indexed(ByIndex):
    """The common part of reading and writing by index.

    Attributes:
        index_of: An earlier argument of the kernel that has the same index, or TILES; empty: it
            has its own.
    """

    index_of: str = ""

    options: ClassVar[tuple[str, ...]] = ("index",)

    def num_items(self, length: int | None, options: Options) -> int | None:
        return int(options["index"].shape[0])

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        return {"index": options["index"]}

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        read_index(scope, arg, self.index_of)


@dataclass(frozen=True)
class ReadIndexed(_Indexed, ReadObject):
    """Item `i` reads object `index[i]`."""

    def table_start(self, arg: ArgSpec) -> str:
        """The object."""
        return arg.object(object_name(arg, self.index_of))

    def touched(self, arg: ArgSpec) -> str:
        """The object that its index names."""
        return object_name(arg, self.index_of)


@dataclass(frozen=True)
class WriteIndexed(_Indexed, WriteObject):
    """Item `i` writes object `index[i]`; no two items may name one object."""

    needs_unique_index: ClassVar[bool] = True

    def touched(self, arg: ArgSpec) -> str:
        """The object that its index names."""
        return object_name(arg, self.index_of)


@dataclass(frozen=True)
class AddIndexed(WriteIndexed):
    """Item `i` adds to object `index[i]`; no two items may name one object (else: shared)."""

    adds: ClassVar[bool] = True
