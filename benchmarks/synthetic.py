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

The file is longer than most because it has two halves which only it uses: tracks (who sees whom,
no geometry), then scenes (geometry for given tracks).
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

from benchmarks.synthetic_tracks import Tracks, band_tracks, cell_tracks, track_lengths

Float = NDArray[np.float64]
Index = NDArray[np.int32]
Whole = NDArray[np.int64]

SIZES_PATH = Path(__file__).parent / "bal_sizes.csv"
PROJECTION_CHUNK = 1 << 20

IMAGE_RADIUS = 0.4
"""Photos: largest |p| before distortion, tan of half the diagonal field of view."""
CELL = np.array([0.5, 0.5, 0.3])
"""Photos: half the size of a cell."""
VIEWPOINTS = 3
"""Photos: number of directions from which each cell is photographed."""
VIEWPOINT_SPREAD = 0.02
"""Photos: deviation of the directions of one viewpoint. Decides how hard the problem is: with 0.1
PCG needs 3 to 8 iterations for a step, with 0.02 about 20, on Trafalgar-21 itself about 50."""
VIEWPOINT_REACH = 0.1
"""Photos: angle, in radians, by which views may differ for features to match."""
FAR_LINKS = 0.03
"""Photos: share of the points that match from all directions; they connect the viewpoints."""


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


@dataclass(frozen=True, eq=False)
class Scene:
    """True geometry and tracks."""

    rotations: Rotation
    """World to camera, num_cameras of them."""
    centres: Float
    """(num_cameras, 3)"""
    points: Float
    """(num_points, 3)"""
    calibration: Float
    """(num_cameras, 3): f, k1, k2."""
    tracks: Tracks


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
    build = _street if Shape(shape) is Shape.STREET else _photos
    scene = build(num_cameras, num_points, num_observations, generator)
    true_cameras = _packed(scene.rotations, scene.centres, scene.calibration)
    camera_index, point_index = scene.tracks.camera_index, scene.tracks.point_index
    exact, depth = _project(true_cameras, scene.points, camera_index, point_index)
    cameras, points = _perturbed(scene, depth, start_error, generator)
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


def _packed(rotations: Rotation, centres: Float, calibration: Float) -> Float:
    """Return cameras in storage order, (num_cameras, 10)."""
    return np.hstack([rotations.as_quat(), -rotations.apply(centres), calibration])


def _clipped_normal(generator: np.random.Generator, size: tuple[int, ...]) -> Float:
    """Return standard normal values, at most 2 in size, so that no observation leaves an image."""
    return np.clip(generator.standard_normal(size), -2.0, 2.0)


def _heavy_tailed(shape: tuple[int, int], generator: np.random.Generator) -> Float:
    """Return noise of unit variance: one observation in twenty has four times the deviation."""
    bad = generator.random(shape[0]) < 0.05
    scale = np.where(bad, 4.0, 1.0) / np.sqrt(0.95 + 0.05 * 16.0)
    noise: Float = scale[:, None] * generator.standard_normal(shape)
    return noise


def _calibrations(num_cameras: int, focal: Float, generator: np.random.Generator) -> Float:
    """Return (num_cameras, 3); mild barrel distortion that is monotonic within the image."""
    k1 = -0.03 + 0.015 * _clipped_normal(generator, (num_cameras,))
    k2 = 0.005 + 0.003 * _clipped_normal(generator, (num_cameras,))
    return np.column_stack([focal, k1, k2])


def _street(
    num_cameras: int, num_points: int, num_observations: int, generator: np.random.Generator
) -> Scene:
    """Cameras one unit apart on a circle around the y axis, looking at its centre."""
    slots = max(num_cameras, 400)
    closed = num_cameras >= slots
    longest = num_cameras // 2 if closed else num_cameras
    lengths = track_lengths(num_points, num_observations, longest, generator)
    tracks, middle, span = band_tracks(lengths, num_cameras, closed, generator)

    radius = slots / (2 * np.pi)
    angle = (np.arange(num_cameras) + 0.2 * generator.uniform(-1, 1, num_cameras)) / radius
    along = np.column_stack([np.cos(angle), np.zeros(num_cameras), np.sin(angle)])
    centres = radius * along + 0.1 * _clipped_normal(generator, (num_cameras, 3))
    inwards = Rotation.from_rotvec((angle - np.pi / 2)[:, None] * np.array([0.0, 1.0, 0.0]))
    rotations = Rotation.from_rotvec(0.02 * _clipped_normal(generator, (num_cameras, 3))) * inwards

    # A point at distance `inner` from the centre, seen from an angle phi off its own, has
    # |x| / depth = inner sin(phi) / (radius - inner cos(phi)) <= slope for the whole span when
    # inner <= slope radius / (sin(phi) + slope cos(phi)); past atan(1 / slope) it only falls.
    slope = 0.5
    half_span = np.minimum((span / 2 + 1) / radius, np.arctan(1 / slope))
    deepest = slope * radius / (np.sin(half_span) + slope * np.cos(half_span))
    setback = 8.0 * np.exp(_clipped_normal(generator, (num_points,)))
    inner = np.minimum(np.maximum(deepest - setback, 0.05 * radius), deepest - 0.5)
    at = middle / radius
    height = 0.35 * (radius - inner) * generator.uniform(-1, 1, num_points)
    points = np.column_stack([inner * np.cos(at), height, inner * np.sin(at)])
    focal = 400.0 + 4.0 * _clipped_normal(generator, (num_cameras,))
    calibration = _calibrations(num_cameras, focal, generator)
    return Scene(rotations, centres, points, calibration, tracks)


