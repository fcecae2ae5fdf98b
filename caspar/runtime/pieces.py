"""Work on large arrays of the host, piece by piece.

By several threads, as NumPy lets others run while it works: fresh memory is slow to touch.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from caspar.memory.array import Array

Result = TypeVar("Result")

PIECE_BYTES = 4 << 20
NUM_THREADS = 4
"""Threads that work on pieces. If as many upload, 29 M observations are set up in 0.29 instead of
0.45 s (H200)."""


def in_pieces(
    work: Callable[..., Result], *arrays: Array, piece_bytes: int = PIECE_BYTES
) -> list[Result]:
    """Call a function with the same rows of each of the arrays; small ones are one piece.

    Args:
        work: Takes as many arrays.
        arrays: With the same number of rows.
        piece_bytes: Of the largest array, in a piece.

    Returns:
        What it returned for each piece, in order.
    """
    num_rows, num_bytes = len(arrays[0]), max(array.nbytes for array in arrays)
    if num_bytes < 2 * piece_bytes:
        return [work(*arrays)]
    step = max(1, piece_bytes * num_rows // num_bytes)

    def piece(first: int) -> Result:
        return work(*(array[first : first + step] for array in arrays))

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(piece, range(0, num_rows, step)))
