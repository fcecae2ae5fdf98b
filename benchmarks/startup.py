"""`python -m benchmarks.startup [OTHER]`: how long a new process takes to its first result.

With OTHER, the folder of another version of caspar as `git archive` gives it, both are measured in
turns. Writes `startup_BACKEND.json` and `.md`; minutes.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.new_process import CASES, ROOT, RUNS, Startup, measure_startup
from benchmarks.report import environment
from caspar.options import BackendChoice
from caspar.runtime.select import select_backend

COLUMNS: Mapping[str, Callable[[Startup], float | None]] = {
    "cold first solve, imports included": lambda one: one.cold_s + (one.cold_imports_s or 0.0),
    "cold first solve": lambda one: one.cold_s,
    "of it all cores": lambda one: one.cold_processor_s,
    "warm first solve": lambda one: one.warm_s,
    "of it iterations": lambda one: one.iterations_s,
    "second solver": lambda one: one.second_s,
    "imports": lambda one: one.import_caspar_s + one.imports_s,
}


def _rows(measured: list[Startup]) -> Iterator[list[str]]:
    """A row for each column of seconds: this version, and the other with the ratio."""
    for name, seconds in COLUMNS.items():
        times = [seconds(one) for one in measured]
        cells = ["-" if time_s is None else f"{time_s:.3f}" for time_s in times]
        this, other = times[0], times[-1]
        if len(times) > 1:
            cells.append(f"{this / other:.2f}" if this is not None and other else "-")
        one = measured[0]
        yield [f"{one.case}, {one.precision}", name, *cells]


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    add = parser.add_argument
    add("other", type=Path, nargs="?", help="folder of another version")
    add("--backend", choices=("cpu", "cuda"), default="cpu")
    add("--cases", nargs="+", choices=CASES, default=CASES)
    add("--precisions", nargs="+", default=["auto"])
    add("--runs", type=int, default=RUNS)
    add("--folder", type=Path, default=Path("out"), help="for the tables")
    arguments = parser.parse_args()
    device = select_backend(BackendChoice(arguments.backend)).device
    machine = environment(device)
    versions = [ROOT] if arguments.other is None else [ROOT, arguments.other.resolve()]
    heading = ["problem", "seconds", "this version", "another", "ratio"]
    lines = ["# A new process to its first result", ""]
    lines += [f"* {key}: {value}" for key, value in machine.items()]
    lines += [
        "",
        f"Medians of {arguments.runs}, in turns. Imports: of caspar's parts and the backend.",
        "",
    ]
    width = len(heading) if len(versions) > 1 else 3
    lines += [f"| {' | '.join(heading[:width])} |", f"|{'---|' * 2}{'--:|' * (width - 2)}"]
    kept = []
    for case in arguments.cases:
        for precision in arguments.precisions:
            measured = measure_startup(case, arguments.backend, precision, versions, arguments.runs)
            kept.append([asdict(one) for one in measured])
            rows = [f"| {' | '.join(row)} |" for row in _rows(measured)]
            print("\n".join(rows), flush=True)
            lines += rows
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / f"startup_{arguments.backend}"
    plain = {"environment": machine, "startups": kept}
    path.with_suffix(".json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
