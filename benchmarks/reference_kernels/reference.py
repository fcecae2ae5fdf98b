"""The operations by the reference's generated kernels.

It launches everything on the default stream and checks no CUDA error; that it ran is seen by its
results. Its layout is the same as ours: (scalars with padding, number of objects).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy

from benchmarks.reference.build import ReferenceLibrary
from benchmarks.reference_kernels.tasks import (
    SHARED_DIM,
    Array,
    Operation,
    SharedWorkload,
    Task,
)


@dataclass(frozen=True)
class ReferenceSide:
    """The reference as a `Side`."""

    library: ReferenceLibrary
    name: str = "reference"
    sums_warps_only: bool = False

    @property
    def stream(self) -> Any:
        """The default stream: it knows no other."""
        return cupy.cuda.Stream.null

    def shared_tasks(self, workload: SharedWorkload) -> list[Task]:
        """Indices, read and add, add, read."""
        module, num_items = self.library.module, len(workload.index)
        indices = cupy.empty((num_items, 2), dtype=cupy.int32)
        build = partial(module.shared_indices, workload.index, indices)
        build()
        objects, items = self._blocked(workload.objects), self._blocked(workload.items)
        sums, moved = cupy.empty_like(objects), cupy.empty_like(items)
        return [
            Task(Operation.INDICES, build, None),
            self._task(
                Operation.READ_ADD,
                partial(module.read_add_9, objects, indices, sums, indices, num_items),
                sums,
            ),
            self._task(Operation.ADD, partial(module.add_9, items, sums, indices, num_items), sums),
            self._task(
                Operation.READ, partial(module.read_9, objects, indices, moved, num_items), moved
            ),
        ]

    def sequential_tasks(self, rows: Array) -> list[Task]:
        """Copy and conversions."""
        num_objects, dim = rows.shape
        blocked = self._blocked(rows)
        copied, again = cupy.empty_like(blocked), cupy.empty_like(rows)
        copy = partial(getattr(self.library.module, f"copy_{dim}"), blocked, copied, num_objects)
        to_blocked = partial(self._conversion(dim, "stacked_to_caspar"), rows, copied)
        to_rows = partial(self._conversion(dim, "caspar_to_stacked"), blocked, again)

        def rows_again() -> Array:
            again.fill(cupy.nan)
            to_rows()
            return again

        return [
            self._task(Operation.COPY, copy, copied, dim),
            self._task(Operation.TO_BLOCKED, to_blocked, copied, dim),
            Task(Operation.TO_ROWS, to_rows, rows_again),
        ]

    def _task(self, operation: Operation, run: Any, output: Array, dim: int = SHARED_DIM) -> Task:
        """A task with blocked output, which it adds to or overwrites."""

        def result() -> Array:
            output.fill(0)
            run()
            rows = cupy.empty((output.shape[1], dim), dtype=output.dtype)
            self._conversion(dim, "caspar_to_stacked")(output, rows)
            return rows

        return Task(operation, run, result)

    def _blocked(self, rows: Array) -> Array:
        num_objects, dim = rows.shape
        blocked = cupy.zeros((blocked_dim(dim), num_objects), dtype=rows.dtype)
        self._conversion(dim, "stacked_to_caspar")(rows, blocked)
        return blocked

    def _conversion(self, dim: int, direction: str) -> Any:
        vector = f"matrix{dim}1" if dim < 10 else f"matrix{dim}_1"
        return getattr(self.library.module, f"{vector}_{direction}")


def blocked_dim(dim: int) -> int:
    """Scalars an object of `dim` float32 occupies in the reference's layout."""
    return dim + 1 if dim % 4 == 3 else dim
