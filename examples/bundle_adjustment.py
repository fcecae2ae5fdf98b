"""Bundle adjustment with a camera of one's own: 21 cameras, 11315 points, 36455 observations.

The problem is `Trafalgar-21` of *Bundle Adjustment in the Large* (Agarwal, Snavely, Seitz,
Szeliski, ECCV 2010), from the folder `data` of this repository.

    python examples/bundle_adjustment.py
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import symforce.symbolic as sf

import caspar

DATA = Path(__file__).parents[1] / "data"


@dataclass
class Camera:
    """In storage qx qy qz qw tx ty tz f k1 k2: what `caspar.io.read_bal` returns."""

    cam_T_world: sf.Pose3
    calibration: sf.V3


class Point(sf.V3):
    """A point in world coordinates."""


class Pixel(sf.V2):
    """A measurement."""


@caspar.factor
def reprojection(
    camera: Annotated[Camera, caspar.TunableShared],
    point: Annotated[Point, caspar.TunableShared],
    pixel: Annotated[Pixel, caspar.ConstSequential],
) -> sf.V2:
    """Predicted minus measured position, in pixels."""
    focal_length, k1, k2 = camera.calibration
    x, y, depth = camera.cam_T_world * point
    plane = sf.V2(-x / depth, -y / depth)  # the camera looks along its negative z axis
    radius_squared = plane.squared_norm()
    return focal_length * (1 + k1 * radius_squared + k2 * radius_squared**2) * plane - pixel


def main() -> caspar.SolveResult:
    """Solve and print the report."""
    problem = caspar.io.read_bal(DATA / "problem-21-11315-pre.txt.bz2")
    solver = caspar.Solver([reprojection])
    result = solver.solve(
        {
            "Camera": problem.cameras,
            "Point": problem.points,
            "reprojection": {
                "camera": problem.camera_index,
                "point": problem.point_index,
                "pixel": problem.pixels,
            },
        }
    )
    print(result)
    return result


if __name__ == "__main__":
    main()
