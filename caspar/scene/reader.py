"""Reads scenes off the arrays of a solve: which nodes are drawn, what links them, where they are.

Input: traced factors and the arrays of `Solver.solve`. Output: groups, links, and a `State` for
each set of values. Cost: once per problem a pass over the indices, for each state one over the
residuals.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import symforce.symbolic as sf

from caspar.arrays.shared_indices import SharedIndices
from caspar.errors import InputError
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.symbolic.field_types import field_types, storage_fields
from caspar.io.rotations import conjugate, invert_se2, invert_se3, rotate
from caspar.scene.scene import Floats, Group, GroupKind, Links, Rows, State
from caspar.solver.result.result import array_on_host

_WORLD = "world|map|global|w"
_TAKES_TO_WORLD = re.compile(rf"(?:^|_)(?:{_WORLD})_(?:T|from)_", re.IGNORECASE)
_TAKES_FROM_WORLD = re.compile(rf"_(?:T|from)_(?:{_WORLD})$", re.IGNORECASE)


class PlaceKind(Enum):
    """The kind of a place; the value is its size in storage."""

    POSE3 = 7
    POSE2 = 4
    POINT3 = 3
    POINT2 = 2

    @property
    def is_pose(self) -> bool:
        """Return whether it has axes."""
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
    """A pose or a point in the storage of a node type, from `first` on.

    `names` are what users call it, for the direction of a pose; `from_world` None: names do not
    say.
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
    """Return what can be drawn of each node type.

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


MAX_POINTS = 30_000
MAX_POSES = 30_000
MAX_CAMERAS = 1_500
MAX_LINKS = 30_000

_SAMPLE = 20_000
"""Observations that tell how cameras look."""


@dataclass(frozen=True, eq=False)
class _Ends:
    """The drawn nodes that a factor touches: their types, and for each (m,) instances."""

    factor: TracedFactor
    groups: tuple[str, ...]
    rows: tuple[Rows, ...]


class SceneReader:
    """Reads a scene off values: groups with a place, and links between them.

    `nouns` are what an instance of a node type or factor is called, by its name. Raises an
    `InputError` if no node type has a place.
    """

    def __init__(
        self,
        factors: Sequence[TracedFactor],
        arrays: Mapping[str, Any],
        nouns: Mapping[str, str] | None = None,
    ) -> None:
        self._nouns = nouns or {}
        places = {name: one for name, one in places_of(factors).items() if name in arrays}
        if len(places) == 0:
            raise InputError(
                "nothing can be drawn: no node type is a pose or a point, or a dataclass with a "
                "pose. Draw result.values yourself"
            )
        values = {name: _rows(arrays[name]) for name in places}
        self._totals = {name: len(rows) for name, rows in values.items()}
        self._ends = [ends for one in factors if (ends := self._read(one, arrays, places))]
        cameras = {
            name: (ends, name, point)
            for ends in self._ends
            if (name := _seen_by(ends, places)[0]) and (point := _seen_by(ends, places)[1])
        }
        self._places = {
            name: _directed(place, values, cameras.get(name)) for name, place in places.items()
        }
        self.is_planar = all(place.kind.dim == 2 for place in places.values())
        self.groups = tuple(
            self._group(name, place, values, cameras.get(name))
            for name, place in self._places.items()
        )
        self._linking = {ends.factor.name: ends for ends in self._ends if _is_linking(ends, places)}
        self.links = tuple(
            Links(name, thinned(len(ends.rows[0]), MAX_LINKS), len(ends.rows[0]), self._noun(name))
            for name, ends in self._linking.items()
        )

    def state(
        self,
        label: str,
        cost: float,
        values: Mapping[str, Any],
        residuals: Callable[[str], Floats] | None,
    ) -> State:
        """The scene at some values, (n, storage_dim) by node type, which have that cost.

        `residuals` are (m, residual_dim) by factor at these values; None: they are not known.
        """
        world = {name: one.in_world(_rows(values[name])) for name, one in self._places.items()}
        points = {name: self._points(name, rows) for name, rows in world.items()}
        errors: dict[str, Floats] = {} if residuals is None else self._errors(residuals)
        segments = {}
        for link in self.links:
            ends = self._linking[link.name]
            pair = zip(ends.groups[:2], ends.rows[:2], strict=True)
            segments[link.name] = np.stack(
                [points[name][rows[link.rows]] for name, rows in pair], axis=1
            )
        return State(
            label=label,
            cost=cost,
            places={group.name: points[group.name][group.rows] for group in self.groups},
            turns={
                group.name: world[group.name][group.rows, :4]
                for group in self.groups
                if self._places[group.name].kind is PlaceKind.POSE3
            },
            segments=segments,
            errors=errors,
        )

    def _errors(self, residuals: Callable[[str], Floats]) -> dict[str, Floats]:
        squares = {name: np.zeros(total) for name, total in self._totals.items()}
        counts = {name: np.zeros(total) for name, total in self._totals.items()}
        errors = {}
        linked = [ends for ends in self._ends if len(ends.groups) > 1]
        for ends in linked or self._ends:
            squared = np.square(residuals(ends.factor.name)).sum(axis=1)
            for name, rows in zip(ends.groups, ends.rows, strict=True):
                squares[name] += np.bincount(rows, squared, minlength=self._totals[name])
                counts[name] += np.bincount(rows, minlength=self._totals[name])
            for link in self.links:
                if link.name == ends.factor.name:
                    errors[link.name] = np.sqrt(squared[link.rows])
        with np.errstate(invalid="ignore", divide="ignore"):
            for group in self.groups:
                mean = squares[group.name] / counts[group.name]
                errors[group.name] = np.sqrt(mean[group.rows])
        return errors

    def _points(self, name: str, rows: Floats) -> Floats:
        dim = self._places[name].kind.dim
        return np.pad(rows[:, -dim:], ((0, 0), (0, 3 - dim)))

    def _read(
        self, factor: TracedFactor, arrays: Mapping[str, Any], places: Mapping[str, Place]
    ) -> _Ends | None:
        given = arrays.get(factor.name) or {}  # None or [] for a factor that needs no arrays
        drawn = [one for one in factor.nodes if one.node_type.name in places]
        counts = [len(_index(given[one.source])) for one in factor.nodes if one.source in given]
        counts += [
            self._totals[one.node_type.name] - 1
            for one in drawn
            if one.kind is ArgumentKind.NODE_PAIR
        ]
        if len(drawn) == 0 or len(counts) == 0 or counts[0] <= 0:
            return None
        rows = tuple(_instances(one, given, counts[0]) for one in drawn)
        return _Ends(factor, tuple(one.node_type.name for one in drawn), rows)

    def _group(
        self,
        name: str,
        place: Place,
        values: Mapping[str, Floats],
        seen: tuple[_Ends, str, str] | None,
    ) -> Group:
        total, noun = self._totals[name], self._noun(name)
        if not place.kind.is_pose:
            return Group(name, GroupKind.POINTS, thinned(total, MAX_POINTS), total, noun)
        if seen is None:
            return Group(name, GroupKind.POSES, thinned(total, MAX_POSES), total, noun)
        depths = _local(place, values, seen)[:, 2]
        forward = 1.0 if np.mean(depths > 0.0) >= 0.5 else -1.0
        rows = thinned(total, MAX_CAMERAS)
        return Group(name, GroupKind.CAMERAS, rows, total, noun, forward=forward)

    def _noun(self, name: str) -> str:
        """Return the noun for one of a type: `Landmark` is a landmark."""
        return self._nouns.get(name, name[:1].lower() + name[1:].replace("_", " "))


def thinned(total: int, most: int) -> Rows:
    """Rows of so many instances at most, evenly spread."""
    return np.arange(0, total, max(-(-total // most), 1))


def _rows(values: Any) -> Floats:
    values = values.to_rows() if hasattr(values, "to_rows") else values
    found: Floats = np.asarray(array_on_host(values), np.float64)
    return found


def _index(given: Any) -> Rows:
    index = given.index if isinstance(given, SharedIndices) else given
    return np.asarray(array_on_host(index), np.int64)


def _instances(argument: Argument, given: Mapping[str, Any], count: int) -> Rows:
    if argument.kind is ArgumentKind.NODE_SHARED:
        return _index(given[argument.source])
    if argument.kind is ArgumentKind.NODE_PAIR:
        return np.arange(count) + int(argument.successor)
    return np.zeros(count, np.int64)


def _seen_by(ends: _Ends, places: Mapping[str, Place]) -> tuple[str, str]:
    """The camera and the point of a factor that is a projection; empty: it is none."""
    kinds = {places[name].kind: name for name in ends.groups}
    is_projection = len(ends.factor.residual) == 2 and len(ends.groups) == 2
    if not is_projection or set(kinds) != {PlaceKind.POSE3, PlaceKind.POINT3}:
        return "", ""
    return kinds[PlaceKind.POSE3], kinds[PlaceKind.POINT3]


def _is_linking(ends: _Ends, places: Mapping[str, Place]) -> bool:
    """Return whether a factor is drawn as lines: between poses, or between points of one type."""
    first_two = ends.groups[:2]
    if len(first_two) < 2 or all(_seen_by(ends, places)):
        return False
    return all(places[name].kind.is_pose for name in first_two) or first_two[0] == first_two[1]


def _directed(
    place: Place, values: Mapping[str, Floats], seen: tuple[_Ends, str, str] | None
) -> Place:
    """The place of a camera, its pose taken in the direction that has the points before it."""
    if place.from_world is not None or seen is None:
        return place
    shares = {}
    for from_world in (True, False):
        local = _local(replace(place, from_world=from_world), values, seen)
        near = np.linalg.norm(local[:, :2], axis=1) < 3.0 * np.abs(local[:, 2])
        shares[from_world] = max(np.mean(near & (sign * local[:, 2] > 0.0)) for sign in (1, -1))
    # where both will do, as computer vision writes them
    return replace(place, from_world=bool(shares[True] >= shares[False] - 0.01))


def _local(place: Place, values: Mapping[str, Floats], seen: tuple[_Ends, str, str]) -> Floats:
    """Points in the axes of the cameras that see them, of a part of the observations."""
    ends, camera, point = seen
    of = dict(zip(ends.groups, ends.rows, strict=True))
    use = thinned(len(of[camera]), _SAMPLE)
    pose = place.in_world(values[camera][of[camera][use]])
    points = values[point][of[point][use]]
    return rotate(conjugate(pose[:, :4]), points - pose[:, 4:])
