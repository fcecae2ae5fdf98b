"""`python -m benchmarks.windows`: small problems again and again, of one structure and of others.

A window of cameras with the points that they see, and a window of poses of a plane with landmarks,
as trackers and mappers solve them. *Same* solves one problem again; in *new* every call has other
counts and indices. GTSAM, if it is installed, solves the new ones; that includes building its graph
in Python. Milliseconds of the processor, medians. Prints, and writes to a folder, a page.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from benchmarks.report import environment

Arrays = dict[str, Any]
Rows = NDArray[np.float64]

FOCAL = 500.0
NUM_CAMERAS, NUM_POINTS = 10, 200
NUM_POSES, NUM_MARKS = 20, 40
MOVED_SIGMA, SEEN_SIGMA = np.array([0.02, 0.05, 0.05]), np.array([0.03, 0.08])


class Point(sf.V3):
    """A point in space."""


class Mark(sf.V2):
    """A landmark in a plane."""


@caspar.factor
def pixel(
    pose: Annotated[sf.Pose3, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    seen: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A point in a picture."""
    x, y, z = pose * point
    return FOCAL * sf.V2(x / z, y / z) - seen


def cameras(rng: np.random.Generator, number: int) -> Arrays:
    """A window of cameras, each of which sees half of the points."""
    num_points = NUM_POINTS - 20 + number % 40
    points = rng.uniform(-1.0, 1.0, (num_points, 3))
    poses = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 4.0], (NUM_CAMERAS, 1))
    poses[:, 4] = np.linspace(-1.0, 1.0, NUM_CAMERAS)
    camera, point = np.nonzero(rng.random((NUM_CAMERAS, num_points)) < 0.5)
    x, y, z = (points[point] + poses[camera, 4:]).T
    seen = FOCAL * np.stack([x / z, y / z], axis=1) + rng.normal(size=(len(camera), 2))
    return {
        "Pose3": poses,
        "Point": points + rng.normal(scale=0.05, size=points.shape),
        "pixel": {"pose": camera, "point": point, "seen": seen},
        "prior": {"value": [0], "expected": poses[:1], "sigma": [1.0] * 6},
    }


def planar(rng: np.random.Generator, number: int) -> Arrays:
    """A window of poses of a plane with odometry, and the landmarks near them."""
    angle = np.cumsum(0.2 * rng.normal(size=NUM_POSES)) + rng.uniform(0.0, 6.0)
    place = np.cumsum(0.5 * _directions(angle), axis=0) + rng.uniform(-4.0, 4.0, 2)
    all_marks = np.random.default_rng(0).uniform(-8.0, 8.0, (NUM_MARKS, 2))
    way = place[:, None] - all_marks
    is_seen = (np.linalg.norm(way, axis=2) < 4.0) & (rng.random(way.shape[:2]) < 0.7)
    is_seen[:, 0] |= ~is_seen.any()
    pose, mark = np.nonzero(is_seen)
    near, mark = np.unique(mark, return_inverse=True)
    x, y = (all_marks[near][mark] - place[pose]).T
    bearing = _wrapped(np.arctan2(y, x) - angle[pose]) + SEEN_SIGMA[0] * rng.normal(size=len(pose))
    distance = np.hypot(x, y) + SEEN_SIGMA[1] * rng.normal(size=len(pose))
    (dx, dy), turn = np.diff(place, axis=0).T, np.diff(angle)
    cos, sin = _directions(angle[:-1]).T
    moved = np.stack([_wrapped(turn), cos * dx + sin * dy, cos * dy - sin * dx], axis=1)
    moved += MOVED_SIGMA * rng.normal(size=moved.shape)
    start = angle + 0.02 * rng.normal(size=NUM_POSES)
    poses = np.concatenate([_directions(start), place + 0.1 * rng.normal(size=place.shape)], axis=1)
    return {
        "Pose2": poses,
        "Mark": all_marks[near] + 0.1 * rng.normal(size=(len(near), 2)),
        "moved": {
            "a": np.arange(NUM_POSES - 1),
            "b": np.arange(1, NUM_POSES),
            "a_from_b": np.concatenate([_directions(moved[:, 0]), moved[:, 1:]], axis=1),
            "sigma": MOVED_SIGMA,
        },
        "seen": {
            "pose": pose,
            "point": mark,
            "angle": bearing[:, None],
            "distance": distance[:, None],
            "sigma": SEEN_SIGMA,
        },
        "prior": {"value": [0], "expected": poses[:1], "sigma": [0.1] * 3},
    }


def _directions(angle: Rows) -> Rows:
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _wrapped(angle: Rows) -> Rows:
    wrapped: Rows = (angle + np.pi) % (2.0 * np.pi) - np.pi
    return wrapped


# -- GTSAM -----------------------------------------------------------------------------------------


def cameras_by_gtsam(gtsam: Any, arrays: Arrays) -> float:
    """The least cost."""
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    calibration = gtsam.Cal3_S2(FOCAL, FOCAL, 0.0, 0.0, 0.0)
    noise = gtsam.noiseModel.Isotropic.Sigma(2, 1.0)
    for number, pose in enumerate(arrays["Pose3"]):
        values.insert(number, gtsam.Pose3(gtsam.Rot3(), gtsam.Point3(*-pose[4:])))
    for number, point in enumerate(arrays["Point"]):
        values.insert(1000 + number, gtsam.Point3(*point))
    pixels = arrays["pixel"]
    for camera, point, seen in zip(*pixels.values(), strict=True):
        keys = int(camera), 1000 + int(point)
        graph.add(
            gtsam.GenericProjectionFactorCal3_S2(gtsam.Point2(*seen), noise, *keys, calibration)
        )
    graph.addPriorPose3(0, values.atPose3(0), gtsam.noiseModel.Isotropic.Sigma(6, 1.0))
    return float(graph.error(gtsam.LevenbergMarquardtOptimizer(graph, values).optimize()))


