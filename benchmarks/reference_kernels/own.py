"""The operations by caspar's kernels, as users call them: bound once, then launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any

import cupy
import symforce.symbolic as sf

import caspar
from benchmarks.reference_kernels.tasks import (
    SHARED_DIM,
    Array,
    Operation,
    SharedWorkload,
    Task,
)
from caspar.frontend.kernels.trace import KernelFunction
from caspar.kernels.kernel import Kernel


class Strategy(Enum):
    """How shared adds are done, by what is passed and asked for."""

    PREPARED = "caspar"
    BARE_INDEX = "caspar, bare index"
    DETERMINISTIC = "caspar, deterministic"


@dataclass(frozen=True)
class OwnSide:
    """caspar as a `Side`."""

    strategy: Strategy

    @property
    def name(self) -> str:
        """For the tables."""
        return self.strategy.value

    @property
    def stream(self) -> Any:
        """The default stream, as users have it."""
        return cupy.cuda.Stream.null

    @property
    def sums_warps_only(self) -> bool:
        """Where the index comes as it is."""
        return self.strategy is Strategy.BARE_INDEX

    def shared_tasks(self, workload: SharedWorkload) -> list[Task]:
        """Indices, read and add, add, read."""
        is_bare = self.strategy is Strategy.BARE_INDEX
        deterministic = self.strategy is Strategy.DETERMINISTIC
        shared = caspar.SharedIndices(workload.index, workload.num_objects)
        index = workload.index if is_bare else shared
        objects = caspar.BlockedArray.from_rows(workload.objects)
        items = caspar.BlockedArray.from_rows(workload.items)
        sums = caspar.BlockedArray.zeros(workload.num_objects, SHARED_DIM, backend="cuda")
        moved = caspar.BlockedArray.zeros(len(items), SHARED_DIM, backend="cuda")
        into = {"values": sums, "index": index}
        through = {"values": objects, "index": index}
        read_add = twice_kernel(
            SHARED_DIM, caspar.ReadShared(), caspar.AddSharedSum(), deterministic
        ).bind(through, out=into)
        tasks = [self._task(Operation.READ_ADD, read_add, sums)]
        add = twice_kernel(
            SHARED_DIM, caspar.ReadSequential(), caspar.AddSharedSum(), deterministic
        ).bind(items, out=into)
        tasks.append(self._task(Operation.ADD, add, sums))
        if self.strategy is not Strategy.PREPARED:
            return tasks
        read = twice_kernel(
            SHARED_DIM, caspar.ReadShared(), caspar.WriteSequential(), deterministic
        ).bind(through, out=moved)

        def build() -> None:
            caspar.SharedIndices(workload.index, workload.num_objects)

        tasks.append(Task(Operation.INDICES, build, None))
        tasks.append(self._task(Operation.READ, read, moved))
        return tasks

    def sequential_tasks(self, rows: Array) -> list[Task]:
        """Copy and conversions."""
        if self.strategy is not Strategy.PREPARED:
            return []
        blocked = caspar.BlockedArray.from_rows(rows)
        copied = caspar.BlockedArray.zeros(len(rows), rows.shape[1], backend="cuda")
        copy = twice_kernel(
            rows.shape[1], caspar.ReadSequential(), caspar.WriteSequential(), False
        ).bind(blocked, out=copied)

        def to_blocked() -> None:
            copied[:] = rows

        return [
            self._task(Operation.COPY, copy, copied),
            self._task(Operation.TO_BLOCKED, to_blocked, copied),
            Task(Operation.TO_ROWS, blocked.to_rows, blocked.to_rows),
        ]

    def _task(
        self, operation: Operation, run: Callable[[], Any], output: caspar.BlockedArray
    ) -> Task:
        def result() -> Array:
            output.buffer[...] = 0
            run()
            return output.to_rows()

        return Task(operation, run, result)


@cache
def twice_kernel(dim: int, read: Any, write: Any, deterministic: bool) -> Kernel:
    """2 x + 1 of vectors, read and written in some way."""
    vector = sf.matrix_type_from_shape((dim, 1))

    def twice(x: Any) -> Any:
        return 2 * x + vector([1] * dim)

    twice.__annotations__ = {"x": Annotated[vector, read], "return": Annotated[vector, write]}
    function = KernelFunction(twice, f"twice_{dim}", {})
    return Kernel(function, deterministic=deterministic)
