"""The camera of *Bundle Adjustment in the Large*, ready to use as `caspar.bundle_adjustment`.

The model (Agarwal, Snavely, Seitz, Szeliski, ECCV 2010): a camera sees a point X at

    P = R X + t,   p = -P.xy / P.z,   pixel = f (1 + k1 |p|^2 + k2 |p|^4) p.

`caspar.io.read_bal` gives the arrays: `{"Cam": cameras, "Point": points, "snavely": {"cam":
camera_index, "point": point_index, "pixel": pixels}}`.

Example:
    >>> import caspar
    >>> solver = caspar.Solver(caspar.bundle_adjustment.snavely)
    >>> seen = {"cam": [0], "point": [0], "pixel": [[12.0, 24.0]]}
    >>> camera = [0, 0, 0, 1, 0, 0, -4.0, 500, 0, 0]  # qx qy qz qw tx ty tz f k1 k2
    >>> arrays = {"Cam": [camera], "Point": [[0.1, 0.2, 0.0]], "snavely": seen}
    >>> solver.evaluate(arrays).residuals("snavely").round(3)
    array([[0.5, 1. ]])
"""

from dataclasses import dataclass
from typing import Annotated

import symforce.symbolic as sf

from caspar.frontend.factors.factor import factor
from caspar.frontend.markers import ConstSequential, TunableShared


@dataclass
class Cam:
    """A camera; in storage qx qy qz qw tx ty tz f k1 k2.

    Attributes:
        cam_T_world: Takes world to camera coordinates; the camera looks along its negative z axis.
        calibration: Focal length f in pixels, radial distortion k1 and k2.
    """

    cam_T_world: sf.Pose3
    calibration: sf.V3


class Point(sf.V3):
    """A point in world coordinates."""


class Pixel(sf.V2):
    """A measured position relative to the image centre, in pixels."""


@factor
def snavely(
    cam: Annotated[Cam, TunableShared],
    point: Annotated[Point, TunableShared],
    pixel: Annotated[Pixel, ConstSequential],
) -> sf.V2:
    """Predicted minus measured position, in pixels."""
    focal_length, k1, k2 = cam.calibration
    x, y, depth = cam.cam_T_world * point
    # Moved away from zero on its own side: points behind the camera stay behind it. Squared: 1e-6
    # alone is not small in a scene of a thousandth of the usual unit of length, and float64 sums
    # and float32 derivatives, which have epsilons of their own, then belong to two cameras.
    safe_depth = depth + sf.epsilon() ** 2 * sf.sign_no_zero(depth)
    plane = sf.V2(-x / safe_depth, -y / safe_depth)
    radius_squared = plane.squared_norm()
    distortion = 1 + k1 * radius_squared + k2 * radius_squared**2
    return focal_length * distortion * plane - pixel
