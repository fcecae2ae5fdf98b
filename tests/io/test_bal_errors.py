"""What is said about BAL text files that are wrong."""

import bz2
import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from caspar.errors import CasparError, FileFormatError
from caspar.io import numbers, read_bal
from tests.io.bal_files import (
    DATA,
    FIRST_CAMERA_LINE,
    FIRST_POINT_LINE,
    LINES,
    changed,
    write_lines,
)


def message_of(path: Path) -> str:
    """Return what `read_bal` says is wrong with a file."""
    with pytest.raises(FileFormatError) as caught:
        read_bal(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message


class TestWrongFiles:
    """Files that are wrong: the message says where, what, and what is allowed."""

    def test_missing(self, tmp_path: Path) -> None:
        """A missing file stays a FileNotFoundError, which names it."""
        path = tmp_path / "absent.txt"
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            read_bal(path)

    def test_directory(self, tmp_path: Path) -> None:
        """A directory is no file."""
        assert "directory" in message_of(tmp_path)

    def test_error_classes(self, tmp_path: Path) -> None:
        """A format error is caspar's, and a ValueError."""
        path = write_lines(tmp_path, [])
        for error in (CasparError, ValueError):
            with pytest.raises(error):
                read_bal(path)

    def test_empty(self, tmp_path: Path) -> None:
        """An empty file."""
        message = message_of(write_lines(tmp_path, []))
        assert "the file is empty" in message
        assert "num_cameras num_points num_observations" in message

    def test_empty_bzip2(self, tmp_path: Path) -> None:
        """An empty file with the name of a packed one."""
        assert "is empty" in message_of(write_lines(tmp_path, [], "problem.txt.bz2"))

    @pytest.mark.parametrize(
        ("header", "found"),
        [
            ("", "blank"),
            ("   ", "blank"),
            ("2", "'2'"),
            ("2 2", "'2 2'"),
            ("2 2 3 4", "'2 2 3 4'"),
            (" ".join(LINES), "..."),
        ],
    )
    def test_header_of_wrong_length(self, tmp_path: Path, header: str, found: str) -> None:
        """The first line must hold three numbers."""
        message = message_of(write_lines(tmp_path, changed(1, header)))
        assert "line 1" in message
        assert "three positive integers" in message
        assert found in message

    @pytest.mark.parametrize("count", ["two", "2.0", "2e3", "1_0", "0x2", "nan", "9" * 5000])
    def test_header_not_integer(self, tmp_path: Path, count: str) -> None:
        """Counts must be integers."""
        message = message_of(write_lines(tmp_path, changed(1, f"2 {count} 3")))
        assert "line 1" in message
        if len(count) < 4000:
            assert f"num_points is {count!r}, not an integer" in message

    @pytest.mark.parametrize("count", ["0", "-1", "2147483648", "9" * 30])
    @pytest.mark.parametrize(
        ("column", "name"), list(enumerate(["num_cameras", "num_points", "num_observations"]))
    )
    def test_count_out_of_range(self, tmp_path: Path, column: int, name: str, count: str) -> None:
        """Counts must be positive and fit the indices."""
        tokens = LINES[0].split()
        tokens[column] = count
        message = message_of(write_lines(tmp_path, changed(1, " ".join(tokens))))
        assert f"line 1: {name} is {count}; it must be 1 to 2147483647" in message

    @pytest.mark.parametrize(
        ("line", "text", "what"),
        [
            (3, "1 0 abc 4", "pixel x of observation 1"),
            (3, "1 0 3.25 4,5", "pixel y of observation 1"),
            (3, "1 0 3.2.5 4", "pixel x of observation 1"),
            (3, "1 0 3-2 4", "pixel x of observation 1"),
            (3, "1 0 1_0 4", "pixel x of observation 1"),
            (3, "1 0 0x10 4", "pixel x of observation 1"),
            (3, "1 zero 3 4", "point index of observation 1"),
            (FIRST_CAMERA_LINE + 9 + 6, "f", "focal length of camera 1"),
            (FIRST_POINT_LINE + 5, "--1", "z of point 1"),
        ],
    )
    def test_not_a_number(self, tmp_path: Path, line: int, text: str, what: str) -> None:
        """Text among the numbers is named, with its line and what should stand there."""
        message = message_of(write_lines(tmp_path, changed(line, text)))
        assert f"line {line}: {what} (counting from 0) is " in message
        assert message.endswith("which is not a number")

    @pytest.mark.parametrize("token", ["nan", "NaN", "inf", "-inf", "Infinity", "1e999"])
    @pytest.mark.parametrize(
        ("line", "row", "what"),
        [
            (4, "1 1 {} 7", "pixel x of observation 2"),
            (4, "{} 1 1 7", "camera index of observation 2"),
            (FIRST_CAMERA_LINE + 2, "{}", "rotation z of camera 0"),
            (FIRST_POINT_LINE + 1, "{}", "y of point 0"),
        ],
    )
    def test_not_finite(self, tmp_path: Path, line: int, row: str, what: str, token: str) -> None:
        """NaN and infinity are numbers to a parser, but not allowed."""
        message = message_of(write_lines(tmp_path, changed(line, row.format(token))))
        assert f"line {line}: {what} (counting from 0) is" in message
        assert "must be finite" in message

    @pytest.mark.parametrize(
        ("text", "what", "value", "largest"),
        [
            ("2 0 1 1", "camera index", "2", 1),
            ("-1 0 1 1", "camera index", "-1", 1),
            ("0 2 1 1", "point index", "2", 1),
            ("0 -3 1 1", "point index", "-3", 1),
            ("0.5 0 1 1", "camera index", "0.5", 1),
            ("0 0.25 1 1", "point index", "0.25", 1),
            ("4294967296 0 1 1", "camera index", "4294967296", 1),
        ],
    )
    def test_index(self, tmp_path: Path, text: str, what: str, value: str, largest: int) -> None:
        """Indices must be integers within the counts of the header."""
        message = message_of(write_lines(tmp_path, changed(3, text)))
        assert f"line 3: {what} of observation 1 (counting from 0) is {value};" in message
        assert f"0 to {largest}" in message

    @pytest.mark.parametrize(
        ("num_lines", "found", "missing"),
        [
            (1, 0, "camera index of observation 0"),
            (3, 8, "camera index of observation 2"),
            (FIRST_CAMERA_LINE, 13, "rotation y of camera 0"),
            (FIRST_POINT_LINE - 1, 30, "x of point 0"),
            (len(LINES) - 1, 35, "z of point 1"),
        ],
    )
    def test_truncated(self, tmp_path: Path, num_lines: int, found: int, missing: str) -> None:
        """A file cut short: how many numbers were expected, how many were found."""
        message = message_of(write_lines(tmp_path, LINES[:num_lines]))
        assert "cut short" in message
        assert "calls for 36 numbers" in message
        assert f"but {found} were found;" in message
        assert missing in message

    def test_header_promises_far_too_much(self, tmp_path: Path) -> None:
        """Counts are not believed before the numbers are there."""
        message = message_of(write_lines(tmp_path, changed(1, "2 2 2000000000")))
        assert "but 36 were found;" in message

    @pytest.mark.parametrize("extra", ["7", "the end", "# comment", "1 2 3"])
    def test_trailing_text(self, tmp_path: Path, extra: str) -> None:
        """Nothing may follow the last point."""
        message = message_of(write_lines(tmp_path, [*LINES, "", extra]))
        assert f"line {len(LINES) + 2}: there is text after the last of the 2 points" in message

    def test_too_many_numbers_stop_the_reading(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What follows a surplus is not read: the text at the end is not reported."""
        monkeypatch.setattr(numbers, "_CHUNK_BYTES", 64)
        message = message_of(write_lines(tmp_path, [*LINES, *["1"] * 1000, "text"]))
        assert f"line {len(LINES) + 1}: there is text after" in message

    @pytest.mark.parametrize("suffix", ["bz2", "gz"])
    @pytest.mark.parametrize("kept", [0.02, 0.5, 0.999])
    def test_packed_file_cut_short(self, tmp_path: Path, suffix: str, kept: float) -> None:
        """The end of a packed file is missing."""
        text = bz2.decompress((DATA / "problem-49-7776-pre.txt.bz2").read_bytes())
        packed = bz2.compress(text) if suffix == "bz2" else gzip.compress(text, 1)
        path = tmp_path / f"problem.txt.{suffix}"
        path.write_bytes(packed[: int(kept * len(packed))])
        message = message_of(path)
        assert "cut short" in message
        assert {"bz2": "bzip2", "gz": "gzip"}[suffix] in message

    @pytest.mark.parametrize("suffix", ["bz2", "gz"])
    def test_packed_file_damaged(self, tmp_path: Path, suffix: str) -> None:
        """Some bytes in the middle of a packed file are wrong."""
        text = bz2.decompress((DATA / "problem-49-7776-pre.txt.bz2").read_bytes())
        packed = bytearray(bz2.compress(text) if suffix == "bz2" else gzip.compress(text, 1))
        middle = len(packed) // 2
        packed[middle : middle + 64] = b"\xff" * 64
        path = tmp_path / f"problem.txt.{suffix}"
        path.write_bytes(packed)
        assert "are damaged" in message_of(path)

    @pytest.mark.parametrize(
        ("suffix", "label"), [("bz2", "bzip2"), ("gz", "gzip"), ("BZ2", "bzip2")]
    )
    def test_name_says_packed_but_is_not(self, tmp_path: Path, suffix: str, label: str) -> None:
        """Plain text under the name of a packed file."""
        message = message_of(write_lines(tmp_path, LINES, f"problem.txt.{suffix}"))
        assert f"the name says {label}, but the file does not begin as one" in message

    def test_binary_junk(self, tmp_path: Path) -> None:
        """Bytes that are no text; the message shows them escaped and not all of them."""
        junk = np.random.default_rng(1).integers(0, 256, 100_000, dtype=np.uint8).tobytes()
        path = tmp_path / "junk.txt"
        for content in (junk, b"\x00" * 100_000, b"2 2 3\n" + junk, b"2 2 3\n" + b"\x00" * 100_000):
            path.write_bytes(content)
            message = message_of(path)
            assert message.isascii()
            assert "\x00" not in message
            assert len(message) < 400 + len(str(path))

    def test_long_token(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Text without white space does not pile up until the end of the file."""
        monkeypatch.setattr(numbers, "_CHUNK_BYTES", 4096)
        message = message_of(write_lines(tmp_path, ["2 2 3", "x" * 1_000_000]))
        assert "(4096 bytes), which is not a number" in message
