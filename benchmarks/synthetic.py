"""Synthetic bundle adjustment problems shaped like the published BAL ones.

Input: sizes, a shape and a seed. Output: NumPy arrays in the conventions of BAL (Agarwal, Snavely,
Seitz, Szeliski, *Bundle Adjustment in the Large*, ECCV 2010): P = R X + t, p = -P.xy / P.z,
uv = f (1 + k1 |p|^2 + k2 |p|^4) p, so a camera looks along its negative z axis. Cost: once per
problem, vectorised, about one microsecond and 110 bytes an observation.

What is copied from the real problems: sizes; 48 % of the points seen twice and a geometric tail of
track lengths; observations per camera within a factor of 2.5 to 5 (at 13,682 cameras the outer 2 %
lie outside); who shares points with whom; and that they are hard: two-view points with little
parallax, intrinsics of each camera free, some bad measurements.
Exact Levenberg-Marquardt settles after 6 to 14 iterations (8 to 12 on the real Trafalgar-21),
within about 1 % of `expected_optimum`. Two shapes:

* `STREET` (Ladybug): cameras on a loop that look inwards and see a band of neighbours. A track
  spans a run of cameras; the longer the run, the deeper inside the loop lies its point.
* `PHOTOS` (Trafalgar, Dubrovnik, Venice, Final): a wall of cells, each photographed from a few
  viewpoints. Most cameras see a few cells; a few hub cameras stand back and see many, which makes
  the far links.

Every observation lies in front of its camera, at the truth and at the start. The start differs
from the truth by errors of pose, by triangulation errors that grow as parallax shrinks, and by a
smooth warp of the whole scene (the drift of an incremental reconstruction); its distortion is
zero, as in the files.

`synthetic_tracks` has who sees whom, without geometry, `synthetic_scenes` the geometry for given
tracks, `synthetic_start` the errors of the start.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from benchmarks.synthetic_scenes import photos, street
from benchmarks.synthetic_start import packed, perturbed

Float = NDArray[np.float64]
Index = NDArray[np.int32]

SIZES_PATH = Path(__file__).parent / "bal_sizes.csv"
PROJECTION_CHUNK = 1 << 20


class Shape(Enum):
    """Who shares points with whom."""

    STREET = "street"
    PHOTOS = "photos"


@dataclass(frozen=True)
class BalSize:
    """Size of one published problem."""

    group: str
    num_cameras: int
    num_points: int
    num_observations: int

    @property
    def shape(self) -> Shape:
        """Ladybug is a street; the other groups are photo collections."""
        return Shape.STREET if self.group == "ladybug" else Shape.PHOTOS


@dataclass(frozen=True, eq=False)
class SyntheticBundle:
    """A problem, its start and its truth. Observations are sorted by point, then by camera."""

    cameras: Float
    """(num_cameras, 10), the start: qx qy qz qw tx ty tz f k1 k2, world to camera, f in pixels."""
    points: Float
    """(num_points, 3), the start."""
    camera_index: Index
    """(num_observations,)"""
    point_index: Index
    """(num_observations,)"""
    pixels: Float
    """(num_observations, 2), relative to the principal point, with noise."""
    true_cameras: Float
    """(num_cameras, 10)"""
    true_points: Float
    """(num_points, 3)"""
    pixel_noise: float
    """Standard deviation of each pixel coordinate."""

    @property
    def expected_optimum(self) -> float:
        """Expected cost, 1/2 sum r^2, at the optimum: noise in the directions nothing can fit."""
        num_free = 9 * len(self.cameras) + 3 * len(self.points) - 7
        return 0.5 * self.pixel_noise**2 * (self.pixels.size - num_free)


def bal_size(name: str) -> BalSize:
    """Look up a published problem by group and number of cameras, such as "ladybug-1723"."""
    with SIZES_PATH.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sizes = {
        f"{row['group']}-{row['cams']}": BalSize(
            row["group"], int(row["cams"]), int(row["pts"]), int(row["obs"])
        )
        for row in rows
    }
    if name.lower() not in sizes:
        raise KeyError(f"no BAL problem '{name}'; known: {', '.join(sorted(sizes))}")
    return sizes[name.lower()]


def make_like(name: str, seed: int = 0) -> SyntheticBundle:
    """Make a stand-in for a published problem, such as "final-13682"."""
    size = bal_size(name)
    return make_bal(
        size.num_cameras, size.num_points, size.num_observations, size.shape.value, seed=seed
    )


def make_bal(
    num_cameras: int,
    num_points: int,
    num_observations: int,
    shape: Literal["street", "photos"] = "street",
    *,
    seed: int = 0,
    pixel_noise: float = 0.8,
    start_error: float = 4.0,
) -> SyntheticBundle:
    """Make a problem; the same arguments give the same arrays.

    `pixel_noise` is the standard deviation of the observations in pixels. `start_error` is the
    standard deviation in pixels that each source of error in the start (rotation, translation,
    point, focal length, warp) causes; the default gives an initial cost of about 100 to 300 times
    the optimum. Raises ValueError when a point would be seen by fewer than two cameras, or the
    observations do not fit the cameras.
    """
    if num_observations < 2 * num_points:
        raise ValueError(f"{num_points} points need at least {2 * num_points} observations")
    generator = np.random.default_rng(seed)
    build = street if Shape(shape) is Shape.STREET else photos
    scene = build(num_cameras, num_points, num_observations, generator)
    true_cameras = packed(scene.rotations, scene.centres, scene.calibration)
    camera_index, point_index = scene.tracks.camera_index, scene.tracks.point_index
    exact, depth = _project(true_cameras, scene.points, camera_index, point_index)
    cameras, points = perturbed(scene, depth, start_error, generator)
    return SyntheticBundle(
        cameras=cameras,
        points=points,
        camera_index=camera_index,
        point_index=point_index,
        pixels=exact + pixel_noise * _heavy_tailed(exact.shape, generator),
        true_cameras=true_cameras,
        true_points=scene.points,
        pixel_noise=pixel_noise,
    )


def _project(
    cameras: Float, points: Float, camera_index: Index, point_index: Index
) -> tuple[Float, Float]:
    """Return pixels (num_observations, 2) and depths (num_observations,); depth > 0 is in front."""
    matrices = Rotation.from_quat(cameras[:, :4]).as_matrix()
    pixels = np.empty((len(camera_index), 2))
    depth = np.empty(len(camera_index))
    for first in range(0, len(camera_index), PROJECTION_CHUNK):
        part = slice(first, first + PROJECTION_CHUNK)
        seen_by = camera_index[part]
        local = np.einsum("nij,nj->ni", matrices[seen_by], points[point_index[part]])
        local += cameras[seen_by, 4:7]
        plane = -local[:, :2] / local[:, 2:]
        radius2 = np.sum(plane**2, axis=1)
        focal, k1, k2 = cameras[seen_by, 7:].T
        pixels[part] = (focal * (1 + radius2 * (k1 + radius2 * k2)))[:, None] * plane
        depth[part] = -local[:, 2]
    return pixels, depth


def _heavy_tailed(shape: tuple[int, int], generator: np.random.Generator) -> Float:
    """Return noise of unit variance: one observation in twenty has four times the deviation."""
    bad = generator.random(shape[0]) < 0.05
    scale = np.where(bad, 4.0, 1.0) / np.sqrt(0.95 + 0.05 * 16.0)
    noise: Float = scale[:, None] * generator.standard_normal(shape)
    return noise
