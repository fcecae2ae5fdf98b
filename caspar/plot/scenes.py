"""The scene of bundle adjustment from above, and pose graphs, before and after a solve.

Input: problems or graphs, and a `SolveResult`. Output: an image file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D
from mpl_toolkits.mplot3d.art3d import Line3DCollection
from mpl_toolkits.mplot3d.axes3d import Axes3D

from caspar.io.bal import BalProblem
from caspar.io.compressed import FilePath
from caspar.io.graphs.pose_graph import PoseGraph, PoseGraphKind
from caspar.io.rotations import conjugate, rotate
from caspar.plot.figures import (
    COST_COLOR,
    COSTS_HEIGHT,
    PANEL_WIDTH,
    POINT_COLOR,
    Figure,
    FloatArray,
    draw_costs,
    empty_figure,
    save,
)
from caspar.solver.result.quantities import count_text
from caspar.solver.result.result import SolveResult

CAMERA_COLOR = "#d1242f"

MAX_POINTS = 50_000
"""Points drawn of a scene; more of them only make the image slow and black."""

CENTRAL_PERCENT = 96.0
"""Part of the points, along each axis, that the limits are fitted to."""

_LEAST_HEIGHT = 0.25
"""Height of a drawn scene relative to its width."""

_LEAST_AGREEMENT = 0.1
"""Length of the mean of the cameras' unit vectors below which it says nothing."""


