"""`BlockedArray`: objects in the blocked struct-of-arrays layout, on the processor or on a GPU.

Chunk `k` of all objects is contiguous (see `memory.layout`; paper: Vector Access and Blocked
Struct of Arrays). Kernels read and write it with vector instructions and without conversion.
Only what is said to be new is copied; on CUDA all work is enqueued in CuPy's current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from caspar.arrays.convert import (
    SCALARS,
    assign,
    backend_of,
    checked_size,
    checked_window,
    chunk_views,
    chunks_text,
    default_type,
    extents,
    flat_memory,
    float_type,
    key_text,
    moved_like,
    pack,
    row_memory,
    rows_of,
    share_bytes,
    shared_backend,
    unpack,
)
from caspar.errors import InputError
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding, address
from caspar.memory.layout import array_scalars
from caspar.options import BackendChoice
from caspar.runtime.arrays import HOST, Location, location

EDGE_ROWS = 3
"""Rows shown at each end."""

EDGE_COLUMNS = 6
"""Columns shown at each end of the table; text is shortened by NumPy."""

Rows = Callable[[int, int], NDArray[Any]]
"""The rows from one number to another."""


def _some_rows(length: int, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first rows and the last, or all and none."""
    if length <= 2 * EDGE_ROWS:
        return rows(0, length), rows(length, length)
    return rows(0, EDGE_ROWS), rows(length - EDGE_ROWS, length)


def array_text(summary: str, length: int, rows: Rows) -> str:
    """The summary, then rows as NumPy writes them."""
    first, last = _some_rows(length, rows)
    # NumPy leaves out what is between the edges: one row stands for it
    shown = np.concatenate([first, first[-1:], last]) if len(last) > 0 else first
    return f"{summary}\n{np.array2string(shown, threshold=0, edgeitems=EDGE_ROWS)}"


def array_html(summary: str, length: int, rows: Rows) -> str:
    """The summary and a table of rows, numbered; see `array_text`."""
    first, last = _some_rows(length, rows)
    dim = first.shape[1]
    columns: list[int | None] = list(range(dim))
    if dim > 2 * EDGE_COLUMNS:
        columns[EDGE_COLUMNS : dim - EDGE_COLUMNS] = [None]
    lines = [_html_row("th", "", ["…" if column is None else column for column in columns])]
    lines += [_html_values(number, row, columns) for number, row in enumerate(first)]
    if len(last) > 0:
        lines.append(_html_row("td", "…", ["…"] * len(columns)))
        start = length - len(last)
        lines += [_html_values(start + number, row, columns) for number, row in enumerate(last)]
    return f"<div><code>{summary}</code><table>{''.join(lines)}</table></div>"


def _html_values(number: int, row: NDArray[Any], columns: list[int | None]) -> str:
    cells = ["…" if column is None else f"{row[column]:.6g}" for column in columns]
    return _html_row("td", number, cells)


def _html_row(tag: str, number: object, cells: list[Any]) -> str:
    inner = "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)
    return f"<tr><th>{number}</th>{inner}</tr>"


