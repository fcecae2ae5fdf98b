"""Write points and camera centres as a PLY point cloud, to be looked at in a viewer.

Input: arrays in caspar's storage order. Output: a PLY 1.0 file (G. Turk, 1994) with one vertex
element: x, y, z as 32-bit floats and red, green, blue as bytes, which every common viewer reads.
Cost: once per file.
"""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from caspar.errors import OptionError
from caspar.io.compressed import FilePath, path_text
from caspar.io.replace import open_for_packing
from caspar.io.rotations import conjugate, rotate, scaled_quaternion
from caspar.user_arrays import as_numpy, object_advice

POINT_COLOR = (200, 200, 200)
CAMERA_COLOR = (255, 60, 40)

_POSE_DIM = 7
_ROWS_PER_WRITE = 1 << 16
_VERTEX = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("red", "u1"), ("green", "u1"), ("blue", "u1")]
)


class PlyEncoding(Enum):
    """The encoding of the vertices; the value is its name in the file's header."""

    BINARY = "binary_little_endian"
    ASCII = "ascii"


def write_ply(
    path: FilePath,
    points: NDArray[np.floating],
    cameras: NDArray[np.floating],
    *,
    encoding: str | PlyEncoding = PlyEncoding.BINARY,
) -> None:
    """Write points, and the centres of cameras in another colour.

    Args:
        path: the file to create or replace; packed if it ends in .bz2 or .gz.
        points: (num_points, 3), world coordinates; there may be none.
        cameras: (num_cameras, 7 or more): qx qy qz qw tx ty tz, the pose that takes world to
            camera coordinates; further columns are not used. There may be none.
        encoding: a member of `PlyEncoding` or its value: binary, or readable text of three times
            the size.

    Raises:
        ValueError: an array has a wrong shape, masked entries or numbers that are not real, a
            position is not finite in 32-bit floats, a quaternion has length zero, `path` is no path
            or `encoding` none of these; nothing is written then.
        OSError: the file cannot be written; the old one is unchanged.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> points, cameras = np.array([[0.1, 0.2, 0.0]]), np.array([[0, 0, 0, 1, 0, 0, 4.0]])
        >>> caspar.io.write_ply("scene.ply", points, cameras)
    """
    path = path_text(path)
    try:
        encoding = PlyEncoding(encoding)
    except ValueError as error:
        allowed = ", ".join(repr(member.value) for member in PlyEncoding)
        raise OptionError(f"encoding={encoding!r}: must be one of {allowed}") from error
    point_positions = _numbers("points", points)
    poses = _numbers("cameras", cameras)
    if point_positions.ndim != 2 or point_positions.shape[1] != 3:
        raise ValueError(f"points has shape {point_positions.shape}; it must be (num_points, 3)")
    if poses.ndim != 2 or poses.shape[1] < _POSE_DIM:
        raise ValueError(
            f"cameras has shape {poses.shape}; it must be (num_cameras, {_POSE_DIM} or more)"
        )
    vertices = np.concatenate(
        [
            _vertices("points", point_positions, POINT_COLOR),
            _vertices("cameras", _camera_centres(poses), CAMERA_COLOR),
        ]
    )
    with open_for_packing(path) as stream:
        stream.write(_header(len(vertices), encoding))
        for start in range(0, len(vertices), _ROWS_PER_WRITE):
            rows = vertices[start : start + _ROWS_PER_WRITE]
            if encoding is PlyEncoding.BINARY:
                stream.write(rows.tobytes())
            else:
                stream.write(_ascii_lines(rows))


def _numbers(name: str, given: object) -> NDArray[np.float64]:
    array = as_numpy(name, given)
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"{name} has dtype {array.dtype}; allowed are floating types and integers"
            f"{object_advice(given, array)}"
        )
    return array.astype(np.float64, copy=False)


def _camera_centres(cameras: NDArray[np.float64]) -> NDArray[np.float64]:
    quaternion = scaled_quaternion(cameras[:, :4])
    length = np.linalg.norm(quaternion, axis=1, keepdims=True)
    if not length.all():
        row = int(np.argmin(length))
        raise ValueError(f"cameras[{row}] has a quaternion of length zero")
    return -rotate(conjugate(quaternion / length), cameras[:, 4:_POSE_DIM])


def _vertices(
    name: str, positions: NDArray[np.float64], color: tuple[int, int, int]
) -> NDArray[np.void]:
    with np.errstate(over="ignore"):
        single = positions.astype(np.float32)
    is_finite = np.isfinite(single).all(axis=1)
    if not is_finite.all():
        row = int(np.argmin(is_finite))
        raise ValueError(
            f"{name}[{row}] is at {positions[row]}; a position must be finite in 32-bit floats"
        )
    vertices = np.empty(len(positions), dtype=_VERTEX)
    for axis, field in enumerate(("x", "y", "z")):
        vertices[field] = single[:, axis]
    for channel, field in zip(color, ("red", "green", "blue"), strict=True):
        vertices[field] = channel
    return vertices


def _header(num_vertices: int, encoding: PlyEncoding) -> bytes:
    lines = [
        "ply",
        f"format {encoding.value} 1.0",
        f"element vertex {num_vertices}",
        *(f"property float {field}" for field in ("x", "y", "z")),
        *(f"property uchar {field}" for field in ("red", "green", "blue")),
        "end_header",
        "",
    ]
    return "\n".join(lines).encode("ascii")


def _ascii_lines(vertices: NDArray[np.void]) -> bytes:
    """Format vertices as text; nine digits give a 32-bit float back exactly."""
    return "".join(
        f"{x:.9g} {y:.9g} {z:.9g} {red} {green} {blue}\n"
        for x, y, z, red, green, blue in vertices.tolist()
    ).encode("ascii")
