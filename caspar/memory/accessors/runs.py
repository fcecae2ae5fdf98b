"""Shared adds where neighbouring items share an object: lanes are summed, then added by atomics."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import ArgSpec, Field, Options, WriteAccessor
from caspar.memory.accessors.blocked import cuda_base
from caspar.memory.accessors.indexed import indexed_fields, object_name, read_index
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, converted
from caspar.memory.accessors.shared_atomics import ADD_CHUNK, RUNS


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

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Sum over the run, add."""
        total, width, runs = scope.temporary(), len(values), self._runs(arg)
        scope.emit(
            f"{SCALAR_TYPE[scope.dtype]} {total}[{width}] = {{{', '.join(values)}}};",
            f"sum_runs<{width}>({runs}, {total});",
        )
        added = total
        if arg.dtype is not scope.dtype:
            added = scope.temporary()
            sums = (converted(f"{total}[{n}]", scope.dtype, arg.dtype) for n in range(width))
            scope.emit(f"const {SCALAR_TYPE[arg.dtype]} {added}[{width}] = {{{', '.join(sums)}}};")
        place = object_name(arg, self.index_of)
        scope.emit(f"add_chunk<{width}>({cuda_base(arg, chunk)}, {place}, {runs}.adds, {added});")

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Not here: tiles run at the same time on the processor, and it has no atomics."""
        raise NotImplementedError