@dataclass(frozen=True, eq=False, repr=False)
class BlockedArray:
    """(length, dim) float32 or float64 numbers; made by its class methods.

    A slice is a view: it shares memory, and what is written to it is seen by all that do. The
    fields never change, the memory does. `check=False` in a kernel is unsafe: nothing tests then
    whether its indices lie within the array.

    Attributes:
        buffer: (array_scalars(dim, dtype, capacity),) the flat memory, NumPy or CuPy.
        dim: Scalars of an object.
        capacity: Objects the buffer holds: the distance between chunks.
        first: First object of the view.
        length: Objects of the view.
    """

    buffer: Array
    dim: int
    capacity: int
    first: int
    length: int

    # -- making --------------------------------------------------------------------------------

    @classmethod
    def empty(
        cls,
        length: int,
        dim: int,
        dtype: Any = "float32",
        backend: str | BackendChoice = BackendChoice.AUTO,
    ) -> BlockedArray:
        """An array whose values are not set.

        Args:
            length: Objects.
            dim: Scalars of an object.
            dtype: float32 or float64.
            backend: `cuda`, `cpu`, or `auto`: CUDA where a device answers.

        Raises:
            InputError: A negative length, a dim below 1, another dtype.
            BackendError: CUDA was asked for and is not usable.
            OutOfMemoryError: It does not fit.
        """
        scalar = float_type("BlockedArray", dtype)
        length = checked_size("BlockedArray", "length", length, 0)
        dim = checked_size("BlockedArray", "dim", dim, 1)
        num_bytes = array_scalars(dim, scalar, length) * scalar.itemsize
        buffer = shared_backend(backend).allocate(num_bytes).view(scalar.value)
        return cls(buffer, dim, length, 0, length)

    @classmethod
    def zeros(
        cls,
        length: int,
        dim: int,
        dtype: Any = "float32",
        backend: str | BackendChoice = BackendChoice.AUTO,
    ) -> BlockedArray:
        """An array of zeros; see `empty`."""
        made = cls.empty(length, dim, dtype, backend)
        made.buffer[...] = 0
        return made

    @classmethod
    def from_rows(
        cls, array: Any, dtype: Any = None, backend: str | BackendChoice | None = None
    ) -> BlockedArray:
        """A new array with the values of rows.

        Args:
            array: (n, dim), or (n,) for dim 1: NumPy, CuPy, torch, jax, or nested sequences; of
                floating type or integers.
            dtype: float32 or float64; None: float64 where the rows are, or wider, else float32.
            backend: `cuda`, `cpu` or `auto`; None: where the rows live.

        Raises:
            InputError: Another shape or dtype, or rows on a CUDA device for the processor.

        Example:
            >>> import caspar
            >>> points = caspar.BlockedArray.from_rows([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
            >>> points[1:].to_rows()
            array([[3., 4.],
                   [5., 6.]])
        """
        where = "BlockedArray.from_rows"
        if isinstance(array, BlockedArray):
            raise InputError(f"{where}: a BlockedArray already; use copy(), or to_rows() first")
        rows = rows_of(where, array)
        scalar = default_type(rows) if dtype is None else dtype
        home = backend_of(rows, backend, where=where)
        made = cls.empty(int(rows.shape[0]), int(rows.shape[1]), scalar, home.name)
        pack(where, rows, made.binding())
        return made

    @classmethod
    def wrap(cls, flat: Any, dim: int, length: int | None = None) -> BlockedArray:
        """A view of flat memory that is in the blocked layout already.

        Args:
            flat: (array_scalars,) contiguous float32 or float64 scalars, chunk after chunk: of any
                library that speaks DLPack. On CUDA it begins at a multiple of 16 bytes (of the
                bytes of an object, where these are fewer).
            dim: Scalars of an object.
            length: Objects; None: as many as it holds, which must come out even.

        Raises:
            InputError: Another shape, size or dtype.
        """
        buffer, num_objects = flat_memory("BlockedArray.wrap", flat, dim, length)
        return cls(buffer, int(dim), num_objects, 0, num_objects)

    @classmethod
    def from_dlpack(cls, array: Any) -> BlockedArray:
        """A view of rows whose memory is in the blocked layout already.

        These are rows of one chunk: (n, 1), (n,), (n, 2) and, of float32, (n, 4), C-contiguous;
        and (n, 3) of float32 with a row stride of 4, as `array4[:, :3]` has. The fourth lane is
        padding then: kernels may overwrite it, also in the last row.

        Args:
            array: float32 or float64, of any library that speaks DLPack.

        Raises:
            InputError: Another shape, dtype or strides; use `from_rows`.
        """
        buffer, dim, length = row_memory("BlockedArray.from_dlpack", array)
        return cls(buffer, dim, length, 0, length)

    def copy(self) -> BlockedArray:
        """A new array with the same values, as long as this view."""
        if self.length == self.capacity:
            return replace(self, buffer=self.buffer.copy())
        made = BlockedArray.empty(self.length, self.dim, self.scalar, backend_of(self.buffer).name)
        made._copy_chunks(self)
        return made

    # -- what it is ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.length

    @property
    def shape(self) -> tuple[int, int]:
        """(length, dim)."""
        return self.length, self.dim

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type of the scalars."""
        dtype: np.dtype[Any] = self.buffer.dtype
        return dtype

    @property
    def scalar(self) -> DType:
        """Type of the scalars."""
        return SCALARS[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the objects, padding included."""
        return array_scalars(self.dim, self.scalar, self.length) * self.scalar.itemsize

    @property
    def location(self) -> Location:
        """Device and library of its memory."""
        return location(self.buffer)

    @property
    def device(self) -> str:
        """`cpu`, or `cuda:` and a number."""
        return "cpu" if self.location == HOST else str(self.location)

    @property
    def xp(self) -> ModuleType:
        """NumPy or CuPy."""
        return backend_of(self.buffer).xp

    @property
    def is_writable(self) -> bool:
        """Return whether the owner of the memory allows writing; jax does not, for example."""
        return not isinstance(self.buffer, np.ndarray) or bool(self.buffer.flags.writeable)

    @property
    def chunks(self) -> tuple[Array, ...]:
        """Views, one of each chunk: (length, width), without the padding of a chunk of three."""
        return tuple(chunk_views(self.binding(), self.dim))

    def binding(self) -> Binding:
        """Binding of a windowed argument of a kernel."""
        return Binding(self.buffer, self.capacity, self.first, self.length)

    def overlaps(self, other: BlockedArray) -> bool:
        """Return whether a byte belongs to objects of both."""
        mine, its = address(self.buffer), address(other.buffer)
        if mine + self.buffer.nbytes <= its or its + other.buffer.nbytes <= mine:
            return False
        if self._layout == other._layout:
            return max(self.first, other.first) < min(
                self.first + self.length, other.first + other.length
            )
        return share_bytes(*(extents(one.binding(), one.dim) for one in (self, other)))

    def is_same_as(self, other: BlockedArray) -> bool:
        """Return whether both are the same objects in memory."""
        return (self._layout, self.first, self.length) == (other._layout, other.first, other.length)

    @property
    def _layout(self) -> tuple[int, int, int, DType]:
        return address(self.buffer), self.capacity, self.dim, self.scalar

    # -- values --------------------------------------------------------------------------------

    def to_rows(self, like: Any = None) -> Array:
        """The values as a new (length, dim) array, of the same type.

        Args:
            like: An array whose library and device it gets; None: NumPy or CuPy, on this device.

        Raises:
            InputError: `like` lives on a device that is not used here.
        """
        rows = unpack(self.binding(), self.dim)
        return rows if like is None else moved_like(rows, like)

    def to_numpy(self) -> NDArray[Any]:
        """The values as a new (length, dim) NumPy array; on CUDA it waits for them."""
        rows = self.to_rows()
        if isinstance(rows, np.ndarray):
            return rows
        return backend_of(rows).to_host(rows)

    @overload
    def __getitem__(self, key: slice) -> BlockedArray: ...

    @overload
    def __getitem__(self, key: SupportsIndex) -> Array: ...

    def __getitem__(self, key: slice | SupportsIndex) -> BlockedArray | Array:
        """A view of some objects; of one number its object, (dim,), as a new array.

        Raises:
            InputError: A step other than 1, or a number out of range.
        """
        window = self._window(key)
        return window if isinstance(key, slice) else window.to_rows()[0]

    def __iter__(self) -> Iterator[Array]:
        return iter(self.to_rows())

    def __setitem__(self, key: slice | SupportsIndex, value: Any) -> None:
        """Write objects.

        Args:
            key: Which: a slice of step 1, or a number.
            value: (n, dim) rows (of a number also (dim,)), a BlockedArray of that shape, or a
                number for all scalars. Converted to the array's type, and copied from the host to
                a GPU where needed.

        Raises:
            InputError: Shapes do not fit, the memory is read-only, or the value is on a CUDA device
                and this array is not.
        """
        where = self._where(key)
        window = self._window(key)
        if not self.is_writable:
            raise InputError(f"{where}: its memory is read-only; write to a copy()")
        if isinstance(value, BlockedArray):
            if value.shape != window.shape:
                raise InputError(f"{where}: shape {value.shape}; expected {window.shape}")
            if value.dtype == self.dtype and value.location == self.location:
                window._copy_chunks(value.copy() if value.overlaps(window) else value)
                return
            value = value.to_rows()
        assign(where, value, window.binding(), self.dim, is_one=not isinstance(key, slice))

    def _where(self, key: slice | SupportsIndex) -> str:
        return f"BlockedArray{self.shape}[{key_text(key)}]"

    def _window(self, key: slice | SupportsIndex) -> BlockedArray:
        start, length = checked_window(self._where(key), key, self.length)
        return replace(self, first=self.first + start, length=length)

    def _copy_chunks(self, other: BlockedArray) -> None:
        for target, source in zip(self.chunks, other.chunks, strict=True):
            target[...] = source

    # -- other libraries -----------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The values for NumPy: a new array, unless `copy=False` asks for a view."""
        if self.location != HOST:
            raise TypeError(
                "Implicit conversion of a CUDA BlockedArray to NumPy is not allowed; use to_numpy()"
            )
        if copy is not False:
            return self.to_numpy() if dtype is None else self.to_numpy().astype(dtype, copy=False)
        if len(self.chunks) > 1 or (dtype is not None and np.dtype(dtype) != self.dtype):
            raise ValueError(f"{self._summary} cannot be a NumPy array without a copy")
        view: NDArray[Any] = self.chunks[0]
        return view

    def __dlpack__(self, **options: Any) -> Any:
        """The memory as (length, dim), where one chunk holds an object.

        Raises:
            BufferError: No strides describe the layout.
        """
        chunks = self.chunks
        if len(chunks) > 1:
            raise BufferError(
                f"{self._summary}: no strides describe more than one chunk; pass one of .chunks, "
                "or .to_rows(), which copies (.to_rows(like=array) to an array of that library)"
            )
        return chunks[0].__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and number."""
        kind, number = self.buffer.__dlpack_device__()
        return kind, number

    # -- views ---------------------------------------------------------------------------------

    @property
    def _summary(self) -> str:
        return (
            f"BlockedArray(shape={self.shape}, dtype={self.dtype}, device={self.device}, "
            f"chunks={chunks_text(self.dim, self.scalar)})"
        )

    def _rows_between(self, start: int, stop: int) -> NDArray[Any]:
        return self[start:stop].to_numpy()

    def __repr__(self) -> str:
        return array_text(self._summary, self.length, self._rows_between)

    def _repr_html_(self) -> str:
        return array_html(self._summary, self.length, self._rows_between)
