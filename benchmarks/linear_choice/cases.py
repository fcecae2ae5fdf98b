"""The problems: calibrations, bundle adjustment in one and in several blocks, streets, pose graphs.

Input: names. Output: factors, and arrays as `Solver.solve` takes them. Made or read once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from benchmarks import pose_graphs
from benchmarks.problems import DATA, Bundle, make
from benchmarks.synthetic import make_bal
from caspar.bundle_adjustment import Cam, Pixel, Point, snavely

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Case:
    """A problem.

    Attributes:
        name: In the table.
        factors: For `Solver`.
        arrays: For `Solver.solve`.
        graph: The pose graph that it is; None: it is none.
    """

    name: str
    factors: Sequence[caspar.Factor]
    arrays: Mapping[str, Any]
    graph: pose_graphs.GraphProblem | None = None


# -- calibration -----------------------------------------------------------------------------------


class View(sf.Pose3):
    """Takes board to camera coordinates; the camera looks along its z axis."""


@dataclass
class Intrinsics:
    """OpenCV's model with five coefficients.

    Attributes:
        focal: fx and fy, in pixels.
        centre: cx and cy, in pixels.
        radial: k1, k2 and k3.
        tangential: p1 and p2.
    """

    focal: sf.V2
    centre: sf.V2
    radial: sf.V3
    tangential: sf.V2


class Corner(sf.V3):
    """A point of the board, in squares."""


@caspar.factor
def seen_corner(
    intrinsics: Annotated[Intrinsics, caspar.TunableShared],
    view: Annotated[View, caspar.TunableShared],
    corner: Annotated[Corner, caspar.ConstSequential],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured position, in pixels."""
    x, y, depth = view * corner
    x, y = x / depth, y / depth
    square = x * x + y * y
    k1, k2, k3 = intrinsics.radial
    p1, p2 = intrinsics.tangential
    radial = 1 + square * (k1 + square * (k2 + square * k3))
    u = x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x)
    v = y * radial + 2 * p2 * x * y + p1 * (square + 2 * y * y)
    return sf.V2(intrinsics.focal[0] * u, intrinsics.focal[1] * v) + intrinsics.centre - pixel


def calibration(name: str, num_corners: int) -> Case:
    """Thirteen simulated pictures of 640 by 480 of a flat board.

    Args:
        name: In the table.
        num_corners: In each picture.
    """
    rng = np.random.default_rng(0)
    side = int(np.ceil(np.sqrt(num_corners)))
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
    board = np.zeros((num_corners, 3))
    board[:, :2] = 8.0 * grid[:num_corners] / max(side - 1, 1) - 4.0
    turns = Rotation.from_rotvec(rng.uniform(-0.4, 0.4, (13, 3)))
    places = rng.uniform([-1.0, -1.0, 12.0], [1.0, 1.0, 18.0], (13, 3))
    truth = np.array([536.0, 536.0, 342.0, 235.0, -0.26, -0.04, 0.2, 1e-3, -1e-4])
    view, corner = (index.ravel() for index in np.indices((13, num_corners)))
    inside = turns[view].apply(board[corner]) + places[view]
    exact = _seen(truth, inside)
    begin = Rotation.from_rotvec(rng.normal(0.0, 0.03, (13, 3))) * turns
    return Case(
        name,
        [seen_corner],
        {
            "Intrinsics": np.array([[500.0, 500.0, 320.0, 240.0] + 5 * [0.0]]),
            "View": np.hstack([begin.as_quat(), places + rng.normal(0.0, 0.2, (13, 3))]),
            "seen_corner": {
                "intrinsics": np.zeros(len(view), dtype=np.int32),
                "view": view.astype(np.int32),
                "corner": board[corner],
                "pixel": exact + rng.normal(0.0, 0.2, exact.shape),
            },
        },
    )


