"""Read and write bundle adjustment problems in the text format of *Bundle Adjustment in the Large*.

Input: a text file, plain or packed. Output: `BalProblem`, arrays in caspar's storage order.
Cost: once per problem; reading takes 0.1 to 0.2 microseconds a number (5 million
observations: 5 s), or as long as unpacking if that takes longer.

The format (Agarwal, Snavely, Seitz, Szeliski, ECCV 2010) is one stream of numbers:

* ``num_cameras num_points num_observations``, on the first line;
* for each observation: camera index, point index, pixel x, pixel y;
* for each camera: rotation as angle-axis (3), translation (3), focal length, k1, k2;
* for each point: x, y, z.

A camera sees a point X at

    P = R X + t,   p = -P.xy / P.z,   pixel = f (1 + k1 |p|^2 + k2 |p|^4) p,

so it looks along its negative z axis, and pixels are relative to the image centre.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caspar.errors import FileFormatError
from caspar.io.compressed import FilePath, open_for_reading, path_text
from caspar.io.numbers import NumberRun, number_runs, shown
from caspar.io.replace import open_for_packing
from caspar.io.rotations import angle_axis_from_quaternion, quaternion_from_angle_axis
from caspar.user_arrays import as_numpy, object_advice

_HEADER_NAMES = ("num_cameras", "num_points", "num_observations")
_OBSERVATION_NAMES = ("camera index", "point index", "pixel x", "pixel y")
_CAMERA_NAMES = (
    *("rotation x", "rotation y", "rotation z"),
    *("translation x", "translation y", "translation z"),
    *("focal length", "k1", "k2"),
)
_POINT_NAMES = ("x", "y", "z")

_INTEGER = re.compile(rb"[+-]?\d+")
_LARGEST_COUNT = 2**31 - 1  # indices are int32
_LONGEST_HEADER_BYTES = 4096
_LARGEST_ROTATION = 1e300  # the length of three such numbers is within float64
_ROWS_PER_WRITE = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class BalProblem:
    """A bundle adjustment problem; what is no NumPy array is read as one, by `numpy.asarray`.

    Attributes:
        cameras: (num_cameras, 10) float64: qx qy qz qw tx ty tz f k1 k2. Rotation (a unit
            quaternion) and translation take world to camera coordinates; f is in pixels.
        points: (num_points, 3) float64, world coordinates.
        camera_index: (num_observations,) int32, the row of `cameras` of each observation.
        point_index: (num_observations,) int32, the row of `points` of each observation.
        pixels: (num_observations, 2) float64, measured position relative to the image centre.

    Raises:
        ValueError: an array has a wrong shape or kind of element, or masked entries.
    """

    cameras: NDArray[np.float64]
    points: NDArray[np.float64]
    camera_index: NDArray[np.int32]
    point_index: NDArray[np.int32]
    pixels: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Read what is no NumPy array; check shapes and kinds of elements, but not values."""
        given = dict(vars(self))
        for name, values in given.items():
            object.__setattr__(self, name, as_numpy(f"BalProblem.{name}", values))
        for name, kinds, shape in (
            ("cameras", "f", (None, 10)),
            ("points", "f", (None, 3)),
            ("pixels", "f", (None, 2)),
            ("camera_index", "iu", self.pixels.shape[:1]),
            ("point_index", "iu", self.pixels.shape[:1]),
        ):
            array: NDArray[np.generic] = getattr(self, name)
            if (
                kinds == "f"
                and not isinstance(given[name], np.ndarray)
                and array.dtype.kind in "iu"
            ):
                array = array.astype(np.float64)
                object.__setattr__(self, name, array)
            fits = len(array.shape) == len(shape) and all(
                wanted in (None, found) for wanted, found in zip(shape, array.shape, strict=True)
            )
            if not fits or array.dtype.kind not in kinds:
                wanted_text = ", ".join("any" if n is None else str(n) for n in shape)
                kind_text = "a floating point" if kinds == "f" else "an integer"
                raise ValueError(
                    f"BalProblem.{name} has shape {array.shape} and dtype {array.dtype}; it "
                    f"must have shape ({wanted_text}) and {kind_text} dtype"
                    f"{object_advice(given[name], array)}"
                )

    @property
    def num_cameras(self) -> int:
        """Number of cameras."""
        return int(self.cameras.shape[0])

    @property
    def num_points(self) -> int:
        """Number of points."""
        return int(self.points.shape[0])

    @property
    def num_observations(self) -> int:
        """Number of observations."""
        return int(self.pixels.shape[0])

    def __repr__(self) -> str:
        """Return the sizes; the arrays are too large to be shown."""
        return (
            f"BalProblem({self.num_cameras} cameras, {self.num_points} points, "
            f"{self.num_observations} observations)"
        )


