"""Make the synthetic problems ahead, each in a process of its own, and keep them in files.

Usage: `python -m benchmarks.prepare NAME FOLDER`. The largest takes half a minute and 4 GB on one
core, so they are made at the same time, while something else is compiled.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.problems import Bundle, make, num_observations

ROOT = Path(__file__).parents[1]
_ARRAYS = ("cameras", "points", "camera_index", "point_index", "pixels")


class Preparation:
    """Problems being made.

    Args:
        names: As `problems.make` takes them.
        folder: Where they are kept; one that is there already is not made again.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._running = {
            name: subprocess.Popen(
                [sys.executable, "-m", "benchmarks.prepare", name, str(folder)], cwd=ROOT
            )
            for name in sorted(names, key=num_observations, reverse=True)
            if num_observations(name) > 0 and not (folder / _file_name(name)).exists()
        }

    def wait(self) -> None:
        """Until all are made, so that nothing else runs while something is timed.

        Raises:
            RuntimeError: One could not be made.
        """
        for name, process in self._running.items():
            if process.wait(timeout=3600.0) != 0:
                raise RuntimeError(f"making {name!r} failed with exit status {process.returncode}")

    def take(self, name: str) -> Bundle:
        """The problem, from its file where there is one."""
        path = self._folder / _file_name(name)
        if not path.exists():
            return make(name)
        with np.load(path) as stored:
            return Bundle(name, optimum=None, **{array: stored[array] for array in _ARRAYS})


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name) + ".npz"


def main() -> None:
    """Make one problem."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    problem = make(name)
    path = folder / _file_name(name)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **{array: getattr(problem, array) for array in _ARRAYS})
    partial.replace(path)


if __name__ == "__main__":
    main()
