"""A plot like the paper's figure: relative cost over time, final cost and memory, by problem."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure

from benchmarks.measurement import Measurement
from benchmarks.report import Report

FLOOR = 1e-6
"""Smallest relative distance from the best cost that is drawn."""
_STYLES = (("caspar", "-", 1.6), ("reference", "--", 1.2), ("", ":", 1.2))
"""Line style and width by the beginning of a solver's name."""


def draw(report: Report, path: Path) -> None:
    """Write the plot; a row for each problem."""
    problems = report.problems
    figure = matplotlib.figure.Figure(
        figsize=(15.0, 3.6 * max(len(problems), 1)), layout="constrained"
    )
    axes = figure.subplots(max(len(problems), 1), 3, squeeze=False, width_ratios=[2.0, 1.0, 1.0])
    solvers = list(dict.fromkeys(one.solver for one in report.measurements))
    palette = matplotlib.colormaps["tab20"]
    colors = {name: palette(number % 20) for number, name in enumerate(solvers)}
    for row, problem in zip(axes, problems, strict=False):
        of = [one for one in report.measurements if one.problem == problem]
        _draw_course(row[0], of, report.optimum(problem), colors)
        row[0].set_title(f"{problem}, {of[0].num_observations:,} observations")
        _draw_bars(
            row[1],
            of,
            [max(one.final_cost / report.optimum(problem) - 1.0, FLOOR) for one in of],
            colors,
        )
        row[1].set_xscale("log")
        row[1].set_xlim(0.5 * FLOOR, 1.0)
        row[1].set_title("final cost / best - 1, and the colours")
        known = [one for one in of if one.memory_bytes is not None]
        sizes = [(one.memory_bytes or 0) / one.num_observations for one in known]
        _draw_bars(row[2], known, sizes, colors)
        row[2].set_title("bytes an observation")
    figure.savefig(path, dpi=70)


def _draw_course(
    axis: Any, measurements: Sequence[Measurement], optimum: float, colors: dict[str, Any]
) -> None:
    for one in measurements:
        if not one.same_cost:
            continue
        _, style, width = next(entry for entry in _STYLES if one.solver.startswith(entry[0]))
        times = [1e3 * time_s for time_s, _ in one.trace]
        above = [max(cost / optimum - 1.0, FLOOR) for _, cost in one.trace]
        axis.plot(
            times,
            above,
            style,
            drawstyle="steps-post",
            linewidth=width,
            color=colors[one.solver],
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(FLOOR, 1e1)
    axis.set_xlabel("ms of iterations")
    axis.set_ylabel("cost / best - 1")
    axis.grid(alpha=0.3)


def _draw_bars(
    axis: Any,
    measurements: Sequence[Measurement],
    values: Sequence[float],
    colors: dict[str, Any],
) -> None:
    names = [one.solver for one in measurements]
    axis.barh(names, values, color=[colors[name] for name in names])
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=6)
