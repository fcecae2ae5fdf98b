"""Figures of a solve, drawn by matplotlib without pyplot and its global state.

Input: a `SolveResult`, and for bundle adjustment the problem before and after. Output: a figure or
an image file. matplotlib takes half a second to import.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from caspar.io.compressed import FilePath, path_text
from caspar.io.replace import write_file
from caspar.solver.result.quantities import cost_text, count_text
from caspar.solver.result.result import SolveResult

FloatArray = NDArray[np.float64]

COST_COLOR = "#1f5fa8"
REJECTED_COLOR = "#d1242f"
POINT_COLOR = "#30363d"

_NUM_BINS = 60

PANEL_WIDTH = 5.2
COSTS_HEIGHT = 3.2


class Figure(MatplotlibFigure):
    """A figure that a notebook shows as an image; without pyplot nothing else would do that."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def plot_convergence(result: SolveResult) -> Figure:
    """Draw how far the cost lay above the final one, over iterations and over time.

    Args:
        result: The solve; it may have no iterations.

    Returns:
        A figure with a logarithmic axis of costs, relative to the final cost (to the initial one
        where the final is zero). Rejected steps are marked, those from the final cost on the axis
        below: a cost that is the final one has no place on a logarithmic axis.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> result = solver.solve({"Length": [[0.0]], "measured": values})
        >>> caspar.plot.plot_convergence(result).savefig("convergence.png")
    """
    figure = empty_figure(9.0, 3.2)
    draw_costs(figure.subplots(1, 2, sharey=True), result)
    return figure


def plot_residuals(result: SolveResult, factor: str) -> Figure:
    """Draw a histogram of the lengths of a factor's residuals, without weight and loss.

    Args:
        result: The solve.
        factor: Name of the factor.

    Returns:
        A figure with a logarithmic axis of counts. Instances that weigh less than half of the
        largest weight are in another colour; those that weigh nothing are left out.

    Raises:
        InputError: See `SolveResult.residuals`.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> result = solver.solve({"Length": [[0.0]], "measured": values})
        >>> caspar.plot.plot_residuals(result, "measured").savefig("residuals.png")
    """
    lengths = np.linalg.norm(result.residuals(factor), axis=1)
    weights = result.weights(factor)
    is_drawn = np.isfinite(lengths) & (weights > 0.0)
    is_weak = weights[is_drawn] < 0.5 * weights.max(initial=0.0)
    lengths = lengths[is_drawn]
    figure = empty_figure(PANEL_WIDTH, COSTS_HEIGHT)
    axis = figure.subplots()
    axis.hist(
        [lengths[~is_weak], lengths[is_weak]],
        bins=_NUM_BINS,
        stacked=True,
        color=[COST_COLOR, REJECTED_COLOR],
        label=["full weight", "less than half of it"],
    )
    axis.set_yscale("log")
    axis.set_xlabel("length of the residual")
    axis.set_ylabel("instances")
    title = f"{factor}: {count_text(len(lengths), 'residual')}"
    axis.set_title(title, loc="left", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)
    if is_weak.any():
        axis.legend(loc="upper right", fontsize="small")
    return figure


