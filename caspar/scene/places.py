"""Where a node type has a place: a pose or a point, in its storage.

Input: traced factors. Output: a `Place` by node type. Cost: a look at each type.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import symforce.symbolic as sf

from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.symbolic.field_types import field_types, storage_fields
from caspar.io.rigid_motions import invert_se2, invert_se3
from caspar.scene.scene import Floats

_WORLD = "world|map|global|w"
_TAKES_TO_WORLD = re.compile(rf"(?:^|_)(?:{_WORLD})_(?:T|from)_", re.IGNORECASE)
_TAKES_FROM_WORLD = re.compile(rf"_(?:T|from)_(?:{_WORLD})$", re.IGNORECASE)


class PlaceKind(Enum):
    """What a place is: the value is its size in storage."""

    POSE3 = 7
    POSE2 = 4
    POINT3 = 3
    POINT2 = 2

    @property
    def is_pose(self) -> bool:
        """Whether it has axes."""
        return self in (PlaceKind.POSE3, PlaceKind.POSE2)

    @property
    def dim(self) -> int:
        """Coordinates of it."""
        return 3 if self in (PlaceKind.POSE3, PlaceKind.POINT3) else 2


_TYPES = (
    (PlaceKind.POSE3, sf.Pose3),
    (PlaceKind.POSE2, sf.Pose2),
    (PlaceKind.POINT3, sf.V3),
    (PlaceKind.POINT2, sf.V2),
)


@dataclass(frozen=True)
class Place:
    """A pose or a point in the storage of a node type.

    Attributes:
        kind: What it is.
        first: Where it begins in a row of values.
        names: What users call it, for the direction of a pose.
        from_world: Whether it takes world coordinates to its own; None: names do not say.
    """

    kind: PlaceKind
    first: int
    names: tuple[str, ...]
    from_world: bool | None = None

    def of(self, values: Floats) -> Floats:
        """(n, size) of (n, storage_dim) values: points, or poses as they are stored."""
        return np.asarray(values[:, self.first : self.first + self.kind.value], np.float64)

    def in_world(self, values: Floats) -> Floats:
        """The same, poses such that they take their axes to those of the world."""
        found = self.of(values)
        if not self.from_world or not self.kind.is_pose:
            return found
        return invert_se3(found) if self.kind is PlaceKind.POSE3 else invert_se2(found)


def places_of(factors: Iterable[TracedFactor]) -> dict[str, Place]:
    """By node type, what can be drawn of it.

    Vectors are points if they share a factor with a pose of as many dimensions, or if there are no
    poses; others are lenses, biases and the like.
    """
    nodes: dict[str, NodeType] = {}
    names: dict[str, list[str]] = {}
    partners: dict[str, set[str]] = {}
    for factor in factors:
        together = {argument.node_type.name for argument in factor.nodes}
        for argument in factor.nodes:
            name = argument.node_type.name
            nodes[name] = argument.node_type
            names.setdefault(name, []).append(argument.source)
            partners.setdefault(name, set()).update(together)
    places = {
        name: place
        for name, node in nodes.items()
        if (place := _place(node, names[name])) is not None
    }
    return _drawn(places, partners)


def _drawn(places: Mapping[str, Place], partners: Mapping[str, set[str]]) -> dict[str, Place]:
    poses = {name: place for name, place in places.items() if place.kind.is_pose}
    dims = [place.kind.dim for place in (poses or places).values()]
    dim = max(dims, default=0)
    return {
        name: place
        for name, place in places.items()
        if place.kind.dim == dim
        and (len(poses) == 0 or name in poses or not partners[name].isdisjoint(poses))
    }


def _place(node: NodeType, sources: list[str]) -> Place | None:
    declared = node.python_type
    for kind, known in _TYPES:
        if issubclass(declared, known):
            return _with_direction(Place(kind, 0, (node.name, *dict.fromkeys(sources))))
    ranges = storage_fields(declared).items()
    for (name, place), field_type in zip(ranges, field_types(declared), strict=False):
        for kind, known in _TYPES[:2]:
            if isinstance(field_type, type) and issubclass(field_type, known):
                return _with_direction(Place(kind, place.start, (name,)))
    return None


def _with_direction(place: Place) -> Place:
    if not place.kind.is_pose:
        return place
    if any(_TAKES_TO_WORLD.search(name) for name in place.names):
        return Place(place.kind, place.first, place.names, from_world=False)
    if any(_TAKES_FROM_WORLD.search(name) for name in place.names):
        return Place(place.kind, place.first, place.names, from_world=True)
    return place
