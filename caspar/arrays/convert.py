"""Users' rows to the blocked layout and back.

Input: what speaks DLPack, or a Python sequence; output: blocked memory of a backend, or rows. One
generated kernel for each direction, size and type, compiled when first used and kept for the
process; a plain copy where both have the same bytes. It runs where the blocked memory lies, on CUDA
in CuPy's current stream.

Also on the processor: NumPy's copies, chunk by chunk, move at most four scalars at a time and take
1.0 ms for 100,000 rows of 10 float32, the kernel 0.12 ms on two cores; 10 and 2.4 ms for a million,
15 us both for a thousand. Compiling takes 0.2 s, once for a machine.
"""

from functools import cache
from numbers import Real
from threading import Lock
from typing import Any

import numpy as np

from caspar.codegen.targets import TARGETS
from caspar.errors import InputError
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.layout import chunk_widths, rows_are_blocked
from caspar.memory.layout import padded_chunks as layout_chunks
from caspar.options import BackendChoice, choice
from caspar.runtime.arrays import (
    HOST,
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
    """The process's one backend of that name.

    Raises:
        OptionError: An unknown name.
        BackendError: CUDA was asked for and is not usable; says why and what to install.
    """
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
    """The backend for an array.

    Args:
        given: An array of any library, or a Python sequence.
        chosen: Where it is to go; None: where it lives.
        where: What the array is, for errors.

    Raises:
        InputError: It lives where the backend cannot read it.
        OptionError, BackendError: As `shared_backend`.
    """
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


SCALARS = {np.dtype(dtype.value): dtype for dtype in (DType.FLOAT32, DType.FLOAT64)}
"""Type of the scalars of blocked memory; several times as quick as its name."""

# -- users' arrays ---------------------------------------------------------------------------------


def float_type(where: str, given: Any) -> DType:
    """The floating type a user means.

    Raises:
        InputError: It is neither float32 nor float64, of this machine's byte order.
    """
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

    Raises:
        InputError: It is no array, is masked, or lives on a device that is not used here.
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

    Args:
        where: What the rows are for.
        given: (n, dim), or (n,) for dim 1.
        dim: Scalars of a row; None: any number.

    Raises:
        InputError: Names `where`, what is wrong and what is allowed.
    """
    return _rows(where, given, shared_array(where, given), dim)


def _rows(where: str, given: Any, array: Array, dim: int | None) -> Array:
    """Return a user's rows as (n, dim)."""
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
    """The launch that moves all objects of a window.

    Args:
        direction: To rows, or from them.
        rows: (n, dim), C-contiguous, on the device of the blocked array and of its type.
        blocked: The window, of n objects, not none.
        dim: Scalars of an object, of more than one chunk or padded.
    """
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
    """Write rows to a window of a blocked array.

    Args:
        where: What the rows are for.
        rows: (n, dim) of whatever numbers, as `rows_of` gives; n the objects of the window.
        blocked: The window; of float32 or float64.

    Raises:
        InputError: The rows are on a CUDA device and the blocked array is not.
    """
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
    """Write a user's value to a window.

    Args:
        where: What is written.
        value: (n, dim) rows, or a number for all scalars.
        blocked: The window.
        dim: Scalars of an object.
        is_one: Whether a row without its leading 1 will do.

    Raises:
        InputError: Shapes do not fit, or the value lives where the window cannot read it.
    """
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
