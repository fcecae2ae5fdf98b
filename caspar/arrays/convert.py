"""Users' rows to the blocked layout and back, and users' memory that is in that layout already.

Input: what speaks DLPack, or a Python sequence; output: blocked memory of a backend, or rows. One
generated kernel for each direction, size and type, compiled when first used and kept for the
process, also on the processor, where NumPy's copies move at most four scalars at a time; a plain
copy if both have the same bytes. On CUDA it runs in CuPy's current stream.
"""

from __future__ import annotations

import operator
from functools import cache
from numbers import Real
from threading import Lock
from typing import Any, SupportsIndex

import numpy as np

from caspar.codegen.targets import TARGETS
from caspar.errors import InputError
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding, address
from caspar.memory.kernel import ConvertSpec, Direction
from caspar.memory.layout import chunk_widths, object_scalars, padded_width, rows_are_blocked
from caspar.memory.layout import padded_chunks as layout_chunks
from caspar.options import BackendChoice, choice
from caspar.runtime.arrays import (
    HOST,
    as_library,
    checked_location,
    location,
    reading,
    to_numpy,
    wants_gradient,
    warn_of_gradient,
)
from caspar.runtime.backend import Backend, Kernel, Launch
from caspar.runtime.select import select_backend
from caspar.user_arrays import object_advice

# -- backends --------------------------------------------------------------------------------------

_BACKENDS: dict[BackendChoice, Backend] = {}
_MAKING = Lock()


def shared_backend(name: str | BackendChoice = BackendChoice.AUTO) -> Backend:
    """The process's one backend of that name."""
    chosen: BackendChoice = choice(BackendChoice, "backend", name)
    made = _BACKENDS.get(chosen)
    if made is not None:
        return made
    with _MAKING:
        if chosen not in _BACKENDS:
            made = select_backend(chosen)
            _BACKENDS[chosen] = _BACKENDS.setdefault(BackendChoice(made.name), made)
        return _BACKENDS[chosen]


def current_stream() -> int:
    """The stream that CUDA work of the caller goes to; 0 where CUDA is not in use.

    Calls on different streams must not share scratch memory.
    """
    made = _BACKENDS.get(BackendChoice.CUDA)
    return 0 if made is None else made.current_stream


def backend_of(
    given: Any, chosen: str | BackendChoice | None = None, *, where: str = "array"
) -> Backend:
    """The backend for an array, or the chosen one if it can read the array."""
    place = checked_location(where, given)
    if place == HOST:
        return shared_backend(BackendChoice.CPU if chosen is None else chosen)
    if place.kind == "cuda":
        device = shared_backend(BackendChoice.CUDA if chosen is None else chosen)
        if device.accepts_device(place.kind, place.number):
            return device
        wanted = device.device
    else:
        wanted = "the host or a CUDA device"
    raise InputError(f"{where}: lives on {place}, but must be on {wanted}; copy it there first")


FLOATS = {np.dtype(dtype.value): dtype for dtype in (DType.FLOAT32, DType.FLOAT64)}

SCALARS = {**FLOATS, np.dtype(DType.UINT16.value): DType.UINT16}
"""Type of the scalars of blocked memory; several times as quick as its name."""

# -- users' arrays ---------------------------------------------------------------------------------


def float_type(where: str, given: Any) -> DType:
    """The floating type a user means."""
    if isinstance(given, DType):
        given = given.value
    for dtype in (DType.FLOAT32, DType.FLOAT64):
        try:
            if given is not None and np.dtype(given) == np.dtype(dtype.value):
                return dtype
        except (TypeError, ValueError):
            break
    raise InputError(f"{where}: dtype {given!s}; allowed are float32 and float64")


def shared_array(where: str, given: Any) -> Array:
    """A user's array as NumPy or CuPy array of the same memory; a Python sequence is copied.

    A tensor that requires gradients is read as constant numbers, with a warning.
    """
    device = backend_of(given, where=where)
    if wants_gradient(given):
        warn_of_gradient(where, given)
    with reading(where, given):
        return _host_array(given) if location(given) == HOST else device.upload(_detached(given))


def _host_array(given: Any) -> Array:
    array = to_numpy(given)
    if not array.flags.writeable and type(given).__module__.split(".")[0] == "torch":
        # before DLPack 1.0 nothing said that memory may be written, and NumPy then assumes not
        return _detached(given).numpy()
    return array


def _detached(given: Any) -> Any:
    return given.detach() if getattr(given, "requires_grad", False) else given


def rows_of(where: str, given: Any, dim: int | None = None) -> Array:
    """A user's rows as a NumPy or CuPy array (n, dim), of whatever numbers, sharing memory.

    `given`: (n, dim), or (n,) for dim 1. `dim`: Scalars of a row; None: any number.
    """
    return _rows(where, given, shared_array(where, given), dim)


def _rows(where: str, given: Any, array: Array, dim: int | None) -> Array:
    if array.dtype.kind not in "fiu":
        raise InputError(
            f"{where}: dtype {array.dtype}; allowed are floating types and integers"
            f"{object_advice(given, array)}"
        )
    rows = array.reshape(-1, 1) if array.ndim == 1 and dim in (None, 1) else array
    if rows.ndim != 2 or rows.shape[1] < 1 or dim not in (None, rows.shape[1]):
        columns = "dim" if dim is None else dim
        raise InputError(f"{where}: shape {tuple(array.shape)}; expected (n, {columns})")
    return rows


