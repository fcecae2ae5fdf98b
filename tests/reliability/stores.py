"""`python -m tests.reliability.stores FOLDER`: solving while the cache is damaged or missing.

Every trial is a process that solves a small problem on the processor and runs a kernel, and prints
the results. They must be those of an undisturbed process, bit by bit, whatever happens to the
cache. Prints how many trials there were of each kind.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]

WORK = """
import json, sys, warnings
from typing import Annotated
import numpy as np, symforce.symbolic as sf, caspar

class Spot(sf.V2): ...

@caspar.factor
def place(
    spot: Annotated[Spot, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return sf.V2(spot[0] - seen[0], spot[0] * spot[1] - seen[1])

@caspar.kernel(backend="cpu")
def turned(
    value: Annotated[sf.V2, caspar.ReadSequential],
) -> Annotated[sf.V2, caspar.WriteSequential]:
    return sf.V2(-value[1], value[0])

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    seen = np.arange(1.0, 41.0).reshape(20, 2)
    arrays = {"Spot": np.ones((10, 2)), "place": {"spot": np.arange(20) % 10, "seen": seen}}
    solver = caspar.Solver([place], backend="cpu", precision="float64")
    result = solver.solve(arrays)
    rows = turned(value=seen)
values = [result.status.name, result.final_cost, result.values["Spot"].tolist(), rows.tolist()]
print(json.dumps({"values": values, "warnings": [str(one.message) for one in said]}))
"""

Outcome = dict[str, Any]


def worked(
    folder: Path | None,
    prepare: Callable[[], None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    """What a process gives that uses a folder as its cache.

    Args:
        folder: None: none is chosen.
        prepare: Called in the new process before it starts to work.
        variables: Of the environment.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    environment.pop("CASPAR_CACHE_DIR", None)
    if folder is not None:
        environment["CASPAR_CACHE_DIR"] = str(folder)
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        preexec_fn=prepare,
        timeout=500,
    )
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    outcome: Outcome = json.loads(done.stdout)
    return outcome


def files_of(folder: Path) -> list[Path]:
    """The entries."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damaged_entries(wanted: Outcome, folder: Path, num_bits: int, seed: int) -> int:
    """Flip random bits, one in every entry at a time; each is a miss, and made anew."""
    rng, num_flipped = np.random.default_rng(seed), 0
    while num_flipped < num_bits:
        for path in files_of(folder):
            data = bytearray(path.read_bytes())
            bit = int(rng.integers(8 * len(data)))
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            num_flipped += 1
        assert worked(folder) == wanted
    return num_flipped


def cut_entries(wanted: Outcome, folder: Path) -> int:
    """Every entry empty, then cut in half, then replaced by another one."""
    files = files_of(folder)
    for change in (lambda data: b"", lambda data: data[: len(data) // 2]):
        for path in files_of(folder):
            path.write_bytes(change(path.read_bytes()))
        assert worked(folder) == wanted
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    assert worked(folder) == wanted
    return 3 * len(files)


def full_disk(wanted: Outcome, folder: Path) -> int:
    """No file may have more than 100 bytes: every write fails in the middle, with a warning."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    outcome = worked(folder, limit)
    assert outcome["values"] == wanted["values"]
    assert "cannot be written" in outcome["warnings"][0]
    assert len(outcome["warnings"]) == 1
    assert [path for path in files_of(folder) if path.stem.count(".") > 0] == []  # half written
    return 1


def no_home(wanted: Outcome) -> int:
    """Homes, and a folder for temporary files, in which nothing can be made."""
    nowhere = "/proc/nowhere"
    for variables in (
        {"HOME": nowhere},
        {"HOME": "/dev/null"},
        {"HOME": nowhere, "TMPDIR": nowhere},
    ):
        outcome = worked(None, None, {"XDG_CACHE_HOME": "", **variables})
        assert outcome["values"] == wanted["values"]
        assert len(outcome["warnings"]) == 1
    return 3


def foreign_folder(wanted: Outcome, folder: Path) -> int:
    """The folder belongs to somebody else, then others may write into it (needs root)."""
    worked(folder)
    before = {path: path.stat().st_mtime_ns for path in files_of(folder)}
    for place in (folder, folder / "code"):
        os.chown(place, 54321, -1)
        outcome = worked(folder)
        os.chown(place, os.geteuid(), -1)
        assert outcome["values"] == wanted["values"]
        assert "belongs to user 54321" in outcome["warnings"][0]
        place.chmod(0o777)
        outcome = worked(folder)
        place.chmod(0o700)
        assert outcome["values"] == wanted["values"]
        assert "chmod -R go-w" in outcome["warnings"][0]
    assert all(path.stat().st_mtime_ns == before.get(path) for path in files_of(folder / "code"))
    return 4


def many_at_once(wanted: Outcome, folder: Path, num_processes: int) -> int:
    """Processes that start with one empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    with ThreadPoolExecutor(num_processes) as pool:
        outcomes = list(pool.map(worked, [folder] * num_processes))
    assert all(outcome == wanted for outcome in outcomes)
    assert worked(folder) == wanted
    return num_processes


def cleared_meanwhile(wanted: Outcome, folder: Path, num_processes: int) -> int:
    """The cache is cleared again and again while processes work."""
    num_cleared = 0
    with ThreadPoolExecutor(num_processes) as pool:
        running = [pool.submit(worked, folder) for _ in range(num_processes)]
        while not all(one.done() for one in running):
            for path in files_of(folder):
                path.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            num_cleared += 1
            time.sleep(0.002)
    assert all(one.result(60.0) == wanted for one in running)
    return num_cleared


def main() -> None:
    """All trials, in their long form."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.stores", description=__doc__)
    parser.add_argument("folder", type=Path, help="for caches; must not exist")
    folder = parser.parse_args().folder.resolve()
    cache = folder / "cache"
    wanted = worked(cache)
    assert wanted == worked(cache)
    assert wanted["warnings"] == []
    print(f"flipped bits: {damaged_entries(wanted, cache, 200, 1)}", flush=True)
    print(f"cut or exchanged entries: {cut_entries(wanted, cache)}", flush=True)
    print(f"full disk: {full_disk(wanted, folder / 'full')}", flush=True)
    print(f"processes at once: {many_at_once(wanted, folder / 'many', 8)}", flush=True)
    print(f"times cleared: {cleared_meanwhile(wanted, folder / 'cleared', 4)}", flush=True)
    print(f"without a home: {no_home(wanted)}", flush=True)
    if os.geteuid() == 0:
        print(f"foreign folders: {foreign_folder(wanted, folder / 'foreign')}", flush=True)


if __name__ == "__main__":
    main()
