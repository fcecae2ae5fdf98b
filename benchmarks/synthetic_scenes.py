"""Where the cameras and points of a synthetic problem are: scenes of two shapes, with their tracks.

Input: sizes and a generator. Output: a `Scene`, in which every point is in front of the cameras
that see it. `benchmarks.synthetic` says what the shapes stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from benchmarks.synthetic_tracks import Tracks, band_tracks, cell_tracks, track_lengths

Float = NDArray[np.float64]

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


def street(
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
    centres = radius * along + 0.1 * clipped_normal(generator, (num_cameras, 3))
    inwards = Rotation.from_rotvec((angle - np.pi / 2)[:, None] * np.array([0.0, 1.0, 0.0]))
    rotations = Rotation.from_rotvec(0.02 * clipped_normal(generator, (num_cameras, 3))) * inwards

    # A point at distance `inner` from the centre, seen from an angle phi off its own, has
    # |x| / depth = inner sin(phi) / (radius - inner cos(phi)) <= slope for the whole span when
    # inner <= slope radius / (sin(phi) + slope cos(phi)); past atan(1 / slope) it only falls.
    slope = 0.5
    half_span = np.minimum((span / 2 + 1) / radius, np.arctan(1 / slope))
    deepest = slope * radius / (np.sin(half_span) + slope * np.cos(half_span))
    setback = 8.0 * np.exp(clipped_normal(generator, (num_points,)))
    inner = np.minimum(np.maximum(deepest - setback, 0.05 * radius), deepest - 0.5)
    at = middle / radius
    height = 0.35 * (radius - inner) * generator.uniform(-1, 1, num_points)
    points = np.column_stack([inner * np.cos(at), height, inner * np.sin(at)])
    focal = 400.0 + 4.0 * clipped_normal(generator, (num_cameras,))
    calibration = _calibrations(num_cameras, focal, generator)
    return Scene(rotations, centres, points, calibration, tracks)


def photos(
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
    spread = VIEWPOINT_SPREAD * clipped_normal(generator, (num_cameras, 3))
    direction = _unit(viewpoints[viewpoint] + spread)
    twist = Rotation.from_rotvec(0.05 * clipped_normal(generator, (num_cameras, 3)))
    rotations = twist * _looking_along(-direction)
    centres, seen = _standing_back(cells, direction, rotations, 2.2 * columns, generator)

    affinity = seen[:, :, None] * _similarity(direction, viewpoints)[:, None, :]
    affinity = affinity.reshape(num_cameras, -1)
    longest = int((affinity > 0).sum(axis=0).max())
    lengths = track_lengths(num_points, num_observations, longest, generator)
    tracks, place = cell_tracks(lengths, affinity, generator)
    points = cells[place // (VIEWPOINTS + 1)] + CELL * generator.uniform(-1, 1, (num_points, 3))
    focal = 2500.0 * np.exp(0.3 * clipped_normal(generator, (num_cameras,)))
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


def _calibrations(num_cameras: int, focal: Float, generator: np.random.Generator) -> Float:
    """Return (num_cameras, 3); mild barrel distortion that is monotonic within the image."""
    k1 = -0.03 + 0.015 * clipped_normal(generator, (num_cameras,))
    k2 = 0.005 + 0.003 * clipped_normal(generator, (num_cameras,))
    return np.column_stack([focal, k1, k2])


def clipped_normal(generator: np.random.Generator, size: tuple[int, ...]) -> Float:
    """Return standard normal values, at most 2 in size, so that no observation leaves an image."""
    return np.clip(generator.standard_normal(size), -2.0, 2.0)
