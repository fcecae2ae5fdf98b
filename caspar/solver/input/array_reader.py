"""Reading one array of the user's: shape, type, finiteness, range.

Arrays are checked and converted where they are: those of the host by NumPy before they are
uploaded, so that half the bytes travel and CUDA compiles nothing for it.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.markers import Table
from caspar.frontend.precision import TYPES
from caspar.frontend.symbolic.field_types import UnitRange, storage_layout
from caspar.memory.array import Array
from caspar.memory.tiling.tiles import TileIndex
from caspar.options import Precision
from caspar.runtime.arrays import (
    HOST,
    Location,
    checked_location,
    in_pieces,
    location,
    no_index,
    reading,
    to_numpy,
    unreachable,
    wants_gradient,
    warn_of_gradient,
)
from caspar.runtime.backend import Backend
from caspar.solver.input.parted_array import PartedArray, on_host
from caspar.user_arrays import object_advice

UNIT_TOLERANCE = 0.02
"""Rotations and directions may be off unit length by this, as rounded to two decimals; the rest is
an error, most often a wrong storage order or an array of zeros."""

UNIT_ROUNDINGS = 8.0
"""Roundings of the type of values by which they may be off and are taken as they are."""


@runtime_checkable
class Blocked(Protocol):
    """A `caspar.BlockedArray`: known by what it can do, as kernels stand beside the solver."""

    @property
    def chunks(self) -> Sequence[Array]:
        """The array's memory."""

    def to_rows(self) -> Array:
        """(n, dim), NumPy or CuPy."""


@runtime_checkable
class PreparedIndex(Protocol):
    """A `caspar.SharedIndices`."""

    @property
    def index(self) -> Array:
        """(n,) int32, NumPy or CuPy."""

    def tiles(self, tile_size: int) -> TileIndex:
        """Return the index's tiles."""


def is_number(given: Any) -> bool:
    """Return whether it is one number for all instances."""
    return isinstance(given, Real) or getattr(given, "ndim", None) == 0


def unblocked(given: Any) -> Any:
    """The rows of a blocked array, which are new; everything else as it is."""
    # one attribute first: a protocol asks for all of them, slowly
    return given.to_rows() if hasattr(given, "to_rows") and isinstance(given, Blocked) else given


