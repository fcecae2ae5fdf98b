"""GTSAM: `GeneralSFMFactorCal3Bundler`, which has BAL's nine parameters a camera.

An observation behind its camera counts as zero there (`CheiralityException`), so on problems that
have some it minimises another cost.
"""

import importlib
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from benchmarks.peers.worker import (
    Float,
    PeerProblem,
    PeerSolve,
    flipped_pixels,
    from_looking_along_z,
    looking_along_z,
    main,
)

MAX_ITERATIONS = 100
COST_TOLERANCE = 1e-7


def solve(problem: PeerProblem, setting: str, seconds: float) -> PeerSolve:
    """Build graph and optimiser, iterate until the cost settles or time is out."""
    gtsam: Any = importlib.import_module("gtsam")
    start = time.perf_counter()
    graph, values, points = _graph(gtsam, problem)
    optimizer = _optimizer(gtsam, setting, graph, values)
    initial_cost = optimizer.error()
    begin = time.perf_counter()
    trace: list[tuple[float, float]] = []
    cost, status, settled = initial_cost, "iteration limit", 0
    while len(trace) < MAX_ITERATIONS:
        try:
            optimizer.iterate()
        except RuntimeError as error:
            status = f"RuntimeError: {error}".rstrip(": ")
            break
        reached = optimizer.error()
        trace.append((time.perf_counter() - begin, reached))
        settled = settled + 1 if cost - reached <= COST_TOLERANCE * cost else 0
        cost = reached
        # one step that lowers the cost little may be a rejected one
        if settled == 2:
            status = "converged"
            break
        if trace[-1][0] > seconds:
            status = "time limit"
            break
    solve_s = time.perf_counter() - begin
    cameras, final_points = _values(optimizer.values(), len(problem.cameras), points)
    return PeerSolve(
        cameras=cameras,
        points=final_points,
        status=status,
        setup_s=begin - start,
        solve_s=solve_s,
        num_iterations=len(trace),
        num_linear_iterations=None,
        initial_cost=initial_cost,
        trace=trace,
    )


def _optimizer(gtsam: Any, setting: str, graph: Any, values: Any) -> Any:
    if setting == "Schur":
        parameters = gtsam.SfmLevenbergMarquardtParams.ceresDefaults()
        parameters.setEliminationMode(gtsam.SfmEliminationMode.Schur)
        return gtsam.SfmLevenbergMarquardtOptimizer(graph, values, parameters)
    parameters = gtsam.LevenbergMarquardtParams.CeresDefaults()
    return gtsam.LevenbergMarquardtOptimizer(graph, values, parameters)


def _graph(gtsam: Any, problem: PeerProblem) -> tuple[Any, Any, list[int]]:
    """Factors, start values, and the keys of the points; a camera's key is its number."""
    rotations, translations = looking_along_z(problem.cameras)
    to_world = rotations.inv()
    matrices, centres = to_world.as_matrix(), -to_world.apply(translations)
    values = gtsam.Values()
    for number, (focal, k1, k2) in enumerate(problem.cameras[:, 7:]):
        pose = gtsam.Pose3(gtsam.Rot3(matrices[number]), centres[number])
        calibration = gtsam.Cal3Bundler(focal, k1, k2, 0.0, 0.0)
        values.insert(number, gtsam.PinholeCameraCal3Bundler(pose, calibration))
    points = [gtsam.symbol("p", number) for number in range(len(problem.points))]
    for key, point in zip(points, problem.points, strict=True):
        values.insert(key, point)
    graph, noise = gtsam.NonlinearFactorGraph(), gtsam.noiseModel.Unit.Create(2)
    cameras, seen = problem.camera_index.tolist(), problem.point_index.tolist()
    for pixel, camera, point in zip(flipped_pixels(problem.pixels), cameras, seen, strict=True):
        graph.add(gtsam.GeneralSFMFactorCal3Bundler(pixel, noise, camera, points[point]))
    return graph, values, points


def _values(values: Any, num_cameras: int, points: list[int]) -> tuple[Float, Float]:
    cameras = [values.atPinholeCameraCal3Bundler(number) for number in range(num_cameras)]
    to_world = Rotation.from_matrix([one.pose().rotation().matrix() for one in cameras])
    centres = np.array([one.pose().translation() for one in cameras])
    calibrations = (one.calibration() for one in cameras)
    calibration = np.array([(one.fx(), one.k1(), one.k2()) for one in calibrations])
    rotations = to_world.inv()
    back = from_looking_along_z(rotations, -rotations.apply(centres), calibration)
    return back, np.array([values.atPoint3(key) for key in points])


def _version() -> str:
    importlib.import_module("gtsam")
    return version("gtsam")


if __name__ == "__main__":
    main(solve, _version)
