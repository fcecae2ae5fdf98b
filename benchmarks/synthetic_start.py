"""The start of a synthetic problem: its truth, with errors as a reconstruction has them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from benchmarks.synthetic_scenes import Scene, clipped_normal

Float = NDArray[np.float64]
Index = NDArray[np.int32]


def perturbed(
    scene: Scene, depth: Float, start_error: float, generator: np.random.Generator
) -> tuple[Float, Float]:
    """Return the start: cameras (num_cameras, 10) and points (num_points, 3).

    All errors are angles of `start_error` pixels at the camera's (or the median) focal length; an
    error of position is such an angle times the mean depth of the observations it takes part in.
    """
    num_cameras = len(scene.centres)
    focal = scene.calibration[:, 0]
    angle = start_error / focal
    typical_angle = start_error / float(np.median(focal))
    camera_depth = _mean_by(scene.tracks.camera_index, depth, num_cameras)

    warped = _Warp.random(np.ptp(scene.points, axis=0).max(), typical_angle, generator)
    turn = Rotation.from_rotvec(angle[:, None] * clipped_normal(generator, (num_cameras, 3)))
    shift = (angle * camera_depth)[:, None] * clipped_normal(generator, (num_cameras, 3))
    centres = warped.apply(scene.centres) + shift
    points = warped.apply(_triangulated(scene, typical_angle, generator))
    calibration = np.zeros((num_cameras, 3))
    # Observations lie at |p| of about 0.4, so this relative error shows as start_error pixels.
    calibration[:, 0] = focal * (1 + angle / 0.4 * clipped_normal(generator, (num_cameras,)))
    return packed(turn * scene.rotations, centres, calibration), points


def packed(rotations: Rotation, centres: Float, calibration: Float) -> Float:
    """Return cameras in storage order, (num_cameras, 10)."""
    return np.hstack([rotations.as_quat(), -rotations.apply(centres), calibration])


def _triangulated(scene: Scene, angle: float, generator: np.random.Generator) -> Float:
    """Return points (num_points, 3) with errors along and across their mean ray.

    `angle` is the error of a direction. Along the ray it grows by one over the parallax, the root
    mean square angle between the point's rays and their mean, but stays below a third of the
    distance of the nearest camera.
    """
    camera_index, point_index = scene.tracks.camera_index, scene.tracks.point_index
    rays = scene.points[point_index] - scene.centres[camera_index]
    distance = np.linalg.norm(rays, axis=1)
    starts = np.flatnonzero(np.diff(point_index, prepend=-1))
    nearest = np.minimum.reduceat(distance, starts)
    rays /= distance[:, None]
    mean_ray = np.column_stack(
        [_mean_by(point_index, rays[:, axis], len(scene.points)) for axis in range(3)]
    )
    length = np.linalg.norm(mean_ray, axis=1)
    parallax = np.sqrt(np.maximum(2 * (1 - length), 1e-8))
    noise = clipped_normal(generator, (len(scene.points), 4))
    along = np.minimum(angle / parallax, 0.15) * noise[:, 3] / length
    error: Float = nearest[:, None] * (along[:, None] * mean_ray + angle * noise[:, :3])
    return scene.points + error


def _mean_by(index: Index, values: Float, size: int) -> Float:
    """Return (size,): the mean of the values that share an index, 1 where there are none."""
    count = np.bincount(index, minlength=size)
    total = np.bincount(index, weights=values, minlength=size)
    mean: Float = np.where(count > 0, total / np.maximum(count, 1), 1.0)
    return mean


@dataclass(frozen=True, eq=False)
class _Warp:
    """A sum of three sine displacements with one to three periods across the scene."""

    waves: Float
    """(3, 3): radians per unit of length."""
    amplitudes: Float
    """(3, 3)"""
    phases: Float
    """(3,)"""

    @staticmethod
    def random(extent: float, slope: float, generator: np.random.Generator) -> _Warp:
        """Make a warp whose gradient has about the size `slope`."""
        periods = np.array([1.0, 2.0, 3.0])
        directions = generator.standard_normal((2, 3, 3))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        wave_numbers = 2 * np.pi * periods / extent
        return _Warp(
            waves=wave_numbers[:, None] * directions[0],
            amplitudes=(slope / wave_numbers)[:, None] * directions[1],
            phases=generator.uniform(0, 2 * np.pi, 3),
        )

    def apply(self, positions: Float) -> Float:
        """Return displaced positions, (n, 3)."""
        return positions + np.sin(positions @ self.waves.T + self.phases) @ self.amplitudes
