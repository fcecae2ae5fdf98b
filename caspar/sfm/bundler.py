"""Read and write `.out` files of Bundler (Snavely, Seitz, Szeliski, SIGGRAPH 2006), version 0.3.

A line ``# Bundle file v0.3``, then a stream of numbers::

    num_cameras num_points
    for each camera: f k1 k2, R (3 x 3, row by row), t
    for each point: x y z, red green blue, num_views, num_views times: camera key pixel_x pixel_y

A camera sees a point X at the pixel that *Bundle Adjustment in the Large* explains: it looks along
its negative z axis, and pixels are relative to the image centre, y upwards. A camera with f = 0 was
not registered. Bundler's own list of images holds their names and sizes.

Input: a text file, plain or packed. Output: `BundlerScene`. Cost: 0.2 microseconds a number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from caspar.errors import FileFormatError, InputError
from caspar.io.bal import BalProblem
from caspar.io.compressed import FilePath, open_for_reading, path_text
from caspar.io.numbers import NumberRun, number_runs, shown
from caspar.io.replace import open_for_packing

Floats = NDArray[np.float64]

_LONGEST_HEADER_BYTES = 4096
_HEADER = b"# Bundle file v0.3"
_CAMERA_NUMBERS = 15
_POINT_NUMBERS = 7  # and four for each view
_VIEW_NUMBERS = 4
_LARGEST_COUNT = 2**31 - 1
_ROTATION_TOLERANCE = 1e-2
_POINTS_PER_WRITE = 1 << 13


@dataclass(frozen=True, eq=False, repr=False)
class BundlerScene:
    """The contents of a Bundler file.

    Attributes:
        cameras: (num_cameras, 10) float64: qx qy qz qw tx ty tz f k1 k2, as in `BalProblem`. The
            pose of a camera that was not registered is the identity.
        is_registered: (num_cameras,) bool.
        points: (num_points, 3) float64, world coordinates.
        colors: (num_points, 3) uint8, red, green, blue.
        camera_index: (num_observations,) int32, rows of `cameras`.
        point_index: (num_observations,) int32, rows of `points`; sorted.
        key_index: (num_observations,) int32, the keypoint in the camera's list.
        pixels: (num_observations, 2) float64, relative to the image centre, y upwards.
    """

    cameras: Floats
    is_registered: NDArray[np.bool_]
    points: Floats
    colors: NDArray[np.uint8]
    camera_index: NDArray[np.int32]
    point_index: NDArray[np.int32]
    key_index: NDArray[np.int32]
    pixels: Floats

    def problem(self) -> BalProblem:
        """Return what the solver takes: registered cameras and their observations.

        The points are all there; rows of cameras are those among the registered ones.
        """
        place = np.cumsum(self.is_registered) - 1
        kept = self.is_registered[self.camera_index]
        return BalProblem(
            cameras=self.cameras[self.is_registered],
            points=self.points,
            camera_index=place[self.camera_index[kept]].astype(np.int32),
            point_index=self.point_index[kept],
            pixels=self.pixels[kept],
        )

    def with_values(self, cameras: Floats, points: Floats) -> "BundlerScene":
        """Return the scene with other values, such as those of a solve of `problem()`.

        Args:
            cameras: (num_registered, 10).
            points: (num_points, 3).

        Raises:
            InputError: An array has another shape.
        """
        for name, found, wanted in (
            ("cameras", np.shape(cameras), (int(self.is_registered.sum()), 10)),
            ("points", np.shape(points), self.points.shape),
        ):
            if found != wanted:
                raise InputError(f"{name} has shape {found}; it must have shape {wanted}")
        all_cameras = self.cameras.copy()
        all_cameras[self.is_registered] = cameras
        return replace(self, cameras=all_cameras, points=np.asarray(points, np.float64))

    def __repr__(self) -> str:
        """Return the sizes; the arrays are too large to be shown."""
        return (
            f"BundlerScene({len(self.cameras)} cameras, {len(self.points)} points, "
            f"{len(self.pixels)} observations)"
        )


def read_bundler(path: FilePath) -> BundlerScene:
    """Read a file of Bundler.

    Args:
        path: the file; plain, bzip2 or gzip.

    Returns:
        The scene.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format; the message says where.
        OptionError: `path` is no path.
    """
    path = path_text(path)
    with open_for_reading(path) as stream:
        header = stream.readline(_LONGEST_HEADER_BYTES + 1)
        if not header.startswith(_HEADER):
            raise FileFormatError(
                f"{path}, line 1: {shown(header.strip())} is not the first line of a file of "
                "Bundler, '# Bundle file v0.3'"
            )
        numbers = _Numbers(list(number_runs(stream, 2)), path)
    counts = numbers.take(2, "the numbers of cameras and points")
    num_cameras, num_points = (
        numbers.integer(count, place, ("num_cameras", "num_points")[place])
        for place, count in enumerate(counts.tolist())
    )
    cameras, is_registered = _cameras(numbers, num_cameras)
    return _points(numbers, num_points, cameras, is_registered)


class _Numbers:
    """The numbers of a file, taken one after the other."""

    def __init__(self, runs: list[NumberRun], path: str) -> None:
        self._runs = runs
        self._path = path
        self.values = np.concatenate([run.values for run in runs])
        self.taken = 0

    def take(self, count: int, what: str) -> Floats:
        end = self.taken + count
        if end > len(self.values):
            stray = self._runs[-1].stray
            if stray is not None:
                place = len(self.values)
                raise self.error(place, f"{shown(stray)} is not a number; {what} must be here")
            raise FileFormatError(f"{self._path}: the file ends within {what}")
        found = self.values[self.taken : end]
        if not np.isfinite(found).all():
            place = self.taken + int(np.argmin(np.isfinite(found)))
            raise self.error(place, f"{what} must be finite numbers")
        self.taken = end
        return found

    def integer(self, value: float, place: int, what: str, limit: int = _LARGEST_COUNT) -> int:
        if not (0.0 <= value <= limit and value == int(value)):
            raise self.error(place, f"{what} is {value:g}; it must be an integer from 0 to {limit}")
        return int(value)

    def error(self, place: int, wrong: str) -> FileFormatError:
        for run in self._runs:
            if place < len(run.values) or (place == len(run.values) and run.stray is not None):
                return FileFormatError(f"{self._path}, line {run.line_of(place)}: {wrong}")
            place -= len(run.values)
        return FileFormatError(f"{self._path}: {wrong}")

    def check_end(self) -> None:
        if self.taken < len(self.values) or self._runs[-1].stray is not None:
            raise self.error(self.taken, "the file goes on behind its last point")


def _cameras(numbers: _Numbers, count: int) -> tuple[Floats, NDArray[np.bool_]]:
    start = numbers.taken
    rows = numbers.take(count * _CAMERA_NUMBERS, f"{count} cameras").reshape(-1, _CAMERA_NUMBERS)
    matrices = rows[:, 3:12].reshape(-1, 3, 3).copy()
    is_registered = np.asarray(rows[:, 0] != 0.0)
    matrices[~is_registered] = np.eye(3)
    with np.errstate(over="ignore", invalid="ignore"):
        products = matrices @ np.swapaxes(matrices, 1, 2)
        deviation = np.abs(products - np.eye(3)).max(axis=(1, 2))
        is_turn = np.asarray(deviation <= _ROTATION_TOLERANCE)
        is_turn &= np.linalg.det(np.where(is_turn[:, None, None], matrices, 0.0)) > 0.0
    if not is_turn.all():
        row = int(np.argmin(is_turn))
        raise numbers.error(
            start + row * _CAMERA_NUMBERS + 3, f"the matrix of camera {row} is no rotation"
        )
    # SciPy 1.13 to 1.15 refuse no rotations at all
    turns = Rotation.from_matrix(matrices).as_quat() if count > 0 else np.empty((0, 4))
    poses = np.concatenate([turns, rows[:, 12:]], axis=1)
    poses[~is_registered, 4:] = 0.0
    return np.concatenate([poses, rows[:, :3]], axis=1), is_registered


def _points(
    numbers: _Numbers, count: int, cameras: Floats, is_registered: NDArray[np.bool_]
) -> BundlerScene:
    starts, num_views = _point_starts(numbers, count)
    values = numbers.values
    heads = values[starts[:, None] + np.arange(_POINT_NUMBERS - 1)]
    colors = heads[:, 3:]
    is_color = ((colors >= 0) & (colors <= 255) & (colors == np.floor(colors))).all(axis=1)
    if not is_color.all():
        row = int(np.argmin(is_color))
        raise numbers.error(
            int(starts[row]) + 3, f"the color of point {row} must be integers from 0 to 255"
        )
    point_index = np.repeat(np.arange(count, dtype=np.int32), num_views)
    first = np.concatenate([[0], np.cumsum(num_views)])[:-1]
    within = np.arange(len(point_index)) - np.repeat(first, num_views)
    places = np.repeat(starts + _POINT_NUMBERS, num_views) + _VIEW_NUMBERS * within
    views = values[places[:, None] + np.arange(_VIEW_NUMBERS)]
    for column, what, limit in (
        (0, "the camera of a view", len(cameras) - 1),
        (1, "the key of a view", _LARGEST_COUNT),
    ):
        index = views[:, column]
        is_good = (index >= 0) & (index <= limit) & (index == np.floor(index))
        if not is_good.all():
            row = int(np.argmin(is_good))
            numbers.integer(float(index[row]), int(places[row]) + column, what, limit)
    order = np.lexsort([views[:, 1], views[:, 0], point_index])
    pairs = np.column_stack([point_index, views[:, :2]])[order]
    is_again = (pairs[1:] == pairs[:-1]).all(axis=1)
    if is_again.any():
        row = int(order[1:][is_again].min())
        raise numbers.error(
            int(places[row]),
            f"point {point_index[row]} has key {views[row, 1]:.0f} of camera {views[row, 0]:.0f} "
            "twice",
        )
    return BundlerScene(
        cameras=cameras,
        is_registered=is_registered,
        points=heads[:, :3].copy(),
        colors=colors.astype(np.uint8),
        camera_index=views[:, 0].astype(np.int32),
        point_index=point_index,
        key_index=views[:, 1].astype(np.int32),
        pixels=views[:, 2:].copy(),
    )


def _point_starts(numbers: _Numbers, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if count * _POINT_NUMBERS > len(numbers.values) - numbers.taken:
        numbers.take(count * _POINT_NUMBERS, f"{count} points")
    starts = np.empty(count, np.int64)
    num_views = np.empty(count, np.int64)
    for row in range(count):
        starts[row] = numbers.taken
        head = numbers.take(_POINT_NUMBERS, f"point {row}")
        num_views[row] = numbers.integer(
            float(head[-1]), numbers.taken - 1, f"the number of views of point {row}"
        )
        numbers.take(int(num_views[row]) * _VIEW_NUMBERS, f"the views of point {row}")
    numbers.check_end()
    return starts, num_views


def write_bundler(path: FilePath, scene: BundlerScene) -> None:
    """Write a file of Bundler, so that `read_bundler` gives the scene back to rounding.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        scene: what to write; observations sorted by `point_index`.

    Raises:
        ValueError: the scene holds a number that is not finite, an index out of range, or
            observations that are not sorted, or `path` is no path; nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.
    """
    path = path_text(path)
    _check_writable(scene)
    with open_for_packing(path) as stream:
        for text in _text(scene):
            stream.write(text)


def _check_writable(scene: BundlerScene) -> None:
    for name in ("cameras", "points", "pixels"):
        if not np.isfinite(getattr(scene, name)).all():
            raise ValueError(f"BundlerScene.{name} is not finite")
    for name, limit in (
        ("camera_index", len(scene.cameras)),
        ("point_index", len(scene.points)),
        ("key_index", _LARGEST_COUNT),
    ):
        index = getattr(scene, name)
        if ((index < 0) | (index >= limit)).any():
            raise ValueError(f"BundlerScene.{name}: an index is not from 0 to {limit - 1}")
    if ((scene.cameras[:, 7] != 0.0) != scene.is_registered).any():
        row = int(np.argmax((scene.cameras[:, 7] != 0.0) != scene.is_registered))
        raise ValueError(
            f"BundlerScene.cameras[{row}]: the focal length must be 0 if the camera is not "
            "registered, and only then"
        )
    if (np.diff(scene.point_index) < 0).any():
        raise ValueError("BundlerScene.point_index must be sorted")


def _text(scene: BundlerScene) -> Iterator[bytes]:
    yield f"{_HEADER.decode()}\n{len(scene.cameras)} {len(scene.points)}\n".encode()
    matrices = Rotation.from_quat(scene.cameras[:, :4]).as_matrix()
    matrices[~scene.is_registered] = 0.0
    blocks = np.concatenate([matrices.reshape(-1, 9), scene.cameras[:, 4:7]], axis=1)
    blocks = np.concatenate([scene.cameras[:, 7:], blocks], axis=1).reshape(-1, 3)
    yield "".join(f"{' '.join(map(repr, row))}\n" for row in blocks.tolist()).encode()
    edges = np.searchsorted(scene.point_index, np.arange(len(scene.points) + 1)).tolist()
    for start in range(0, len(scene.points), _POINTS_PER_WRITE):
        rows = range(start, min(start + _POINTS_PER_WRITE, len(scene.points)))
        lines = []
        for row, (begin, end) in zip(rows, pairwise(edges[start : rows[-1] + 2]), strict=True):
            lines.append(" ".join(map(repr, scene.points[row].tolist())))
            lines.append(" ".join(map(str, scene.colors[row].tolist())))
            views = zip(
                scene.camera_index[begin:end].tolist(),
                scene.key_index[begin:end].tolist(),
                scene.pixels[begin:end].tolist(),
                strict=True,
            )
            seen = (f" {camera} {key} {x!r} {y!r}" for camera, key, (x, y) in views)
            lines.append(f"{end - begin}{''.join(seen)}")
        yield "".join(f"{line}\n" for line in lines).encode()
