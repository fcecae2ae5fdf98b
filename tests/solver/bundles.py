"""Real bundle adjustment problems, parts of them, and their cost in NumPy."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from caspar.io import BalProblem, read_bal
from caspar.io.rotations import rotate

DATA = Path(__file__).parents[2] / "data"


@cache
def read(name: str) -> BalProblem:
    return read_bal(DATA / f"{name}-pre.txt.bz2")


def arrays_of(problem: BalProblem) -> dict[str, Any]:
    return {
        "Cam": problem.cameras,
        "Point": problem.points,
        "snavely": {
            "cam": problem.camera_index,
            "point": problem.point_index,
            "pixel": problem.pixels,
        },
    }


def observed(problem: BalProblem, kept: Any) -> BalProblem:
    """Some of the observations, with the cameras and points they need."""
    cameras, camera_index = np.unique(problem.camera_index[kept], return_inverse=True)
    points, point_index = np.unique(problem.point_index[kept], return_inverse=True)
    return BalProblem(
        problem.cameras[cameras],
        problem.points[points],
        camera_index.astype(np.int32),
        point_index.astype(np.int32),
        problem.pixels[kept],
    )


def part_of(problem: BalProblem, num_points: int) -> BalProblem:
    """The first points."""
    return observed(problem, problem.point_index < num_points)


def copies_of(problem: BalProblem, number: int) -> BalProblem:
    """Several of a problem, side by side, with nothing in common."""

    def apart(index: Any, size: int) -> Any:
        return np.concatenate([index + copy * size for copy in range(number)]).astype(np.int32)

    return BalProblem(
        np.tile(problem.cameras, (number, 1)),
        np.tile(problem.points, (number, 1)),
        apart(problem.camera_index, len(problem.cameras)),
        apart(problem.point_index, len(problem.points)),
        np.tile(problem.pixels, (number, 1)),
    )


def cost_of(problem: BalProblem, cameras: Any, points: Any) -> float:
    """1/2 * the sum of squared residuals in NumPy, in float64: Agarwal et al. (2010)."""
    cameras = np.asarray(cameras, dtype=float)[problem.camera_index]
    points = np.asarray(points, dtype=float)[problem.point_index]
    turns = cameras[:, :4] / np.linalg.norm(cameras[:, :4], axis=1, keepdims=True)
    seen = rotate(turns, points) + cameras[:, 4:7]
    plane = -seen[:, :2] / seen[:, 2:]
    square = np.sum(plane**2, axis=1)
    focal_length, k1, k2 = cameras[:, 7:].T
    scale = focal_length * (1.0 + k1 * square + k2 * square**2)
    return 0.5 * float(np.sum((scale[:, None] * plane - problem.pixels) ** 2))