def planar_by_gtsam(gtsam: Any, arrays: Arrays) -> float:
    """The least cost."""
    graph, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    noise = gtsam.noiseModel
    moved, seen = arrays["moved"], arrays["seen"]
    for number, pose in enumerate(arrays["Pose2"]):
        values.insert(number, _pose2(gtsam, pose))
    for number, mark in enumerate(arrays["Mark"]):
        values.insert(1000 + number, mark)
    prior = noise.Isotropic.Sigma(3, 0.1)
    graph.add(gtsam.PriorFactorPose2(0, _pose2(gtsam, arrays["Pose2"][0]), prior))
    step = noise.Diagonal.Sigmas(MOVED_SIGMA[[1, 2, 0]])
    for number, between in enumerate(moved["a_from_b"]):
        graph.add(gtsam.BetweenFactorPose2(number, number + 1, _pose2(gtsam, between), step))
    look = noise.Diagonal.Sigmas(SEEN_SIGMA)
    rows = zip(seen["pose"], seen["point"], seen["angle"], seen["distance"], strict=True)
    for pose, mark, angle, distance in rows:
        keys = int(pose), 1000 + int(mark)
        bearing = gtsam.Rot2(float(angle[0]))
        graph.add(gtsam.BearingRangeFactor2D(*keys, bearing, float(distance[0]), look))
    return float(graph.error(gtsam.LevenbergMarquardtOptimizer(graph, values).optimize()))


def _pose2(gtsam: Any, row: Rows) -> Any:
    return gtsam.Pose2(row[2], row[3], float(np.arctan2(row[1], row[0])))


# -- measuring -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """A kind of problem.

    Attributes:
        name: In the table.
        factors: Of the solver.
        make: Its arrays, others for each number.
        by_gtsam: Solves them by GTSAM; returns the cost.
    """

    name: str
    factors: tuple[Any, ...]
    make: Callable[[np.random.Generator, int], Arrays]
    by_gtsam: Callable[[Any, Arrays], float]


WINDOWS = (
    Window(
        "10 cameras, 200 points",
        (pixel, caspar.factors.prior(sf.Pose3, name="prior")),
        cameras,
        cameras_by_gtsam,
    ),
    Window(
        "20 planar poses, 15 landmarks",
        (
            caspar.factors.between(sf.Pose2, name="moved"),
            caspar.factors.bearing_range(sf.Pose2, Mark, name="seen"),
            caspar.factors.prior(sf.Pose2, name="prior"),
        ),
        planar,
        planar_by_gtsam,
    ),
)


@dataclass(frozen=True)
class Row:
    """A window as measured, in milliseconds of the processor; None: GTSAM is not installed."""

    name: str
    same_ms: float
    new_ms: float
    gtsam_ms: float | None
    most_apart: float
    """Largest relative difference of the costs of both."""


def measure(window: Window, num_solves: int, gtsam: Any) -> Row:
    """Solve one problem again, then others, and these by GTSAM."""
    rng = np.random.default_rng(0)
    problems = [window.make(rng, number) for number in range(num_solves)]
    solver = caspar.Solver(list(window.factors), backend="cpu")
    with warnings.catch_warnings():
        # a node that nothing sees is no news here
        warnings.simplefilter("ignore", UserWarning)
        for arrays in problems[:5]:
            solver.solve(arrays)
        same_ms = _median_ms(lambda _: solver.solve(problems[0]), problems)
        results: list[caspar.SolveResult] = []
        new_ms = _median_ms(lambda arrays: results.append(solver.solve(arrays)), problems)
    if gtsam is None:
        return Row(window.name, same_ms, new_ms, None, 0.0)
    costs: list[float] = []
    gtsam_ms = _median_ms(lambda arrays: costs.append(window.by_gtsam(gtsam, arrays)), problems)
    apart = [
        abs(result.final_cost - cost) / cost for result, cost in zip(results, costs, strict=True)
    ]
    return Row(window.name, same_ms, new_ms, gtsam_ms, max(apart))


def _median_ms(work: Callable[[Arrays], object], problems: Sequence[Arrays]) -> float:
    times = []
    for arrays in problems:
        start = time.process_time()
        work(arrays)
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def page(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    lines = ["# Windows: small problems again and again", ""]
    lines += [f"* {key}: {text}" for key, text in environment("processor").items()]
    lines += [
        "",
        "| window | same | new | GTSAM, new | new / GTSAM | costs apart |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        beside = "| | |"
        if row.gtsam_ms is not None:
            ratio = row.new_ms / row.gtsam_ms
            beside = f"| {row.gtsam_ms:.1f} | {ratio:.2f} | {row.most_apart:.0e}"
        lines.append(f"| {row.name} | {row.same_ms:.1f} | {row.new_ms:.1f} {beside} |")
    lines += [
        "",
        "Milliseconds of the processor for a whole call, medians. *Same*: "
        "one problem again; *new*: other counts and indices in every call. GTSAM's include "
        "building its graph in Python.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--solves", type=int, default=60)
    arguments = parser.parse_args()
    try:
        import gtsam
    except ImportError:
        gtsam = None
    text = page([measure(window, arguments.solves, gtsam) for window in WINDOWS])
    print(text)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "windows_cpu.md").write_text(text)


if __name__ == "__main__":
    main()