def _seen(intrinsics: Float, inside: Float) -> Float:
    """Pixels (n, 2) of points (n, 3) in camera coordinates."""
    fx, fy, cx, cy, k1, k2, k3, p1, p2 = intrinsics
    x, y = (inside[:, :2] / inside[:, 2:]).T
    square = x * x + y * y
    radial = 1 + square * (k1 + square * (k2 + square * k3))
    u = x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x)
    v = y * radial + 2 * p2 * x * y + p1 * (square + 2 * y * y)
    return np.stack([fx * u + cx, fy * v + cy], axis=1)


# -- bundle adjustment -----------------------------------------------------------------------------


class Pose(sf.Pose3):
    """Takes world to camera coordinates."""


class Focal(sf.V1):
    """Focal length in pixels."""


class Distortion(sf.V2):
    """k1 and k2."""


@caspar.factor
def split_snavely(
    pose: Annotated[Pose, caspar.TunableShared],
    focal: Annotated[Focal, caspar.TunableShared],
    distortion: Annotated[Distortion, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """The factor of bundle adjustment, its camera in three nodes."""
    cam = Cam(pose, sf.V3(focal[0], distortion[0], distortion[1]))
    residual: sf.V2 = snavely.function(cam, point, pixel)
    return residual


def _whole(bundle: Bundle) -> Case:
    return Case(bundle.name, bundle.factors, bundle.arrays)


def _split(bundle: Bundle) -> Case:
    """Each camera in three nodes."""
    cameras, which = bundle.cameras, bundle.camera_index
    return Case(
        f"{bundle.name}, cameras in three nodes",
        [split_snavely],
        {
            "Pose": np.ascontiguousarray(cameras[:, :7]),
            "Focal": np.ascontiguousarray(cameras[:, 7:8]),
            "Distortion": np.ascontiguousarray(cameras[:, 8:10]),
            "Point": bundle.points,
            "split_snavely": {
                "pose": which,
                "focal": which,
                "distortion": which,
                "point": bundle.point_index,
                "pixel": bundle.pixels,
            },
        },
    )


def street(num_cameras: int = 170, *, start_error: float = 5.0) -> Case:
    """Cameras along a street that share few points and start far from where they stood."""
    made = make_bal(
        num_cameras, 60 * num_cameras, 150 * num_cameras, "street", start_error=start_error
    )
    return Case(
        f"street of {num_cameras} cameras, far start",
        [snavely],
        {
            "Cam": made.cameras,
            "Point": made.points,
            "snavely": {
                "cam": made.camera_index,
                "point": made.point_index,
                "pixel": made.pixels,
            },
        },
    )


# -- pose graphs -----------------------------------------------------------------------------------


def _graph(graph: pose_graphs.GraphProblem) -> Case:
    return Case(graph.name, graph.factors, graph.arrays, graph)


FOLDERS = (DATA, Path(os.environ.get("CASPAR_BENCHMARK_DATA", DATA)))
"""Where files of pose graphs are: some are too large for the repository."""


def _read(name: str) -> Case:
    return _graph(pose_graphs.read(name, FOLDERS))


CASES: Mapping[str, Callable[[], Case]] = {
    "calibration-54": lambda: calibration("calibration, 13 pictures of 54 corners", 54),
    "calibration-800": lambda: calibration("calibration, 13 pictures of 800 corners", 800),
    "trafalgar-21": lambda: _whole(make("problem-21-11315")),
    "trafalgar-21-split": lambda: _split(make("problem-21-11315")),
    "ladybug-49": lambda: _whole(make("problem-49-7776")),
    "street-170": street,
    "smallGrid3D": lambda: _read("smallGrid3D"),
    "M3500": lambda: _read("M3500"),
    "parking-garage": lambda: _read("parking-garage"),
    "sphere2500": lambda: _read("sphere2500"),
    "torus-5000": lambda: _graph(pose_graphs.torus()),
}
"""By name on the command line, in the order of the table."""
