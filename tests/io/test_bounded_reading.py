"""Readers take no more memory than the numbers of a file, and read it once."""

import bz2
import contextlib
import gzip
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caspar.errors import FileFormatError
from caspar.io import compressed, numbers, read_bal, read_g2o
from caspar.io.graphs.lines import LONGEST_LINE_BYTES
from caspar.io.numbers import LONGEST_NUMBER
from tests.io import bal_files, g2o_files
from tests.io.bal_files import LINES, changed

ROOT = Path(__file__).parents[2]
READERS: dict[str, Callable[[Path | str], Any]] = {"bal": read_bal, "g2o": read_g2o}
BAL_TEXT = "".join(f"{line}\n" for line in LINES).encode()
G2O_TEXT = "".join(f"{line}\n" for line in g2o_files.LINES_SE2).encode()

MEMORY_BYTES = 1 << 29  # beyond what the process has after its imports
PROGRAM = """\
import resource, sys
import numpy as np
from caspar.errors import FileFormatError
from caspar.io import read_bal, read_g2o
in_use = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (in_use + int(sys.argv[3]),) * 2)
try:
    (read_bal if sys.argv[1] == "bal" else read_g2o)(sys.argv[2])
except FileFormatError as error:
    print(error)
"""


def said_within_memory(reader: str, path: Path | str, memory_bytes: int = MEMORY_BYTES) -> str:
    """What a reader says of a file in a process of little memory."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, reader, str(path), str(memory_bytes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.startswith(str(path)), found.stdout
    return found.stdout


def pack_bz2(path: Path, head: bytes, piece: bytes) -> None:
    """Write a packed file a thousandth of its content: one packed block many times."""
    block = piece * (2**20 // len(piece))
    path.write_bytes(bz2.compress(head) + 24 * bz2.compress(block))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
class TestMemory:
    """In 512 MiB beyond the imports."""

    @pytest.mark.parametrize(
        ("reader", "head", "piece", "said"),
        [
            ("g2o", b"", b"x", f"line 1: the line is longer than {LONGEST_LINE_BYTES} bytes"),
            ("g2o", b"FIX 0\n", b"# ", f"line 2: the line is longer than {LONGEST_LINE_BYTES}"),
            pytest.param(
                *("g2o", b"", b"FIX 0\n", "grow to more than 500 times their size"),
                marks=pytest.mark.reliability,
            ),
            pytest.param(
                *("g2o", b"", b"\n", "grow to more than 500 times their size"),
                marks=pytest.mark.reliability,
            ),
            pytest.param(
                *("g2o", b"", b"VERTEX_SE2 0 0 0 0\n", "grow to more than 500 times their size"),
                marks=pytest.mark.reliability,
            ),
            (
                *("g2o", b"", b"VERTEX_SE2 0 0 0 0".ljust(255) + b"\n"),
                "grow to more than 500 times their size",
            ),
            ("bal", b"", b"1", "line 1: the line is longer than 4096 bytes"),
            ("bal", b"", b"\n", "line 1: the first line must hold three positive integers"),
            ("bal", b"2 2 3\n", b"1", "line 2: camera index of observation 0 (counting from 0) is"),
            ("bal", b"2 2 3\n", b" ", "grow to more than 500 times their size"),
            ("bal", b"2 2 2000000000\n", b"0 ", "grow to more than 500 times their size"),
        ],
    )
    def test_packed(
        self, tmp_path: Path, reader: str, head: bytes, piece: bytes, said: str
    ) -> None:
        """Megabytes in some kilobytes; what is not refused by then would go on."""
        path = tmp_path / "bomb.bz2"
        pack_bz2(path, head, piece)
        assert path.stat().st_size < 100_000
        assert said in said_within_memory(reader, path)

    @pytest.mark.parametrize("reader", READERS)
    @pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
    def test_devices_without_end(self, reader: str, device: str) -> None:
        """Random bytes may begin with lines that are empty or comments."""
        assert re.search(r"line \d+", said_within_memory(reader, device))

    def test_counts_are_not_believed(self, tmp_path: Path) -> None:
        """Two thousand million cameras, points and observations of 36 numbers."""
        path = bal_files.write_lines(tmp_path, changed(1, " ".join(["2147483647"] * 3)))
        assert "but 36 were found;" in said_within_memory("bal", path)

    def test_honest_numbers_fit(self, tmp_path: Path) -> None:
        """Ten megabytes of one-digit numbers and as many tokens."""
        path = tmp_path / "many.txt"
        path.write_bytes(b"1 1 1250000\n" + b"0 " * 5_000_000 + b"0 " * 11 + b"x")
        assert "z of point 0 (counting from 0) is 'x'" in said_within_memory("bal", path)

    def test_long_lines_do_not_pile_up(self, tmp_path: Path) -> None:
        """Vertices with a megabyte of spaces each, and one that is wrong: in half the memory."""
        path = tmp_path / "wide.g2o"
        spaces = b" " * 1_000_000
        with path.open("wb") as file:
            for index in range(200):
                file.write(b"VERTEX_SE2 %d 0%s0 0\n" % (index, spaces))
            file.write(b"VERTEX_SE2 0 0 0 0\n")
        said = said_within_memory("g2o", path, MEMORY_BYTES // 2)
        assert "line 201: vertex 0 was declared before" in said
        path.unlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs of POSIX")
class TestOnce:
    """FIFOs and standard input are read from beginning to end, whatever is wrong with them."""

    def read_fifo(self, folder: Path, reader: str, content: bytes) -> Any:
        path = folder / "fifo"
        os.mkfifo(path)

        def feed() -> None:
            # A reader that refuses the file closes it before its end.
            with contextlib.suppress(BrokenPipeError), path.open("wb", buffering=0) as file:
                file.write(content)

        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        try:
            return READERS[reader](path)
        finally:
            feeder.join(20)
            assert not feeder.is_alive()

    @pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress])
    def test_good(self, tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
        (tmp_path / "bal").mkdir()
        assert self.read_fifo(tmp_path, "g2o", pack(G2O_TEXT)).num_edges == 1
        assert self.read_fifo(tmp_path / "bal", "bal", pack(BAL_TEXT)).num_observations == 3

    @pytest.mark.parametrize("pack", [bytes, bz2.compress, gzip.compress])
    @pytest.mark.parametrize("first", [1, 2])
    def test_short_first_writes(
        self, tmp_path: Path, pack: Callable[[bytes], bytes], first: int
    ) -> None:
        """The first bytes tell the compression, also if they come singly."""
        path, content = tmp_path / "fifo", pack(BAL_TEXT)
        os.mkfifo(path)

        def feed() -> None:
            with path.open("wb", buffering=0) as file:
                for start, end in ((0, first), (first, 3), (3, len(content))):
                    file.write(content[start:end])
                    time.sleep(0.1)

        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        assert read_bal(path).num_observations == 3
        feeder.join(20)

    @pytest.mark.parametrize(
        ("reader", "content", "said"),
        [
            ("bal", b"", "the file is empty"),
            ("bal", b"2 2\n", "line 1: the first line"),
            ("bal", BAL_TEXT.replace(b"3.25", b"x"), "line 3: pixel x of observation 1"),
            ("bal", BAL_TEXT.replace(b"3.25", b"nan"), "line 3: pixel x of observation 1"),
            ("bal", BAL_TEXT.replace(b"\n1 0", b"\n2 0"), "line 3: camera index of observation 1"),
            ("bal", BAL_TEXT[:-7], "cut short"),
            ("bal", BAL_TEXT + b"7\n", f"line {len(LINES) + 1}: there is text after"),
            ("bal", bz2.compress(BAL_TEXT)[:-9], "bzip2 data are cut short"),
            ("g2o", b"", "no vertices and no edges"),
            ("g2o", G2O_TEXT + b"VERTEX_SE2 7 0 0 0\n", "line 5: vertex 7 was declared before"),
            ("g2o", G2O_TEXT + b"VERTEX_SE2 8 0 x 0\n", "line 5: 'x' is not a number"),
            ("g2o", gzip.compress(G2O_TEXT, mtime=0)[:-9], "gzip data are cut short"),
        ],
    )
    def test_wrong(self, tmp_path: Path, reader: str, content: bytes, said: str) -> None:
        with pytest.raises(FileFormatError) as caught:
            self.read_fifo(tmp_path, reader, content)
        assert said in str(caught.value)

    @pytest.mark.parametrize("reader", READERS)
    def test_standard_input(self, reader: str) -> None:
        program = f"from caspar.io import *; print(read_{reader}('/dev/stdin'))"
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            input=bz2.compress(BAL_TEXT if reader == "bal" else G2O_TEXT),
            capture_output=True,
            check=True,
            timeout=500,
        )
        assert b"BalProblem(2 cameras" in found.stdout or b"PoseGraph(SE2, 2" in found.stdout


class TestNumbers:
    """Tokens at the limits, wherever chunks end."""

    @pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 22])
    @pytest.mark.parametrize("digits", [LONGEST_NUMBER, LONGEST_NUMBER + 1, 5000])
    def test_long_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, digits: int
    ) -> None:
        """A long number is read whole or refused, never as two."""
        monkeypatch.setattr(numbers, "_CHUNK_BYTES", chunk_bytes)
        token = "0" * (digits - 4) + "3.25"
        path = bal_files.write_lines(tmp_path, changed(3, f"1 0 {token} 4"))
        if digits <= LONGEST_NUMBER:
            assert read_bal(path).pixels[1, 0] == 3.25
            return
        with pytest.raises(FileFormatError, match="line 3: pixel x of observation 1"):
            read_bal(path)

    def test_tokens_side_by_side(self) -> None:
        """One number too many never makes up for a token of which a part is read."""
        good = (b"1", b"-2.5", b"1e5", b"5.", b"nan", b"-inf", b"1e400")
        bad = (b"1e", b"1e+", b"3x", b"1.2.3", b"3-2", b".", b"-", b"e1", b"1_0", b"0x1", b"1+nan")
        for length in (1, 2, 3):
            for tokens in itertools.product(good + bad, repeat=length):
                run = numbers.parse_numbers(b" ".join(tokens))
                read = list(itertools.takewhile(lambda token: token in good, tokens))
                assert run.stray == (tokens[len(read)] if len(read) < length else None), tokens
                np.testing.assert_array_equal(run.values, [float(token) for token in read])

    def test_warnings_filters_are_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are the process's: two threads that set and restore them leave them wrong."""
        paths = [
            bal_files.write_lines(tmp_path, changed(3, f"1 0 3.25 {token}"), token)
            for token in ("4", "4x")
        ]
        with monkeypatch.context() as patch:
            patch.setattr(warnings, "catch_warnings", None)
            patch.setattr(warnings, "simplefilter", None)
            assert read_bal(paths[0]).num_observations == 3
            said = ""
            try:
                read_bal(paths[1])
            except FileFormatError as error:
                said = str(error)
        assert "line 3: pixel y of observation 1" in said

    @pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1000])
    def test_lines_are_counted_across_chunks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
    ) -> None:
        monkeypatch.setattr(numbers, "_CHUNK_BYTES", chunk_bytes)
        for line in range(5, len(LINES) + 1):
            path = bal_files.write_lines(tmp_path, changed(line, "\n\r\n nan"))
            with pytest.raises(FileFormatError, match=rf"line {line + 2}: .* is nan"):
                read_bal(path)

    def test_many_turns_are_of_unit_length(self, tmp_path: Path) -> None:
        """Rotation vectors of any length that is allowed."""
        for angle in (1e-320, 1e-160, 1.0, 4e5, 1e17, 1e300):
            path = bal_files.write_lines(tmp_path, changed(5, repr(angle)))
            quaternion = read_bal(path).cameras[0, :4]
            np.testing.assert_allclose(np.linalg.norm(quaternion), 1.0, rtol=1e-15)
        path = bal_files.write_lines(tmp_path, changed(5, "1e301"))
        with pytest.raises(FileFormatError, match=r"line 5: rotation x of camera 0 .* 1e\+300"):
            read_bal(path)

    def test_many_lines_are_parsed_piecewise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("caspar.io.graphs.lines._LINES_AT_ONCE", 3)
        lines = [f"VERTEX_SE2 {index} {index} 0 0" for index in range(10)]
        path = g2o_files.write_lines(tmp_path, [*lines, *g2o_files.LINES_SE2[3:]][:10])
        graph = read_g2o(path)
        np.testing.assert_array_equal(graph.poses[:, 2], np.arange(10))
        lines[7] = "VERTEX_SE2 7 x 0 0"
        assert "line 8: 'x' is not a number" in g2o_files.message_of(tmp_path, lines)

    def test_chained_poses_beyond_float64(self, tmp_path: Path) -> None:
        edges = [f"EDGE_SE2 {i} {i + 1} 1.5e308 0 0 {g2o_files.INFORMATION_SE2}" for i in range(3)]
        assert "too large for float64" in g2o_files.message_of(tmp_path, edges)


@pytest.mark.parametrize("ratio", [2, 10_000])
def test_ratio_of_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: int) -> None:
    """The limit concerns large contents that are packed to almost nothing."""
    monkeypatch.setattr(compressed, "_ALWAYS_UNPACKED_BYTES", 1000)
    monkeypatch.setattr(compressed, "_LARGEST_RATIO", ratio)
    path = tmp_path / "graph.gz"
    path.write_bytes(gzip.compress(G2O_TEXT + b"\n" * 100_000))
    if ratio == 2:
        with pytest.raises(FileFormatError, match="gzip data grow to more than 2 times"):
            read_g2o(path)
    else:
        assert read_g2o(path).num_edges == 1