def _photos(
    num_cameras: int, num_points: int, num_observations: int, generator: np.random.Generator
) -> Scene:
    """Cameras in front of a wall of cells in the plane z = 0, which they see from z > 0."""
    columns = max(1, round(np.sqrt(num_cameras / 40 * 3)))
    rows = max(1, round(num_cameras / 40 / columns))
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
    cells = np.column_stack([1.3 * (grid - grid.mean(axis=0)), np.zeros(len(grid))])

    sideways = generator.uniform([-0.7, -0.3], [0.7, 0.3], (VIEWPOINTS, 2))
    viewpoints = _unit(np.column_stack([sideways, np.ones(VIEWPOINTS)]))
    viewpoint = generator.integers(VIEWPOINTS, size=num_cameras)
    spread = VIEWPOINT_SPREAD * _clipped_normal(generator, (num_cameras, 3))
    direction = _unit(viewpoints[viewpoint] + spread)
    twist = Rotation.from_rotvec(0.05 * _clipped_normal(generator, (num_cameras, 3)))
    rotations = twist * _looking_along(-direction)
    centres, seen = _standing_back(cells, direction, rotations, 2.2 * columns, generator)

    affinity = seen[:, :, None] * _similarity(direction, viewpoints)[:, None, :]
    affinity = affinity.reshape(num_cameras, -1)
    longest = int((affinity > 0).sum(axis=0).max())
    lengths = track_lengths(num_points, num_observations, longest, generator)
    tracks, place = cell_tracks(lengths, affinity, generator)
    points = cells[place // (VIEWPOINTS + 1)] + CELL * generator.uniform(-1, 1, (num_points, 3))
    focal = 2500.0 * np.exp(0.3 * _clipped_normal(generator, (num_cameras,)))
    calibration = _calibrations(num_cameras, focal, generator)
    return Scene(rotations, centres, points, calibration, tracks)


def _standing_back(
    cells: Float,
    direction: Float,
    rotations: Rotation,
    furthest: float,
    generator: np.random.Generator,
) -> tuple[Float, NDArray[np.bool_]]:
    """Place cameras; return centres (num_cameras, 3) and `_cells_in_image`.

    Each camera has one cell in its middle, which it looks at along minus `direction` and which
    fits its image. One in ten is a hub, up to `furthest` away.
    """
    num_cameras = len(direction)
    popularity = np.exp(0.5 * generator.standard_normal(len(cells)))
    target = generator.choice(len(cells), num_cameras, p=popularity / popularity.sum())
    distance = 3.8 * np.exp(0.3 * np.abs(generator.standard_normal(num_cameras)))
    hubs = generator.random(num_cameras) < 0.1
    away = generator.uniform(np.log(5.0), np.log(max(6.0, furthest)), num_cameras)
    distance[hubs] = np.exp(away[hubs])
    while True:
        centres = cells[target] + distance[:, None] * direction
        seen = _cells_in_image(rotations, centres, cells)
        blind = ~seen[np.arange(num_cameras), target]
        if not blind.any():
            return centres, seen
        distance[blind] *= 1.2


def _similarity(directions: Float, viewpoints: Float) -> Float:
    """Return (num_cameras, VIEWPOINTS + 1): how readily features match that face a viewpoint.

    Gaussian in the angle, with deviation VIEWPOINT_REACH; the last kind matches from everywhere.
    """
    near = np.exp((directions @ viewpoints.T - 1) / VIEWPOINT_REACH**2)
    far = np.full((len(directions), 1), FAR_LINKS)
    return np.concatenate([np.where(near > 0.02, near, 0.0), far], axis=1)


def _unit(vectors: Float) -> Float:
    """Return vectors (n, 3) scaled to length one."""
    scaled: Float = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


def _looking_along(view: Float) -> Rotation:
    """Return world-to-camera rotations for unit view directions (n, 3), with y upwards."""
    z = -view
    x = np.cross(np.array([0.0, 1.0, 0.0]), z)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return Rotation.from_matrix(np.stack([x, np.cross(z, x), z], axis=1))


def _cells_in_image(rotations: Rotation, centres: Float, cells: Float) -> NDArray[np.bool_]:
    """Return (num_cameras, num_cells): whether all eight corners of a cell are in the image.

    The projection of a box in front of a camera lies in the hull of its projected corners, so
    every point of a seen cell is in the image too.
    """
    corners = CELL * np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1]), axis=-1).reshape(-1, 3)
    matrices = rotations.as_matrix()
    offset = -rotations.apply(centres)
    seen = np.ones((len(centres), len(cells)), dtype=bool)
    for corner in corners:
        local = np.einsum("nij,cj->nci", matrices, cells + corner) + offset[:, None, :]
        sideways2 = local[..., 0] ** 2 + local[..., 1] ** 2
        seen &= local[..., 2] < -0.2
        seen &= sideways2 <= (IMAGE_RADIUS * local[..., 2]) ** 2
    return seen


def _perturbed(
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
    turn = Rotation.from_rotvec(angle[:, None] * _clipped_normal(generator, (num_cameras, 3)))
    shift = (angle * camera_depth)[:, None] * _clipped_normal(generator, (num_cameras, 3))
    centres = warped.apply(scene.centres) + shift
    points = warped.apply(_triangulated(scene, typical_angle, generator))
    calibration = np.zeros((num_cameras, 3))
    # Observations lie at |p| of about 0.4, so this relative error shows as start_error pixels.
    calibration[:, 0] = focal * (1 + angle / 0.4 * _clipped_normal(generator, (num_cameras,)))
    return _packed(turn * scene.rotations, centres, calibration), points


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
    noise = _clipped_normal(generator, (len(scene.points), 4))
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
