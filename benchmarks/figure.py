"""A plot like the paper's figure: relative cost over time, final cost and memory, by problem.

In: a report. Out: a PNG. Of the solvers of a problem it shows caspar as it is by default and the
fastest setting of each other library, at most six lines; the page has the others in its tables.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.figure

from benchmarks.measurement import Measurement
from benchmarks.report import Report

FLOOR = 1e-6
"""Smallest relative distance from the best cost that is drawn."""

MAX_LINES = 6
"""More lines in one plot cannot be told apart."""

FAMILIES = ("reference", "Ceres", "GTSAM", "jaxls")
"""Of each, the fastest setting is drawn; caspar is drawn with `auto`, then as it was measured."""

COLORS = {
    "caspar": ("#c2410c", "#f59e0b", "#a16207", "#ea580c", "#78350f", "#fbbf24"),
    "reference": ("#1d4ed8",),
    "Ceres": ("#15803d",),
    "GTSAM": ("#7e22ce",),
    "jaxls": ("#0e7490",),
}
"""By the first word of a solver's name: a library has one colour in all plots."""


def featured(measurements: Sequence[Measurement], optimum: float) -> list[Measurement]:
    """The measurements of one problem that its plot shows, caspar first."""

    def seconds(one: Measurement) -> tuple[float, float]:
        time_s = one.time_to(optimum * 1.001)
        return (math.inf if time_s is None else time_s, one.final_cost)

    own = [one for one in measurements if family(one) == "caspar"]
    own.sort(key=lambda one: not one.solver.endswith(" auto"))
    others = [
        min(of_family, key=seconds)
        for name in FAMILIES
        for of_family in [[one for one in measurements if family(one) == name and one.same_cost]]
        if of_family
    ]
    return [*own[:1], *others, *own[1:]][:MAX_LINES]


def family(one: Measurement) -> str:
    """The library."""
    return one.solver.split()[0]


def draw(report: Report, path: Path) -> None:
    """Write the plot; a row for each problem."""
    problems = report.problems
    figure = matplotlib.figure.Figure(
        figsize=(15.0, 3.0 * max(len(problems), 1)), layout="constrained"
    )
    axes = figure.subplots(max(len(problems), 1), 3, squeeze=False, width_ratios=[2.0, 1.0, 1.0])
    for row, problem in zip(axes, problems, strict=False):
        optimum = report.optimum(problem)
        shown = featured([one for one in report.measurements if one.problem == problem], optimum)
        draw_course(row[0], shown, optimum)
        row[0].set_title(f"{problem}, {shown[0].num_observations:,} observations")
        _draw_bars(row[1], shown, [max(one.final_cost / optimum - 1.0, FLOOR) for one in shown])
        row[1].set_xscale("log")
        row[1].set_xlim(0.5 * FLOOR, 1.0)
        row[1].set_title("final cost / best - 1")
        known = [one for one in shown if one.memory_bytes is not None]
        sizes = [(one.memory_bytes or 0) / one.num_observations for one in known]
        _draw_bars(row[2], known, sizes)
        row[2].set_title("bytes an observation")
    figure.savefig(path, dpi=70)


def draw_course(axis: Any, measurements: Sequence[Measurement], optimum: float) -> None:
    """Distance from the best cost over time, a line for each solver."""
    colors = _colors(measurements)
    for one in measurements:
        if not one.same_cost:
            continue
        axis.plot(
            [1e3 * time_s for time_s, _ in one.trace],
            [max(cost / optimum - 1.0, FLOOR) for _, cost in one.trace],
            "-" if family(one) == "caspar" else "--",
            drawstyle="steps-post",
            linewidth=1.8,
            color=colors[one.solver],
            label=one.solver,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(FLOOR, 1e1)
    axis.set_xlabel("ms of iterations")
    axis.set_ylabel("cost / best - 1")
    axis.grid(alpha=0.3)


def _draw_bars(axis: Any, measurements: Sequence[Measurement], values: Sequence[float]) -> None:
    names = [one.solver for one in measurements]
    colors = _colors(measurements)
    axis.barh(names, values, color=[colors[name] for name in names])
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=7)


def _colors(measurements: Sequence[Measurement]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in measurements:
        used = sum(name.split()[0] == family(one) for name in found)
        shades = COLORS[family(one)]
        found[one.solver] = shades[used % len(shades)]
    return found
