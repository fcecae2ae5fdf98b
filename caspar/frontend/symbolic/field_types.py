"""The types of a dataclass's fields, in the order in which SymForce stores them.

Also the parts of a tangent that have one unit: directions of a vector, axes of a rotation.

And the scalars of a storage type that form a unit vector; and symbols of values: no two scalars
have one symbol, whatever types and arguments are called.
"""

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps

from caspar.frontend.symbolic.epsilon import SYMBOL


def field_names(declared: Any) -> list[str]:
    """The names of all fields of a dataclass and of the dataclasses in it."""
    if not isinstance(declared, type) or not dataclasses.is_dataclass(declared):
        return []
    own = [str(field.name) for field in dataclasses.fields(declared)]
    return [*own, *(name for kind in field_types(declared) for name in field_names(kind))]


def field_types(declared: type) -> tuple[Any, ...]:
    """Return a dataclass's field types; () for others, or if one is local to a function."""
    if not dataclasses.is_dataclass(declared):
        return ()
    try:
        types = get_type_hints(declared)
    except NameError:
        return ()
    return tuple(types[field.name] for field in dataclasses.fields(declared))


def storage_fields(declared: type) -> dict[str, range]:
    """Return the range of each field of a dataclass in its storage; nothing for other types."""
    return _fields(declared, StorageOps.storage_dim)


def tangent_fields(declared: type) -> dict[str, range]:
    """Return the range of each field of a dataclass in its tangent; nothing for other types."""
    return _fields(declared, LieGroupOps.tangent_dim)


def _fields(declared: type, dim: Callable[[Any], Any]) -> dict[str, range]:
    types = field_types(declared)
    if len(types) == 0:
        return {}
    fields: dict[str, range] = {}
    first = 0
    for field, kind in zip(dataclasses.fields(declared), types, strict=True):
        size = int(dim(kind))
        fields[field.name] = range(first, first + size)
        first += size
    return fields


_ORDERS: dict[type, str] = {
    sf.Rot2: "cos sin",
    sf.Pose2: "cos sin x y",
    sf.Rot3: "qx qy qz qw",
    sf.Pose3: "qx qy qz qw tx ty tz",
}
"""SymForce's storage orders of rotations and poses."""


@cache
def storage_layout(declared: Any) -> str:
    """The order of a type's numbers in storage, in words; empty if it is that of its elements."""
    for kind, order in _ORDERS.items():
        if isinstance(declared, type) and issubclass(declared, kind):
            return order
    kinds = field_types(declared) if isinstance(declared, type) else ()
    sizes = storage_fields(declared) if kinds else {}
    return ", ".join(
        f"{name} ({storage_layout(kind) or len(place)})"
        for (name, place), kind in zip(sizes.items(), kinds, strict=True)
    )


def storage_positions(declared: type, dim: int) -> list[range]:
    """Return where a type's storage has positions in space (`dim` 3) or in the plane (2).

    Those are translations of poses, also of poses in a dataclass, and nodes that are vectors.
    """
    pose, first = (sf.Pose3, 4) if dim == 3 else (sf.Pose2, 2)
    if issubclass(declared, pose):
        return [range(first, first + dim)]
    if issubclass(declared, sf.V3 if dim == 3 else sf.V2):
        return [range(dim)]
    places = storage_fields(declared).values()
    return [
        range(place.start + first, place.start + first + dim)
        for kind, place in zip(field_types(declared), places, strict=False)
        if isinstance(kind, type) and issubclass(kind, pose)
    ]


def tangent_pieces(declared: Any) -> dict[str, tuple[Any, range]]:
    """The pieces of a type that have names, with their types and where they are in its tangent.

    Of a dataclass its fields; of a pose `rotation` and `translation`; of other types nothing.
    """
    if isinstance(declared, type) and issubclass(declared, sf.Pose3):
        return {"rotation": (sf.Rot3, range(3)), "translation": (sf.V3, range(3, 6))}
    if isinstance(declared, type) and issubclass(declared, sf.Pose2):
        return {"rotation": (sf.Rot2, range(1)), "translation": (sf.V2, range(1, 3))}
    places = tangent_fields(declared)
    types = field_types(declared)
    return {name: (kind, places[name]) for name, kind in zip(places, types, strict=True)}


_PARTS: tuple[tuple[type, tuple[int, ...]], ...] = (
    (sf.Pose3, (3, 3)),
    (sf.Pose2, (1, 2)),
    (sf.Rot3, (3,)),
    (sf.Unit3, (2,)),
    (sf.V3, (3,)),
    (sf.V2, (2,)),
)


def tangent_parts(declared: Any) -> tuple[range, ...]:
    """The parts of a type's tangent that have two or more scalars of one unit, in order.

    Of a dataclass, those of its fields. Vectors of two and three scalars are taken for places;
    what longer ones hold is not known.
    """
    if not inspect.isclass(declared):
        return ()
    sizes = next((sizes for base, sizes in _PARTS if issubclass(declared, base)), None)
    if sizes is not None:
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        parts = (range(end - size, end) for size, end in zip(sizes, ends, strict=True))
        return tuple(part for part in parts if len(part) > 1)
    found: list[range] = []
    first = 0
    for kind in field_types(declared):
        found += [range(first + part.start, first + part.stop) for part in tangent_parts(kind)]
        first += LieGroupOps.tangent_dim(kind)
    return tuple(found)


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


def with_own_symbols(symbolic: Any, name: str, taken: set[str]) -> Any:
    """A value whose symbols nothing else has; `taken` grows by their names.

    SymForce makes their names of that of the value, with parts behind an underscore: `q_x` of a
    rotation `q` may be another argument, and `q_x` beside `q` another field of a dataclass. Names
    stay where they are unique, since the order of an expression's terms depends on them. Else they
    are the name, a dot and a number, which is never the name of a field.
    """
    taken.add(str(SYMBOL))
    symbols = list(map(str, StorageOps.to_storage(symbolic)))
    if len({*symbols}) < len(symbols) or not taken.isdisjoint(symbols):
        symbols = [f"{name}.{number}" for number in range(len(symbols))]
        symbolic = StorageOps.from_storage(symbolic, list(map(sf.Symbol, symbols)))
    taken.update(symbols)
    return symbolic
