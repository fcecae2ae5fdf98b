"""Interrupt writers at random times: `python -m tests.reliability.interrupted_writes COUNT FOLDER`.

After each interrupt there is the old file or the new one, nothing beside it, and what the exception
says of it is true.
"""

import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from caspar.io import write_bal, write_ply
from tests.examples import make_bal_problem

NAMES = ("scene.txt", "scene.txt.bz2", "scene.txt.gz", "scene.ply")
PROBLEM = make_bal_problem(num_points=300)


def write(path: Path) -> None:
    """Write the problem as the name says."""
    if path.suffix == ".ply":
        write_ply(path, PROBLEM.points, PROBLEM.cameras)
    else:
        write_bal(path, PROBLEM)


def interrupted(path: Path, after_s: float) -> str | None:
    """What an interrupt says that is raised while a file is written; None: it came too late."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        write(path)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    except KeyboardInterrupt as interrupt:
        return str(interrupt)
    return None


def main() -> None:
    """Interrupt until enough have hit."""
    generator = random.Random(7)
    folder = Path(sys.argv[2])
    ends: Counter[str] = Counter()
    while ends.total() - ends["too late"] < int(sys.argv[1]):
        path = folder / generator.choice(NAMES)
        start = time.perf_counter()
        write(path)
        duration_s = time.perf_counter() - start
        new = path.read_bytes()
        path.write_bytes(b"old")
        said = interrupted(path, generator.uniform(1e-6, duration_s))
        found = path.read_bytes()
        assert found in (b"old", new), (path, len(found), said)
        state = "is unchanged" if found == b"old" else "is written"
        if said is None:
            assert found == new
            ends["too late"] += 1
        else:
            # Nothing is said before the temporary file is made and after it took its place.
            assert said in ("", f"{path} {state}"), said
            ends[state] += 1
        path.unlink()
        assert os.listdir(folder) == []
    print(ends.total() - ends["too late"], dict(ends))


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    main()
