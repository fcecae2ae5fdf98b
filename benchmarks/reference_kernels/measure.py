"""Time tasks by CUDA events, and check what they computed.

Cost: for each kind of index some seconds, of which the host's drawing and the check are the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from benchmarks.index_kinds import IndexKind
from benchmarks.reference_kernels.tasks import (
    COPY_DIMS,
    SHARED_DIM,
    Array,
    Operation,
    SharedWorkload,
    Side,
    Task,
    Timing,
)

NUM_RUNS = 9
MOVE_TOLERANCE = 1e-6
SUM_TOLERANCE = 1e-3
"""Relative, of a sum of positive float32 numbers, where an object has few."""

LANES = 32
"""Addends that a side sums before it adds to memory, where it sums no more than a warp."""


def sum_tolerance(side: Side, workload: SharedWorkload) -> float:
    """The relative error a sum in float32 may have.

    Sums of warps are added one after the other, and where all addends are alike all are rounded to
    the same side: half a unit in the last place each.
    """
    if not side.sums_warps_only:
        return SUM_TOLERANCE
    additions = len(workload.index) / workload.num_objects / LANES
    return SUM_TOLERANCE + additions * float(np.finfo(np.float32).eps) / 2


def time_ms(run: Callable[[], None]) -> float:
    """Median milliseconds on the current stream, after two runs that are not counted."""
    times = []
    for number in range(NUM_RUNS + 2):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        run()
        end.record()
        end.synchronize()
        if number >= 2:
            times.append(cupy.cuda.get_elapsed_time(begin, end))
    return float(np.median(times))


def copy_gb_per_s(num_bytes: int) -> float:
    """Bytes that a copy within the device reads and writes in a second, in GB.

    Within minutes it changes by a tenth on one machine: compare with what was measured next to it.
    """
    source = cupy.full(num_bytes // 8, 1.5)
    target = cupy.empty_like(source)
    num_bytes = int(source.nbytes)
    copy = time_ms(lambda: target.data.copy_from_device_async(source.data, num_bytes))
    cupy.cuda.Device().synchronize()
    return 2 * num_bytes / copy / 1e6


def measure_shared(sides: Sequence[Side], kind: IndexKind, num_items: int) -> list[Timing]:
    """All operations with an index of this kind.

    Raises:
        ArithmeticError: A result is wrong.
    """
    workload = shared_workload(kind, num_items)
    timings = []
    for side in sides:
        with side.stream:
            cupy.cuda.Device().synchronize()
            for task in side.shared_tasks(workload):
                error = None
                if task.result is not None:
                    error = _worst_error(task.result(), expected(task.operation, workload))
                    is_sum = task.operation in (Operation.READ_ADD, Operation.ADD)
                    allowed = sum_tolerance(side, workload) if is_sum else MOVE_TOLERANCE
                    _check(side, task, kind.name, error, allowed)
                timing = Timing(
                    side=side.name,
                    operation=task.operation,
                    on=kind.name,
                    num_items=num_items,
                    time_ms=time_ms(task.run),
                    of_copy=None,
                    worst_error=error,
                )
                timings.append(timing)
        cupy.get_default_memory_pool().free_all_blocks()
    return timings


def measure_sequential(sides: Sequence[Side], num_scalars: int) -> list[Timing]:
    """Copies and conversions of `num_scalars` in objects of each of COPY_DIMS.

    Raises:
        ArithmeticError: A result is wrong.
    """
    return [
        timing
        for dim in COPY_DIMS
        for side in sides
        for timing in _measure_dim(side, dim, num_scalars // dim)
    ]


def _measure_dim(side: Side, dim: int, num_items: int) -> list[Timing]:
    rows = cupy.random.default_rng(dim).random((num_items, dim), dtype=cupy.float32)
    copy = copy_gb_per_s(int(rows.nbytes))
    timings = []
    with side.stream:
        for task in side.sequential_tasks(rows):
            assert task.result is not None
            wanted = 2 * rows + 1 if task.operation is Operation.COPY else rows
            error = _worst_error(task.result(), wanted)
            _check(side, task, f"{dim} scalars", error, MOVE_TOLERANCE)
            milliseconds = time_ms(task.run)
            num_bytes = 4 * num_items * moved_scalars(task.operation, dim)
            timing = Timing(
                side=side.name,
                operation=task.operation,
                on=str(dim),
                num_items=num_items,
                time_ms=milliseconds,
                of_copy=num_bytes / milliseconds / 1e6 / copy,
                worst_error=error,
            )
            timings.append(timing)
    return timings


def moved_scalars(operation: Operation, dim: int) -> int:
    """Scalars of an object that are read or written, the padding of the blocked layout with it."""
    blocked = dim + 1 if dim % 4 == 3 else dim
    return 2 * blocked if operation is Operation.COPY else dim + blocked


def shared_workload(kind: IndexKind, num_items: int) -> SharedWorkload:
    """Draw an index and values, the same ones each time."""
    generator = cupy.random.default_rng(0)
    num_objects = kind.num_objects(num_items)
    return SharedWorkload(
        kind=kind,
        num_objects=num_objects,
        index=cupy.asarray(kind.index(num_items)),
        objects=generator.random((num_objects, SHARED_DIM), dtype=cupy.float32),
        items=generator.random((num_items, SHARED_DIM), dtype=cupy.float32),
    )


def expected(operation: Operation, workload: SharedWorkload) -> Array:
    """Rows that READ, READ_ADD or ADD should give, in float64 for sums; by CuPy."""
    if operation is Operation.READ:
        return 2 * workload.objects[workload.index] + 1
    if operation is Operation.READ_ADD:
        counts = cupy.bincount(workload.index, None, workload.num_objects)
        return counts[:, None] * (2.0 * workload.objects.astype(cupy.float64) + 1.0)
    sums = cupy.empty((workload.num_objects, SHARED_DIM))
    for column in range(SHARED_DIM):
        added = 2.0 * workload.items[:, column].astype(cupy.float64) + 1.0
        sums[:, column] = cupy.bincount(workload.index, added, workload.num_objects)
    return sums


def _worst_error(result: Array, wanted: Array) -> float:
    """The largest relative error; infinite where zero was wanted and is not there."""
    difference = cupy.abs(result - wanted)
    scale = cupy.abs(wanted)
    scale[scale == 0] = cupy.finfo(cupy.float32).tiny
    worst: Any = (difference / scale).max()
    return float(worst)


def _check(side: Side, task: Task, on: str, error: float, tolerance: float) -> None:
    if not error <= tolerance:
        raise ArithmeticError(
            f"{side.name}: {task.operation.value}, {on}: relative error {error}, above {tolerance}"
        )
