"""Stages kernel arguments: array contents are copied to a device-like buffer and back.

Arrays that overlap in memory (views of one arena) stay overlapping; all others are set apart, so
that an access past the end of one never lands in another. An address keeps its remainder modulo
16, hence a view at an odd offset is as misaligned as it would be on a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_ALIGNMENT = 16
_GAP_BYTES = 4096


@dataclass(frozen=True)
class ArrayArgument:
    """One array of a launch; `is_const` when the kernel's parameter points to const."""

    position: int
    label: str
    array: Array
    is_const: bool

    @property
    def begin(self) -> int:
        """Address of the first byte on the host."""
        return int(self.array.ctypes.data)

    @property
    def end(self) -> int:
        """Address after the last byte on the host."""
        return self.begin + self.array.nbytes


@dataclass(frozen=True)
class StagedRegion:
    """Bytes that the kernel may touch: one array, or several that overlap.

    `granule` is the size in bytes of the pieces among which races are looked for.
    """

    label: str
    begin: int
    num_bytes: int
    writable: bool
    granule: int


class StagedMemory:
    """The copies of all arrays of one launch.

    Attributes:
        regions: What the kernel may touch, by ascending address.
        addresses: Where the array passed at a position of the arguments was put.
    """

    def __init__(self, arguments: Sequence[ArrayArgument]) -> None:
        groups = _group_overlapping(arguments)
        sizes = [_end(group) - group[0].begin for group in groups]
        padding = (len(groups) + 1) * (_GAP_BYTES + _ALIGNMENT)
        self._buffer = np.zeros(sum(sizes) + padding, dtype=np.uint8)
        self._copies: list[tuple[ArrayArgument, Array]] = []
        self.addresses: dict[int, int] = {}
        regions = []
        base = int(self._buffer.ctypes.data)
        offset = 0
        for group, size in zip(groups, sizes, strict=True):
            offset += _GAP_BYTES
            offset += (group[0].begin - base - offset) % _ALIGNMENT
            self._copy_in(group, offset)
            regions.append(_region(group, base + offset, size))
            offset += size
        self.regions = tuple(regions)

    def _copy_in(self, group: Sequence[ArrayArgument], offset: int) -> None:
        for argument in group:
            start = offset + argument.begin - group[0].begin
            copy = self._buffer[start : start + argument.array.nbytes]
            copy[:] = _bytes_of(argument.array)
            self._copies.append((argument, copy))
            self.addresses[argument.position] = int(self._buffer.ctypes.data) + start

    def copy_back(self) -> None:
        """Copy what the kernel left to the arrays that it was allowed to write."""
        for argument, copy in self._copies:
            if not argument.is_const:
                _bytes_of(argument.array)[:] = copy


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _group_overlapping(arguments: Sequence[ArrayArgument]) -> list[list[ArrayArgument]]:
    groups: list[list[ArrayArgument]] = []
    for argument in sorted(arguments, key=lambda a: (a.begin, a.position)):
        if len(groups) > 0 and argument.begin < _end(groups[-1]):
            groups[-1].append(argument)
        else:
            groups.append([argument])
    return groups


def _end(group: Sequence[ArrayArgument]) -> int:
    return max(argument.end for argument in group)


def _region(group: Sequence[ArrayArgument], begin: int, num_bytes: int) -> StagedRegion:
    return StagedRegion(
        label=" = ".join(argument.label for argument in group),
        begin=begin,
        num_bytes=num_bytes,
        writable=any(not argument.is_const for argument in group),
        granule=min(min(argument.array.itemsize, 4) for argument in group),
    )
