"""`python -m benchmarks.two_versions FOLDER PROBLEM ...`: another version beside this one.

FOLDER has the other one's `caspar` and `benchmarks`, as `git archive` gives them. Both are measured
in turns, in processes of their own, on the same problems. Prints for each problem and solver the
microseconds of a PCG iteration and of what else an iteration of Levenberg-Marquardt has, medians
over all plans, and this version's over the other's.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.caspar_side import AUTO, VARIANTS, linear_iteration
from benchmarks.prepare import ROOT, Preparation

if TYPE_CHECKING:
    # another version may have no such name
    from caspar.options import BackendName

DIRECT = ("schur_dense", "sparse")
SOLVERS = {
    variant.name: variant
    for variant in VARIANTS
    if variant.details and variant.solver.get("linear_solver") not in DIRECT
}
"""Those with PCG iterations."""

Times = list[tuple[float, float]]
"""Microseconds of a PCG iteration and of the rest, for each plan."""


def main() -> None:
    """Compare, or measure one version for another process."""
    arguments = _arguments()
    if arguments.only is not None:
        (problem,) = arguments.problems
        times = _measured(
            problem, arguments.only, arguments.plans, arguments.backend, arguments.made
        )
        print(json.dumps(times))
        return
    with tempfile.TemporaryDirectory() as scratch:
        arguments.made = (arguments.made or Path(scratch)).resolve()
        Preparation(arguments.problems, arguments.made).wait()
        print(f"{'':60s}{'us a PCG iteration':>33s}{'us of the rest':>33s}")
        print(f"{'':60s}" + 2 * f"{'other':>12s}{'this':>12s}{'ratio':>9s}")
        for problem in arguments.problems:
            for solver in arguments.solvers:
                _compare(arguments, problem, solver)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_versions", description=__doc__)
    add = parser.add_argument
    add("folder", type=Path, help="of the other version")
    add("problems", nargs="+", metavar="PROBLEM", help="as `benchmarks.problems.make` takes them")
    add("--solvers", nargs="+", choices=tuple(SOLVERS), default=[AUTO.name])
    add("--plans", type=int, default=3, help="solvers that are made, in each turn")
    add("--turns", type=int, default=2, help="of each version")
    add("--backend", choices=("cuda", "cpu"), default="cuda")
    add("--made", type=Path, default=None, help="where synthetic problems are kept")
    add("--only", choices=tuple(SOLVERS), default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder = arguments.folder.resolve()
    for package in ("caspar", "benchmarks"):
        if not (arguments.folder / package / "__init__.py").exists():
            parser.error(f"there is no {package} in {arguments.folder}")
    return arguments


def _compare(arguments: argparse.Namespace, problem: str, solver: str) -> None:
    found: list[tuple[Path, Times]] = [(arguments.folder, []), (ROOT, [])]
    for _ in range(arguments.turns):
        for folder, times in found:
            times += _in_version(folder, arguments, problem, solver)
    line = f"{problem + ': ' + solver:60s}"
    for column in range(2):
        other, this = (statistics.median(one[column] for one in times) for _, times in found)
        line += f"{other:12.2f}{this:12.2f}{this / other:9.3f}"
    print(line, flush=True)


def _in_version(folder: Path, arguments: argparse.Namespace, problem: str, solver: str) -> Times:
    """Run this file with the packages of a version."""
    command = [sys.executable, __file__, str(folder), problem, "--only", solver]
    command += ["--plans", str(arguments.plans), "--backend", arguments.backend]
    command += ["--made", str(arguments.made)]
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [(linear, outer) for linear, outer in json.loads(done.stdout.splitlines()[-1])]


def _measured(problem: str, name: str, plans: int, backend: "BackendName", made: Path) -> Times:
    bundle = Preparation([], made).take(problem)
    variant = SOLVERS[name]

    def once() -> tuple[float, float]:
        gc.collect()
        timed = linear_iteration(variant.make(bundle, backend), bundle.arrays, variant)
        if timed is None:
            raise RuntimeError(f"{problem}: {name} is done in too few PCG iterations to time one")
        return 1e3 * timed.linear_ms, 1e3 * timed.outer_ms

    return [once() for _ in range(plans)]


if __name__ == "__main__":
    main()
