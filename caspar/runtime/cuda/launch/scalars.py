"""Small things that the host writes and reads while the device works."""

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.structure.checks import COPY_KERNEL, COPY_SOURCE
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.modules import load_functions

_THREADS = 256

_NUM_WRITES = 3
"""Places that are written to in turn. One may be on its way when the next two are written: the
first of a step, and that of the step ahead."""


class CudaScalars:
    """(n,) float64 scalars by way of pinned memory, which copies need not wait for.

    A step's first launch comes 9 us after its begin, with copies of ordinary memory 25 (H200).
    """

    def __init__(self, stream: Any, scalars: Array) -> None:
        count = int(scalars.shape[0])
        self._stream = stream
        self._scalars = scalars
        self._pinned = cupy.cuda.alloc_pinned_memory((1 + _NUM_WRITES) * scalars.nbytes)
        rows = np.frombuffer(self._pinned, np.float64, (1 + _NUM_WRITES) * count)
        self._fetched, *self._written = rows.reshape(-1, count)
        self._num_writes = 0
        self._is_fetched = cupy.cuda.Event(disable_timing=True)

    def write(self, values: Sequence[float]) -> None:
        """Enqueue a copy of new values."""
        row = self._written[self._num_writes % _NUM_WRITES]
        self._num_writes += 1
        row[: len(values)] = values
        num_bytes = len(values) * row.itemsize
        self._scalars.data.copy_from_host_async(row.ctypes.data, num_bytes, self._stream)

    def fetch(self) -> None:
        """Enqueue a copy to the host."""
        place, num_bytes = self._pinned.ptr, self._scalars.nbytes
        self._scalars.data.copy_to_host_async(place, num_bytes, self._stream)
        self._is_fetched.record(self._stream)

    def read(self) -> list[float]:
        """Wait for the copy."""
        self._is_fetched.synchronize()
        values: list[float] = self._fetched.tolist()
        return values


class CudaCopies:
    """Small arrays by way of pinned memory, which one kernel writes: several copies take longer."""

    def __init__(self, stream: Any, arrays: Sequence[Array]) -> None:
        self._stream = stream
        self._kept = tuple(arrays)
        words = [-(-array.nbytes // 8) for array in arrays]
        self._pinned = cupy.cuda.alloc_pinned_memory(8 * sum(words) + 8)
        self._copies = []
        table = np.zeros((len(arrays), 3), np.uint64)
        first = 0
        for number, array in enumerate(arrays):
            copy = np.frombuffer(self._pinned, array.dtype, array.size, 8 * first)
            self._copies.append(copy.reshape(array.shape))
            table[number] = array.data.ptr, self._pinned.ptr + 8 * first, array.nbytes // 4
            first += words[number]
        self._places = cupy.asarray(table)
        self._kernel = load_functions(COPY_SOURCE, (COPY_KERNEL,))[COPY_KERNEL].function
        self._is_fetched = cupy.cuda.Event(disable_timing=True)

    def fetch(self) -> None:
        """Enqueue the copies."""
        if len(self._kept) > 0:
            size = (len(self._kept),), (_THREADS,)
            self._kernel(*size, (self._places,), stream=self._stream)
        self._is_fetched.record(self._stream)

    def read(self) -> list[NDArray[Any]]:
        """Wait for them."""
        self._is_fetched.synchronize()
        return self._copies
