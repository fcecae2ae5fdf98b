"""Rows in parts, each where it was given: on the host, or on one of several devices.

It is no array of a library: what does not know of parts fails on it. Work on a part is done by the
device that has it, and has ended when a method returns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array
from caspar.runtime.arrays import Moved, give_back
from caspar.runtime.backend import Backend
from caspar.runtime.group.member import Member

Result = TypeVar("Result")

Piece = slice | Array
"""Rows of a part: a range, or their (k,) numbers in ascending order."""


@dataclass(frozen=True)
class PartedArray:
    """Rows, one part after the other.

    Attributes:
        parts: Each (n, ...), of one type and width; at least one. They may have no rows.
        members: By part the device that works on it: the one that has it; for parts of the host
            the first of all.
    """

    parts: tuple[Array, ...]
    members: tuple[Member, ...]

    @property
    def offsets(self) -> list[int]:
        """Number of the first row of each part, and of all rows."""
        sizes = [int(part.shape[0]) for part in self.parts]
        return [0, *np.cumsum(sizes).tolist()]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all parts together."""
        return self.offsets[-1], *self.parts[0].shape[1:]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of each part."""
        found: np.dtype[Any] = self.parts[0].dtype
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(int(part.nbytes) for part in self.parts)

    def each(self, call: Callable[..., Result], *more: Sequence[Any]) -> list[Result]:
        """Apply a function to each part, and its entry of each of `more`, on that part's device."""
        found = []
        for part, member, *own in zip(self.parts, self.members, *more, strict=True):
            with member.scope():
                found.append(call(part, *own))
                # another device may read it next
                member.synchronize()
        return found

    def map(self, call: Callable[[Array], Array]) -> "PartedArray":
        """The same parts with other rows: as many of each."""
        return PartedArray(tuple(self.each(call)), self.members)

    def astype(self, dtype: Any, *, copy: bool = True) -> "PartedArray":
        """The same in another type."""
        return self.map(lambda part: part.astype(dtype, copy=copy))

    def every(self, step: int) -> NDArray[Any]:
        """Some rows of each part, evenly apart, on the host."""
        # contiguous: what is not cannot be copied from a device
        rows = zip(self.members, self.each(lambda part: part[::step].copy()), strict=True)
        return np.concatenate([np.asarray(member.to_host(part)) for member, part in rows])

    def on_host(self) -> NDArray[Any]:
        """All rows, on the host."""
        return self.every(1)

    def pick(self, pieces: Sequence[Piece]) -> "PartedArray":
        """Some rows of each part; parts of which there are none are left out, but for one."""
        found = [*zip(self.each(lambda rows, own: rows[own], pieces), self.members, strict=True)]
        kept = [(rows, member) for rows, member in found if int(rows.shape[0]) > 0] or found[:1]
        return PartedArray(tuple(rows for rows, _ in kept), tuple(member for _, member in kept))

    def range(self, rows: slice) -> "PartedArray":
        """The rows of a range of all rows, as views."""
        return self.pick(pieces_of(rows, self.offsets))

    def joined(self, member: Member) -> Array:
        """All rows as one array that `upload` of a device takes: a copy, unless one part has all.

        What lies on other devices is copied to this one, part by part.
        """
        filled = [part for part in self.parts if int(part.shape[0]) > 0] or [*self.parts[:1]]
        with member.scope():
            brought = [member.bring(part) for part in filled]
            if len(brought) == 1:
                return brought[0]
            is_host = all(isinstance(part, np.ndarray) for part in brought)
            whole = (np if is_host else member.xp).concatenate(brought)
            member.synchronize()
            return whole

    def cut(self, whole: Array) -> "PartedArray":
        """Cut an array into as many parts, each where this array's part is."""
        parts = []
        for (first, end), part, member in zip(
            pairwise(self.offsets), self.parts, self.members, strict=True
        ):
            rows, is_host = whole[first:end], isinstance(part, np.ndarray)
            with member.scope():
                if is_host and not isinstance(rows, np.ndarray):
                    rows = member.to_host(rows)
                elif not is_host:
                    rows = member.upload(rows) if isinstance(rows, np.ndarray) else rows
                    rows = member.bring(rows)
                member.synchronize()
            parts.append(rows)
        return PartedArray(tuple(parts), self.members)


def pieces_of(rows: slice, offsets: Sequence[int]) -> list[slice]:
    """A range of all rows, whose ends may be None, as a range of each part."""
    start, stop, _ = rows.indices(offsets[-1])
    found = []
    for first, end in pairwise(offsets):
        begin = min(max(start - first, 0), end - first)
        found.append(slice(begin, min(max(stop - first, begin), end - first)))
    return found


def joined(member: Member, array: Array) -> Array:
    """An array as a device's `upload` takes it, whether or not it is in parts."""
    return array.joined(member) if isinstance(array, PartedArray) else member.bring(array)


def on_host(backend: Backend, array: Array) -> NDArray[Any]:
    """An array as NumPy, whether or not it is in parts or on the host already."""
    if isinstance(array, PartedArray):
        return array.on_host()
    return np.asarray(array if isinstance(array, np.ndarray) else backend.to_host(array))


def placed(array: Array, backend: Backend) -> list[tuple[Array, Backend]]:
    """The parts of an array with the devices that work on them; of a whole one that."""
    if isinstance(array, PartedArray):
        return [*zip(array.parts, array.members, strict=True)]
    return [(array, backend)]


def every_row(backend: Backend, array: Array, step: int) -> NDArray[Any]:
    """Some rows of an array, evenly apart, on the host, whether or not it is in parts."""
    if isinstance(array, PartedArray):
        return array.every(step)
    # contiguous: what is not cannot be copied from a device
    return backend.to_host(array[::step].copy())


@dataclass(frozen=True)
class GivenParts:
    """The user's values of a node type, if they are in parts."""

    parts: tuple[Any, ...]


def back_in_parts(
    given: GivenParts, start: Array, end: Array, dtype: Any, backend: Backend, *, has_held: bool
) -> list[Any]:
    """Values after a solve in the parts that were given, each of the kind and where that was."""
    members: Sequence[Backend] = [backend] * len(given.parts)
    if isinstance(start, PartedArray):
        members, starts = start.members, start.parts
        ends = end.parts if isinstance(end, PartedArray) else start.cut(end).parts
    else:
        places = np.cumsum([0, *(int(part.shape[0]) for part in given.parts)]).tolist()
        starts, ends = (
            tuple(rows[first:last] for first, last in pairwise(places)) for rows in (start, end)
        )
    found = []
    for part, begun, ended, member in zip(given.parts, starts, ends, members, strict=True):
        with member.scope():
            moved = Moved(begun, ended.copy(), has_held=has_held)
            found.append(give_back(moved, part, dtype, member.to_host, member.upload))
            member.synchronize()
    return found
