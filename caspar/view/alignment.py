"""From where a scene is looked at: what is up, what is in the middle, what lies too far out.

Input: a `Scene`. Output: an `Outlook`. Cost: some sorts of what is drawn.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.io.rotations import rotate
from caspar.scene.scene import Floats, GroupKind, Scene, State

CENTRAL_PERCENT = 96.0
"""Part of the points, along each axis, that the box is fitted to."""

ROOM = 0.1
"""What is drawn beyond that box, relative to its longest side."""

ROOM_FOR_START = 0.3
"""What is added to it at most where the start lies outside of the solution."""

_LEAST_AGREEMENT = 0.1
"""Length of the mean of unit vectors below which it says nothing."""

_USUAL_EYE = np.array([0.7, -1.0, 0.65])
_LEAST_SIDE = 0.12
"""Shortest side of the box relative to the longest."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """A turn of the world so that z is up, and what is seen of it.

    Attributes:
        axes: (3, 3) rows: right, back and up of the view, in world coordinates.
        low: (3,) least coordinates that are drawn, turned.
        high: (3,) greatest ones.
        eye: (3,) from where one looks at first, in units of half the longest side of the box.
    """

    axes: Floats
    low: Floats
    high: Floats
    eye: Floats

    def turned(self, places: Floats) -> Floats:
        """(..., 3) places in the view's axes; NaN outside of what is drawn."""
        found = places @ self.axes.T
        is_out = ((found < self.low) | (found > self.high)).any(axis=-1, keepdims=True)
        return np.where(is_out, np.nan, found)

    def turned_directions(self, directions: Floats) -> Floats:
        """(..., 3) directions in the view's axes."""
        found: Floats = directions @ self.axes.T
        return found


def outlook_of(scene: Scene) -> Outlook:
    """Choose the outlook by the last state."""
    state = scene.states[-1]
    axes = np.eye(3) if scene.is_planar else _axes(scene, state)
    low, high = _box(scene, state, axes)
    longest = max(float((high - low).max()), 1e-12)
    first_low, first_high = _box(scene, scene.states[0], axes)
    low = np.clip(first_low, low - ROOM_FOR_START * longest, low)
    high = np.clip(first_high, high, high + ROOM_FOR_START * longest)
    margin = np.maximum(ROOM * longest, 0.5 * (_LEAST_SIDE * longest - (high - low)))
    return Outlook(axes, low - margin, high + margin, _eye(scene, state, axes))


def _box(scene: Scene, state: State, axes: Floats) -> tuple[Floats, Floats]:
    """(3,) lower and upper limits of most of what is drawn."""
    ends = [np.array([[np.inf] * 3, [-np.inf] * 3])]
    for group in scene.groups:
        places = state.places[group.name] @ axes.T
        places = places[np.isfinite(places).all(axis=1)]
        percent = CENTRAL_PERCENT if group.kind is GroupKind.POINTS else 99.0
        outside = (100.0 - percent) / 2.0
        if len(places) > 0:
            ends.append(np.percentile(places, [outside, 100.0 - outside], axis=0))
    if len(ends) == 1:
        return np.full(3, -1.0), np.full(3, 1.0)
    return np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]


def _axes(scene: Scene, state: State) -> Floats:
    """Rows of a rotation: z is what cameras have above them, x the longest extent beside it."""
    ups = [
        rotate(state.turns[group.name], np.array([0.0, -group.forward, 0.0]))
        for group in scene.groups
        if group.kind is GroupKind.CAMERAS
    ]
    if len(ups) == 0:
        return np.eye(3)  # worlds of robots have z up
    places = np.concatenate(list(state.places.values()))
    near = _central(places[np.isfinite(places).all(axis=1)])
    up = np.concatenate(ups).mean(axis=0)
    if np.linalg.norm(up) < _LEAST_AGREEMENT:
        up = _principal(near)[-1]
    up = up / np.linalg.norm(up)
    right = _principal(near - np.outer(near @ up, up))[0]
    right = right - (right @ up) * up
    right = right / np.linalg.norm(right)
    return np.stack([right, np.cross(up, right), up])


def _central(places: Floats) -> Floats:
    """The half of the places next to their middle, from there: far ones would decide it all."""
    centred = places - np.median(places, axis=0)
    distances = np.linalg.norm(centred, axis=1)
    near: Floats = centred[distances <= np.median(distances)]
    return near


def _principal(places: Floats) -> Floats:
    """(3, 3) orthogonal unit vectors as rows, from the longest extent to the shortest."""
    vectors: NDArray[np.float64] = np.linalg.eigh(places.T @ places).eigenvectors
    return vectors.T[::-1]


def _eye(scene: Scene, state: State, axes: Floats) -> Floats:
    """Behind the cameras and above them, if they look the same way."""
    looks = [
        rotate(state.turns[group.name], np.array([0.0, 0.0, group.forward])) @ axes.T
        for group in scene.groups
        if group.kind is GroupKind.CAMERAS
    ]
    if len(looks) == 0:
        return _USUAL_EYE
    mean = np.concatenate(looks).mean(axis=0)
    mean[2] = 0.0
    if np.linalg.norm(mean) < 3.0 * _LEAST_AGREEMENT:
        return _USUAL_EYE
    back = -mean / np.linalg.norm(mean)
    aside = np.array([-back[1], back[0], 0.0])
    eye: Floats = 1.0 * back + 0.45 * aside + np.array([0.0, 0.0, 0.6])
    return eye
