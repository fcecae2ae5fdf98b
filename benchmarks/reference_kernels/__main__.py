"""`python -m benchmarks.reference_kernels`: build, measure, write tables."""

import argparse
import hashlib
import importlib.metadata
import inspect
import time
from pathlib import Path

import cupy

from benchmarks.index_kinds import KINDS
from benchmarks.reference.build import ReferenceLibrary, extension_path, load
from benchmarks.reference_kernels import generate, tasks
from benchmarks.reference_kernels.measure import copy_gb_per_s, measure_sequential, measure_shared
from benchmarks.reference_kernels.own import OwnSide, Strategy
from benchmarks.reference_kernels.reference import ReferenceSide
from benchmarks.reference_kernels.report import Report, markdown, write
from benchmarks.reference_kernels.tasks import SHARED_DIM, Side
from benchmarks.reference_side import build_reference
from benchmarks.report import environment

NUM_ITEMS = 30_000_000


def sides(work: Path) -> tuple[Side, ...]:
    """Everyone who is measured. The first is the one that the others are compared with."""
    return (ReferenceSide(reference_library(work)), *map(OwnSide, Strategy))


def reference_library(work: Path) -> ReferenceLibrary:
    """The reference's kernels, built where `work` does not have them for this device."""
    architecture: str = cupy.cuda.Device().compute_capability
    parts = [inspect.getsource(module).encode() for module in (generate, tasks)]
    parts += [architecture.encode(), importlib.metadata.version("symforce").encode()]
    folder = work / hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]
    if extension_path(folder).exists():
        return load(folder)
    return build_reference(folder, generate.__name__, architecture)


def main() -> None:
    """Parse the arguments, build, measure, write and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference_kernels", description=__doc__
    )
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the tables")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("out") / "reference_kernels",
        help="for the reference's sources and library; kept, so that a second run builds nothing",
    )
    parser.add_argument("--items", type=int, default=NUM_ITEMS, help="(default: %(default)s)")
    parser.add_argument(
        "--kinds",
        nargs="*",
        choices=tuple(kind.name for kind in KINDS),
        default=None,
        help="of the index (default: all)",
    )
    arguments = parser.parse_args()
    start = time.perf_counter()
    measured = sides(arguments.work.resolve())
    print(f"built in {time.perf_counter() - start:.0f} s", flush=True)
    timings = measure_sequential(measured, SHARED_DIM * arguments.items)
    for kind in KINDS:
        if arguments.kinds is None or kind.name in arguments.kinds:
            timings += measure_shared(measured, kind, arguments.items)
            print(f"{kind.name}: {time.perf_counter() - start:.0f} s", flush=True)
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    report = Report(
        environment=environment(name),
        copy_gb_per_s=copy_gb_per_s(4 * SHARED_DIM * arguments.items),
        timings=tuple(timings),
    )
    write(report, arguments.folder)
    print(markdown(report))


if __name__ == "__main__":
    main()
