"""Every factor of the library, and values of its arguments that differ for each instance."""

from collections.abc import Mapping

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from caspar.factors import inertial
from caspar.frontend.factors.factor import Factor
from caspar.frontend.factors.trace import trace
from tests.frontend.factors.residuals import random_storage

Array = NDArray[np.float64]

factors = caspar.factors

STATE = factors.NavState
IN_STATE = [factors.part(STATE, name, "state") for name in ("pose", "velocity")]

FACTORS: dict[str, Factor] = {
    "prior_pose3": factors.prior(),
    "prior_pose2": factors.prior(sf.Pose2),
    "prior_rot3": factors.prior(sf.Rot3),
    "prior_unit3": factors.prior(sf.Unit3),
    "prior_state": factors.prior(STATE),
    "between_pose3": factors.between(),
    "between_pose2": factors.between(sf.Pose2),
    "between_pose3_logarithm": factors.between(chart="logarithm"),
    "between_pose2_logarithm": factors.between(sf.Pose2, chart="logarithm"),
    "prior_pose3_logarithm": factors.prior(chart="logarithm"),
    "prior_pose2_logarithm": factors.prior(sf.Pose2, chart="logarithm"),
    "prior_state_logarithm": factors.prior(STATE, chart="logarithm"),
    "between_rot3": factors.between(sf.Rot3),
    "between_rot2": factors.between(sf.Rot2),
    "between_projective": factors.between(factors.SL4),
    "between_bias": factors.between(factors.ImuBias),
    "hand_eye": factors.hand_eye(),
    "robot_world_hand_eye": factors.robot_world_hand_eye(),
    "range_3d": factors.range(),
    "range_2d": factors.range(sf.Pose2, sf.V2),
    "bearing_3d": factors.bearing(),
    "bearing_2d": factors.bearing(sf.Pose2, sf.V2),
    "bearing_range_3d": factors.bearing_range(),
    "bearing_range_2d": factors.bearing_range(sf.Pose2, sf.V2),
    "landmark_3d": factors.landmark(),
    "landmark_2d": factors.landmark(sf.Pose2, sf.V2),
    "point_to_point": factors.point_to_point(),
    "point_to_point_of_two": factors.point_to_point(sf.Pose3, sf.Pose3),
    "point_to_plane": factors.point_to_plane(),
    "point_to_plane_2d": factors.point_to_plane(sf.Pose2),
    "plane_to_plane": factors.plane_to_plane(),
    "plane_to_plane_of_two": factors.plane_to_plane(sf.Pose3, sf.Pose3),
    "plane_to_plane_2d": factors.plane_to_plane(sf.Pose2),
    "gps_position": factors.gps_position(markers={"lever_arm": caspar.TunableUnique}),
    "gravity": factors.gravity(),
    "magnetometer": factors.magnetometer(
        markers={"field": caspar.TunableUnique, "bias": caspar.TunableUnique}
    ),
    "velocity": factors.velocity(),
    "velocity_of_state": factors.velocity(*IN_STATE),
    "constant_velocity": factors.constant_velocity(),
    "imu": factors.imu(),
    "imu_of_pair": factors.imu((sf.Pose3, sf.V3)),
    "pseudorange": factors.pseudorange(),
    "doppler": factors.doppler(),
    "reprojection": factors.reprojection("OPENCV", lens=sf.V8),
    "reprojection_in_rig": factors.reprojection("PINHOLE", rig=sf.Pose3),
    "inverse_depth_reprojection": factors.inverse_depth_reprojection("PINHOLE"),
    "stereo": factors.stereo(),
    "line_reprojection": factors.line_reprojection(),
    "homography": factors.homography(),
}

_UNIT_LENGTH = ("direction", "normal")


def random_values(name: str, count: int, seed: int = 0) -> dict[str, Array]:
    """(count, dim) values of every argument, storage order."""
    random = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for argument in trace(FACTORS[name]).arguments:
        kind = type(argument.symbolic)
        drawn = np.stack([random_storage(kind, random) for _ in range(count)])
        if argument.source == "sigma":
            drawn = abs(drawn) + 0.5
        if argument.source in _UNIT_LENGTH:
            drawn /= np.linalg.norm(drawn, axis=1)[:, None]
        if argument.source.endswith("covariance"):
            size = 2 if drawn.shape[1] == 4 else 3
            roots = drawn.reshape(count, size, size)
            roots = roots @ roots.transpose(0, 2, 1) + np.eye(size)
            drawn = roots.reshape(count, -1)
        values[argument.source] = drawn
    return values | special_values(name, values, random)


def special_values(
    name: str, values: Mapping[str, Array], random: np.random.Generator
) -> dict[str, Array]:
    """What must be of another size than random numbers are."""
    count = len(next(iter(values.values())))
    made: dict[str, Array] = {}
    if "lens" in values:
        lens = {4: [500.0, 480.0, 320.0, 240.0], 5: [500.0, 480.0, 320.0, 240.0, 0.3]}
        lens[8] = [*lens[4], -0.1, 0.02, 0.002, -0.001]
        made["lens"] = np.tile(lens[values["lens"].shape[1]], (count, 1))
    if name == "homography":
        made["b_from_a"] = np.eye(3).ravel()[:8] + 0.1 * random.normal(size=(count, 8))
    for one in ("satellite", "receiver"):
        if one in values:
            made[one] = values[one] * (2e7 if one == "satellite" else 4e6)
    if "motion" in values:
        rates, forces = random.normal(size=(2, count, 30, 3))
        noise = factors.ImuNoise(0.01, 0.1)
        summed = inertial.preintegrate_steps(rates, forces, np.full((count, 30), 0.01), noise)
        arrays = summed.arrays()
        roots = arrays["sqrt_information"].transpose(0, 2, 1)
        made |= {"motion": arrays["motion"], "sqrt_information": roots.reshape(count, -1) / 100.0}
        made["bias"] = 0.1 * values["bias"]
    return made
