"""`python -m benchmarks`: measure what this machine can, write the tables."""

import argparse
import subprocess
from pathlib import Path

from benchmarks import caspar_side, reference_side
from benchmarks.measurement import Measurement
from benchmarks.problems import PROBLEMS, Bundle
from benchmarks.report import Report, environment, markdown, optima, write
from benchmarks.startup import measure_startup
from caspar.options import BackendChoice
from caspar.runtime.probe import cuda_problem
from caspar.runtime.select import select_backend

PRECISIONS = ("mixed", "float64", "float32")


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--backend", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--problems", nargs="*", choices=tuple(PROBLEMS), default=None)
    parser.add_argument("--no-reference", action="store_true", help="leave the reference out")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    backend = select_backend(BackendChoice(arguments.backend))
    names = list(PROBLEMS) if arguments.problems is None else arguments.problems
    if backend.name == "cpu" and arguments.problems is None:
        names = [name for name in names if not name.startswith("synthetic")]
    measurements: list[Measurement] = []
    missing: list[str] = []
    problems = [PROBLEMS[name]() for name in names]
    if backend.name == "cuda" and not arguments.no_reference:
        measurements += _measure_reference(problems, missing)
    else:
        missing.append(f"the reference: {cuda_problem() or 'left out'}")
    for problem in problems:
        for precision in PRECISIONS:
            measurements.append(caspar_side.measure(problem, backend.name, precision))
            print(measurements[-1].solver, problem.name, measurements[-1].final_cost, flush=True)
    report = Report(
        environment=environment(backend.device),
        optima=optima(measurements, {problem.name: problem.optimum for problem in problems}),
        measurements=tuple(measurements),
        startups=(measure_startup(backend.name),),
        missing=tuple(missing),
    )
    write(report, arguments.folder, f"bundle_adjustment_{backend.name}")
    print(markdown(report))


def _measure_reference(problems: list[Bundle], missing: list[str]) -> list[Measurement]:
    try:
        library = reference_side.build_reference()
    except (ImportError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        missing.append(f"the reference could not be built: {error}")
        return []
    measured = []
    for problem in problems:
        measured += reference_side.measure_all(library, problem)
        print("reference", problem.name, measured[-1].final_cost, flush=True)
    return measured


if __name__ == "__main__":
    main()