def read_bal(path: FilePath) -> BalProblem:
    """Read a problem from a BAL text file.

    Args:
        path: the file; plain, bzip2 or gzip. It is read once from beginning to end: a FIFO or
            /dev/stdin will do.

    Returns:
        The problem, observations in the order of the file. Angles beyond pi stay: their
        quaternion has a negative w.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file does not follow the format; the message gives the line.
        OptionError: `path` is no path.

    Example:
        >>> import caspar
        >>> camera = [0, 0, 0, 1, 0, 0, -4.0, 500, 0, 0]  # qx qy qz qw tx ty tz f k1 k2
        >>> problem = caspar.io.BalProblem(
        ...     cameras=[camera], points=[[0.1, 0.2, 0.0]],
        ...     camera_index=[0], point_index=[0], pixels=[[12.5, 25.0]])
        >>> caspar.io.write_bal("tiny.txt", problem)
        >>> again = caspar.io.read_bal("tiny.txt")
        >>> again.cameras.shape, again.points.shape, again.pixels
        ((1, 10), (1, 3), array([[12.5, 25. ]]))
    """
    parts: list[NDArray[np.float64]] = []
    num_found = 0
    path = path_text(path)
    with open_for_reading(path) as stream:
        layout = _read_header(stream.readline(_LONGEST_HEADER_BYTES), path)
        fault: str | None = None
        # What is wrong is found while the text is at hand: a FIFO cannot be read again to tell
        # the line. Counts of the header are not believed before the numbers are there.
        for run in number_runs(stream, first_line=2):
            _check_run(run, num_found, layout, path)
            if fault is None:
                fault = _wrong_value(run, num_found, layout)
                parts.append(run.values)
            num_found += len(run.values)
    if num_found < layout.num_numbers:
        raise FileFormatError(
            f"{path}: the file is cut short: its header ({layout.num_cameras} cameras, "
            f"{layout.num_points} points, {layout.num_observations} observations) calls for "
            f"{layout.num_numbers} numbers after the first line, but {num_found} were found; the "
            f"first missing one is the {layout.name_of(num_found)}"
        )
    if fault is not None:
        raise FileFormatError(f"{path}, {fault}")
    values = np.concatenate(parts)

    observations = values[: layout.cameras_start].reshape(-1, 4)
    camera_values = values[layout.cameras_start : layout.points_start].reshape(-1, 9)
    return BalProblem(
        cameras=np.concatenate(
            [quaternion_from_angle_axis(camera_values[:, :3]), camera_values[:, 3:]], axis=1
        ),
        points=values[layout.points_start :].reshape(-1, 3).copy(),
        camera_index=observations[:, 0].astype(np.int32),
        point_index=observations[:, 1].astype(np.int32),
        pixels=observations[:, 2:].copy(),
    )


