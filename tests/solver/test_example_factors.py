"""The residuals of the examples against plain NumPy and SciPy, and small solves against SciPy."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from examples import camera_calibration, inertial_navigation, pose_graph_3d
from tests.solver import reference
from tests.solver.solving import solver

Array = NDArray[np.float64]


def rows(residual: Any) -> Array:
    """Of a residual whose arguments are numbers."""
    return np.array(residual.to_numpy(), dtype=np.float64).ravel()


class TestOpencvPixel:
    TURN, PLACE = [0.3, -0.2, 0.1], [0.1, -0.05, 0.9]
    CORNERS = ([0.4, -0.4, 0.0], [-0.3, 0.2, 0.01], [0.0, 0.35, -0.02])
    BY_OPENCV = (
        [[1085.8181212, 29.72956856], [446.50653804, 461.15950966], [690.11994652, 592.15644452]],
        [[1553.5417393, 98.51562089], [682.04127928, 690.11080081], [1022.32522155, 874.38749205]],
    )
    """`projectPoints` of OpenCV 5.0.0 for the two cameras of the example."""

    @pytest.mark.parametrize("camera", [0, 1])
    def test_agrees_with_opencv(self, camera: int) -> None:
        intrinsics = camera_calibration.Intrinsics(*camera_calibration.TRUE_CAMERAS[camera])
        quaternion = Rotation.from_rotvec(self.TURN).as_quat()
        view = camera_calibration.View.from_storage([*quaternion, *self.PLACE])
        for corner, expected in zip(self.CORNERS, self.BY_OPENCV[camera], strict=True):
            pixel = np.array([3.0, -4.0])
            found = rows(
                camera_calibration.opencv_pixel(intrinsics, view, sf.V3(corner), sf.V2(pixel))
            )
            assert_allclose(found + pixel, expected, atol=1e-7)

    def test_simulation_agrees_with_opencv(self) -> None:
        views = np.array([[*Rotation.from_rotvec(self.TURN).as_quat(), *self.PLACE]]).repeat(3, 0)
        for camera, expected in zip(camera_calibration.TRUE_CAMERAS, self.BY_OPENCV, strict=True):
            cameras = camera[None].repeat(3, 0)
            found = camera_calibration.project(cameras, views, np.array(self.CORNERS))
            assert_allclose(found, expected, atol=1e-7)

    def test_calibration_finds_where_corners_are_seen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Parameters of the rational model trade off against each other; pixels do not."""
        arrays = camera_calibration.simulate(views_each=8, side=6, noise=0.3)
        exact = camera_calibration.simulate(views_each=8, side=6, noise=0.0)
        monkeypatch.setattr(camera_calibration, "simulate", lambda: arrays)
        result = camera_calibration.main()
        assert result.status.is_success
        seen = arrays["opencv_pixel"]
        found = camera_calibration.project(
            result.values["Intrinsics"][seen["camera"]],
            result.values["View"][seen["view"]],
            result.values["Corner"][seen["corner"]],
        )
        left = 0.5 * np.square(found - seen["pixel"]).sum()
        assert result.final_cost == pytest.approx(left, rel=0.2)  # and what the corners moved
        assert np.sqrt(np.mean(np.square(found - exact["opencv_pixel"]["pixel"]))) < 0.15


class TestPreintegration:
    SAMPLES = 50

    def readings(self, count: int) -> tuple[Array, Array]:
        """The same turn and push for each of `count` intervals."""
        time = np.linspace(0.0, 1.0, self.SAMPLES)[:, None]
        gyro = np.array([0.8, -0.5, 1.2]) * np.cos(time * [2.0, 3.0, 1.0])
        accel = np.array([1.0, 2.0, 9.0]) + np.sin(time * [5.0, 2.0, 3.0])
        return np.tile(gyro, (count, 1, 1)), np.tile(accel, (count, 1, 1))

    def errors(self, motion: Array, exact: Array) -> Array:
        """(n, 9) rotation vector, velocity and position of motions against one."""
        turned = Rotation.from_quat(exact[:4]).inv() * Rotation.from_quat(motion[:, :4])
        return np.concatenate([turned.as_rotvec(), motion[:, 4:10] - exact[4:10]], axis=1)

    def test_derivatives_by_the_biases(self) -> None:
        steps = 1e-6 * np.concatenate([np.zeros((1, 6)), np.eye(6)])
        found = inertial_navigation.preintegrate(*self.readings(7), steps)
        slopes = self.errors(found["motion"][1:], found["motion"][0]).T / 1e-6
        expected = np.zeros((9, 6))
        expected[:3, :3] = found["rotation_by_gyro"][0]
        expected[3:6] = np.hstack([found["velocity_by_gyro"][0], found["velocity_by_accel"][0]])
        expected[6:] = np.hstack([found["position_by_gyro"][0], found["position_by_accel"][0]])
        assert_allclose(slopes, expected, atol=1e-5 * abs(expected).max())

    def test_covariance_is_that_of_noisy_readings(self) -> None:
        count = 5000
        gyro, accel = self.readings(count)
        exact = inertial_navigation.preintegrate(gyro[:1], accel[:1], np.zeros((1, 6)))
        random = np.random.default_rng(0)
        deviations = inertial_navigation.NOISE / np.sqrt(inertial_navigation.STEP_S)
        gyro += deviations[0] * random.normal(size=gyro.shape)
        accel += deviations[1] * random.normal(size=accel.shape)
        noisy = inertial_navigation.preintegrate(gyro, accel, np.zeros((count, 6)))
        errors = self.errors(noisy["motion"], exact["motion"][0])
        whitened = errors @ exact["sqrt_information"][0].T
        assert_allclose(np.cov(whitened.T), np.eye(9), atol=0.08)


