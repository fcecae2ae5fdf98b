"""Find the scalars of a storage type that form a unit vector: rotations and directions."""

import inspect
from dataclasses import dataclass
from typing import Any

import symforce.symbolic as sf
from symforce.ops import StorageOps

from caspar.frontend.symbolic.field_types import field_types

DIRECTION = "direction"
"""Meaning of a `Unit3`."""

_UNIT_SCALARS = (
    (sf.Rot3, 4, "quaternion"),
    (sf.Pose3, 4, "quaternion"),
    (sf.Rot2, 2, "cosine and sine"),
    (sf.Pose2, 2, "cosine and sine"),
    (sf.Unit3, 3, DIRECTION),
)
"""Types whose first scalars have unit length, how many, and what they are."""


@dataclass(frozen=True)
class UnitRange:
    """Scalars `start` to `stop - 1` of an object have unit length."""

    start: int
    stop: int
    meaning: str


def unit_ranges(declared: Any) -> tuple[UnitRange, ...]:
    """The unit-length parts of a storage type, in order; of a dataclass, those of its fields."""
    if not inspect.isclass(declared):
        return ()
    for base, size, meaning in _UNIT_SCALARS:
        if issubclass(declared, base):
            return (UnitRange(0, size, meaning),)
    found: list[UnitRange] = []
    first = 0
    for kind in field_types(declared):
        found += [
            UnitRange(first + part.start, first + part.stop, part.meaning)
            for part in unit_ranges(kind)
        ]
        first += StorageOps.storage_dim(kind)
    return tuple(found)
