"""Pictures of pose graphs, in the plane and in space, before and after a solve.

Input: graphs and a `SolveResult`. Output: an image file.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from mpl_toolkits.mplot3d.art3d import Line3DCollection
from mpl_toolkits.mplot3d.axes3d import Axes3D
from numpy.typing import NDArray

from caspar.io.compressed import FilePath
from caspar.io.graphs.kind import PoseGraphKind
from caspar.io.graphs.pose_graph import PoseGraph
from caspar.plot.figures import (
    COST_COLOR,
    COSTS_HEIGHT,
    POINT_COLOR,
    draw_costs,
    empty_figure,
    save,
)
from caspar.solver.result.quantities import count_text
from caspar.solver.result.result import SolveResult

FloatArray = NDArray[np.float64]

PATH_COLOR = COST_COLOR
LOOP_COLOR = "#e08214"
LANDMARK_COLOR = "#1a7f37"
HELD_COLOR = "#d1242f"

MAX_LINES = 40_000
"""Edges and sightings drawn, of each; more of them only make the image slow."""

_SIDE = 5.2
_MARGIN = 0.05
_RATIOS = (0.3, 1.3)
"""Least and greatest height of a drawing in the plane over its width."""


def plot_pose_graph(
    before: PoseGraph, after: PoseGraph, result: SolveResult, path: FilePath
) -> None:
    """Draw the cost, and the graph before and after, into an image file.

    Edges between neighbours in the order of ids are the path; all others are loops.

    Args:
        before: The graph at the start values.
        after: The graph at the values of the result.
        result: The solve.
        path: The image to write; the suffix (.png, .svg, .pdf) says how.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
        ValueError: The suffix is not that of an image, or `path` is no path.

    Example:
        >>> from pathlib import Path
        >>> import caspar
        >>> _ = Path("pair.g2o").write_text("EDGE_SE2 0 1 1.0 2.0 0 4 0 0 4 0 1")
        >>> graph = caspar.io.read_g2o("pair.g2o")
        >>> summary = caspar.pose_graph.solve(graph)
        >>> caspar.plot.plot_pose_graph(graph, summary.graph, summary.result, "pair.png")
    """
    in_space = before.kind is PoseGraphKind.SE3
    height = _SIDE + 0.4 if in_space else _height(before, after) + 0.8
    figure = empty_figure(2.0 * _SIDE + 0.8, COSTS_HEIGHT + height)
    (costs,), (graphs,) = figure.subfigures(
        2, 1, squeeze=False, height_ratios=(COSTS_HEIGHT, height)
    )
    draw_costs(costs.subplots(1, 2, sharey=True), result)
    axes = graphs.subplots(1, 2, subplot_kw={"projection": "3d"} if in_space else {})
    for axis, graph, title in zip(axes, (before, after), ("before", "after"), strict=True):
        if in_space:
            _draw_in_space(axis, graph)
        else:
            _draw_in_plane(axis, graph)
        axis.set_title(title, loc="left", fontsize="medium")
    _draw_legend(axes[1], after)
    sizes = ", ".join(count_text(count, name[:-1]) for name, count in after.counts().items())
    graphs.supxlabel(f"{sizes}, in units of the file", fontsize="small", color="0.35")
    save(figure, path)


def _height(*graphs: PoseGraph) -> float:
    """Inches of the higher of some graphs in the plane that are `_SIDE` wide."""
    sizes = [np.diff(_limits(graph), axis=1)[:, 0] for graph in graphs]
    ratio = max(float(size[1] / size[0]) for size in sizes)
    return _SIDE * float(np.clip(ratio, *_RATIOS))


def _draw_in_plane(axis: Axes, graph: PoseGraph) -> None:
    for lines, style in _lines(graph):
        axis.add_collection(LineCollection(cast(Sequence[Any], lines), **style))
    for points, style in _points(graph):
        axis.scatter(points[:, 0], points[:, 1], **style)
    (left, right), (low, high) = _limits(graph)
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    axis.set_aspect("equal")
    axis.tick_params(labelsize="small", colors="0.35")
    for spine in axis.spines.values():
        spine.set_color("0.8")


def _draw_in_space(axis: Axes3D, graph: PoseGraph) -> None:
    for lines, style in _lines(graph):
        axis.add_collection3d(Line3DCollection(cast(Sequence[Any], lines), **style))
    for points, style in _points(graph):
        axis.scatter(points[:, 0], points[:, 1], points[:, 2], depthshade=False, **style)
    limits = _limits(graph)
    axis.set_xlim(*limits[0])
    axis.set_ylim(*limits[1])
    axis.set_zlim(*limits[2])
    sizes = limits[:, 1] - limits[:, 0]
    # a graph that is nearly flat still needs some height to be looked at
    axis.set_box_aspect(np.maximum(sizes, 0.15 * sizes.max()))
    axis.tick_params(labelsize="x-small", colors="0.35")
    axis.locator_params(nbins=4)


def _lines(graph: PoseGraph) -> list[tuple[FloatArray, dict[str, Any]]]:
    """Segments, (n, 2, dim), and how to draw them, what is drawn first first."""
    places = _places(graph)
    order = np.argsort(np.argsort(graph.ids, kind="stable"), kind="stable")
    ends = np.stack([graph.index_a, graph.index_b], axis=1)
    ends = np.concatenate([ends, graph.sensor_edges.ends])
    is_path = np.abs(order[ends[:, 0]] - order[ends[:, 1]]) == 1
    edges = places[ends]
    sightings = np.stack(
        [places[graph.sightings.pose], graph.landmarks.points[graph.sightings.landmark]], axis=1
    )
    drawn = (
        (sightings, {"color": LANDMARK_COLOR, "linewidths": 0.3, "alpha": 0.15}),
        (edges[~is_path], {"color": LOOP_COLOR, "linewidths": 0.4, "alpha": 0.5}),
        (edges[is_path], {"color": PATH_COLOR, "linewidths": 0.7}),
    )
    return [(lines[:: -(-len(lines) // MAX_LINES)], style) for lines, style in drawn if len(lines)]


def _points(graph: PoseGraph) -> list[tuple[FloatArray, dict[str, Any]]]:
    """Points, (n, dim), and how to draw them."""
    places = _places(graph)
    held = places[graph.fixed]
    drawn = [
        (graph.landmarks.points, {"s": 6.0, "color": LANDMARK_COLOR, "linewidths": 0}),
        (held, {"s": 24.0, "color": HELD_COLOR, "marker": "s", "linewidths": 0}),
    ]
    if graph.num_edges == 0:
        drawn.append((places, {"s": 3.0, "color": POINT_COLOR, "linewidths": 0}))
    return [(points, style) for points, style in drawn if len(points) > 0]


def _places(graph: PoseGraph) -> FloatArray:
    return graph.poses[:, -graph.kind.dim :]


def _limits(graph: PoseGraph) -> FloatArray:
    """(dim, 2) what is drawn along each axis."""
    places = np.concatenate([_places(graph), graph.landmarks.points])
    low, high = places.min(axis=0), places.max(axis=0)
    margin = _MARGIN * max(float((high - low).max()), 1e-9)
    return np.stack([low - margin, high + margin], axis=1)


def _draw_legend(axis: Axes, graph: PoseGraph) -> None:
    """Say above the drawing what is what."""
    handles = [Line2D([], [], color=PATH_COLOR, label="path")]
    handles.append(Line2D([], [], color=LOOP_COLOR, label="loop"))
    for is_there, marker, color, label in (
        (graph.num_landmarks > 0, "o", LANDMARK_COLOR, "landmark"),
        (graph.fixed.any(), "s", HELD_COLOR, "held"),
    ):
        if is_there:
            style: dict[str, Any] = {
                "linestyle": "none",
                "marker": marker,
                "markersize": 4,
                "color": color,
            }
            handles.append(Line2D([], [], label=label, **style))
    axis.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize="small",
        borderaxespad=0.2,
    )
