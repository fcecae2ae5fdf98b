"""Ceres, by pyceres on the problem that pycolmap builds: camera model RADIAL, which is BAL's.

The principal point is held; quaternions have their manifold. An observation behind its camera
counts as zero there, so on problems that have some it minimises another cost.
"""

import importlib
import os
import time
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
SETTINGS = {
    "SPARSE_SCHUR": ("SPARSE_SCHUR", "JACOBI"),
    "DENSE_SCHUR": ("DENSE_SCHUR", "JACOBI"),
    "ITERATIVE_SCHUR": ("ITERATIVE_SCHUR", "SCHUR_JACOBI"),
}
"""Linear solver and preconditioner of each setting."""


def solve(problem: PeerProblem, setting: str, seconds: float) -> PeerSolve:
    """Build the problem and run Ceres once."""
    pyceres: Any = importlib.import_module("pyceres")
    pycolmap: Any = importlib.import_module("pycolmap")
    start = time.perf_counter()
    reconstruction = _reconstruction(pycolmap, problem)
    adjuster = _adjuster(pycolmap, reconstruction, len(problem.cameras))
    options = _options(pyceres, setting, seconds)
    trace: list[tuple[float, float]] = []
    linear_iterations: list[int] = []

    class Record(pyceres.IterationCallback):
        def __call__(self, summary: Any) -> Any:
            trace.append((summary.cumulative_time_in_seconds, summary.cost))
            linear_iterations.append(summary.linear_solver_iterations)
            return pyceres.CallbackReturnType.SOLVER_CONTINUE

    record = Record()
    options.callbacks = [record]
    summary = pyceres.SolverSummary()
    begin = time.perf_counter()
    pyceres.solve(options, adjuster.problem, summary)
    solve_s = time.perf_counter() - begin
    # Ceres' clock starts before it orders the unknowns, which here belongs to the setup
    preprocessing_s = summary.preprocessor_time_in_seconds
    cameras, points = _values(reconstruction, problem)
    return PeerSolve(
        cameras=cameras,
        points=points,
        status=summary.termination_type.name.lower(),
        setup_s=begin - start + preprocessing_s,
        solve_s=solve_s - preprocessing_s,
        num_iterations=len(trace) - 1,
        num_linear_iterations=sum(linear_iterations) if setting.startswith("ITERATIVE") else None,
        initial_cost=summary.initial_cost,
        trace=[(time_s - preprocessing_s, cost) for time_s, cost in trace[1:]],
    )


def _options(pyceres: Any, setting: str, seconds: float) -> Any:
    linear_solver, preconditioner = SETTINGS[setting]
    options = pyceres.SolverOptions()
    options.linear_solver_type = getattr(pyceres.LinearSolverType, linear_solver)
    options.preconditioner_type = getattr(pyceres.PreconditionerType, preconditioner)
    options.max_num_iterations = MAX_ITERATIONS
    options.max_solver_time_in_seconds = seconds
    options.function_tolerance = COST_TOLERANCE
    options.gradient_tolerance = 0.0
    options.parameter_tolerance = 0.0
    options.num_threads = os.cpu_count() or 1
    options.use_nonmonotonic_steps = False
    return options


def _reconstruction(pycolmap: Any, problem: PeerProblem) -> Any:
    """A reconstruction with camera, image and frame i + 1 for camera i, point j + 1 for j."""
    rotations, translations = looking_along_z(problem.cameras)
    quaternions, pixels = rotations.as_quat(), flipped_pixels(problem.pixels)
    num_cameras, num_points = len(problem.cameras), len(problem.points)
    by_camera = np.argsort(problem.camera_index, kind="stable")
    bounds = np.searchsorted(problem.camera_index[by_camera], np.arange(num_cameras + 1))
    slot = np.empty(len(by_camera), dtype=np.int64)
    reconstruction = pycolmap.Reconstruction()
    for number, (focal, k1, k2) in enumerate(problem.cameras[:, 7:]):
        rows = by_camera[bounds[number] : bounds[number + 1]]
        slot[rows] = np.arange(len(rows))
        name = number + 1
        parameters = [focal, 0.0, 0.0, k1, k2]
        camera = pycolmap.Camera(
            camera_id=name, model="RADIAL", width=1, height=1, params=parameters
        )
        reconstruction.add_camera_with_trivial_rig(camera)
        image = pycolmap.Image(
            name=str(name), keypoints=pixels[rows], camera_id=name, image_id=name
        )
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(quaternions[number]), translations[number])
        reconstruction.add_image_with_trivial_frame(image, pose)
    starts = np.searchsorted(problem.point_index, np.arange(num_points + 1)).tolist()
    cameras, slots = problem.camera_index.tolist(), slot.tolist()
    for number, point in enumerate(problem.points):
        seen = range(starts[number], starts[number + 1])
        elements = [pycolmap.TrackElement(cameras[row] + 1, slots[row]) for row in seen]
        reconstruction.add_point3D(point, pycolmap.Track(elements))
    return reconstruction


def _adjuster(pycolmap: Any, reconstruction: Any, num_cameras: int) -> Any:
    config = pycolmap.BundleAdjustmentConfig()
    for number in range(num_cameras):
        config.add_image(number + 1)
    options = pycolmap.BundleAdjustmentOptions()
    options.refine_focal_length = True
    options.refine_extra_params = True
    options.refine_principal_point = False
    return pycolmap.create_default_ceres_bundle_adjuster(options, config, reconstruction)


def _values(reconstruction: Any, problem: PeerProblem) -> tuple[Float, Float]:
    numbers = range(1, len(problem.cameras) + 1)
    poses = [reconstruction.image(number).cam_from_world() for number in numbers]
    rotations = Rotation.from_quat(np.array([pose.rotation.quat for pose in poses]))
    translations = np.array([pose.translation for pose in poses])
    parameters = np.array([reconstruction.camera(number).params for number in numbers])
    cameras = from_looking_along_z(rotations, translations, parameters[:, [0, 3, 4]])
    points = [reconstruction.point3D(number + 1).xyz for number in range(len(problem.points))]
    return cameras, np.array(points)


def _version() -> str:
    pyceres: Any = importlib.import_module("pyceres")
    pycolmap: Any = importlib.import_module("pycolmap")
    return f"{pyceres.__ceres_version__} by pyceres, COLMAP {pycolmap.__version__}"


if __name__ == "__main__":
    main(solve, _version)
