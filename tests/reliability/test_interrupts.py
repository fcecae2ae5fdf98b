"""Ctrl-C at random times: afterwards all is as before.

While solvers are made, compiled and run, and while files are written. A timer raises SIGINT after a
random time, in a process of its own. The bounded part runs with all tests; the long one behind the
marker `reliability`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def hits_and_output(module: str, count: int, folder: Path) -> tuple[int, str]:
    """Run a module, which prints how many interrupts have hit."""
    program = [sys.executable, "-m", f"tests.reliability.{module}", str(count), str(folder)]
    found = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert found.returncode == 0, found.stderr
    return int(found.stdout.split()[0]), found.stdout


@pytest.mark.parametrize(
    "count", [8, pytest.param(300, marks=pytest.mark.reliability)], ids=["few", "many"]
)
def test_everything_works_after_random_interrupts(count: int, tmp_path: Path) -> None:
    hits, output = hits_and_output("interrupted", count, tmp_path)
    assert hits >= count, output


@pytest.mark.parametrize(
    "count", [200, pytest.param(4000, marks=pytest.mark.reliability)], ids=["few", "many"]
)
def test_files_are_whole_after_random_interrupts(count: int, tmp_path: Path) -> None:
    hits, output = hits_and_output("interrupted_writes", count, tmp_path)
    assert hits >= count, output
    assert "is unchanged" in output
