"""What is timed: operations, and the arrays on which they run.

All arithmetic is 2 x + 1 in float32, and every input is between 0 and 1, so that sums have no
cancellation and their error is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from benchmarks.index_kinds import IndexKind

SHARED_DIM = 9
"""Scalars of an object that is read or added to through an index: a BAL camera's tangent."""

COPY_DIMS = (1, 3, 4, 7, 9, 10, 16)
"""Scalars of the objects that are copied and converted."""

Array = Any
"""A CuPy array."""


class Operation(Enum):
    """A kernel's task, by its name in the tables.

    INDICES: from an index to what the next three take in its place.
    READ_ADD: target[index[i]] += 2 source[index[i]] + 1.
    ADD: target[index[i]] += 2 source[i] + 1.
    READ: target[i] = 2 source[index[i]] + 1.
    COPY: target[i] = 2 source[i] + 1, both in the blocked layout.
    TO_BLOCKED: (n, dim) rows to the blocked layout.
    TO_ROWS: and back.
    """

    INDICES = "indices"
    READ_ADD = "read and add"
    ADD = "add"
    READ = "read"
    COPY = "blocked to blocked"
    TO_BLOCKED = "rows to blocked"
    TO_ROWS = "blocked to rows"


@dataclass(frozen=True)
class Task:
    """An operation on arrays that are in place.

    Attributes:
        operation: What it does.
        run: Enqueues it on the side's stream. May be called any number of times.
        result: Clears the output, runs once, and returns the output as rows; None for INDICES,
            whose result is checked by those that use it.
    """

    operation: Operation
    run: Callable[[], None]
    result: Callable[[], Array] | None


@dataclass(frozen=True, eq=False)
class SharedWorkload:
    """Input of the operations with an index.

    Attributes:
        kind: How objects are chosen.
        num_objects: Objects that are read or added to.
        index: (num_items,) int32.
        objects: (num_objects, SHARED_DIM) float32, read through the index.
        items: (num_items, SHARED_DIM) float32, read one after the other.
    """

    kind: IndexKind
    num_objects: int
    index: Array
    objects: Array
    items: Array


@dataclass(frozen=True)
class Timing:
    """One task of one side.

    Attributes:
        side: Whose.
        operation: What was done.
        on: Name of the index kind; number of scalars for what takes none.
        num_items: Items.
        time_ms: Milliseconds of a run, the median of some.
        of_copy: Bytes that must be read and written, in a second, over those of a copy within the
            device at the same time; None with an index, where they depend on the caches.
        worst_error: Largest relative error of the result; None where it was not looked at.
    """

    side: str
    operation: Operation
    on: str
    num_items: int
    time_ms: float
    of_copy: float | None
    worst_error: float | None


class Side(Protocol):
    """An implementation of the operations.

    Attributes:
        name: For the tables.
        stream: On which its tasks run.
        sums_warps_only: Whether shared adds go to memory a warp at a time, not a block.
    """

    @property
    def name(self) -> str:
        """For the tables."""

    @property
    def stream(self) -> Any:
        """CuPy stream on which its tasks run."""

    @property
    def sums_warps_only(self) -> bool:
        """Whether shared adds go to memory a warp at a time, not a block."""

    def shared_tasks(self, workload: SharedWorkload) -> list[Task]:
        """Indices (built once when this returns), read and add, add, read."""

    def sequential_tasks(self, rows: Array) -> list[Task]:
        """Copy and conversions of (n, dim) rows."""
