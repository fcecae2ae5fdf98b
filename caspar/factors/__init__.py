"""A library of factors: residuals of robotics, vision and navigation, ready for `caspar.Solver`.

Each function takes node types and returns a `caspar.Factor`: `caspar.factors.between(sf.Pose3)` is
a factor `between` with the arguments `a`, `b`, `a_from_b` and `sigma`. All share three choices:
`noise`, how residuals are whitened; `name`, under which arrays are passed; `markers`, what an
argument is instead of what it usually is. `part` lets a factor see a field of a node.
`docs/guide/factor_library.md` lists them all.
"""

from caspar.factors.inertial import (
    ImuBias,
    ImuMotion,
    ImuNoise,
    NavState,
    Preintegration,
    imu,
    preintegrate,
    preintegrate_steps,
)
from caspar.factors.making import LibraryFactor, Part, part
from caspar.factors.navigation import (
    constant_velocity,
    doppler,
    gps_position,
    gravity,
    magnetometer,
    pseudorange,
    velocity,
)
from caspar.factors.poses import between, hand_eye, prior, robot_world_hand_eye
from caspar.factors.projective import SL4
from caspar.factors.ranging import bearing, bearing_range, landmark, range
from caspar.factors.registration import (
    plane_covariances,
    plane_to_plane,
    point_to_plane,
    point_to_point,
)
from caspar.factors.rotations import Chart
from caspar.factors.similarity import Sim3
from caspar.factors.vision import (
    Line,
    homography,
    inverse_depth_reprojection,
    line_reprojection,
    lines_through,
    reprojection,
    stereo,
)
from caspar.factors.whitening import Noise, rotation_first, sqrt_information

__all__ = [
    "SL4",
    "Chart",
    "ImuBias",
    "ImuMotion",
    "ImuNoise",
    "LibraryFactor",
    "Line",
    "NavState",
    "Noise",
    "Part",
    "Preintegration",
    "Sim3",
    "bearing",
    "bearing_range",
    "between",
    "constant_velocity",
    "doppler",
    "gps_position",
    "gravity",
    "hand_eye",
    "homography",
    "imu",
    "inverse_depth_reprojection",
    "landmark",
    "line_reprojection",
    "lines_through",
    "magnetometer",
    "part",
    "plane_covariances",
    "plane_to_plane",
    "point_to_plane",
    "point_to_point",
    "preintegrate",
    "preintegrate_steps",
    "prior",
    "pseudorange",
    "range",
    "reprojection",
    "robot_world_hand_eye",
    "rotation_first",
    "sqrt_information",
    "stereo",
    "velocity",
]
