"""The scene of bundle adjustment from above, before and after a solve.

Input: problems and a `SolveResult`. Output: an image file.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from caspar.io.bal import BalProblem
from caspar.io.compressed import FilePath
from caspar.io.rotations import conjugate, rotate
from caspar.plot.figures import (
    COSTS_HEIGHT,
    PANEL_WIDTH,
    POINT_COLOR,
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
    figure = empty_figure(2.0 * PANEL_WIDTH + 0.8, COSTS_HEIGHT + scene_height)
    (costs,), (scenes,) = figure.subfigures(
        2, 1, squeeze=False, height_ratios=(COSTS_HEIGHT, scene_height)
    )
    draw_costs(costs.subplots(1, 2, sharey=True), result)

    axes = scenes.subplots(1, 2, sharex=True, sharey=True)
    for axis, problem, title in zip(axes, (before, after), ("before", "after"), strict=True):
        _draw_scene(axis, problem, view)
        axis.set_title(title, loc="left", fontsize="medium")
    axes[0].set_xlim(-0.5 * view.width, 0.5 * view.width)
    axes[0].set_ylim(-0.5 * view.height, 0.5 * view.height)
    _draw_legend(axes[1])
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