def imu_by_numpy(start: Array, bias: Array, end: Array, imu: dict[str, Array]) -> Array:
    """The residual of one factor, from the formulas of Forster et al."""
    motion, gravity = imu["motion"], inertial_navigation.GRAVITY
    rotation, time = Rotation.from_quat(motion[:4]), motion[10]
    gyro, accel = np.split(bias - motion[11:], 2)
    turned = rotation * Rotation.from_rotvec(imu["rotation_by_gyro"] @ gyro)
    gained = motion[4:7] + imu["velocity_by_gyro"] @ gyro + imu["velocity_by_accel"] @ accel
    moved = motion[7:10] + imu["position_by_gyro"] @ gyro + imu["position_by_accel"] @ accel
    from_start = Rotation.from_quat(start[:4]).inv()
    in_turn = (turned.inv() * from_start * Rotation.from_quat(end[:4])).as_rotvec()
    in_velocity = from_start.apply(end[7:] - start[7:] - gravity * time) - gained
    path = end[4:7] - start[4:7] - start[7:] * time - 0.5 * gravity * time**2
    error = np.concatenate([in_turn, in_velocity, from_start.apply(path) - moved])
    whitened: Array = np.tril(imu["sqrt_information"]) @ error
    return whitened


class TestPreintegratedImu:
    def test_agrees_with_numpy(self) -> None:
        arrays = inertial_navigation.simulate(num_keyframes=4)
        random = np.random.default_rng(0)
        factors = arrays["preintegrated_imu"]
        for number in range(3):
            imu = {
                name: value[number]
                for name, value in factors.items()
                if name not in ("start", "bias", "end", "gravity")
            }
            imu["sqrt_information"] = random.normal(size=(9, 9))
            imu["motion"][11:] = random.normal(scale=0.01, size=6)
            bias = random.normal(scale=0.05, size=6)
            start, end = arrays["State"][number], arrays["State"][number + 1]
            expected = imu_by_numpy(start, bias, end, imu)
            found = self.by_symforce(start, bias, end, imu)
            assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())

    def by_symforce(self, start: Array, bias: Array, end: Array, imu: dict[str, Array]) -> Array:
        motion = imu["motion"]
        names = ["rotation_by_gyro", "velocity_by_gyro", "velocity_by_accel"]
        names += ["position_by_gyro", "position_by_accel"]
        return rows(
            inertial_navigation.preintegrated_imu(
                self.state(start),
                sf.V6(*bias),
                self.state(end),
                inertial_navigation.Motion(
                    sf.Rot3.from_storage(list(motion[:4])),
                    sf.V3(*motion[4:7]),
                    sf.V3(*motion[7:10]),
                    motion[10],
                    sf.V6(*motion[11:]),
                ),
                *(sf.M33(imu[name]) for name in names),
                sf.M99(imu["sqrt_information"]),
                sf.V3(*inertial_navigation.GRAVITY),
            )
        )

    def state(self, values: Array) -> inertial_navigation.State:
        pose = sf.Pose3.from_storage(list(values[:7]))
        return inertial_navigation.State(pose, sf.V3(*values[7:]))

    def test_true_states_are_off_by_the_noise(self) -> None:
        """The mean square of whitened residuals is one: formulas, frames and signs all fit."""
        random = np.random.default_rng(5)
        flight = inertial_navigation.fly(200, 50, random)
        imu = inertial_navigation.preintegrate(flight.gyro, flight.accel, np.zeros((199, 6)))
        states = np.concatenate(
            [flight.rotations.as_quat(), flight.positions, flight.velocities], axis=1
        )
        residuals = [
            imu_by_numpy(
                states[number],
                flight.biases[number],
                states[number + 1],
                {name: value[number] for name, value in imu.items()},
            )
            for number in range(199)
        ]
        assert np.mean(np.square(residuals)) == pytest.approx(1.0, abs=0.1)


