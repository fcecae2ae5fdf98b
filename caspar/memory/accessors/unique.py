"""All items touch object 0."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, Options, ReadAccessor, WriteAccessor
from caspar.memory.accessors.blocked import cpu_load, cpu_store, cuda_load, cuda_store
from caspar.memory.accessors.scope import CpuScope, CudaScope


@dataclass(frozen=True)
class ReadUnique(ReadAccessor):
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

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """One vector load of the same address in every thread."""
        return cuda_load(scope, arg, chunk, "0")

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return cpu_load(scope, arg, chunk, "0")


@dataclass(frozen=True)
class WriteUnique(WriteAccessor):
    """The only item writes object 0: for kernels of one item."""

    writes_all: ClassVar[bool] = True
    has_one_object: ClassVar[bool] = True

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One: more would write the same place."""
        return 1

    def num_objects(self, count: int, options: Options) -> int:
        """One."""
        return 1

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """One vector store."""
        cuda_store(scope, arg, chunk, "0", values)

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        cpu_store(scope, arg, chunk, "0", values)