def write_bal(path: FilePath, problem: BalProblem) -> None:
    """Write a problem as a BAL text file, so that `read_bal` gives it back.

    Numbers are written with all the digits that float64 has. Quaternions are written as
    angle-axis vectors of the shortest turn: they come back to rounding, of unit length, and with
    w >= 0.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        problem: what to write.

    Raises:
        ValueError: the problem has no cameras, points or observations, an index out of range, a
            number that is not finite, or a quaternion of length zero, or `path` is no path; nothing
            is written then.
        OSError: the file cannot be written; the old one is unchanged.

    Example:
        >>> import caspar
        >>> camera = [0, 0, 0, 1, 0, 0, -4.0, 500, 0, 0]  # qx qy qz qw tx ty tz f k1 k2
        >>> problem = caspar.io.BalProblem(
        ...     cameras=[camera], points=[[0.1, 0.2, 0.0]],
        ...     camera_index=[0], point_index=[0], pixels=[[12.5, 25.0]])
        >>> caspar.io.write_bal("tiny.txt.bz2", problem)  # compressed, by its name
    """
    path = path_text(path)
    _check_writable(problem)
    camera_values = np.concatenate(
        [angle_axis_from_quaternion(problem.cameras[:, :4]), problem.cameras[:, 4:]], axis=1
    )
    counts = f"{problem.num_cameras} {problem.num_points} {problem.num_observations}\n"
    with open_for_packing(path) as stream:
        stream.write(counts.encode())
        for text in _observation_lines(problem):
            stream.write(text)
        for values in (camera_values.ravel(), problem.points.ravel()):
            for start in range(0, len(values), _ROWS_PER_WRITE):
                numbers = values[start : start + _ROWS_PER_WRITE].astype(np.float64).tolist()
                stream.write("".join(f"{number!r}\n" for number in numbers).encode())


@dataclass(frozen=True)
class _Layout:
    num_cameras: int
    num_points: int
    num_observations: int

    @property
    def cameras_start(self) -> int:
        return len(_OBSERVATION_NAMES) * self.num_observations

    @property
    def points_start(self) -> int:
        return self.cameras_start + len(_CAMERA_NAMES) * self.num_cameras

    @property
    def num_numbers(self) -> int:
        return self.points_start + len(_POINT_NAMES) * self.num_points

    def name_of(self, index: int) -> str:
        for what, start, names in (
            ("point", self.points_start, _POINT_NAMES),
            ("camera", self.cameras_start, _CAMERA_NAMES),
            ("observation", 0, _OBSERVATION_NAMES),
        ):
            if index >= start:
                row, column = divmod(index - start, len(names))
                return f"{names[column]} of {what} {row} (counting from 0)"
        raise IndexError(index)


def _read_header(line: bytes, path: str) -> _Layout:
    wanted = f"the first line must hold three positive integers: {' '.join(_HEADER_NAMES)}"
    tokens = line.split()
    if not line:
        raise FileFormatError(f"{path}: the file is empty; {wanted}")
    if len(line) == _LONGEST_HEADER_BYTES and not line.endswith(b"\n"):
        raise FileFormatError(
            f"{path}, line 1: the line is longer than {_LONGEST_HEADER_BYTES} bytes; {wanted}"
        )
    if len(tokens) != len(_HEADER_NAMES):
        found = f"it holds {shown(line.strip())}" if tokens else "it is blank"
        raise FileFormatError(f"{path}, line 1: {wanted}; {found}")
    counts = []
    for name, token in zip(_HEADER_NAMES, tokens, strict=True):
        # The length is limited because Python refuses to convert thousands of digits.
        if _INTEGER.fullmatch(token) is None or len(token) > 40:
            raise FileFormatError(
                f"{path}, line 1: {name} is {shown(token)}, not an integer; {wanted}"
            )
        count = int(token)
        if not 1 <= count <= _LARGEST_COUNT:
            raise FileFormatError(
                f"{path}, line 1: {name} is {count}; it must be 1 to {_LARGEST_COUNT}"
            )
        counts.append(count)
    return _Layout(*counts)


