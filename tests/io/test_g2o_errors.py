"""What is said about g2o text files that are wrong."""

from pathlib import Path

import numpy as np
import pytest

from caspar.errors import FileFormatError
from caspar.io import read_g2o
from tests.io.g2o_files import (
    DATA,
    INFORMATION_SE2,
    INFORMATION_SE3,
    LINES_SE2,
    LINES_SE3,
    message_of,
)


class TestWrongFiles:
    """Files that are wrong: the message says where, what, and what is allowed."""

    def test_missing(self, tmp_path: Path) -> None:
        """A missing file stays a FileNotFoundError."""
        with pytest.raises(FileNotFoundError, match=r"absent\.g2o"):
            read_g2o(tmp_path / "absent.g2o")

    def test_directory(self, tmp_path: Path) -> None:
        """A directory is no file."""
        with pytest.raises(FileFormatError, match="directory"):
            read_g2o(tmp_path)

    @pytest.mark.parametrize("lines", [[], ["", "# only a comment"], ["FIX 0"]])
    def test_nothing(self, tmp_path: Path, lines: list[str]) -> None:
        """A file without vertices and edges."""
        assert "holds no vertices and no edges" in message_of(tmp_path, lines)

    def test_cut_short(self, tmp_path: Path) -> None:
        """A packed file that ends too early."""
        path = tmp_path / "graph.g2o.bz2"
        path.write_bytes((DATA / "M3500.g2o.bz2").read_bytes()[:100_000])
        with pytest.raises(FileFormatError, match="bzip2 data are cut short"):
            read_g2o(path)

    @pytest.mark.parametrize(
        "line",
        [
            "VERTEX_CAM 3 1 2",
            "EDGE_SE2_XY_CALIB 10 7 1 2 1 0 1",
            "VERTEX2 0 0 0 0",
            "vertex_se2 0 0 0 0",
            "hello",
            "0 0 0",
        ],
    )
    def test_unknown_line(self, tmp_path: Path, line: str) -> None:
        """Lines of other kinds are refused, not dropped."""
        message = message_of(tmp_path, [*LINES_SE2, line])
        assert f"line 5: lines of the kind '{line.split()[0]}' are not read" in message
        assert "VERTEX_SE2, VERTEX_SE3:QUAT, EDGE_SE2, EDGE_SE3:QUAT, FIX" in message

    def test_binary_junk(self, tmp_path: Path) -> None:
        """Bytes that are no text are shown escaped and not all of them."""
        path = tmp_path / "junk.g2o"
        path.write_bytes(
            np.random.default_rng(1).integers(128, 256, 9999, dtype=np.uint8).tobytes()
        )
        with pytest.raises(FileFormatError) as caught:
            read_g2o(path)
        assert str(caught.value).isascii()
        assert len(str(caught.value)) < 400 + len(str(path))

    def test_mixed(self, tmp_path: Path) -> None:
        """Poses in the plane and in space do not go together."""
        message = message_of(tmp_path, [*LINES_SE2, *LINES_SE3])
        assert "line 5: an SE3 line in a file that began with SE2" in message

    @pytest.mark.parametrize(
        ("line", "found", "needed"),
        [
            ("VERTEX_SE2", 0, 4),
            ("VERTEX_SE2 3", 1, 4),
            ("VERTEX_SE2 3 1 2", 3, 4),
            ("VERTEX_SE2 3 1 2 3 4", 5, 4),
            ("EDGE_SE2 10 7 3 4 1.5", 5, 11),
            (f"EDGE_SE2 10 7 3 4 1.5 {INFORMATION_SE2} 1", 12, 11),
        ],
    )
    def test_wrong_length(self, tmp_path: Path, line: str, found: int, needed: int) -> None:
        """A line with too few or too many entries."""
        message = message_of(tmp_path, [*LINES_SE2, line])
        assert f"line 5: an SE2 {'vertex' if line[0] == 'V' else 'edge'} has {found} " in message
        assert f"it must have {needed} " in message

    def test_one_entry_too_many_and_one_too_few(self, tmp_path: Path) -> None:
        """Two wrong lines do not make up for each other."""
        lines = ["VERTEX_SE2 0 0 0", "VERTEX_SE2 1 0 0 0 0"]
        assert "line 1: an SE2 vertex has 3 entries" in message_of(tmp_path, lines)

    @pytest.mark.parametrize(
        "name", ["-1", "1.5", "x", "1e3", "+1", "1_0", "9223372036854775808", "9" * 5000]
    )
    @pytest.mark.parametrize("line", ["VERTEX_SE2 {} 0 0 0", "EDGE_SE2 10 {} 0 0 0 1 0 0 1 0 1"])
    def test_bad_id(self, tmp_path: Path, line: str, name: str) -> None:
        """Ids are natural numbers."""
        message = message_of(tmp_path, [*LINES_SE2, line.format(name)])
        assert "line 5: " in message
        assert "is not a vertex id; allowed are the integers 0 to 2^63 - 1" in message

    @pytest.mark.parametrize(
        ("line", "token"),
        [("VERTEX_SE2 3 0 abc 0", "'abc'"), ("EDGE_SE2 10 7 3 4 1,5 1 0 0 1 0 1", "'1,5'")],
    )
    def test_not_a_number(self, tmp_path: Path, line: str, token: str) -> None:
        """Text among the numbers."""
        message = message_of(tmp_path, [*LINES_SE2, line, "VERTEX_SE2 99 0 0 0"])
        assert f"line 5: {token} is not a number" in message

    @pytest.mark.parametrize("token", ["nan", "inf", "-Infinity", "1e400"])
    def test_not_finite(self, tmp_path: Path, token: str) -> None:
        """NaN and infinity are numbers to a parser, but not allowed."""
        message = message_of(tmp_path, [*LINES_SE2, f"VERTEX_SE2 3 0 {token} 0"])
        assert "line 5: an SE2 vertex holds a number that is not finite" in message

    def test_declared_twice(self, tmp_path: Path) -> None:
        """A vertex with two poses."""
        message = message_of(tmp_path, [*LINES_SE2, "VERTEX_SE2 7 0 0 0"])
        assert "line 5: vertex 7 was declared before, in line 2" in message

    def test_edge_to_nowhere(self, tmp_path: Path) -> None:
        """An edge to a vertex that is not there."""
        message = message_of(tmp_path, [*LINES_SE2, f"EDGE_SE2 7 8 0 0 0 {INFORMATION_SE2}"])
        assert "line 5: the edge names vertex 8" in message

    @pytest.mark.parametrize("start", [0, 3], ids=["with vertices", "without"])
    def test_edge_to_itself(self, tmp_path: Path, start: int) -> None:
        """An edge that joins a vertex with itself."""
        lines = [*LINES_SE2[start:], f"EDGE_SE2 7 7 0 0 0 {INFORMATION_SE2}"]
        message = message_of(tmp_path, lines)
        assert f"line {len(lines)}: the edge joins vertex 7 with itself" in message

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("FIX", "names no vertex"),
            ("FIX 10 5", "names vertex 5"),
            ("FIX ten", "'ten' is not a vertex id"),
        ],
    )
    def test_fix(self, tmp_path: Path, line: str, said: str) -> None:
        """FIX must name vertices that are there."""
        message = message_of(tmp_path, [*LINES_SE2, line])
        assert "line 5: " in message
        assert said in message

    @pytest.mark.parametrize("quaternion", ["0 0 0 0", "1 0 0 1", "0 0 0 0.98"])
    def test_quaternion(self, tmp_path: Path, quaternion: str) -> None:
        """A quaternion must be of unit length to the rounding of the text."""
        line = f"VERTEX_SE3:QUAT 2 0 0 0 {quaternion}"
        message = message_of(tmp_path, [*LINES_SE3, line])
        assert "line 4: the quaternion (qx qy qz qw) has length" in message
        line = f"EDGE_SE3:QUAT 1 0 0 0 0 {quaternion} {INFORMATION_SE3}"
        assert "line 4: the quaternion" in message_of(tmp_path, [*LINES_SE3, line])
