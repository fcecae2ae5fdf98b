"""`python -m benchmarks.gate RESULT.json`: is anything worse than in the committed baseline?

Only caspar's figures are compared, each with its direction and tolerance, and only on the device
that the baseline names. Exit status 1: something is worse, or a figure of a problem that was
measured is missing, unless `--partial` allows that; 2: nothing can be compared. `--update` writes
the result's figures into the baseline instead, in place of all that it has of the same problems.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page import NEAR
from benchmarks.report import Report, read_json

BASELINE = Path(__file__).parent / "results" / "baseline.json"


@dataclass(frozen=True)
class Kind:
    """What a figure is; for all kinds less is better.

    Attributes:
        tolerance: Growth allowed, relative.
        slack: Growth allowed on top, in the figure's unit: noise of small figures.
    """

    tolerance: float
    slack: float = 0.0


KINDS = {
    "ms per PCG iteration": Kind(0.10, 0.0005),
    "ms per LM iteration without PCG": Kind(0.15, 0.02),
    "ms to 0.1 %": Kind(0.20, 0.5),
    "ms to 0.01 %": Kind(0.20, 0.5),
    "% above best": Kind(0.0, 0.01),
    "ms of setup anew": Kind(0.30, 2.0),
    "ms of setup, plan reused": Kind(0.30, 1.0),
    "bytes an observation": Kind(0.02),
    "growth, worst / best": Kind(0.05),
    "s of a cold first solve": Kind(0.20, 0.2),
}

Figures = dict[str, float]
"""`solver | problem | kind` -> value; infinity where it was never reached."""


def figures(report: Report) -> Figures:
    """The figures of a report that are compared."""
    found: Figures = {}
    for name, value in (*_of_measurements(report), *_of_growth(report)):
        if value is not None:
            found[name] = value
    for one in report.startups:
        found[f"caspar {one.backend} | {one.case} | s of a cold first solve"] = one.cold_s
    return found


def _of_measurements(report: Report) -> Iterator[tuple[str, float | None]]:
    for one in report.measurements:
        if not one.solver.startswith("caspar"):
            continue
        best = report.optimum(one.problem)
        memory = one.memory_bytes
        values = {
            "ms per PCG iteration": one.linear_iteration_ms,
            "ms per LM iteration without PCG": one.outer_iteration_ms,
            "% above best": 100.0 * (one.final_cost / best - 1.0),
            "bytes an observation": None if memory is None else memory / one.num_observations,
        }
        for share in NEAR:
            time_s = one.time_to(best * (1.0 + share))
            values[f"ms to {100 * share:g} %"] = math.inf if time_s is None else 1e3 * time_s
        if one.setup is not None:
            reused_s = one.setup.reused_s
            values["ms of setup anew"] = 1e3 * one.setup.anew_s
            values["ms of setup, plan reused"] = None if reused_s is None else 1e3 * reused_s
        for kind, value in values.items():
            yield f"{one.solver} | {one.problem} | {kind}", value


def _of_growth(report: Report) -> Iterator[tuple[str, float | None]]:
    for solver in dict.fromkeys(one.solver for one in report.growths):
        times = [
            one.nanoseconds
            for one in report.growths
            if one.solver == solver and one.nanoseconds is not None
        ]
        if solver.startswith("caspar") and len(times) > 1:
            yield f"{solver} | growth | growth, worst / best", max(times) / min(times)


def worse(baseline: Figures, current: Figures) -> list[str]:
    """A line for each figure that grew by more than its tolerance."""
    lines = []
    for name in sorted(baseline.keys() & current.keys()):
        kind = KINDS[name.rpartition(" | ")[2]]
        before, now = baseline[name], current[name]
        if now > before * (1.0 + math.copysign(kind.tolerance, before)) + kind.slack:
            lines.append(f"{name}: {before:.6g} -> {now:.6g}")
    return lines


def lost(baseline: Figures, current: Figures) -> list[str]:
    """What the baseline has of the problems that were measured, and the result has not."""
    measured = {_problem(name) for name in current}
    return sorted(name for name in baseline.keys() - current.keys() if _problem(name) in measured)


def updated(baseline: Figures, current: Figures) -> Figures:
    """The baseline with all figures of the problems that were measured replaced."""
    measured = {_problem(name) for name in current}
    kept = {name: value for name, value in baseline.items() if _problem(name) not in measured}
    return {**kept, **current}


def _problem(name: str) -> str:
    _, problem, _ = name.split(" | ")
    return problem


def write_baseline(device: str, found: Figures, path: Path) -> None:
    """Keep figures for `main`, with six digits."""
    rounded = {name: float(f"{value:.6g}") for name, value in sorted(found.items())}
    text = json.dumps({"device": device, "figures": rounded}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Compare or update."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--partial", action="store_true", help="solvers may be left out")
    arguments = parser.parse_args()
    report = read_json(arguments.result)
    device, current = report.environment["device"], figures(report)
    stored = None
    if arguments.baseline.exists():
        stored = json.loads(arguments.baseline.read_text(encoding="utf-8"))
    if arguments.update:
        known = stored["figures"] if stored is not None and stored["device"] == device else {}
        write_baseline(device, updated(known, current), arguments.baseline)
        return
    if stored is None:
        print(f"there is no baseline {arguments.baseline}: --update writes one", file=sys.stderr)
        sys.exit(2)
    baseline: Figures = stored["figures"]
    if device != stored["device"]:
        print(f"the baseline is of {stored['device']}, the result of {device}", file=sys.stderr)
        sys.exit(2)
    if len(baseline.keys() & current.keys()) == 0:
        print(f"no figure of {arguments.result} is in the baseline", file=sys.stderr)
        sys.exit(2)
    missing, lines = lost(baseline, current), worse(baseline, current)
    for name in sorted(baseline.keys() - current.keys()):
        print(f"not measured: {name}")
    print("\n".join(f"worse: {line}" for line in lines) or "nothing is worse")
    fails = len(lines) > 0 or (len(missing) > 0 and not arguments.partial)
    sys.exit(1 if fails else 0)


if __name__ == "__main__":
    main()