def _check_run(run: NumberRun, start: int, layout: _Layout, path: str) -> None:
    found = start + len(run.values)
    if found > layout.num_numbers or (found == layout.num_numbers and run.stray is not None):
        raise FileFormatError(
            f"{path}, line {run.line_of(layout.num_numbers - start)}: there is text "
            f"after the last of the {layout.num_points} points that the header announces; the "
            "file must end there"
        )
    if run.stray is not None:
        raise FileFormatError(
            f"{path}, line {run.line_of(len(run.values))}: {layout.name_of(found)} is "
            f"{shown(run.stray)}, which is not a number"
        )


def _wrong_value(run: NumberRun, start: int, layout: _Layout) -> str | None:
    is_good = np.isfinite(run.values) & _are_in_range(run.values, start, layout)
    if is_good.all():
        return None
    index = int(np.argmin(is_good))
    number = run.values[index]
    if not np.isfinite(number):
        allowed = "it must be finite"
    elif start + index < layout.cameras_start:
        counts = (layout.num_cameras, layout.num_points)
        largest = counts[(start + index) % len(_OBSERVATION_NAMES)] - 1
        allowed = f"allowed are the integers 0 to {largest}"
    else:
        allowed = f"allowed is {-_LARGEST_ROTATION:g} to {_LARGEST_ROTATION:g}"
    name = layout.name_of(start + index)
    return f"line {run.line_of(index)}: {name} is {number:.17g}; {allowed}"


def _are_in_range(values: NDArray[np.float64], start: int, layout: _Layout) -> NDArray[np.bool_]:
    """Return (num_values,) False for indices and rotations that are out of range."""
    is_good = np.ones(len(values), dtype=np.bool_)
    end = max(0, layout.cameras_start - start)
    for column, count in enumerate((layout.num_cameras, layout.num_points)):
        places = slice((column - start) % len(_OBSERVATION_NAMES), end, len(_OBSERVATION_NAMES))
        indices = values[places]
        is_good[places] = (indices == np.floor(indices)) & (indices >= 0.0) & (indices < count)
    end = max(0, layout.points_start - start)
    for column in range(3):
        first = layout.cameras_start + column - start
        first = first if first >= 0 else first % len(_CAMERA_NAMES)
        places = slice(first, end, len(_CAMERA_NAMES))
        is_good[places] = np.abs(values[places]) <= _LARGEST_ROTATION
    return is_good


def _check_writable(problem: BalProblem) -> None:
    for name in ("cameras", "points", "pixels"):
        array: NDArray[np.float64] = getattr(problem, name)
        if array.shape[0] == 0:
            raise ValueError(f"BalProblem.{name} is empty; a BAL file needs at least one")
        is_finite = np.isfinite(array).all(axis=1)
        if not is_finite.all():
            row = int(np.argmin(is_finite))
            raise ValueError(f"BalProblem.{name}[{row}] is {array[row]}; it must be finite")
    for name, count in (("camera_index", problem.num_cameras), ("point_index", problem.num_points)):
        indices: NDArray[np.int32] = getattr(problem, name)
        is_good = (indices >= 0) & (indices < count)
        if not is_good.all():
            row = int(np.argmin(is_good))
            raise ValueError(
                f"BalProblem.{name}[{row}] is {indices[row]}; it must be 0 to {count - 1}"
            )
    has_direction = problem.cameras[:, :4].any(axis=1)
    if not has_direction.all():
        row = int(np.argmin(has_direction))
        raise ValueError(f"BalProblem.cameras[{row}] has a quaternion of length zero")


def _observation_lines(problem: BalProblem) -> Iterator[bytes]:
    for start in range(0, problem.num_observations, _ROWS_PER_WRITE):
        rows = slice(start, start + _ROWS_PER_WRITE)
        yield "".join(
            f"{camera} {point} {x!r} {y!r}\n"
            for camera, point, (x, y) in zip(
                problem.camera_index[rows].tolist(),
                problem.point_index[rows].tolist(),
                problem.pixels[rows].astype(np.float64).tolist(),
                strict=True,
            )
        ).encode()
