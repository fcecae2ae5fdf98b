"""Small things that the host writes and reads while the device works."""

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array
from caspar.runtime.cuda.launch.launch import captured

_NUM_WRITES = 3
"""Places that are written to in turn. One may be on its way when the next two are written: the
first of a step, and that of the step ahead."""


class CudaScalars:
    """Scalars by way of pinned memory, which copies need not wait for.

    A step's first launch comes 9 us after its begin, with copies of ordinary memory 25 (H200).

    Args:
        stream: Where everything is enqueued.
        scalars: (n,) float64 on the device.
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
    """Arrays by way of pinned memory; all copies are one CUDA graph.

    Args:
        stream: Where they are enqueued.
        arrays: Contiguous ones of the device.
    """

    def __init__(self, stream: Any, arrays: Sequence[Array]) -> None:
        self._stream = stream
        self._kept = arrays
        words = [-(-array.nbytes // 8) for array in arrays]
        self._pinned = cupy.cuda.alloc_pinned_memory(8 * sum(words) + 8)
        self._copies = []
        first = 0
        for array, num_words in zip(arrays, words, strict=True):
            copy = np.frombuffer(self._pinned, array.dtype, array.size, 8 * first)
            self._copies.append(copy.reshape(array.shape))
            first += num_words
        self._graph = captured(self._copy, 1) if first > 0 else None
        self._is_fetched = cupy.cuda.Event(disable_timing=True)

    def _copy(self) -> None:
        # `copy_to_host_async` refuses while the stream is captured
        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
        for array, copy in zip(self._kept, self._copies, strict=True):
            target, kind = copy.ctypes.data, runtime.memcpyDeviceToHost
            runtime.memcpyAsync(target, array.data.ptr, array.nbytes, kind, stream)

    def fetch(self) -> None:
        """Enqueue the copies."""
        if self._graph is not None:
            self._graph.launch(stream=self._stream)
        self._is_fetched.record(self._stream)

    def read(self) -> list[NDArray[Any]]:
        """Wait for them."""
        self._is_fetched.synchronize()
        return self._copies
