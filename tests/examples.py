"""Results and problems that several tests use."""

import dataclasses
import math
from typing import Any

import numpy as np

from caspar.io import BalProblem
from caspar.io.rotations import quaternion_from_angle_axis, rotate
from caspar.solver.result.result import IterationRecord, ProblemSize, SolveResult, SolveStatus


def make_record(iteration: int, cost: float, **changes: Any) -> IterationRecord:
    """An accepted iteration."""
    record = IterationRecord(
        iteration=iteration,
        cost=cost,
        candidate_cost=cost,
        damping=1e-4 / 3.0**iteration,
        gain_ratio=0.9,
        linear_iterations=10 + iteration,
        step_accepted=True,
        reason="",
        time_s=0.004 * iteration,
    )
    return dataclasses.replace(record, **changes)


def make_result(num_iterations: int = 5, **changes: Any) -> SolveResult:
    """A converged solve, the cost halved by each iteration but the rejected second one."""
    records, cost = [], 1000.0
    for number in range(1, num_iterations + 1):
        if number == 2:
            reason = "the cost did not decrease as predicted"
            rejected = {"step_accepted": False, "reason": reason, "gain_ratio": -2.0}
            records.append(make_record(number, cost, candidate_cost=3.0 * cost, **rejected))
            continue
        cost = 100.0 + 0.5 * (cost - 100.0)
        records.append(make_record(number, cost))
    result = SolveResult(
        status=SolveStatus.CONVERGED_COST,
        initial_cost=1000.0,
        final_cost=cost,
        remaining_decrease=1e-9,
        iterations=tuple(records),
        values={},
        problem=ProblemSize({"Cam": 3, "Point": 20}, {"snavely": 60}, 120, 87),
        backend="cpu",
        device="test CPU, 2 threads",
        precision="mixed",
        linear_solver="pcg",
        compile_time_s=1.25,
        setup_time_s=0.0125,
        solve_time_s=0.004 * num_iterations,
        peak_memory_bytes=3 << 20,
    )
    return dataclasses.replace(result, **changes)


def failed_result() -> SolveResult:
    """A solve whose start values are not usable."""
    return make_result(
        0,
        status=SolveStatus.INITIAL_COST_NOT_FINITE,
        initial_cost=math.nan,
        final_cost=math.nan,
        remaining_decrease=math.nan,
        peak_memory_bytes=0,
    )


def make_bal_problem(num_cameras: int = 3, num_points: int = 20, seed: int = 0) -> BalProblem:
    """Cameras on an arc that look at a cloud of points; start values a little off the truth."""
    random = np.random.default_rng(seed)
    points = random.uniform(-1.0, 1.0, (num_points, 3))
    angles = np.linspace(-0.5, 0.5, num_cameras)
    turns = np.stack([np.zeros(num_cameras), angles, np.zeros(num_cameras)], axis=1)
    cameras = np.concatenate(
        [
            quaternion_from_angle_axis(turns),
            np.tile([0.0, 0.0, -6.0, 500.0, 0.0, 0.0], (num_cameras, 1)),
        ],
        axis=1,
    )
    camera_index = np.tile(np.arange(num_cameras, dtype=np.int32), num_points)
    point_index = np.repeat(np.arange(num_points, dtype=np.int32), num_cameras)
    seen = rotate(cameras[camera_index, :4], points[point_index]) + cameras[camera_index, 4:7]
    pixels = 500.0 * -seen[:, :2] / seen[:, 2:] + random.normal(0.0, 0.5, (len(seen), 2))
    cameras[:, 4:7] += random.normal(0.0, 0.02, (num_cameras, 3))
    points += random.normal(0.0, 0.02, points.shape)
    return BalProblem(cameras, points, camera_index, point_index, pixels)
