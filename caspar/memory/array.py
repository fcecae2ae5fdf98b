"""The type of arrays: NumPy's or CuPy's, whichever the backend has; and rows not yet copied.

Also here: values that a kernel argument is bound to before a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of the backend's library."""


def address(array: Array) -> int:
    """Return the address of an array."""
    pointer = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return int(pointer)


@dataclass(frozen=True)
class PickedRows:
    """Some rows of an (m, dim) array of the host, copied when a device takes them.

    It is no array: what does not know of it fails on it.
    """

    rows: NDArray[Any]
    numbers: NDArray[np.integer[Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the chosen rows."""
        return len(self.numbers), *self.rows.shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        found: np.dtype[Any] = self.rows.dtype
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the chosen rows."""
        return len(self.numbers) * int(self.rows[:1].nbytes)

    def on_host(self) -> NDArray[Any]:
        """A copy of the chosen rows."""
        return self.rows.take(self.numbers, axis=0)


class Late:
    """A number, an array or a kernel that is looked up whenever a launch is bound.

    Which launches a solver has does not depend on counts and indices; where their arrays are, and
    how long, does. A launch of late bindings can be bound again in its place. What owns launches is
    asked through a weak reference: else memory would wait for the garbage collector. `address` is
    where it begins, if that is known without the array.
    """

    __slots__ = ("address", "now")

    def __init__(self, now: Callable[[], Any], address: Callable[[], int] | None = None) -> None:
        self.now = now
        self.address = address

    @property
    def number(self) -> int:
        """The number that a launch passes: an integer, or an array's address."""
        if self.address is not None:
            return self.address()
        value = self.now()
        return value if isinstance(value, int) else address(value)


class Lates:
    """Late values by what they are, so that launches share them."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Late] = {}

    def __call__(
        self, key: Hashable, now: Callable[[], Any], address: Callable[[], int] | None = None
    ) -> Late:
        """The value of a key, made by the other arguments when it is first asked for."""
        if key not in self._made:
            self._made[key] = Late(now, address)
        return self._made[key]


def at_present(value: Any) -> Any:
    """Return the present value of a late value; anything else as it is."""
    return value.now() if isinstance(value, Late) else value


@dataclass(frozen=True)
class Binding:
    """Memory for one kernel argument; any part of it may be late.

    Attributes:
        data: The array: blocked, rows or partials, as the argument's access says.
        length: Objects, rows or partials it holds; the distance between chunks.
        first: First object of the window, of a windowed argument.
        window: Objects of the window; None: all.
        fields: What the argument's access needs besides, by the names it gives.
    """

    data: Array
    length: Any
    first: Any = 0
    window: Any = None
    fields: Mapping[str, Array | int] = field(default_factory=dict)

    @property
    def num_objects(self) -> int:
        """Objects that items may touch."""
        count: int = at_present(self.length if self.window is None else self.window)
        return count

    def with_fields(self, fields: Mapping[str, Array | int]) -> Binding:
        """The same memory with more fields."""
        return replace(self, fields={**self.fields, **fields})
