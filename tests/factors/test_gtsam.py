"""Residuals of the library against GTSAM's, stored and, where it is installed, live."""

import json
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

import caspar
from tests.factors import gtsam_cases
from tests.factors.evaluating import residuals
from tests.factors.gtsam_cases import NUM_INSTANCES

factors = caspar.factors
STORED: dict[str, Any] = json.loads(gtsam_cases.REFERENCE.read_text(encoding="utf-8"))
INPUTS = gtsam_cases.inputs()


class Pose(sf.Pose3):
    """A pose in the other direction than factors of cameras take it."""


CAMERA = factors.part(Pose, lambda pose: sf.Pose3(pose.R, pose.t).inverse(), "world_from_cam")

CASES = {
    "between_pose3": factors.between(),
    "between_pose2": factors.between(sf.Pose2),
    "prior_pose3": factors.prior(),
    "range_3d": factors.range(),
    "range_2d": factors.range(sf.Pose2, sf.V2),
    "bearing_2d": factors.bearing(sf.Pose2, sf.V2),
    "bearing_3d": factors.bearing(),
    "bearing_range_2d": factors.bearing_range(sf.Pose2, sf.V2),
    "gps_position": factors.gps_position(),
    "gravity": factors.gravity(),
    "magnetometer": factors.magnetometer(),
    "reprojection_pinhole": factors.reprojection("PINHOLE", CAMERA),
    "reprojection_opencv": factors.reprojection("OPENCV", CAMERA),
    "stereo": factors.stereo(CAMERA),
    "pseudorange": factors.pseudorange(),
    "between_pose3_logarithm": factors.between(chart="logarithm"),
    "between_pose2_logarithm": factors.between(sf.Pose2, chart="logarithm"),
    "prior_pose3_logarithm": factors.prior(chart="logarithm"),
    "prior_pose2_logarithm": factors.prior(sf.Pose2, chart=factors.Chart.LOGARITHM),
}

CONSTANTS = {
    "gps_position": {"lever_arm": gtsam_cases.LEVER_ARM},
    "gravity": {"reference": gtsam_cases.UP},
    "magnetometer": {"field": gtsam_cases.FIELD, "bias": gtsam_cases.MAGNET_BIAS},
    "reprojection_pinhole": {"lens": gtsam_cases.PINHOLE},
    "reprojection_opencv": {"lens": gtsam_cases.OPENCV},
    "stereo": {"lens": gtsam_cases.STEREO},
}


def test_all_cases_are_compared() -> None:
    assert {*CASES, "imu"} == set(STORED["cases"]) == set(INPUTS)


def test_the_stored_numbers_are_gtsams() -> None:
    pytest.importorskip("gtsam")
    live = gtsam_cases.by_gtsam()
    for name, rows in live["cases"].items():
        assert_allclose(rows, STORED["cases"][name], rtol=1e-9, atol=1e-9, err_msg=name)
    for found, stored in zip(live["preintegrated"], STORED["preintegrated"], strict=True):
        for name, values in found.items():
            assert_allclose(values, stored[name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_residuals(name: str) -> None:
    stored = np.array(STORED["cases"][name])
    values = {**INPUTS[name], **CONSTANTS.get(name, {}), "sigma": np.ones(9)}
    values["sigma"] = np.ones(2 if name in ("gravity", "bearing_3d") else stored.shape[1])
    found, _ = residuals(CASES[name], values, NUM_INSTANCES)
    if name == "bearing_3d":
        found = in_space(found, values["direction"])
    elif name == "gravity":
        found = np.linalg.norm(found, axis=1)[:, None]
    if name.endswith("logarithm"):
        assert_allclose(found, stored, rtol=1e-12, atol=1e-12)
    tolerance = 1e-7 if name == "pseudorange" else 1e-9  # of 2e7 m
    assert_allclose(found, stored, rtol=1e-9, atol=tolerance)


def in_space(rows: Any, direction: Any) -> Any:
    """A turn as a vector across the measured direction."""
    made = []
    for turn, (x, y, z) in zip(rows, direction, strict=True):
        sign = np.copysign(1.0, z)
        a = -1.0 / (sign + z)
        first = np.array([1.0 + sign * x * x * a, sign * x * y * a, -sign * x])
        second = np.array([x * y * a, sign + y * y * a, -y])
        assert_allclose([first @ first, second @ second], 1.0)
        assert_allclose([first @ second, first @ [x, y, z], second @ [x, y, z]], 0.0, atol=1e-12)
        made.append(turn[0] * first + turn[1] * second)
    return np.stack(made)


class TestImu:
    """GTSAM advances velocities by the rotation at the start of each step, caspar at its middle.

    The differences are those of half a step: 1 ms at some rad/s and 10 m/s^2, for 0.4 s.
    """

    def summed(self) -> Any:
        noise = factors.ImuNoise(
            gtsam_cases.GYRO_DENSITY, gtsam_cases.ACCEL_DENSITY, gtsam_cases.INTEGRATION_DENSITY
        )
        gyro, accel = gtsam_cases.imu_readings()
        steps = np.full(gyro.shape[:2], gtsam_cases.STEP_S)
        return factors.preintegrate_steps(gyro, accel, steps, noise, gtsam_cases.IMU_BIAS)

    def test_preintegration(self) -> None:
        found = self.summed()
        for number, stored in enumerate(STORED["preintegrated"]):
            turn = Rotation.from_quat(stored["rotation"]).inv()
            turn *= Rotation.from_quat(found.rotation[number])
            assert np.linalg.norm(turn.as_rotvec()) < 1e-9
            assert_allclose(found.velocity[number], stored["velocity"], atol=6e-3)
            assert_allclose(found.position[number], stored["position"], atol=2e-3)

    def test_covariance(self) -> None:
        """GTSAM's is of first order in a step; `test_preintegration` has the exact comparison."""
        found = self.summed().covariance
        order = [0, 1, 2, 6, 7, 8, 3, 4, 5]
        for number, stored in enumerate(STORED["preintegrated"]):
            wanted = np.array(stored["covariance"])[np.ix_(order, order)]
            deviations = np.sqrt(np.diag(wanted))
            scaled = (found[number] - wanted) / np.outer(deviations, deviations)
            assert abs(scaled[:3, :3]).max() < 1e-9
            assert abs(np.diag(scaled)).max() < 0.02
            assert abs(scaled).max() < 0.1

    @pytest.mark.parametrize("is_pair", [False, True])
    def test_residual(self, is_pair: bool) -> None:
        case = INPUTS["imu"]
        values: dict[str, Any] = {**case, **self.summed().arrays()}
        values |= {"gravity": gtsam_cases.GRAVITY}
        factor = factors.imu(noise="unit")
        if is_pair:
            factor = factors.imu((sf.Pose3, sf.V3), noise="unit")
            for end in ("start", "end"):
                values[f"{end}_pose"], values[f"{end}_velocity"] = np.split(case[end], [7], axis=1)
        found, _ = residuals(factor, values, NUM_INSTANCES)
        assert_allclose(found, STORED["cases"]["imu"], rtol=1e-3, atol=6e-3)
