"""Item `i` touches row `i` of a C-contiguous (n, dim) array: how blocked arrays are converted."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, ReadAccessor, WriteAccessor
from caspar.memory.accessors.blocked import OneForEach
from caspar.memory.accessors.scope import CpuScope, CudaScope, converted


def _columns(arg: ArgSpec, chunk: int) -> range:
    first = chunk * arg.chunk_length
    return range(first, first + arg.chunk_widths[chunk])


@dataclass(frozen=True)
class ReadRows(OneForEach, ReadAccessor):
    """Item `i` reads row `i`."""

    needs_rows: ClassVar[bool] = True

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        return [
            f"{arg.name}_data[{arg.dim}ull * item + {column}u]" for column in _columns(arg, chunk)
        ]

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """Scalar loads."""
        place = scope.temporary()
        columns = _columns(arg, chunk)
        scope.emit(f"{place} = {arg.dim} * item + {columns.start}")
        return [f"{arg.name}_data[{place} + {lane}]" for lane in range(len(columns))]


@dataclass(frozen=True)
class WriteRows(OneForEach, WriteAccessor):
    """Item `i` writes row `i`."""

    needs_rows: ClassVar[bool] = True
    writes_all: ClassVar[bool] = True

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        for column, value in zip(_columns(arg, chunk), values, strict=True):
            scalar = converted(value, scope.dtype, arg.dtype)
            scope.emit(f"if (active) {arg.name}_data[{arg.dim}ull * item + {column}u] = {scalar};")

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Scalar stores."""
        place = scope.temporary()
        scope.emit(f"{place} = {arg.dim} * item + {_columns(arg, chunk).start}")
        for lane, value in enumerate(values):
            scalar = scope.cast(value, scope.dtype, arg.dtype)
            scope.emit(f"{arg.name}_data[{place} + {lane}] = {scalar}")
