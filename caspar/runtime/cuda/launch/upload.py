"""Copies from the host to a CUDA device, on the current stream.

The driver copies an array of ordinary memory by one thread, through memory of its own. Here several
threads fill pieces of pinned memory while others travel. Once for each array of a solve.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array, PickedRows

PIECE_BYTES = 4 << 20
NUM_PIECES = 8
NUM_THREADS = 4
"""700 MiB travel at 7.4 GB/s by the driver, at 6, 14, 25 and 30 by 1, 2, 4 and 8 threads, with
pieces of 1 MiB by 4 at 17; 8 MiB at 7.6 and 10.8 (H200, 16 cores)."""

FEWEST_BYTES = 2 * PIECE_BYTES
"""Smaller arrays are left to the driver."""


@dataclass(frozen=True)
class _Piece:
    """Pinned memory, its (PIECE_BYTES,) bytes, and the event after the last copy from it."""

    pinned: Any
    content: NDArray[np.uint8]
    travelled: Any


def _make_piece() -> _Piece:
    pinned = cupy.cuda.alloc_pinned_memory(PIECE_BYTES)
    content = np.frombuffer(pinned, np.uint8, PIECE_BYTES)
    return _Piece(pinned, content, cupy.cuda.Event(disable_timing=True))


class Uploader:
    """Copies arrays to one device, the current one; several threads may ask."""

    def __init__(self, device: int) -> None:
        self._lock = Lock()
        use = cupy.cuda.Device(device).use
        self._threads = ThreadPoolExecutor(NUM_THREADS, "caspar upload", use)
        self._pieces: list[_Piece] = []

    def write(self, target: Array, host: NDArray[Any] | PickedRows) -> None:
        """Copy rows of the same type and shape; `host` may be changed afterwards."""
        source = host.rows if isinstance(host, PickedRows) else host
        # first what is cheap
        is_staged = (
            host.nbytes >= FEWEST_BYTES
            and source.dtype == target.dtype
            and source.flags.c_contiguous
            and target.flags.c_contiguous
            and (source is host or source[:1].nbytes <= PIECE_BYTES)
        )
        if not is_staged:
            target.set(host.on_host() if isinstance(host, PickedRows) else host)
            return
        if host.shape != target.shape:
            raise ValueError(f"shape {host.shape} does not fit {target.shape}")
        with self._lock:
            if len(self._pieces) == 0:
                self._pieces = [_make_piece() for _ in range(NUM_PIECES)]
            if isinstance(host, PickedRows):
                self._copy(target, host.rows.reshape(len(host.rows), -1), host.numbers)
            else:
                self._copy(target, host.reshape(-1).view(np.uint8), None)

    def _copy(
        self, target: Array, source: NDArray[Any], numbers: NDArray[np.integer[Any]] | None
    ) -> None:
        stream = cupy.cuda.get_current_stream()
        row_bytes = source[:1].nbytes
        rows_of_piece = PIECE_BYTES // row_bytes
        starts = range(0, len(source if numbers is None else numbers), rows_of_piece)

        def fill(number: int) -> Future[int]:
            part = slice(starts[number], starts[number] + rows_of_piece)
            piece = self._pieces[number % NUM_PIECES]
            chosen = None if numbers is None else numbers[part]
            return self._threads.submit(
                _fill, piece, source[part] if chosen is None else source, chosen
            )

        filled = [fill(number) for number in range(min(NUM_PIECES, len(starts)))]
        try:
            for number, start in enumerate(starts):
                size = filled[number].result()
                piece = self._pieces[number % NUM_PIECES]
                place = target.data + start * row_bytes
                place.copy_from_host_async(piece.pinned.ptr, size, stream)
                piece.travelled.record(stream)
                if number + NUM_PIECES < len(starts):
                    filled.append(fill(number + NUM_PIECES))
        finally:
            wait(filled)  # nobody may fill a piece that the next array has


def _fill(piece: _Piece, source: NDArray[Any], numbers: NDArray[np.integer[Any]] | None) -> int:
    piece.travelled.synchronize()
    if numbers is None:
        size = source.nbytes
        piece.content[:size] = source
    else:
        size = len(numbers) * source[:1].nbytes
        place = piece.content[:size].view(source.dtype).reshape(len(numbers), -1)
        # other modes than `raise` need no memory of their own for the result
        source.take(numbers, axis=0, out=place, mode="clip")
    return size


@cache
def uploader(device: int) -> Uploader:
    """The one of a device: its pinned memory is kept."""
    return Uploader(device)
