"""Users' memory that is in the blocked layout already: checks, without a copy."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np

from caspar.arrays.convert import (
    backend_of,
    float_type,
    padded_chunks,
    rows_of,
    shared_array,
)
from caspar.errors import InputError
from caspar.ir.dtype import DType
from caspar.memory.array import Array, address
from caspar.memory.binding import Binding
from caspar.memory.layout import chunk_widths, object_scalars, padded_width
from caspar.runtime.arrays import HOST, as_library, location

MAX_LENGTH = 2**31 - 1
"""Objects an array may hold: indices are int32."""


_SHOWN_ENTRIES = 4
_SHOWN_LETTERS = 60
"""An error shows at most this many letters of a key."""


def chunks_text(dim: int, scalar: DType) -> str:
    """Widths of the chunks of an object: 4+4+2."""
    return "+".join(map(str, chunk_widths(dim, scalar)))


def checked_size(where: str, name: str, value: Any, least: int) -> int:
    """A number of objects or scalars.

    Raises:
        InputError: It is no integer, or out of range.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= MAX_LENGTH:
        raise InputError(
            f"{where}: {name}={value!r}; it must be an integer from {least} to {MAX_LENGTH:,}"
        )
    return number


def default_type(rows: Array) -> DType:
    """Type of blocked memory for rows: float64 where they are that, or wider, else float32."""
    is_wide = rows.dtype.kind == "f" and rows.dtype.itemsize >= DType.FLOAT64.itemsize
    return DType.FLOAT64 if is_wide else DType.FLOAT32


def checked_window(where: str, key: slice | SupportsIndex, length: int) -> tuple[int, int]:
    """First object and number of objects that a slice or number means.

    Raises:
        InputError: A step other than 1, a number out of range, or something else.
    """
    if isinstance(key, slice):
        if key.step is not None and key.step != 1:
            raise InputError(f"{where}: a slice must have step 1; use to_rows()[...]")
        start, stop, _ = key.indices(length)
        return start, max(0, stop - start)
    try:
        number = None if isinstance(key, bool) else operator.index(key)
    except TypeError:
        number = None
    if number is None:
        raise InputError(
            f"{where}: only one integer or one slice is allowed; to select by an index use "
            "to_rows()[index], or a kernel with ReadIndexed"
        )
    if not -length <= number < length:
        raise InputError(f"{where}: out of range; there are {length} objects")
    return number % length, 1


def key_text(key: object) -> str:
    """A slice or another key, as users write it; of what is long the type and the size."""
    if not isinstance(key, slice):
        return _short(key)
    parts = [key.start, key.stop, *([] if key.step is None else [key.step])]
    return ":".join("" if part is None else str(part) for part in parts)


def _short(key: object) -> str:
    shape = getattr(key, "shape", None)
    if shape is not None and shape != ():
        return f"{type(key).__name__} of shape {tuple(shape)}"
    if isinstance(key, list | tuple | range) and len(key) > _SHOWN_ENTRIES:
        return f"{type(key).__name__} of {len(key):,}"
    text = repr(key)
    return text if len(text) <= _SHOWN_LETTERS else type(key).__name__


def extents(blocked: Binding, dim: int) -> list[tuple[int, int]]:
    """First byte and the one after the last of each chunk of a window."""
    chunks = [chunk for chunk in padded_chunks(blocked, dim) if chunk.nbytes > 0]
    return [(address(chunk), address(chunk) + int(chunk.nbytes)) for chunk in chunks]


