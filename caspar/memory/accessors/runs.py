"""Shared adds where neighbouring items share an object: lanes are summed, then added by atomics."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, Field, Options, WriteAccessor
from caspar.memory.accessors.blocked import cuda_base
from caspar.memory.accessors.indexed import indexed_fields, object_name, read_index
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, converted
from caspar.memory.accessors.shared_atomics import ADD_CHUNK, RUNS

MANY_SCALARS = 12
"""Scalars of an object up to which all are summed in one loop, when the last is known."""


@dataclass(frozen=True)
class AddRuns(WriteAccessor):
    """Lanes of a warp that stand together and name one object are summed, then added.

    The sums over lanes are taken in the computing type, the sums in memory in the array's.

    Attributes:
        index_of: Another argument of the kernel, read by the same index; empty: its own.
        runs_of: Another argument of the kernel, added by the same index; empty: none.
    """

    index_of: str = ""
    runs_of: str = ""

    cuda_functions: ClassVar[str] = ADD_CHUNK + RUNS
    adds: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The object of each item."""
        return indexed_fields(self.index_of)

    def num_objects(self, count: int, options: Options) -> int:
        """Any number: indices are checked against it."""
        return 0

    def _runs(self, arg: ArgSpec) -> str:
        return f"{arg.name if self.runs_of == '' else self.runs_of}_runs"

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Find the runs."""
        read_index(scope, arg, self.index_of)
        if self.runs_of == "":
            place = object_name(arg, self.index_of)
            scope.emit(f"const Runs {self._runs(arg)} = find_runs({place}, active);")
        if self._waits(arg):
            scope.emit(f"{SCALAR_TYPE[scope.dtype]} {arg.name}_kept[{arg.dim}];")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Sum over the run, add; of few scalars only keep them."""
        if self._waits(arg):
            first = chunk * arg.chunk_length
            kept = (f"{arg.name}_kept[{first + n}] = {value};" for n, value in enumerate(values))
            scope.emit(" ".join(kept))
            return
        total = scope.temporary()
        scalar, width = SCALAR_TYPE[scope.dtype], len(values)
        scope.emit(
            f"{scalar} {total}[{width}] = {{{', '.join(values)}}};",
            f"sum_runs<{width}>({self._runs(arg)}, {total});",
        )
        self._add(scope, arg, chunk, total, 0)

    def cuda_after(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Sum and add what was kept."""
        if not self._waits(arg):
            return
        scope.emit(f"sum_runs<{arg.dim}>({self._runs(arg)}, {arg.name}_kept);")
        for chunk in range(len(arg.chunk_widths)):
            self._add(scope, arg, chunk, f"{arg.name}_kept", chunk * arg.chunk_length)

    def _waits(self, arg: ArgSpec) -> bool:
        """Whether all scalars are summed in one loop at the end."""
        return arg.dim <= MANY_SCALARS

    def _add(self, scope: CudaScope, arg: ArgSpec, chunk: int, total: str, first: int) -> None:
        width, added = arg.chunk_widths[chunk], scope.temporary()
        sums = ", ".join(
            converted(f"{total}[{first + n}]", scope.dtype, arg.dtype) for n in range(width)
        )
        place = object_name(arg, self.index_of)
        scope.emit(
            f"const {SCALAR_TYPE[arg.dtype]} {added}[{width}] = {{{sums}}};",
            f"add_chunk<{width}>("
            f"{cuda_base(arg, chunk)}, {place}, {self._runs(arg)}.adds, {added});",
        )

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Not here: tiles run at the same time on the processor, and it has no atomics."""
        raise NotImplementedError