def plot_costs(result: SolveResult) -> Figure:
    """Draw the final cost of each factor as a bar.

    Args:
        result: The solve.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> solver = caspar.Solver(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> values = {"value": [0, 0, 0], "expected": [[1.0], [1.1], [1.5]]}
        >>> result = solver.solve({"Length": [[0.0]], "measured": values})
        >>> caspar.plot.plot_costs(result).savefig("costs.png")
    """
    names = list(result.costs)
    figure = empty_figure(PANEL_WIDTH, 0.8 + 0.35 * len(names))
    axis = figure.subplots()
    bars = axis.barh(names, [result.costs[name] for name in names], color=COST_COLOR)
    axis.bar_label(bars, [cost_text(result.costs[name], 4) for name in names], padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set_xlabel("final cost")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def save(figure: Figure, path: FilePath) -> None:
    """Write a figure into an image file.

    Raises a `ValueError` if the suffix is not that of an image, an `OSError` if it cannot be
    written.
    """
    # Drawn first and written then: an error of the drawing leaves an old file alone.
    image = io.BytesIO()
    figure.savefig(image, format=Path(path_text(path)).suffix[1:].lower())
    write_file(path, image.getvalue())


@dataclass(frozen=True)
class _Course:
    """The course of the cost, the start included.

    Attributes:
        iterations: (n,), from 0.
        times_s: (n,) seconds since the start of the iterations.
        costs: (n,) relative costs; NaN where they have no place on a logarithmic axis.
        is_rejected: (n,) whether the step was rejected.
        label: What the costs are relative to.
    """

    iterations: FloatArray
    times_s: FloatArray
    costs: FloatArray
    is_rejected: NDArray[np.bool_]
    label: str


def _course(result: SolveResult) -> _Course:
    records = result.iterations
    costs = np.array([result.initial_cost, *(record.cost for record in records)])
    if result.final_cost > 0.0:
        # Over the initial cost instead, all but the first few iterations were one flat line.
        relative, label = costs / result.final_cost - 1.0, "(cost - final cost) / final cost"
    else:
        is_finite = math.isfinite(result.initial_cost) and result.initial_cost > 0.0
        relative = costs / (result.initial_cost if is_finite else np.nan)
        label = "cost / initial cost"
    return _Course(
        iterations=np.array([0.0, *(record.iteration for record in records)]),
        times_s=np.array([0.0, *(record.time_s for record in records)]),
        costs=np.where((relative > 0.0) & np.isfinite(relative), relative, np.nan),
        is_rejected=np.array([False, *(not record.step_accepted for record in records)]),
        label=label,
    )


def empty_figure(width: float, height: float) -> Figure:
    """An empty figure (inches) with a canvas of its own."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def draw_costs(axes: Sequence[Axes], result: SolveResult) -> None:
    """Fill two axes: cost over iterations, cost over time."""
    over_iterations, over_time = axes
    course = _course(result)
    unit, scale = ("s", 1.0) if course.times_s[-1] >= 1.0 else ("ms", 1e3)
    for axis, places, name in (
        (over_iterations, course.iterations, "iteration"),
        (over_time, course.times_s * scale, f"time, {unit} (without compilation)"),
    ):
        axis.plot(places, course.costs, color=COST_COLOR, linewidth=1.2, marker="o", markersize=3)
        cross: dict[str, Any] = {
            "color": REJECTED_COLOR,
            "linestyle": "none",
            "marker": "x",
            "markersize": 6,
        }
        is_on_curve = course.is_rejected & np.isfinite(course.costs)
        axis.plot(
            places[is_on_curve], course.costs[is_on_curve], label="step rejected", zorder=3, **cross
        )
        # what was rejected at the final cost, at the foot of the figure
        last = places[course.is_rejected & ~is_on_curve]
        if len(last) > 0:
            foot = axis.get_xaxis_transform()
            axis.plot(last, np.zeros(len(last)), transform=foot, clip_on=False, **cross)
        axis.set_xlabel(name)
        axis.grid(True, which="major", color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
        if np.isfinite(course.costs).any():
            axis.set_yscale("log")
        else:
            axis.set_yticks([])
            axis.text(0.5, 0.5, "no decrease to draw", transform=axis.transAxes, ha="center")
    over_iterations.xaxis.set_major_locator(MaxNLocator(integer=True, steps=(1, 2, 5, 10)))
    over_iterations.set_ylabel(course.label)
    title = f"cost {cost_text(result.initial_cost)} -> {cost_text(result.final_cost)}"
    over_iterations.set_title(f"{title} ({result.status.name})", loc="left", fontsize="medium")
    if course.is_rejected.any():
        over_time.legend(loc="upper right", fontsize="small")