def share_bytes(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> bool:
    """Return whether a byte belongs to both of what `extents` gave."""
    return any(
        start < other_stop and other_start < stop
        for start, stop in one
        for other_start, other_stop in other
    )


def moved_like(rows: Array, like: Any) -> Any:
    """Rows of a NumPy or CuPy array as one of the library of another, where that lives.

    Args:
        rows: The rows.
        like: An array of any library; of a Python sequence or a blocked array NumPy and CuPy.

    Raises:
        InputError: `like` lives on a device that is not used here.
    """
    target = backend_of(like, where="like")
    if isinstance(rows, np.ndarray):
        return as_library(target.upload(rows), like)
    return as_library(rows if location(like) != HOST else backend_of(rows).to_host(rows), like)


def flat_memory(where: str, flat: Any, dim: int, length: int | None) -> tuple[Array, int]:
    """Flat blocked memory and the objects it holds.

    Args:
        where: What is checked.
        flat: One contiguous dimension of float32 or float64.
        dim: Scalars of an object.
        length: Objects; None: as many as it holds.

    Raises:
        InputError: Names `where`, what is wrong and what is allowed.
    """
    buffer = shared_array(where, flat)
    scalar = float_type(where, buffer.dtype)
    dim = checked_size(where, "dim", dim, 1)
    if buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise InputError(
            f"{where}: shape {tuple(buffer.shape)} with strides {_strides(buffer)} in scalars; "
            "expected (size,) with (1,)"
        )
    size, of_object = int(buffer.shape[0]), object_scalars(dim, scalar)
    if length is None and size % of_object != 0:
        raise InputError(
            f"{where}: {size} scalars; it must be a multiple of {of_object}, which an object of "
            f"dim {dim} and {scalar.value} takes"
        )
    length = checked_size(where, "length", size // of_object if length is None else length, 0)
    if size != length * of_object:
        raise InputError(
            f"{where}: {size} scalars; it must be {length * of_object}, which {length} objects of "
            f"dim {dim} and {scalar.value} take"
        )
    _check_alignment(where, buffer, dim, scalar)
    return buffer, length


def row_memory(where: str, array: Any) -> tuple[Array, int, int]:
    """Flat blocked memory of rows that have one chunk, dim and length.

    Raises:
        InputError: Names `where`, what is wrong and what is allowed.
    """
    rows = rows_of(where, array)
    scalar = float_type(where, rows.dtype)
    length, dim = checked_size(where, "length", rows.shape[0], 0), int(rows.shape[1])
    strides, width = _strides(rows), padded_width(dim)
    if dim > scalar.chunk_length:
        needed = f"no strides describe its chunks {chunks_text(dim, scalar)}"
    elif length > 0 and not _has_strides(strides, width, length, dim):
        needed = f"they must be ({width}, 1)"
    else:
        # a stride may also be anything where it is never taken
        stride = rows.dtype.itemsize
        flat = _strided(rows, (length * width,), (stride,))
        _check_alignment(where, flat, dim, scalar)
        return flat, dim, length
    raise InputError(
        f"{where}: shape {(length, dim)} and {scalar.value} with strides {strides} in scalars; "
        f"{needed}. BlockedArray.from_rows copies rows to the blocked layout"
    )


def _has_strides(strides: tuple[float, ...], width: int, length: int, dim: int) -> bool:
    """Return whether rows are `width` scalars apart; a stride never taken may be anything.

    That of a single row of three scalars counts: it tells whether there is a fourth.
    """
    row_fits = strides[0] == width or (length == 1 and width == dim)
    return row_fits and (dim == 1 or strides[1] == 1)


def _strides(array: Array) -> tuple[float, ...]:
    """Strides in scalars, as most libraries give them."""
    itemsize = int(array.dtype.itemsize)
    return tuple(
        stride // itemsize if stride % itemsize == 0 else stride / itemsize
        for stride in array.strides
    )


def _strided(array: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    library: Any = backend_of(array).xp.lib
    return library.stride_tricks.as_strided(array, shape=shape, strides=strides)


def _check_alignment(where: str, buffer: Array, dim: int, scalar: DType) -> None:
    """Refuse memory in which a chunk of an object is not aligned; the first chunk is the widest."""
    widest = padded_width(chunk_widths(dim, scalar)[0]) * scalar.itemsize
    needed = scalar.itemsize if isinstance(buffer, np.ndarray) else widest
    if buffer.size > 0 and address(buffer) % needed != 0:
        raise InputError(
            f"{where}: the memory begins {address(buffer) % needed} bytes after a multiple of "
            f"{needed}; vector instructions need it to begin at one"
        )
