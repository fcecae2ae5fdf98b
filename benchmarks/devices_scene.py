"""A scene of any size, made in seconds: cameras around a ball of points.

Only for times and memory: the cameras of a point are neighbours on a ring, which is more regular
than photographs are.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

SHARE_OF_CAMERAS = 13_682 / 28_987_644
"""Cameras of an observation, as in Final-13682."""

MEAN_TRACK = 6.5
"""Observations of a point, as there."""

POINTS_OF_PIECE = 1 << 18
"""Points that a thread makes at a time."""


def ring(num_observations: int, seed: int = 0) -> dict[str, Any]:
    """Arrays of a problem for `caspar.bundle_adjustment.snavely`, about that large.

    Args:
        num_observations: About how many.
        seed: Of the noise.
    """
    num_cameras = max(round(SHARE_OF_CAMERAS * num_observations), 20)
    num_points = max(round(num_observations / MEAN_TRACK), 20)
    random = np.random.default_rng(seed)
    angle = np.arange(num_cameras) * (2.0 * np.pi / num_cameras)
    cameras = np.zeros((num_cameras, 10))
    cameras[:, 1], cameras[:, 3] = np.sin(angle / 2.0), np.cos(angle / 2.0)
    cameras[:, 6], cameras[:, 7] = -4.0, 500.0
    firsts = range(0, num_points, POINTS_OF_PIECE)
    seeds = np.random.SeedSequence(seed).spawn(len(firsts))
    with ThreadPoolExecutor() as threads:
        pieces = [
            threads.submit(_tracks, cameras, first, min(POINTS_OF_PIECE, num_points - first), own)
            for first, own in zip(firsts, seeds, strict=True)
        ]
        found = [piece.result() for piece in pieces]
    points, camera, point, pixels = (np.concatenate(some) for some in zip(*found, strict=True))
    cameras[:, 4:7] += 0.01 * random.standard_normal((num_cameras, 3))
    cameras[:, 7] *= 1.0 + 0.01 * random.standard_normal(num_cameras)
    return {
        "Cam": cameras,
        "Point": points,
        "snavely": {"cam": camera, "point": point, "pixel": pixels},
    }


def _tracks(cameras: Any, begin: int, count: int, seed: np.random.SeedSequence) -> tuple[Any, ...]:
    """Points from the number `begin` on, moved, with their observations."""
    random, num_cameras = np.random.default_rng(seed), len(cameras)
    points = random.uniform(-1.0, 1.0, (count, 3))
    lengths = 4 + (np.arange(begin, begin + count) % 6)
    point = np.repeat(np.arange(count, dtype=np.int32), lengths)
    place = np.arange(len(point)) - (np.cumsum(lengths) - lengths)[point]
    first = random.integers(0, num_cameras, count)
    stride = random.integers(1, max(num_cameras // 40, 2), count)
    camera = ((first[point] + place * stride[point]) % num_cameras).astype(np.int32)
    pixels = _project(cameras, points, camera, point)
    pixels += random.standard_normal(pixels.shape)
    points += 0.02 * random.standard_normal(points.shape)
    return points, camera, np.int32(begin) + point, pixels


def cost(arrays: dict[str, Any], values: dict[str, Any]) -> float:
    """1/2 * the sum of squared residuals in float64, piece by piece."""
    given, total, piece = arrays["snavely"], 0.0, 1 << 22
    cameras, points = np.asarray(values["Cam"]), np.asarray(values["Point"])
    for start in range(0, len(given["pixel"]), piece):
        part = slice(start, start + piece)
        found = _project(cameras, points, given["cam"][part], given["point"][part])
        total += 0.5 * float(((found - given["pixel"][part]) ** 2).sum())
    return total


def _project(cameras: Any, points: Any, camera: Any, point: Any) -> Any:
    """(n, 2) pixels; `snavely` has the model."""
    quaternion, axis = cameras[camera, :4], points[point]
    vector, scalar = quaternion[:, :3], quaternion[:, 3:]
    turned = 2.0 * np.cross(vector, axis)
    seen = axis + scalar * turned + np.cross(vector, turned) + cameras[camera, 4:7]
    plane = -seen[:, :2] / seen[:, 2:]
    square = (plane**2).sum(axis=1, keepdims=True)
    lens = cameras[camera]
    distortion = 1.0 + lens[:, 8:9] * square + lens[:, 9:10] * square**2
    return lens[:, 7:8] * distortion * plane
