"""Figures of a solve, drawn by matplotlib without pyplot and its global state.

Input: a `SolveResult`, and for bundle adjustment the problem before and after. Output: a figure or
an image file. Public as `caspar.plot`, loaded when something is first drawn; matplotlib, which
the extra `plot` installs, takes half a second to import.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caspar.errors import MissingPackageError
from caspar.io.bal import BalProblem
from caspar.io.compressed import FilePath, path_text
from caspar.io.replace import write_file
from caspar.io.rotations import conjugate, rotate
from caspar.solver.result.quantities import cost_text, count_text
from caspar.solver.result.result import SolveResult

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as MatplotlibFigure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise MissingPackageError("drawing", "matplotlib", "plot") from error

FloatArray = NDArray[np.float64]

COST_COLOR = "#1f5fa8"
REJECTED_COLOR = "#d1242f"
POINT_COLOR = "#30363d"
CAMERA_COLOR = "#d1242f"

MAX_POINTS = 50_000
"""Points drawn of a scene; more of them only make the image slow and black."""

CENTRAL_PERCENT = 96.0
"""Part of the points, along each axis, that the limits are fitted to."""

_NUM_BINS = 60

_PANEL_WIDTH = 5.2
_COSTS_HEIGHT = 3.2

_LEAST_HEIGHT = 0.25
"""Height of a drawn scene relative to its width."""

_LEAST_AGREEMENT = 0.1
"""Length of the mean of the cameras' unit vectors below which it says nothing."""


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
        where the final is zero); rejected steps are marked. The last step has no place on it.
    """
    figure = _figure(9.0, 3.2)
    _draw_costs(figure.subplots(1, 2, sharey=True), result)
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
    """
    lengths = np.linalg.norm(result.residuals(factor), axis=1)
    weights = result.weights(factor)
    is_drawn = np.isfinite(lengths) & (weights > 0.0)
    is_weak = weights[is_drawn] < 0.5 * weights.max(initial=0.0)
    lengths = lengths[is_drawn]
    figure = _figure(_PANEL_WIDTH, _COSTS_HEIGHT)
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
    """
    names = list(result.costs)
    figure = _figure(_PANEL_WIDTH, 0.8 + 0.35 * len(names))
    axis = figure.subplots()
    bars = axis.barh(names, [result.costs[name] for name in names], color=COST_COLOR)
    axis.bar_label(bars, [cost_text(result.costs[name], 4) for name in names], padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.2)
    axis.set_xlabel("final cost")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def plot_bundle_adjustment(
    before: BalProblem,
    after: BalProblem,
    result: SolveResult,
    path: FilePath,
) -> None:
    """Draw the cost, and the scene from above before and after, into an image file.

    Args:
        before: The problem at the start values.
        after: The problem at the values of the result.
        result: The solve.
        path: The image to write; the suffix (.png, .svg, .pdf) says how.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
        ValueError: The suffix is not that of an image, or `path` is no path.
    """
    view = _view_from_above(after)
    scene_height = _PANEL_WIDTH * view.height / view.width + 0.7
    figure = _figure(2.0 * _PANEL_WIDTH + 0.8, _COSTS_HEIGHT + scene_height)
    (costs,), (scenes,) = figure.subfigures(
        2, 1, squeeze=False, height_ratios=(_COSTS_HEIGHT, scene_height)
    )
    _draw_costs(costs.subplots(1, 2, sharey=True), result)

    axes = scenes.subplots(1, 2, sharex=True, sharey=True)
    for axis, problem, title in zip(axes, (before, after), ("before", "after"), strict=True):
        _draw_scene(axis, problem, view)
        axis.set_title(title, loc="left", fontsize="medium")
    axes[0].set_xlim(-0.5 * view.width, 0.5 * view.width)
    axes[0].set_ylim(-0.5 * view.height, 0.5 * view.height)
    _draw_legend(axes[1])
    scenes.supxlabel(_scene_caption(after), fontsize="small", color="0.35")
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


def _figure(width: float, height: float) -> Figure:
    """An empty figure (inches) with a canvas of its own."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _draw_costs(axes: Sequence[Axes], result: SolveResult) -> None:
    """Fill two axes: cost over iterations, cost over time."""
    over_iterations, over_time = axes
    course = _course(result)
    unit, scale = ("s", 1.0) if course.times_s[-1] >= 1.0 else ("ms", 1e3)
    for axis, places, name in (
        (over_iterations, course.iterations, "iteration"),
        (over_time, course.times_s * scale, f"time, {unit} (without compilation)"),
    ):
        axis.plot(places, course.costs, color=COST_COLOR, linewidth=1.2, marker="o", markersize=3)
        axis.plot(
            places[course.is_rejected],
            course.costs[course.is_rejected],
            color=REJECTED_COLOR,
            linestyle="none",
            marker="x",
            markersize=6,
            label="step rejected",
        )
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


