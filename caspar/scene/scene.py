"""`Scene`: what is drawn of a solve, as plain arrays, and cameras as frusta."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from caspar.io.rotations import rotate

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class GroupKind(Enum):
    """The form in which a node type is drawn."""

    POINTS = "points"
    POSES = "poses"
    CAMERAS = "cameras"


@dataclass(frozen=True, eq=False)
class Group:
    """The instances of a node type.

    Attributes:
        name: Of the node type.
        kind: How they are drawn.
        rows: (k,) the instances that are drawn, by their row in the values.
        total: How many there are.
        noun: What one of them is called.
        labels: k names of those that are drawn; empty: they have none but the row.
        forward: Of cameras: 1.0 if they look along their z axis, -1.0 if against it.
    """

    name: str
    kind: GroupKind
    rows: Rows
    total: int
    noun: str
    labels: tuple[str, ...] = ()
    forward: float = 1.0

    def __post_init__(self) -> None:
        """Let texts be such that every file can hold them."""
        _set(self, noun=_encodable(self.noun), labels=tuple(map(_encodable, self.labels)))


@dataclass(frozen=True, eq=False)
class Links:
    """Pairs of places that a factor measures between.

    Attributes:
        name: Of the factor.
        rows: (k,) the instances that are drawn.
        total: How many there are.
        noun: What one of them is called.
    """

    name: str
    rows: Rows
    total: int
    noun: str

    def __post_init__(self) -> None:
        """Let texts be such that every file can hold them."""
        _set(self, noun=_encodable(self.noun))


@dataclass(frozen=True, eq=False)
class State:
    """A scene at some values.

    Attributes:
        label: What it is: `start`, `iteration 3`, `solution`.
        cost: Cost of the values.
        places: By group (k, 3) world coordinates; z is 0 in the plane.
        turns: By group of poses and cameras in space: (k, 4) quaternions x y z w that take its axes
            to those of the world.
        segments: By links (k, 2, 3): where each begins and ends.
        errors: By group or links (k,) lengths of residuals: of links their own, of an instance of a
            group the root mean square of all that touch it. NaN: nothing touches it.
    """

    label: str
    cost: float
    places: Mapping[str, Floats]
    turns: Mapping[str, Floats]
    segments: Mapping[str, Floats]
    errors: Mapping[str, Floats]

    def __post_init__(self) -> None:
        """Let texts be such that every file can hold them."""
        _set(self, label=_encodable(self.label))


@dataclass(frozen=True, eq=False)
class Scene:
    """The drawn parts of a solve.

    Attributes:
        title: What it is.
        facts: Sentences: sizes, costs, what is left out.
        unit: Unit of the lengths of residuals, such as `px`; empty: none is known.
        is_planar: Whether all z are 0.
        groups: Nodes that have a place.
        links: Measurements between places.
        states: In order; the first is the start, the last the solution.
    """

    title: str
    facts: tuple[str, ...]
    unit: str
    is_planar: bool
    groups: tuple[Group, ...]
    links: tuple[Links, ...]
    states: tuple[State, ...] = field(repr=False)

    def __post_init__(self) -> None:
        """Let texts be such that every file can hold them."""
        facts = tuple(map(_encodable, self.facts))
        _set(self, title=_encodable(self.title), facts=facts, unit=_encodable(self.unit))


def _encodable(text: str) -> str:
    """A text with `?` for what is no character, as in names of files that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _set(thing: object, **texts: object) -> None:
    """Set attributes of a frozen dataclass that is being made."""
    for name, text in texts.items():
        object.__setattr__(thing, name, text)


MAX_LENGTH = 0.03
MIN_LENGTH = 0.01
"""Length of a frustum relative to the longest side of the scene."""

_CORNERS = np.array(
    [[0.0, 0.0, 0.0], [-0.6, -0.45, 1.0], [0.6, -0.45, 1.0], [0.6, 0.45, 1.0], [-0.6, 0.45, 1.0]]
)
"""The centre, then the corners of the picture."""

_STROKE = (4, 0, 1, 2, 0, 3, 2, 1, 4, 3)
"""The eight edges in one stroke, one of them twice."""

NUM_CORNERS = len(_STROKE)


def frustum_length(scene: Scene, longest: float) -> float:
    """Return a length about the distance between cameras, within limits."""
    length = MAX_LENGTH * longest
    for group in scene.groups:
        places = scene.states[-1].places[group.name]
        if group.kind is GroupKind.CAMERAS and len(places) > 1:
            gaps = np.linalg.norm(np.diff(places, axis=0), axis=1)
            usual = float(np.median(gaps[np.isfinite(gaps)]))
            length = float(np.clip(0.8 * usual, MIN_LENGTH * longest, MAX_LENGTH * longest))
    return length


def frustum_strokes(group: Group, state: State, length: float) -> Floats:
    """(k, NUM_CORNERS, 3) edges of the frusta from their centres, in world coordinates."""
    corners = length * _CORNERS[list(_STROKE)] * [1.0, 1.0, group.forward]
    return rotate(state.turns[group.name][:, None], corners[None])
