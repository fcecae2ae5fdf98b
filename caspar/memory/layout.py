"""The blocked struct-of-arrays layout (paper: Vector Access and Blocked Struct of Arrays).

An object of `dim` scalars is cut into chunks of 16 bytes (8 float16, 4 float32 or 2 float64) and
a remainder of less, which is padded to 1, 2, 4 or 8 scalars: there are no vector accesses of 6, 10,
12 or 14 bytes. Chunk `k` of all objects is contiguous, so that a warp reads 512 contiguous bytes
with one vector instruction.
"""

from functools import cache

from caspar.ir.dtype import DType
from caspar.memory.array import Array


@cache
def chunk_widths(dim: int, dtype: DType) -> tuple[int, ...]:
    """Scalars in use in each chunk of an object: full chunks, then the remainder."""
    full, rest = divmod(dim, dtype.chunk_length)
    return (dtype.chunk_length,) * full + ((rest,) if rest > 0 else ())


def padded_width(width: int) -> int:
    """Scalars a chunk occupies in memory."""
    return 1 << (width - 1).bit_length()


def padded_chunks(data: Array, count: int, dim: int, dtype: DType) -> list[Array]:
    """Contiguous (count, padded width) views of a blocked array, one of each chunk."""
    views, start = [], 0
    for width in map(padded_width, chunk_widths(dim, dtype)):
        views.append(data[start : start + width * count].reshape(count, width))
        start += width * count
    return views


def chunk_views(data: Array, count: int, dim: int, dtype: DType) -> list[Array]:
    """Views of a blocked array, one of each chunk: (count, width), without padding."""
    padded = padded_chunks(data, count, dim, dtype)
    widths = chunk_widths(dim, dtype)
    return [chunk[:, :width] for chunk, width in zip(padded, widths, strict=True)]


def object_scalars(dim: int, dtype: DType) -> int:
    """Scalars one object occupies in memory, padding included."""
    return sum(padded_width(width) for width in chunk_widths(dim, dtype))


def array_scalars(dim: int, dtype: DType, num_objects: int) -> int:
    """Scalars of a blocked array."""
    return object_scalars(dim, dtype) * num_objects


HALF_WORDS = 2
"""Numbers that hold a size in the memory of tables in float16: its uint16 words, the low one first.
"""


def first_number(num_axes: int, dtype: DType) -> int:
    """Where the numbers of a table begin in its memory, behind its sizes along its axes."""
    return num_axes * (HALF_WORDS if dtype is DType.FLOAT16 else 1)


def rows_are_blocked(dim: int, dtype: DType) -> bool:
    """Return whether (n, dim) C-contiguous rows have the very bytes of the blocked layout.

    They do where an object is one chunk without padding: dims 1, 2 and 4 of float32, 1 and 2 of
    float64.
    """
    return dim <= dtype.chunk_length and padded_width(dim) == dim


_SECTOR_BYTES = 32
"""Bytes that memory moves, or adds to, in one request."""


def row_scalars(dim: int, dtype: DType) -> int:
    """Scalars one object occupies where all of its scalars stand together, padding included.

    Whole sectors, or the power of two of one that it fits into.
    """
    sector = _SECTOR_BYTES // dtype.itemsize
    return padded_width(dim) if dim <= sector else -(-dim // sector) * sector


PARTIAL_CHUNK = 4
"""Scalars of a chunk of partial sums, whatever their type: threads access them one by one."""


def partial_chunk_widths(dim: int) -> tuple[int, ...]:
    """Scalars in each chunk of a partial sum."""
    full, rest = divmod(dim, PARTIAL_CHUNK)
    return (PARTIAL_CHUNK,) * full + ((rest,) if rest > 0 else ())