@dataclass(frozen=True)
class _View:
    """A projection of the world to a plane, and the part of the plane that is drawn.

    Attributes:
        centre: (3,) the point in the middle of the drawing.
        axes: (3, 2) the directions to the right and up in the drawing, unit vectors.
        width: Extent to the right, in units of the world.
        height: Extent upwards.
    """

    centre: FloatArray
    axes: FloatArray
    width: float
    height: float

    def project(self, positions: FloatArray) -> FloatArray:
        """(n, 2) places of (n, 3) positions."""
        projected: FloatArray = (positions - self.centre) @ self.axes
        return projected


def _view_from_above(problem: BalProblem) -> _View:
    """Look down along what the cameras have above them, the longer side of the scene lying.

    The limits leave out the outermost points and cameras along each axis: a few lie so far out
    that they would shrink the rest to a dot.
    """
    cameras = _camera_centres(problem)
    middle = np.median(problem.points, axis=0)
    near = _central(problem.points - middle)
    above = rotate(_world_from_camera(problem), np.array([0.0, 1.0, 0.0])).mean(axis=0)
    if np.linalg.norm(above) < _LEAST_AGREEMENT:
        above = _principal(near)[-1]
    above = above / np.linalg.norm(above)
    right = _principal(near - np.outer(near @ above, above))[0]
    axes = np.stack([right, np.cross(above, right)], axis=1)

    outside = (100.0 - CENTRAL_PERCENT) / 2.0
    ends = np.concatenate(
        [
            np.percentile((positions - middle) @ axes, [outside, 100.0 - outside], axis=0)
            for positions in (problem.points, cameras)
        ]
    )
    lowest, highest = ends.min(axis=0), ends.max(axis=0)
    extents = highest - lowest
    if extents[1] > extents[0]:  # a quarter turn
        axes = np.stack([axes[:, 1], -axes[:, 0]], axis=1)
        lowest, highest = np.array([lowest[1], -highest[0]]), np.array([highest[1], -lowest[0]])
        extents = highest - lowest
    width = 1.16 * (float(extents[0]) if extents[0] > 0.0 else 1.0)
    height = max(float(extents[1]) + 0.16 * float(extents[0]), _LEAST_HEIGHT * width)
    return _View(middle + axes @ (0.5 * (lowest + highest)), axes, width, height)


def _central(positions: FloatArray) -> FloatArray:
    """The half of the positions next to zero: the far ones would decide every direction."""
    distances = np.linalg.norm(positions, axis=1)
    half: FloatArray = positions[distances <= np.median(distances)]
    return half


def _principal(positions: FloatArray) -> FloatArray:
    """(3, 3) orthogonal unit vectors as rows, from the longest extent to the shortest."""
    vectors: FloatArray = np.linalg.eigh(positions.T @ positions).eigenvectors
    return vectors.T[::-1]


def _world_from_camera(problem: BalProblem) -> FloatArray:
    quaternions = problem.cameras[:, :4]
    return conjugate(quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True))


def _camera_centres(problem: BalProblem) -> FloatArray:
    centres: FloatArray = -rotate(_world_from_camera(problem), problem.cameras[:, 4:7])
    return centres


def _draw_scene(axis: Axes, problem: BalProblem, view: _View) -> None:
    points = view.project(problem.points[:: _point_step(problem)])
    axis.scatter(
        points[:, 0],
        points[:, 1],
        s=float(np.clip(6e3 / len(points), 0.3, 12.0)),
        color=POINT_COLOR,
        alpha=0.5,
        linewidths=0,
        rasterized=True,
    )
    cameras = view.project(_camera_centres(problem))
    axis.scatter(
        cameras[:, 0],
        cameras[:, 1],
        s=float(np.clip(6e3 / len(cameras), 4.0, 30.0)),
        color=CAMERA_COLOR,
        marker="^",
        edgecolors="white",
        linewidths=0.4,
    )
    axis.set_aspect("equal")
    axis.tick_params(labelsize="small", colors="0.35")
    for spine in axis.spines.values():
        spine.set_color("0.8")


def _draw_legend(axis: Axes) -> None:
    """Say above the drawing what is a point and what a camera."""
    handles = [
        Line2D([], [], linestyle="none", marker=marker, markersize=size, color=color, label=label)
        for marker, size, color, label in (
            (".", 5, POINT_COLOR, "point"),
            ("^", 6, CAMERA_COLOR, "camera"),
        )
    ]
    axis.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize="small",
        borderaxespad=0.2,
    )


def _point_step(problem: BalProblem) -> int:
    """Every how many points one is drawn."""
    return -(-problem.num_points // MAX_POINTS)


def _scene_caption(problem: BalProblem) -> str:
    step = _point_step(problem)
    part = f" (one in {step} drawn)" if step > 1 else ""
    return (
        f"{count_text(problem.num_cameras, 'camera')} and "
        f"{count_text(problem.num_points, 'point')}{part} from above, in units of the file; "
        "the outermost may lie outside"
    )
