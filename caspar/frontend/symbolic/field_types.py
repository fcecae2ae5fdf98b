"""The types of a dataclass's fields, in the order in which SymForce stores them.

Also the parts of a tangent that have one unit: directions of a vector, axes of a rotation.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints

import symforce.symbolic as sf
from symforce.ops import LieGroupOps, StorageOps


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
