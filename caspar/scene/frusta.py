"""Cameras as frusta: pyramids from the centre to a picture of the usual shape.

Input: a group of cameras and its turns. Output: lines. Cost: one pass over the cameras.
"""

import numpy as np

from caspar.io.rotations import rotate
from caspar.scene.scene import Floats, Group, GroupKind, Scene, State

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
