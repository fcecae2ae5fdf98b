"""Bring a model to where its priors say it is, by a similarity.

Input: a `Model` and camera positions or directions of gravity. Output: a `Similarity`, and the
model moved by it. A few passes over the cameras, once for an adjustment.

The similarity of the least squares is that of Umeyama (IEEE TPAMI 13(4), 1991); cameras that do
not fit are left out by RANSAC (Fischler and Bolles, 1981), whose samples are the same in each run.
"""

from dataclasses import dataclass, replace

import numpy as np

from caspar.colmap.adjust.observations import TO_XYZW
from caspar.colmap.adjust.problem import Mask
from caspar.colmap.adjust.rig_structure import TO_WXYZ
from caspar.colmap.model import Floats, Integers, Model
from caspar.io.rotations import conjugate, multiply, rotate

_MOST_SAMPLES = 500
"""Samples of three cameras at most, if a quarter of all fit: (1 - 1/64)^500 is 4e-4."""

_LEAST_CHANCE = 1e-9
"""Of samples none of which has three cameras that fit, where so many fit as the best one found."""

_LEAST_SPREAD = 1e-9
"""Extent of the cameras, relative to their distance from the origin, below which they are one."""


@dataclass(frozen=True, eq=False)
class Similarity:
    """Takes x to scale * rotation * x + translation.

    Attributes:
        scale: Positive.
        rotation: (4,) qx qy qz qw.
        translation: (3,).
    """

    scale: float
    rotation: Floats
    translation: Floats

    def points(self, points: Floats) -> Floats:
        """(n, 3) points, moved."""
        moved: Floats = self.scale * rotate(self.rotation, points) + self.translation
        return moved

    def poses(self, poses: Floats) -> Floats:
        """(n, 7) poses b_from_world, qw qx qy qz tx ty tz, in the moved world, b scaled too."""
        rotations = multiply(poses[:, TO_XYZW][:, :4], conjugate(self.rotation))
        translations = self.scale * poses[:, 4:] - rotate(rotations, self.translation)
        moved: Floats = np.concatenate([rotations, translations], axis=1)[:, TO_WXYZ]
        return moved


def moved(model: Model, similarity: Similarity) -> Model:
    """Return a model in another place, of another size."""
    images = replace(model.images, cam_from_world=similarity.poses(model.images.cam_from_world))
    points = replace(model.points, xyz=similarity.points(model.points.xyz))
    model = replace(model, images=images, points=points)
    if model.rigs is None or model.frames is None:
        return model
    sensors = model.rigs.sensor_from_rig.copy()
    sensors[:, 4:] *= similarity.scale
    frames = similarity.poses(model.frames.rig_from_world)
    return replace(
        model,
        rigs=replace(model.rigs, sensor_from_rig=sensors),
        frames=replace(model.frames, rig_from_world=frames),
    )


def centres(model: Model) -> Floats:
    """Return (num_images, 3) positions of the cameras in the world."""
    poses = model.images.cam_from_world[:, TO_XYZW]
    unit = poses[:, :4] / np.linalg.norm(poses[:, :4], axis=1, keepdims=True)
    found: Floats = -rotate(conjugate(unit), poses[:, 4:])
    return found


def similarity_between(source: Floats, target: Floats, max_error: float) -> Similarity | None:
    """Find the similarity that takes points nearest to others.

    Args:
        source: (n, 3).
        target: (n, 3).
        max_error: Distance up to which a pair counts.

    Returns:
        None: There are not three pairs that fit one.
    """
    count = len(source)
    if count < 3 or _is_one_place(source) or _is_one_place(target):
        return None
    rng = np.random.default_rng(0)
    best = _fits(source, target, np.arange(count), max_error)
    number = 0
    while number < _samples_for(best):
        number += 1
        fits = _fits(source, target, rng.choice(count, 3, replace=False), max_error)
        if np.count_nonzero(fits) > np.count_nonzero(best):
            best = fits
    for _ in range(3):
        if np.count_nonzero(best) < 3:
            return None
        best = _fits(source, target, np.flatnonzero(best), max_error)
    chosen = np.flatnonzero(best)
    return None if len(chosen) < 3 else _least_squares(source[chosen], target[chosen])


def _samples_for(fits: Mask) -> float:
    """Return how many samples are enough, if so many cameras fit."""
    chance = np.mean(fits) ** 3
    if chance >= 1:
        return 0.0
    return (
        min(np.log(_LEAST_CHANCE) / np.log1p(-chance), _MOST_SAMPLES)
        if chance > 0
        else _MOST_SAMPLES
    )


def _is_one_place(points: Floats) -> bool:
    spread = np.ptp(points, axis=0).max()
    return not spread > _LEAST_SPREAD * np.abs(points).max()


def _fits(source: Floats, target: Floats, sample: Integers, max_error: float) -> Mask:
    found = _least_squares(source[sample], target[sample])
    if found is None:
        return np.zeros(len(source), np.bool_)
    fits: Mask = np.linalg.norm(found.points(source) - target, axis=1) <= max_error
    return fits


def _least_squares(source: Floats, target: Floats) -> Similarity | None:
    """Return the similarity of the least squared distances; None: it is not determined."""
    middle, other = source.mean(axis=0), target.mean(axis=0)
    left, singular, right = np.linalg.svd((target - other).T @ (source - middle))
    signs = np.array([1.0, 1.0, np.linalg.det(left) * np.linalg.det(right)])
    spread = np.sum((source - middle) ** 2)
    if not spread > 0:
        return None
    scale = float(np.sum(singular * signs) / spread)
    if not scale > 0:
        return None
    rotation = quaternion_of((left * signs) @ right)
    return Similarity(scale, rotation, other - scale * rotate(rotation, middle))


def turn_between(source: Floats, target: Floats) -> Similarity:
    """Return the rotation that takes the mean of directions to another direction.

    Args:
        source: (n, 3) unit vectors.
        target: (3,) unit vector.
    """
    mean = source.sum(axis=0)
    mean = mean / np.linalg.norm(mean)
    axis, cosine = np.cross(mean, target), float(mean @ target)
    if cosine < -1 + 1e-12:  # any axis across
        axis = np.cross(mean, np.eye(3)[np.argmin(np.abs(mean))])
        quaternion = np.array([*(axis / np.linalg.norm(axis)), 0.0])
    else:
        quaternion = np.array([*axis, 1 + cosine])
        quaternion /= np.linalg.norm(quaternion)
    return Similarity(1.0, quaternion, np.zeros(3))


def quaternion_of(matrix: Floats) -> Floats:
    """Return qx qy qz qw of a rotation matrix: an eigenvector (Bar-Itzhack, 2000)."""
    m = matrix
    square = np.array(
        [
            [m[0, 0] - m[1, 1] - m[2, 2], m[0, 1] + m[1, 0], m[0, 2] + m[2, 0], m[2, 1] - m[1, 2]],
            [m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], m[1, 2] + m[2, 1], m[0, 2] - m[2, 0]],
            [m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1], m[1, 0] - m[0, 1]],
            [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1], np.trace(m)],
        ]
    )
    quaternion: Floats = np.linalg.eigh(square)[1][:, -1]
    return quaternion
