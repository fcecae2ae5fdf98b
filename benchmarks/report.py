"""Tables and JSON of what was measured, with machine, versions and date."""

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import Measurement
from benchmarks.startup import Startup

NEAR = (0.01, 0.001, 0.0001)
"""Distances from the optimum, relative, whose times are listed."""

_PACKAGES = ("caspar", "symforce", "numpy", "numba", "cupy-cuda12x", "cupy-cuda13x")


@dataclass(frozen=True)
class Report:
    """All that one run of the benchmarks measured.

    Attributes:
        environment: Machine, versions and date.
        optima: Best known or best seen cost of each problem.
        measurements: Solves.
        startups: New processes.
        missing: What could not be measured, and why.
    """

    environment: dict[str, str]
    optima: dict[str, float]
    measurements: tuple[Measurement, ...]
    startups: tuple[Startup, ...]
    missing: tuple[str, ...]


def environment(device: str) -> dict[str, str]:
    """Machine, versions and date."""
    found = {
        "date": datetime.date.today().isoformat(),
        "device": device,
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def optima(measurements: Sequence[Measurement], known: dict[str, float | None]) -> dict[str, float]:
    """Known optima, or the best cost anyone reached."""
    best: dict[str, float] = {}
    for one in measurements:
        if one.final_cost == one.final_cost:
            best[one.problem] = min(best.get(one.problem, one.final_cost), one.final_cost)
    return {
        problem: best.get(problem, float("nan")) if optimum is None else optimum
        for problem, optimum in known.items()
    }


def write(report: Report, folder: Path, name: str) -> None:
    """Write NAME.json and NAME.md."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(report), indent=1)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(markdown(report), encoding="utf-8")


def markdown(report: Report) -> str:
    """The page."""
    facts = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    parts = [f"# Benchmarks\n\n{facts}.\n"]
    for problem, optimum in report.optima.items():
        rows = [one for one in report.measurements if one.problem == problem]
        parts.append(_problem_table(problem, optimum, rows))
    if report.startups:
        parts.append(_startup_table(report.startups))
    if report.missing:
        listed = "\n".join(f"* {line}" for line in report.missing)
        parts.append(f"## Not measured\n\n{listed}\n")
    return "\n".join(parts)


def _problem_table(problem: str, optimum: float, rows: Sequence[Measurement]) -> str:
    headings = [
        "solver",
        "LM / PCG iterations",
        "ms per PCG iteration",
        *(f"ms to {100 * near:g} %" for near in NEAR),
        "ms of iterations",
        "final cost (float64)",
        "above optimum",
        "memory, MB",
        "status",
    ]
    lines = [_row(headings), _row(["---"] * len(headings))]
    for one in rows:
        above = one.final_cost / optimum - 1.0
        lines.append(
            _row(
                [
                    one.solver,
                    f"{one.num_iterations} / {one.num_linear_iterations}",
                    _number(one.linear_iteration_ms, "{:.4f}"),
                    *(_milliseconds(one.time_to(optimum * (1.0 + near))) for near in NEAR),
                    _milliseconds(one.solve_s),
                    f"{one.final_cost:.3f}",
                    f"{100 * above:.4f} %",
                    _number(one.memory_bytes, "{:.1f}", 1e-6),
                    one.status,
                ]
            )
        )
    return f"## {problem}: optimum {optimum:.3f}\n\n" + "\n".join(lines) + "\n"


def _startup_table(startups: Sequence[Startup]) -> str:
    headings = [
        "backend",
        "import caspar",
        "all imports",
        "cold first solve",
        "warm first iteration",
        "warm first solve",
        "of it iterations",
    ]
    lines = [_row(headings), _row(["---"] * len(headings))]
    for one in startups:
        times = list(asdict(one).values())[1:]
        lines.append(_row([one.backend, *(f"{time:.3f} s" for time in times)]))
    return (
        "## A new process, Trafalgar-21, mixed precision (imports not in the later columns)\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _milliseconds(time_s: float | None) -> str:
    return "never" if time_s is None else f"{1e3 * time_s:.1f}"


def _number(value: Any, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else form.format(scale * value)
