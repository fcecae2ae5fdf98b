"""Item `i` touches object `index[i]`."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import ArgSpec, Field, Options, ReadAccessor, WriteAccessor
from caspar.memory.accessors.blocked import (
    cpu_load,
    cpu_store,
    cuda_add,
    cuda_load,
    cuda_store,
)
from caspar.memory.accessors.scope import CpuScope, CudaScope
from caspar.memory.tiles import Array


def _object(arg: ArgSpec) -> str:
    return f"{arg.name}_object"


class _Indexed:
    """What reading and writing by index have in common."""

    options: ClassVar[tuple[str, ...]] = ("index",)

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item."""
        return (Field("index", DType.INT32),)

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each index."""
        return int(options["index"].shape[0])

    def num_objects(self, count: int, options: Options) -> int:
        """Any number: indices are checked against it."""
        return 0

    def field_values(self, options: Options, num_objects: int) -> dict[str, Array | int]:
        """The index."""
        return {"index": options["index"]}

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Read the index once."""
        scope.emit(f"const u32 {_object(arg)} = {arg.name}_index[item];")

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Read the index once."""
        scope.emit(f"{_object(arg)} = {arg.name}_index[item]")


@dataclass(frozen=True)
class ReadIndexed(_Indexed, ReadAccessor):
    """Item `i` reads object `index[i]`."""

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One vector load."""
        return cuda_load(scope, arg, chunk, _object(arg))

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return cpu_load(scope, arg, chunk, _object(arg))


@dataclass(frozen=True)
class WriteIndexed(_Indexed, WriteAccessor):
    """Item `i` writes object `index[i]`; no two items may name one object."""

    needs_unique_index: ClassVar[bool] = True

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector store."""
        cuda_store(scope, arg, chunk, _object(arg), values)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        cpu_store(scope, arg, chunk, _object(arg), values)


@dataclass(frozen=True)
class AddIndexed(WriteIndexed):
    """Item `i` adds to object `index[i]`; no two items may name one object (else: shared)."""

    adds: ClassVar[bool] = True

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector load, one vector store."""
        cuda_add(scope, arg, chunk, _object(arg), values)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar additions."""
        cpu_store(scope, arg, chunk, _object(arg), values, "+=")