def plot_bundle_adjustment(
    before: BalProblem, after: BalProblem, result: SolveResult, path: FilePath
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

    Example:
        >>> import caspar
        >>> problem = caspar.io.BalProblem(
        ...     cameras=[[0, 0, 0, 1, 0, 0, -4.0, 500, 0, 0]], points=[[0.1, 0.2, 0.0]],
        ...     camera_index=[0], point_index=[0], pixels=[[12.5, 25.0]])
        >>> result = caspar.Solver(caspar.bundle_adjustment.snavely).solve(
        ...     {"Cam": problem.cameras, "Point": problem.points,
        ...      "snavely": {"cam": [0], "point": [0], "pixel": problem.pixels}})
        >>> caspar.plot.plot_bundle_adjustment(problem, problem, result, "scene.png")
    """
    view = _view_from_above(after)
    scene_height = PANEL_WIDTH * view.height / view.width + 0.7
    figure, scenes = _with_costs(result, scene_height)
    axes = scenes.subplots(1, 2, sharex=True, sharey=True)
    for axis, problem, title in zip(axes, (before, after), ("before", "after"), strict=True):
        _draw_scene(axis, problem, view)
        axis.set_title(title, loc="left", fontsize="medium")
    axes[0].set_xlim(-0.5 * view.width, 0.5 * view.width)
    axes[0].set_ylim(-0.5 * view.height, 0.5 * view.height)
    markers = ((".", 5, POINT_COLOR, "point"), ("^", 6, CAMERA_COLOR, "camera"))
    _draw_legend(axes[1], [_marker(*one) for one in markers])
    scenes.supxlabel(_scene_caption(after), fontsize="small", color="0.35")
    save(figure, path)


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
    vectors: FloatArray = np.linalg.eigh(positions.T @ positions).eigenvectors
    return vectors.T[::-1]


def _world_from_camera(problem: BalProblem) -> FloatArray:
    quaternions = problem.cameras[:, :4]
    return conjugate(quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True))


def _camera_centres(problem: BalProblem) -> FloatArray:
    centres: FloatArray = -rotate(_world_from_camera(problem), problem.cameras[:, 4:7])
    return centres


def _draw_scene(axis: Axes, problem: BalProblem, view: _View) -> None:
    points = view.project(problem.points[:: -(-problem.num_points // MAX_POINTS)])
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
    _show_plainly(axis)


def _scene_caption(problem: BalProblem) -> str:
    step = -(-problem.num_points // MAX_POINTS)
    part = f" (one in {step} drawn)" if step > 1 else ""
    return (
        f"{count_text(problem.num_cameras, 'camera')} and "
        f"{count_text(problem.num_points, 'point')}{part} from above, in units of the file; "
        "the outermost may lie outside"
    )


PATH_COLOR = COST_COLOR
LOOP_COLOR = "#e08214"
LANDMARK_COLOR = "#1a7f37"
HELD_COLOR = "#d1242f"

MAX_LINES = 40_000
"""Edges and sightings drawn, of each; more of them only make the image slow."""

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
    height = PANEL_WIDTH + 0.4 if in_space else _height(before, after) + 0.8
    figure, graphs = _with_costs(result, height)
    axes = graphs.subplots(1, 2, subplot_kw={"projection": "3d"} if in_space else {})
    for axis, graph, title in zip(axes, (before, after), ("before", "after"), strict=True):
        if in_space:
            _draw_in_space(axis, graph)
        else:
            _draw_in_plane(axis, graph)
        axis.set_title(title, loc="left", fontsize="medium")
    _draw_legend(axes[1], _handles(after))
    sizes = ", ".join(count_text(count, name[:-1]) for name, count in after.counts().items())
    graphs.supxlabel(f"{sizes}, in units of the file", fontsize="small", color="0.35")
    save(figure, path)


def _height(*graphs: PoseGraph) -> float:
    """Inches of the higher of some graphs in the plane that are `PANEL_WIDTH` wide."""
    sizes = [np.diff(_limits(graph), axis=1)[:, 0] for graph in graphs]
    ratio = max(float(size[1] / size[0]) for size in sizes)
    return PANEL_WIDTH * float(np.clip(ratio, *_RATIOS))


def _draw_in_plane(axis: Axes, graph: PoseGraph) -> None:
    for lines, style in _lines(graph):
        axis.add_collection(LineCollection(cast(Sequence[Any], lines), **style))
    for points, style in _points(graph):
        axis.scatter(points[:, 0], points[:, 1], **style)
    (left, right), (low, high) = _limits(graph)
    axis.set_xlim(left, right)
    axis.set_ylim(low, high)
    _show_plainly(axis)


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
    places = np.concatenate([_places(graph), graph.landmarks.points])
    low, high = places.min(axis=0), places.max(axis=0)
    margin = _MARGIN * max(float((high - low).max()), 1e-9)
    return np.stack([low - margin, high + margin], axis=1)


def _handles(graph: PoseGraph) -> list[Line2D]:
    handles = [Line2D([], [], color=PATH_COLOR, label="path")]
    handles.append(Line2D([], [], color=LOOP_COLOR, label="loop"))
    if graph.num_landmarks > 0:
        handles.append(_marker("o", 4, LANDMARK_COLOR, "landmark"))
    if graph.fixed.any():
        handles.append(_marker("s", 4, HELD_COLOR, "held"))
    return handles


# -- both ------------------------------------------------------------------------------------------


def _with_costs(result: SolveResult, height: float) -> tuple[Figure, SubFigure]:
    figure = empty_figure(2.0 * PANEL_WIDTH + 0.8, COSTS_HEIGHT + height)
    (costs,), (drawings,) = figure.subfigures(
        2, 1, squeeze=False, height_ratios=(COSTS_HEIGHT, height)
    )
    draw_costs(costs.subplots(1, 2, sharey=True), result)
    return figure, drawings


def _marker(marker: str, size: float, color: str, label: str) -> Line2D:
    return Line2D(
        [], [], linestyle="none", marker=marker, markersize=size, color=color, label=label
    )


def _draw_legend(axis: Axes, handles: list[Line2D]) -> None:
    axis.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(handles),
        frameon=False,
        fontsize="small",
        borderaxespad=0.2,
    )


def _show_plainly(axis: Axes) -> None:
    axis.set_aspect("equal")
    axis.tick_params(labelsize="small", colors="0.35")
    for spine in axis.spines.values():
        spine.set_color("0.8")