class ArrayReader:
    """Reads arrays one by one and remembers where the first one lived."""

    def __init__(self, backend: Backend, precision: Precision, check_values: bool) -> None:
        self.backend = backend
        self.types = TYPES[precision]
        self._values = self.types.values.value
        self._check_values = check_values
        self._first: tuple[str, Location] | None = None
        self._mixes_places = False
        self._has_warned = False

    def of_node(self, node: NodeType, given: Any) -> Array:
        """(n, storage_dim) values of a node type."""
        where, layout = f"node type {node.name}", storage_layout(node.python_type)
        if isinstance(given, Mapping):
            columns = f"; put its fields side by side: {layout}" if layout else ""
            raise InputError(
                f"{where}: expected an (n, {node.storage_dim}) array, got a mapping{columns}"
            )
        return self.rows(where, given, node.storage_dim, node.unit_ranges, layout=layout)

    def rows(
        self,
        where: str,
        given: Any,
        dim: int,
        unit_ranges: Sequence[UnitRange] = (),
        matrix_shape: tuple[int, ...] = (),
        *,
        is_one: bool = False,
        ignored: Array | None = None,
        layout: str = "",
    ) -> Array:
        """(n, dim) values where they were given, C-contiguous, of the type of values.

        Parts that must have unit length, and nearly do, get it.

        `matrix_shape`: (rows, columns) of a matrix argument; (n, rows, columns) is then accepted
        too. `ignored`: (n,) booleans: rows of which any values will do; None: there are none.
        """
        array, xp = self.array(where, unblocked(given))
        if array.dtype.kind not in "fiu":
            raise InputError(
                f"{where}: dtype {array.dtype}; allowed are float32, float64 and integers"
                f"{object_advice(given, array)}"
            )
        if array.ndim == 3 and array.shape[1:] == matrix_shape:
            # SymForce stores matrices column by column
            array = array.transpose(0, 2, 1).reshape(-1, dim)
        if array.ndim <= 1 and (dim == 1 or array.shape in ((dim,), (0,))):
            array = array.reshape(-1, dim)
        if array.ndim != 2 or array.shape[1] != dim:
            raise InputError(f"{where}: {_wrong_shape(tuple(array.shape), dim, is_one, layout)}")
        converted, is_finite = _converted(array, self._values, xp, look=self._check_values)
        bad = () if is_finite else _not_finite(converted, ignored, xp)
        if len(bad) > 0:
            raise self._not_finite_error(where, array, bad)
        if self._check_values:
            storage = np.dtype(self.types.storage.value)
            column = _vanished_column(array, converted, unit_ranges, storage)
            if column is not None:
                raise InputError(
                    f"{where}: all numbers in column {column} become zero in {storage}; use "
                    "another unit, or precision='float64'"
                )
            for part in unit_ranges:
                converted = with_unit(where, converted, part, xp, ignored)
        return converted

    def tables(self, where: str, table: type[Table], given: Any) -> Array:
        """(k, numbers of each) tables as kernels read them, where they were given.

        Those of a class in float16 are uint16, its bits.
        """
        array, xp = self.array(where, given)
        try:
            memory = table.packed(array if xp is np else self.backend.to_host(array))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        flat = memory.reshape(-1)
        if table.is_half:
            self.rows(where, array.reshape(-1), 1)  # looks at the numbers
            rows = flat if xp is np else self.backend.upload(flat)
        else:
            rows = self.rows(where, flat if xp is np else self.backend.upload(flat), 1)
        return rows.reshape(memory.shape)

    def index(self, where: str, given: Any, size: int, of: str) -> Array:
        """(n,) int32 indices where they were given, within 0 .. size - 1."""
        if hasattr(given, "tiles") and isinstance(given, PreparedIndex):
            given = given.index
        array, xp = self.array(where, given)
        if array.shape == (0,):  # an empty list has no integers
            return xp.empty(0, np.int32)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise no_index(where, given, array)
        # without rows there is nothing that an index could name
        if self._check_values or size == 0:
            entry = self._first_outside(array, size, xp)
            if entry is not None:
                allowed = f"0 to {size - 1} are allowed" if size > 0 else "none is allowed"
                raise InputError(
                    f"{where}: index {int(array[entry])} at entry {entry} is out of range; {of} "
                    f"has {size} rows, so {allowed}"
                )
        return xp.ascontiguousarray(array, dtype=np.int32)

    def _first_outside(self, index: Array, size: int, xp: ModuleType) -> int | None:
        """First entry outside 0 .. size - 1; None: all are inside."""
        if xp is not np and index.dtype == np.int32:
            return self.backend.first_outside(xp.ascontiguousarray(index), size)
        bounds = in_pieces(_bounds, index) if xp is np else [_bounds(index)]
        if all(low >= 0 and high < size for low, high in bounds):
            return None
        return int(xp.flatnonzero((index < 0) | (index >= size))[0])

    def on_host(self, rows: Array) -> Array:
        """An array that was read, as NumPy, whether or not it is in parts."""
        return on_host(self.backend, rows)

    def like(self, rows: Array, read: Array) -> Array:
        """An array of the host where another one is that was read."""
        if isinstance(read, PartedArray):
            return read.cut(rows)
        is_same = isinstance(read, np.ndarray) or rows is read
        return rows if is_same else self.backend.upload(rows)

    def dtype(self, given: Any) -> Any:
        """NumPy type in which values go back to the user: what was given, if it is floating."""
        dtype = to_numpy(given).dtype if location(given) == HOST else self.on_device(given).dtype
        # half precision would not hold what the solver finds
        keeps = dtype.kind == "f" and dtype.itemsize >= np.dtype(np.float32).itemsize
        return dtype.newbyteorder("=") if keeps else np.dtype(self._values)

    def on_device(self, given: Any) -> Array:
        """An array that lives on the backend's device, as one of its library."""
        return self.backend.upload(given)

    def array(self, where: str, given: Any) -> tuple[Array, ModuleType]:
        """The array where it is, as it is, and the module that works on it there."""
        if type(given) is np.ndarray:
            self.check_place(where, HOST)
            return given, np
        if given is None or isinstance(given, Mapping):
            raise InputError(f"{where}: expected an array, got {type(given).__name__}")
        if isinstance(given, list | tuple) and len(given) == 0:
            return np.empty(0), np  # nothing of it goes anywhere
        place = checked_location(where, given)
        self.check_place(where, place)
        if wants_gradient(given) and not self._has_warned:
            self._has_warned = True  # one warning a solve
            warn_of_gradient(where, given)
        with reading(where, given):
            if place == HOST:
                return to_numpy(given), np
            return self.on_device(given), self.backend.xp

    def mix_places(self) -> None:
        """Take arrays of the host beside those of the device from here on."""
        self._mixes_places = True

    def check_place(self, where: str, place: Location) -> None:
        """Return whether an array may live there."""
        if self._first is None:
            self._first = (where, place)
        elif place != self._first[1] and not self._mixes_places:
            raise InputError(
                f"{where}: lives on {place}, but {self._first[0]} lives on {self._first[1]}; "
                "put all arrays on one device"
            )
        if place != HOST and not self.backend.accepts_device(place.kind, place.number):
            raise unreachable(where, place, self.backend, "solver")

    def number(self, where: str, given: Any) -> Array:
        """(1, 1) one number for all instances, on the host, of the type of values."""
        with np.errstate(over="ignore"):
            rows = np.full((1, 1), float(given), self._values)
        if not np.isfinite(rows).all():
            raise InputError(f"{where}: {given!r} is not a finite number in {self._values}")
        return rows

    def _not_finite_error(self, where: str, array: Array, bad: Array) -> InputError:
        row = int(bad[0])
        return InputError(
            f"{where}: {int(bad.shape[0])} of {array.shape[0]} rows hold NaN, infinity or numbers "
            f"beyond {self._values}, first row {row}: {[float(scalar) for scalar in array[row]]}; "
            "values must be finite"
        )


