"""PLY files, read back by the rules of the format."""

import bz2
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from caspar.errors import OptionError
from caspar.io import PlyEncoding, read_bal, write_ply
from caspar.io.ply import CAMERA_COLOR, POINT_COLOR
from caspar.io.rotations import quaternion_from_angle_axis, rotate

DATA = Path(__file__).parents[2] / "data"

DTYPE_FROM_NAME = {"float": "<f4", "uchar": "u1"}


def read_vertices(content: bytes) -> NDArray[np.void]:
    """Read the vertices of a PLY file, with the columns that its header declares."""
    head, body = content.split(b"end_header\n", 1)
    lines = head.decode("ascii").splitlines()
    assert lines[0] == "ply"
    keyword, encoding, version = lines[1].split()
    assert (keyword, version) == ("format", "1.0")
    element, name, count = lines[2].split()
    assert (element, name) == ("element", "vertex")
    columns = [line.split() for line in lines[3:]]
    assert all(column[0] == "property" for column in columns)
    dtype = np.dtype([(column[2], DTYPE_FROM_NAME[column[1]]) for column in columns])
    if encoding == "binary_little_endian":
        assert len(body) == int(count) * dtype.itemsize
        return np.frombuffer(body, dtype=dtype)
    assert encoding == "ascii"
    rows = [tuple(map(float, line.split())) for line in body.decode("ascii").splitlines()]
    assert len(rows) == int(count)
    return np.array(rows, dtype=dtype)


def positions(vertices: NDArray[np.void]) -> NDArray[np.float32]:
    """Return (n, 3) positions."""
    return np.stack([vertices[axis] for axis in "xyz"], axis=1)


def colors(vertices: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return (n, 3) colours."""
    return np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=1)


@pytest.mark.parametrize("encoding", PlyEncoding)
def test_points_then_cameras(tmp_path: Path, encoding: PlyEncoding) -> None:
    """Points keep their order; a camera's pose takes its vertex to zero; colours differ."""
    generator = np.random.default_rng(0)
    points = generator.normal(size=(5, 3))
    cameras = np.concatenate(
        [
            quaternion_from_angle_axis(generator.normal(size=(4, 3))),
            generator.normal(size=(4, 6)),
        ],
        axis=1,
    )
    write_ply(tmp_path / "cloud.ply", points, cameras, encoding=encoding)
    vertices = read_vertices((tmp_path / "cloud.ply").read_bytes())
    np.testing.assert_array_equal(positions(vertices)[:5], points.astype(np.float32))
    centres = positions(vertices)[5:].astype(np.float64)
    np.testing.assert_allclose(
        rotate(cameras[:, :4], centres) + cameras[:, 4:7], np.zeros((4, 3)), atol=1e-6
    )
    np.testing.assert_array_equal(colors(vertices)[:5], [POINT_COLOR] * 5)
    np.testing.assert_array_equal(colors(vertices)[5:], [CAMERA_COLOR] * 4)
    assert POINT_COLOR != CAMERA_COLOR


@pytest.mark.parametrize("encoding", PlyEncoding)
def test_strings_and_lists(tmp_path: Path, encoding: PlyEncoding) -> None:
    """An encoding may be named by its value, and arrays may be what NumPy reads as numbers."""
    points, cameras = [[1, 2, 3]], [[0, 0, 0, 1, 1, 2, 3.0]]
    for name, given in (("member", encoding), ("value", encoding.value)):
        write_ply(tmp_path / name, np.array(points), np.array(cameras), encoding=given)
    assert (tmp_path / "member").read_bytes() == (tmp_path / "value").read_bytes()
    as_lists: Any = points, cameras
    write_ply(tmp_path / "lists", *as_lists, encoding=encoding)
    assert (tmp_path / "member").read_bytes() == (tmp_path / "lists").read_bytes()


@pytest.mark.parametrize("encoding", ["binary", "ASCII", None, True])
def test_unknown_encodings(tmp_path: Path, encoding: Any) -> None:
    says = "encoding=.*: must be one of 'binary_little_endian', 'ascii'"
    with pytest.raises(OptionError, match=says):
        write_ply(tmp_path / "cloud.ply", np.zeros((1, 3)), np.ones((1, 7)), encoding=encoding)
    assert not (tmp_path / "cloud.ply").exists()


def test_exact_bytes(tmp_path: Path) -> None:
    """The file of one point and one camera, byte for byte."""
    write_ply(
        tmp_path / "cloud.ply", np.array([[1.0, 2.0, -4.0]]), np.array([[0.0] * 3 + [1.0] * 4])
    )
    assert (tmp_path / "cloud.ply").read_bytes() == (
        b"ply\nformat binary_little_endian 1.0\nelement vertex 2\n"
        b"property float x\nproperty float y\nproperty float z\n"
        b"property uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n"
        b"\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x80\xc0\xc8\xc8\xc8"
        b"\x00\x00\x80\xbf\x00\x00\x80\xbf\x00\x00\x80\xbf\xff\x3c\x28"
    )


def test_published_problem(tmp_path: Path) -> None:
    """A whole problem, packed as the name says."""
    problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    write_ply(tmp_path / "cloud.ply.bz2", problem.points, problem.cameras)
    vertices = read_vertices(bz2.decompress((tmp_path / "cloud.ply.bz2").read_bytes()))
    assert len(vertices) == problem.num_points + problem.num_cameras


def test_quaternion_length_does_not_matter(tmp_path: Path) -> None:
    """A quaternion that has drifted from unit length gives the centre of its direction."""
    cameras = np.array([[0.5, 0.5, 0.5, 0.5, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0]])
    write_ply(tmp_path / "cloud.ply", np.empty((0, 3)), cameras)
    first, second = positions(read_vertices((tmp_path / "cloud.ply").read_bytes()))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, [-2.0, -3.0, -1.0])


