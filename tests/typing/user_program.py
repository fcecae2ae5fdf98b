"""A program as users write them, for type checkers: it is not run."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import symforce.symbolic as sf

import caspar


@dataclass
class Cam:
    cam_T_world: sf.Pose3
    calibration: sf.V3


class Point(sf.V3): ...


@caspar.factor(loss=caspar.loss.Huber)
def reprojection(
    cam: Annotated[Cam, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    f, k1, k2 = cam.calibration
    x, y, z = cam.cam_T_world * point
    p = sf.V2(-x / z, -y / z)
    r2 = p.squared_norm()
    return f * (1 + k1 * r2 + k2 * r2**2) * p - pixel


@caspar.kernel
def moved(
    pose: Annotated[sf.Pose3, caspar.ReadShared],
    point: Annotated[sf.V3, caspar.ReadSequential],
) -> Annotated[sf.V3, caspar.WriteSequential]:
    return pose * point


def stop(record: caspar.IterationRecord) -> bool:
    return record.cost < 1.0


solver = caspar.Solver([reprojection], precision="float64", linear_solver="schur_pcg")
bal = caspar.io.read_bal("problem.txt")
arrays = {
    "Cam": bal.cameras,
    "Point": bal.points,
    "reprojection": {"cam": bal.camera_index, "point": bal.point_index, "pixel": bal.pixels},
}
result = solver.solve(
    arrays, fixed={"Cam": [0]}, max_iterations=20, cost_tolerance=1e-6, on_iteration=stop
)
if not result.status.is_success:
    raise RuntimeError(result.status.value)
cost: float = result.final_cost
residuals = result.residuals("reprojection")
worst: int = int(np.argmax(np.linalg.norm(residuals, axis=1)))
cov = solver.covariance({**arrays, **result.values}, {"Cam": "all"}, gauge="minimum_norm")
rank: int = cov.rank
summary = caspar.colmap.bundle_adjustment(
    "model", caspar.colmap.BundleAdjustmentOptions(refine_principal_point=True), output="solved"
)
print(result, cov, summary.brief_report(), worst, cost, rank)
