"""Item `i` touches object `i`."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, Options, ReadAccessor, WriteAccessor
from caspar.memory.accessors.blocked import (
    cpu_load,
    cpu_store,
    cuda_add,
    cuda_load,
    cuda_store,
    cuda_stream,
)
from caspar.memory.accessors.scope import CpuScope, CudaScope


@dataclass(frozen=True)
class ReadSequential(ReadAccessor):
    """Item `i` reads object `i`.

    Attributes:
        once: What is read is not needed again soon: it leaves the caches to others. Only where
            nothing is written.
        rows: As in `Accessor`.
    """

    once: bool = False
    rows: bool = False

    touches_own_object: ClassVar[bool] = True

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each object."""
        return length

    def num_objects(self, count: int, options: Options) -> int:
        """One for each item."""
        return count

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One vector load."""
        if self.once:
            return cuda_stream(scope, arg, chunk)
        return cuda_load(scope, arg, chunk, "item")

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return cpu_load(scope, arg, chunk, "item")


@dataclass(frozen=True)
class WriteSequential(WriteAccessor):
    """Item `i` writes object `i`.

    Attributes:
        rows: As in `Accessor`.
    """

    rows: bool = False

    writes_all: ClassVar[bool] = True
    touches_own_object: ClassVar[bool] = True

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each object."""
        return length

    def num_objects(self, count: int, options: Options) -> int:
        """One for each item."""
        return count

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector store."""
        cuda_store(scope, arg, chunk, "item", values)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        cpu_store(scope, arg, chunk, "item", values)


@dataclass(frozen=True)
class AddSequential(WriteSequential):
    """Item `i` adds to object `i`."""

    adds: ClassVar[bool] = True

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector load, one vector store."""
        cuda_add(scope, arg, chunk, "item", values)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar additions."""
        cpu_store(scope, arg, chunk, "item", values, "+=")