def _moved(where: str, rows: Array, target: Array) -> Array:
    """Rows where a target lies, C-contiguous and of its type; the same memory if they are that."""
    device = backend_of(rows, backend_of(target).name, where=where)
    if isinstance(rows, np.ndarray):
        # converted before they are uploaded, so that fewer bytes travel
        return device.upload(np.require(rows, target.dtype, ["C", "ALIGNED"]))
    return device.xp.ascontiguousarray(rows, dtype=target.dtype)


# -- conversions -----------------------------------------------------------------------------------


@cache
def _kernel(spec: ConvertSpec, target: str) -> Kernel:
    source = TARGETS[target].generate_convert(spec)
    return shared_backend(target).load([source])[source.name]


def conversion_launch(direction: Direction, rows: Array, blocked: Binding, dim: int) -> Launch:
    """The launch that moves all objects of a window to (n, dim) rows there, or from them."""
    device = backend_of(blocked.data)
    kernel = _kernel(ConvertSpec(direction, dim, SCALARS[blocked.data.dtype]), device.name)
    count = blocked.num_objects
    return device.bind(kernel, {"rows": Binding(rows, count), "blocked": blocked}, count)


def _convert(direction: Direction, rows: Array, blocked: Binding, dim: int) -> None:
    """Move all objects of a window; both sides on one device, of one type, rows C-contiguous."""
    count = blocked.num_objects
    if count == 0:
        return
    device = backend_of(blocked.data)
    scalar = SCALARS[blocked.data.dtype]
    if rows_are_blocked(dim, scalar):
        flat = rows.reshape(-1)
        window = blocked.data[dim * blocked.first : dim * (blocked.first + count)]
        target, source = (window, flat) if direction is Direction.PACK else (flat, window)
        device.copy(target, source)
        return
    device.runner([conversion_launch(direction, rows, blocked, dim)])()


def pack(where: str, rows: Array, blocked: Binding) -> None:
    """Write (n, dim) rows of whatever numbers, as of `rows_of`, to a window of a blocked array."""
    target = blocked.data
    here = _moved(where, rows, target)
    if backend_of(target).xp.may_share_memory(here, target):
        here = here.copy()  # rows of the very memory that is written
    _convert(Direction.PACK, here, blocked, int(rows.shape[1]))


def unpack(blocked: Binding, dim: int) -> Array:
    """The rows of a window of a blocked array: new, (n, dim), on its device, of its type."""
    xp = backend_of(blocked.data).xp
    rows = xp.empty((blocked.num_objects, dim), dtype=blocked.data.dtype)
    _convert(Direction.UNPACK, rows, blocked, dim)
    return rows


# -- blocked memory as views -----------------------------------------------------------------------


def padded_chunks(blocked: Binding, dim: int) -> list[Array]:
    """Views of a window, one of each chunk: (n, padded width), contiguous."""
    chunks = layout_chunks(blocked.data, blocked.length, dim, SCALARS[blocked.data.dtype])
    return [chunk[blocked.first : blocked.first + blocked.num_objects] for chunk in chunks]


def chunk_views(blocked: Binding, dim: int) -> list[Array]:
    """Views of a window, one of each chunk: (n, width), without padding."""
    widths = chunk_widths(dim, SCALARS[blocked.data.dtype])
    chunks = padded_chunks(blocked, dim)
    return [chunk[:, :width] for chunk, width in zip(chunks, widths, strict=True)]


def assign(where: str, value: Any, blocked: Binding, dim: int, *, is_one: bool) -> None:
    """Write (n, dim) rows, of one object (`is_one`) also (dim,), or a number to all of a window."""
    if not isinstance(value, bool) and isinstance(value, Real):
        value = np.asarray(float(value))
    array = shared_array(where, value)
    if array.ndim == 0 and array.dtype.kind in "fiu":
        backend_of(array, backend_of(blocked.data).name, where=where)
        number = array.item() if isinstance(array, np.ndarray) else array
        for chunk in chunk_views(blocked, dim):
            chunk[...] = number
        return
    if is_one and array.shape == (dim,):
        array = array.reshape(1, dim)
    rows = _rows(where, value, array, dim)
    if rows.shape[0] != blocked.num_objects:
        expected = (blocked.num_objects, dim)
        raise InputError(f"{where}: shape {tuple(array.shape)}; expected {expected}")
    pack(where, rows, blocked)


MAX_LENGTH = 2**31 - 1
"""Objects an array may hold: indices are int32."""


_SHOWN_ENTRIES = 4
_SHOWN_LETTERS = 60
"""An error shows at most this many letters of a key."""


def chunks_text(dim: int, scalar: DType) -> str:
    """Widths of the chunks of an object: 4+4+2."""
    return "+".join(map(str, chunk_widths(dim, scalar)))


def checked_size(where: str, name: str, value: Any, least: int) -> int:
    """A number of objects or scalars."""
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
    """First object and number of objects that a slice or number means."""
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
    """Rows of a NumPy or CuPy array as one of the library of another, where that lives."""
    target = backend_of(like, where="like")
    if isinstance(rows, np.ndarray):
        return as_library(target.upload(rows), like)
    return as_library(rows if location(like) != HOST else backend_of(rows).to_host(rows), like)


def flat_memory(where: str, flat: Any, dim: int, length: int | None) -> tuple[Array, int]:
    """Flat blocked memory, of float32 or float64, and the objects it holds."""
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
    """Flat blocked memory of rows that have one chunk, dim and length."""
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
