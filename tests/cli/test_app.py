"""The rest of the command line: progress, the cache, the process."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import caspar
from caspar.cli.outputs import progress_shown
from caspar.progress import iteration, phase
from caspar.runtime.cache import write_entry
from tests.cli.fake_solver import run

ROOT = Path(__file__).parents[2]


class TestProgress:
    """The sign of life."""

    def test_lines_are_occasional(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: now)
        stream = io.StringIO()
        with progress_shown(Console(file=stream), is_quiet=False), phase("solving"):
            with phase("a part of it"):
                pass
            for number in range(1, 13):
                now += 1.0
                iteration(f"iteration {number}".format)
        assert stream.getvalue().splitlines() == ["solving", "iteration 5", "iteration 10"]

    def test_quiet(self) -> None:
        stream = io.StringIO()
        with progress_shown(Console(file=stream), is_quiet=True), phase("solving"):
            iteration("iteration".format)
        assert stream.getvalue() == ""


class TestCache:
    """`caspar cache`."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "cache"
        monkeypatch.setenv("CASPAR_CACHE_DIR", str(path))
        write_entry("plans", "one", b"12345")
        return path

    def test_info(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("cache", "info") == 0
        assert capsys.readouterr().out == f"{folder}: 1 file, 52 bytes, of at most 1.00 GiB\n"

    def test_clear(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "plans" / "my notes.txt").write_text("keep me")
        assert run("cache", "clear") == 0
        assert capsys.readouterr().out == (
            f"deleted: 1 file, 52 bytes in {folder}\nleft alone: 1 file not written by caspar\n"
        )
        assert os.listdir(folder / "plans") == ["my notes.txt"]
        assert run("cache", "clear") == 0

    def test_clear_says_what_is_left(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(path: object) -> None:
            raise PermissionError(path)

        monkeypatch.setattr(Path, "unlink", refuse)
        assert run("cache", "clear") == 2
        assert capsys.readouterr().out == (
            f"not all could be deleted; left in {folder}: 1 file, 52 bytes\n"
        )


class TestProcess:
    """The command line as a process."""

    def test_version(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "caspar", "--version"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.stdout == f"caspar {caspar.__version__}\n"

    def test_light_commands_load_nothing_heavy(self) -> None:
        program = (
            "import sys; from caspar.cli import main; main(['cache', 'info']); print(*sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            timeout=500,
        )
        loaded = done.stdout.split()
        assert not {"cupy", "matplotlib", "llvmlite", "symforce", "sympy"} & set(loaded)

    def test_reader_that_stops_early(self) -> None:
        """As in `caspar doctor | true`."""
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "caspar", "cache", "info"],
                cwd=ROOT,
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
                timeout=500,
            )
        assert done.returncode == 1
        assert done.stderr == ""