@pytest.mark.parametrize("encoding", PlyEncoding)
def test_nothing(tmp_path: Path, encoding: PlyEncoding) -> None:
    """No points and no cameras make a file without vertices."""
    write_ply(tmp_path / "cloud.ply", np.empty((0, 3)), np.empty((0, 10)), encoding=encoding)
    assert len(read_vertices((tmp_path / "cloud.ply").read_bytes())) == 0


@pytest.mark.parametrize(
    ("points", "cameras", "said"),
    [
        (np.zeros((2, 2)), np.zeros((0, 7)), r"points has shape \(2, 2\); it must be"),
        (np.zeros(3), np.zeros((0, 7)), r"points has shape \(3,\); it must be"),
        (np.zeros((2, 3)), np.ones((1, 6)), r"cameras has shape \(1, 6\); it must be"),
        (np.zeros((2, 3)), np.ones(10), r"cameras has shape \(10,\); it must be"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), np.ones((1, 7)), r"points\[1\] is at"),
        (np.array([[0, 0, 1e39]]), np.ones((1, 7)), r"points\[0\] is at .* 32-bit"),
        (np.zeros((2, 3)), np.array([[0, 0, 0, 1, np.inf, 0, 0]]), r"cameras\[0\] is at"),
        (np.zeros((2, 3)), np.zeros((1, 7)), r"cameras\[0\] has a quaternion of length zero"),
        (np.zeros((2, 3), complex), np.ones((1, 7)), "points has dtype complex128; allowed are fl"),
        (np.zeros((2, 3)), np.ones((1, 7), complex), "cameras has dtype complex128; allowed are"),
        (np.zeros((2, 3), bool), np.ones((1, 7)), "points has dtype bool; allowed are floating"),
        (np.zeros((2, 3), object), np.ones((1, 7)), r"points has dtype object; .*dtype=float\)"),
        ([["1", "2", "3"]], np.ones((1, 7)), "points has dtype <U1; allowed are floating types"),
        ([[1, 2, 3], [4]], np.ones((1, 7)), "points: list cannot be read as an array"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_wrong_arrays(tmp_path: Path, points: Any, cameras: NDArray[np.float64], said: str) -> None:
    """Arrays that cannot be drawn are refused before anything is written."""
    with pytest.raises(ValueError, match=said):
        write_ply(tmp_path / "cloud.ply", points, cameras)
    assert not (tmp_path / "cloud.ply").exists()