def _wrong_shape(shape: tuple[int, ...], dim: int, is_one: bool, layout: str) -> str:
    """Name the shape that was found, the expected one, and the order of a row's scalars."""
    expected = f"({dim},)" if is_one else f"(n, {dim}), {dim} scalars a row"
    order = f": {layout}" if layout else ""
    are_matrices = len(shape) == 3 and shape[1] * shape[2] == dim
    # SymForce's order again
    hint = f"; pass matrices as array.transpose(0, 2, 1).reshape(-1, {dim})" if are_matrices else ""
    return f"shape {shape}; expected {expected}{order}{hint}"


def _not_finite(converted: Array, ignored: Array | None, xp: ModuleType) -> Array:
    """Numbers of the rows that count and are not finite."""
    is_bad = ~xp.isfinite(converted).all(axis=1)
    if ignored is not None and ignored.shape == is_bad.shape:
        is_bad &= ~ignored
    return xp.flatnonzero(is_bad)


def _converted(array: Array, storage: str, xp: ModuleType, *, look: bool) -> tuple[Array, bool]:
    """The array C-contiguous and of a type, and whether all is finite; True without a look."""
    if xp is not np:
        converted = xp.ascontiguousarray(array, dtype=storage)
        return converted, not look or bool(xp.isfinite(converted).all())
    needs_copy = array.dtype != storage or not array.flags.c_contiguous
    converted = np.empty(array.shape, storage) if needs_copy else array

    def convert(part: Array, given: Array) -> bool:
        if needs_copy:
            with np.errstate(over="ignore"):  # the overflow is reported as not finite
                part[...] = given
        return not look or bool(np.isfinite(part).all())

    return converted, all(in_pieces(convert, converted, array))


def _vanished_column(
    array: Array, converted: Array, unit_ranges: Sequence[UnitRange], storage: np.dtype[Any]
) -> int | None:
    """First column that is zero in the type of derivatives only.

    In columns of unit length that is noise.
    """
    if len(array) == 0 or array.dtype.itemsize <= storage.itemsize:
        return None
    units = {column for part in unit_ranges for column in range(part.start, part.stop)}
    with np.errstate(under="ignore"):
        firsts = np.asarray(converted[0].tolist(), storage)
    for column, first in enumerate(firsts):
        if first != 0.0 or column in units:
            continue
        if bool(converted[:, column].astype(storage).any()):
            continue
        if bool(array[:, column].any()):
            return column
    return None


def _bounds(index: Array) -> tuple[int, int]:
    return int(index.min()), int(index.max())


def with_unit(
    where: str,
    rows: Array,
    part: UnitRange,
    xp: ModuleType,
    ignored: Array | None,
    place: Callable[[int], str] = "row {}".format,
) -> Array:
    """Rows of which a part has unit length: the same, or a copy where that is not so already.

    `ignored`: (n,) booleans, rows that may be anything. `place` names a row in an error.
    """
    if len(rows) == 0:
        return rows
    columns = slice(part.start, part.stop)
    norms = xp.sqrt((rows[:, columns] ** 2).sum(axis=1))
    distances = xp.abs(norms - 1.0)
    if ignored is not None and ignored.shape == distances.shape:
        distances[ignored] = 0.0
    furthest = float(distances.max())
    rounding = UNIT_ROUNDINGS * float(np.finfo(rows.dtype).eps)
    if furthest <= rounding:
        return rows
    if furthest <= UNIT_TOLERANCE:
        inexact = distances > rounding
        scaled = rows.copy()
        scaled[:, columns] = xp.where(
            inexact[:, None], rows[:, columns] / norms[:, None], rows[:, columns]
        )
        return scaled
    row = int(xp.flatnonzero(distances > UNIT_TOLERANCE)[0])
    raise InputError(
        f"{where}: columns {part.start} to {part.stop - 1} are a {part.meaning} and must have "
        f"norm 1; {place(row)} has {float(norms[row]):.6g}. Check the order: SymForce stores "
        "rotations as qx qy qz qw (3-D) or cos sin (2-D), in front of the translation"
    )
