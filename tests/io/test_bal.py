"""BAL text files: what is read, and what is written."""

import bz2
import gzip
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from caspar.io import BalProblem, numbers, read_bal, write_bal
from caspar.io.rotations import quaternion_from_angle_axis
from tests.io.bal_files import DATA, LINES, changed, write_lines


def snavely_cost(problem: BalProblem) -> float:
    """Return half the sum of squared residuals, written out from the model of the format."""
    cameras = problem.cameras[problem.camera_index]
    x, y, z, w = cameras[:, :4].T
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    world = problem.points[problem.point_index]
    camera = np.einsum("ijn,nj->ni", rotation, world) + cameras[:, 4:7]
    plane = -camera[:, :2] / camera[:, 2:]
    radius_squared = np.sum(plane**2, axis=1)
    focal, k1, k2 = cameras[:, 7:].T
    factor = focal * (1.0 + k1 * radius_squared + k2 * radius_squared**2)
    return float(0.5 * np.sum((factor[:, None] * plane - problem.pixels) ** 2))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> BalProblem:
    """Read the small problem."""
    return read_bal(write_lines(tmp_path_factory.mktemp("small"), LINES))


def assert_same(left: BalProblem, right: BalProblem) -> None:
    """Compare bit for bit, but rotations to rounding and up to the sign of the quaternion."""
    for name in ("points", "camera_index", "point_index", "pixels"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    np.testing.assert_array_equal(left.cameras[:, 4:], right.cameras[:, 4:])
    dots = np.sum(left.cameras[:, :4] * right.cameras[:, :4], axis=1)
    aligned = np.sign(dots)[:, None] * right.cameras[:, :4]
    np.testing.assert_allclose(left.cameras[:, :4], aligned, rtol=0, atol=1e-15)


class TestReading:
    """Files that are right."""

    def test_small(self, small: BalProblem) -> None:
        """Every number arrives where the documentation says."""
        assert (small.num_cameras, small.num_points, small.num_observations) == (2, 2, 3)
        np.testing.assert_array_equal(small.camera_index, [0, 1, 1])
        np.testing.assert_array_equal(small.point_index, [0, 0, 1])
        np.testing.assert_array_equal(small.pixels, [[1.5, -2.5], [3.25, 4], [-10, 7.125]])
        np.testing.assert_array_equal(small.points, [[1, 2, 3], [-4, -5, -6.75]])
        np.testing.assert_array_equal(small.cameras[0], [0, 0, 0, 1, 1, 2, 3, 500, -1e-7, 2e-14])
        np.testing.assert_array_equal(small.cameras[1, 4:], [4, 5, 6, 600.5, 0, 0])
        angle = np.sqrt(0.14)
        vector = np.sin(angle / 2) / angle * np.array([0.1, -0.2, 0.3])
        np.testing.assert_allclose(
            small.cameras[1, :4], [*vector, np.cos(angle / 2)], rtol=1e-15, atol=0
        )

    def test_dtypes(self, small: BalProblem) -> None:
        """Arrays have the documented dtypes and are laid out in rows, not views of the file."""
        for name, dtype in (
            ("cameras", np.float64),
            ("points", np.float64),
            ("pixels", np.float64),
            ("camera_index", np.int32),
            ("point_index", np.int32),
        ):
            array = getattr(small, name)
            assert array.dtype == dtype
            assert array.flags.c_contiguous
            assert array.flags.writeable

    def test_frozen_and_short(self, small: BalProblem) -> None:
        """A problem cannot be rebound, and prints as its sizes."""
        with pytest.raises(FrozenInstanceError):
            small.points = small.points  # type: ignore[misc]
        assert repr(small) == "BalProblem(2 cameras, 2 points, 3 observations)"

    @pytest.mark.parametrize(
        ("name", "sizes", "cost"),
        [
            ("problem-21-11315-pre.txt.bz2", (21, 11_315, 36_455), 4_413_239.314),
            ("problem-49-7776-pre.txt.bz2", (49, 7_776, 31_843), 850_912.461),
        ],
    )
    def test_published(self, name: str, sizes: tuple[int, int, int], cost: float) -> None:
        """The initial cost of published problems is what others compute."""
        problem = read_bal(DATA / name)
        assert (problem.num_cameras, problem.num_points, problem.num_observations) == sizes
        assert snavely_cost(problem) == pytest.approx(cost, abs=6e-4)
        assert np.all(np.diff(problem.point_index) >= 0)

    @pytest.mark.parametrize("separator", [b" ", b"\t", b"\r\n", b"\n\n  \n"])
    def test_white_space_does_not_matter(
        self, tmp_path: Path, small: BalProblem, separator: bytes
    ) -> None:
        """After the header any white space separates numbers."""
        path = tmp_path / "problem.txt"
        body = " ".join(LINES[1:]).split()
        path.write_bytes(b"2 2 3\r\n" + separator.join(token.encode() for token in body))
        assert_same(read_bal(path), small)

    def test_packed(self, tmp_path: Path, small: BalProblem) -> None:
        """Compression is recognised by content, whatever the name."""
        text = ("\n".join(LINES) + "\n").encode()
        for name, packed in (
            ("problem.txt.bz2", bz2.compress(text)),
            ("problem.txt.gz", gzip.compress(text)),
            ("problem.data", bz2.compress(text)),
            ("other.data", gzip.compress(text)),
        ):
            (tmp_path / name).write_bytes(packed)
            assert_same(read_bal(tmp_path / name), small)
            assert_same(read_bal(str(tmp_path / name)), small)

    @pytest.mark.parametrize("chunk_bytes", [1, 7, 64])
    def test_chunks_do_not_matter(
        self, tmp_path: Path, small: BalProblem, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Numbers that lie across the border of two chunks are read whole."""
        monkeypatch.setattr(numbers, "_CHUNK_BYTES", chunk_bytes)
        assert_same(read_bal(write_lines(tmp_path, LINES)), small)

    def test_number_spellings(self, tmp_path: Path, small: BalProblem) -> None:
        """The spellings that C prints and reads are allowed."""
        path = write_lines(tmp_path, changed(2, "0 +0 +1.5E+0 -.25e+01"))
        assert_same(read_bal(path), small)


class TestWriting:
    """Problems as files, and back."""

    @pytest.mark.parametrize("name", ["problem.txt", "problem.txt.bz2", "problem.txt.gz"])
    def test_published_round_trip(self, tmp_path: Path, name: str) -> None:
        """A published problem survives, packed as the name says."""
        problem = read_bal(DATA / "problem-21-11315-pre.txt.bz2")
        write_bal(tmp_path / name, problem)
        head = (tmp_path / name).read_bytes()[:3]
        assert head == {"txt": b"21 ", "bz2": b"BZh", "gz": b"\x1f\x8b\x08"}[name.split(".")[-1]]
        again = read_bal(tmp_path / name)
        assert_same(again, problem)
        assert snavely_cost(again) == pytest.approx(snavely_cost(problem), rel=1e-12)

    @pytest.mark.parametrize("suffix", ["", ".bz2", ".gz"])
    def test_same_bytes(self, tmp_path: Path, small: BalProblem, suffix: str) -> None:
        """Nothing of a file depends on its name or on the time."""
        first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
        write_bal(first, small)
        write_bal(second, small)
        assert first.read_bytes() == second.read_bytes()

    def test_float32(self, tmp_path: Path, small: BalProblem) -> None:
        """Single precision, as a solver may return it, is written as the value it has."""
        single = BalProblem(
            cameras=small.cameras.astype(np.float32),
            points=small.points.astype(np.float32),
            camera_index=small.camera_index.astype(np.int64),
            point_index=small.point_index.astype(np.uint32),
            pixels=small.pixels.astype(np.float32),
        )
        write_bal(tmp_path / "problem.txt", single)
        again = read_bal(tmp_path / "problem.txt")
        np.testing.assert_array_equal(again.points, single.points)
        np.testing.assert_array_equal(again.cameras[:, 4:], single.cameras[:, 4:])
        np.testing.assert_array_equal(again.camera_index, single.camera_index)

    @settings(derandomize=True, deadline=None, max_examples=60)
    @given(data=st.data())
    def test_round_trip(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        """Any problem survives: numbers bit for bit, rotations to rounding."""
        num_cameras, num_points, num_observations = (
            data.draw(st.integers(1, 4), label=name) for name in ("cameras", "points", "pixels")
        )
        finite = st.floats(allow_nan=False, allow_infinity=False)
        rotations = data.draw(
            hnp.arrays(np.float64, (num_cameras, 3), elements=st.floats(-1.8, 1.8))
        )
        others = data.draw(hnp.arrays(np.float64, (num_cameras, 6), elements=finite))

        def indices(count: int) -> NDArray[np.int32]:
            strategy = hnp.arrays(np.int32, num_observations, elements=st.integers(0, count - 1))
            return data.draw(strategy)

        problem = BalProblem(
            cameras=np.concatenate([quaternion_from_angle_axis(rotations), others], axis=1),
            points=data.draw(hnp.arrays(np.float64, (num_points, 3), elements=finite)),
            camera_index=indices(num_cameras),
            point_index=indices(num_points),
            pixels=data.draw(hnp.arrays(np.float64, (num_observations, 2), elements=finite)),
        )
        path = tmp_path_factory.mktemp("round_trip") / "problem.txt"
        write_bal(path, problem)
        assert_same(read_bal(path), problem)

    @pytest.mark.parametrize(
        ("name", "row", "value", "said"),
        [
            ("points", (1, 2), np.nan, "points[1] is"),
            ("cameras", (0, 7), np.inf, "cameras[0] is"),
            ("pixels", (2, 0), -np.inf, "pixels[2] is"),
            ("camera_index", (1,), 2, "camera_index[1] is 2; it must be 0 to 1"),
            ("point_index", (2,), -1, "point_index[2] is -1; it must be 0 to 1"),
            ("cameras", (1, slice(0, 4)), 0.0, "cameras[1] has a quaternion of length zero"),
        ],
    )
    def test_refuses_what_cannot_be_read(
        self,
        tmp_path: Path,
        small: BalProblem,
        name: str,
        row: tuple[int | slice, ...],
        value: float,
        said: str,
    ) -> None:
        """Nothing is written that the reader would refuse."""
        array = getattr(small, name).copy()
        array[row] = value
        path = tmp_path / "problem.txt"
        with pytest.raises(ValueError, match=re.escape(said)):
            write_bal(path, replace(small, **{name: array}))
        assert not path.exists()

    @pytest.mark.parametrize("name", ["cameras", "points"])
    def test_refuses_empty(self, tmp_path: Path, small: BalProblem, name: str) -> None:
        """A file needs at least one of each."""
        with pytest.raises(ValueError, match=f"{name} is empty"):
            write_bal(tmp_path / "p.txt", replace(small, **{name: getattr(small, name)[:0]}))

    @pytest.mark.parametrize(
        ("name", "array"),
        [
            ("cameras", np.zeros((2, 9))),
            ("cameras", np.zeros(10)),
            ("cameras", np.zeros((2, 10), np.int32)),
            ("points", np.zeros((2, 4))),
            ("pixels", np.zeros((3, 3))),
            ("pixels", np.float64(1.0)),
            ("camera_index", np.zeros(4, np.int32)),
            ("camera_index", np.zeros(3)),
            ("point_index", np.zeros((3, 1), np.int32)),
        ],
    )
    def test_shapes(self, small: BalProblem, name: str, array: Any) -> None:
        """Arrays of another shape or kind make no problem."""
        with pytest.raises(ValueError, match=r"BalProblem\.\w+ has shape"):
            replace(small, **{name: array})

    def test_what_numpy_reads(self, tmp_path: Path, small: BalProblem) -> None:
        """Lists become arrays, and are written as those are."""
        lists = {name: array.tolist() for name, array in vars(small).items()}
        made = BalProblem(**lists)
        for problem in (made, replace(small, cameras=lists["cameras"])):
            write_bal(tmp_path / "problem.txt", problem)
            assert_same(read_bal(tmp_path / "problem.txt"), small)
        assert made.num_observations == 3

    @pytest.mark.parametrize("name", ["cameras", "points", "camera_index", "point_index", "pixels"])
    def test_what_is_no_array_of_numbers(self, small: BalProblem, name: str) -> None:
        """The message names the field, whichever it is."""
        array = getattr(small, name)
        wanted = "an integer" if "index" in name else "a floating point"
        wrong: Any
        for wrong in (array.astype(complex), array > 0, array.astype(object), None, iter(array)):
            with pytest.raises(ValueError, match=rf"^BalProblem\.{name} has .* and {wanted} dtype"):
                replace(small, **{name: wrong})
        wrong = [[1.0], [1.0, 2.0]]
        with pytest.raises(ValueError, match=rf"^BalProblem\.{name}: list cannot be read as"):
            replace(small, **{name: wrong})


def test_lists_of_integers_are_numbers() -> None:
    rows: dict[str, Any] = {
        "cameras": [[0, 0, 0, 1, 0, 0, -4, 500, 0, 0]],
        "points": [[1, 2, 3]],
        "camera_index": [0],
        "point_index": [0],
        "pixels": [[1, 2]],
    }
    problem = BalProblem(**rows)
    assert problem.cameras.dtype == problem.points.dtype == problem.pixels.dtype == np.float64
