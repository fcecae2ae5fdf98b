"""Ctrl-C at random times while solvers are made, compiled and run: afterwards all is as before.

A timer raises SIGINT after a random time, in a process of its own. The bounded part runs with all
tests; the long one behind the marker `reliability`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "count", [20, pytest.param(300, marks=pytest.mark.reliability)], ids=["few", "many"]
)
def test_everything_works_after_random_interrupts(count: int, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.reliability.interrupted", str(count), str(tmp_path)]
    found = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert found.returncode == 0, found.stderr
    hits = int(found.stdout.split()[0])
    assert hits >= count, found.stdout