class TestOdometry:
    def test_agrees_with_numpy(self) -> None:
        random = np.random.default_rng(0)
        turns = Rotation.random(3, random_state=1)
        places = random.normal(size=(3, 3))
        weights = random.normal(size=(6, 6))
        start, end, motion = (
            sf.Pose3.from_storage([*turn.as_quat(), *place])
            for turn, place in zip(turns, places, strict=True)
        )
        found = rows(pose_graph_3d.odometry(start, end, motion, sf.M66(weights)))
        step = turns[0].inv().apply(places[1] - places[0])
        moved = turns[2].inv().apply(step - places[2])
        turned = (turns[2].inv() * turns[0].inv() * turns[1]).as_rotvec()
        assert_allclose(found, weights @ [*moved, *turned], rtol=1e-9)


def in_storage_order(value: Any) -> Any:
    """Matrices, (n, rows, columns), column by column."""
    if isinstance(value, dict):
        return {name: in_storage_order(entry) for name, entry in value.items()}
    if np.ndim(value) == 3:
        return value.transpose(0, 2, 1).reshape(len(value), -1)
    return value


def flight_by_numpy(arrays: dict[str, Any], step: Array) -> Array:
    """All residual rows after a step of every keyframe: turn, place, velocity, bias."""
    steps = step.reshape(-1, 15)
    turns = Rotation.from_quat(arrays["State"][:, :4]) * Rotation.from_rotvec(steps[:, :3])
    moved = arrays["State"][:, 4:] + steps[:, 3:9]
    states = np.concatenate([turns.as_quat(), moved], axis=1)
    biases = arrays["Bias"] + steps[:, 9:]
    factors = arrays["preintegrated_imu"]
    readings = [name for name in factors if name not in ("start", "bias", "end", "gravity")]
    imu = [
        imu_by_numpy(
            states[number],
            biases[number],
            states[number + 1],
            {name: factors[name][number] for name in readings},
        )
        for number in range(len(states) - 1)
    ]
    fixes = arrays["satellite_fix"]
    walk = np.diff(biases, axis=0) / np.repeat(arrays["bias_walk"]["deviation"], 3)
    first = biases[0] / np.repeat(arrays["calibrated_bias"]["deviation"], 3)
    off = (states[fixes["state"], 4:7] - fixes["position"]) / 0.1
    return np.concatenate([np.ravel(part) for part in (imu, walk, off, first)])


def test_inertial_navigation_ends_at_an_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """By plain NumPy, a Gauss-Newton step from there would gain nothing."""
    count = 9
    arrays = inertial_navigation.simulate(num_keyframes=count)
    monkeypatch.setattr(inertial_navigation, "simulate", lambda: arrays)
    result = inertial_navigation.main()
    assert result.status.is_success
    ended = {**arrays, **result.values}
    left = flight_by_numpy(ended, np.zeros(count * 15))
    assert result.final_cost == pytest.approx(0.5 * left @ left, rel=1e-6)
    changes = 1e-6 * np.eye(count * 15)
    J = np.stack([flight_by_numpy(ended, x) - flight_by_numpy(ended, -x) for x in changes], 1)
    J /= 2e-6
    step = np.linalg.lstsq(J, -left, rcond=None)[0]
    after = left + J @ step
    assert 0.5 * after @ after == pytest.approx(result.final_cost, rel=1e-6)


def test_pose_graph_3d_reaches_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """231.241265 is where SciPy ends, in a minute, with the same residuals."""
    factors = pose_graph_3d.FACTORS
    arrays = pose_graph_3d.read()
    result = solver(factors).solve(arrays, min_linear_tolerance=1e-6)
    stored = {name: in_storage_order(value) for name, value in arrays.items()}
    assert result.status.is_success
    assert result.initial_cost == pytest.approx(reference.cost(factors, stored), rel=1e-9)
    assert result.final_cost == pytest.approx(231.241265, rel=1e-6)
    monkeypatch.setattr(caspar, "Solver", partial(caspar.Solver, precision="float64"))
    assert pose_graph_3d.main().final_cost == pytest.approx(231.241265, rel=1e-6)
