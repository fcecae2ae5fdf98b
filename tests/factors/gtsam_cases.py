"""The same residuals by GTSAM: drawn inputs, and what GTSAM says of them.

`python -m tests.factors.gtsam_cases` writes `gtsam_reference.json` anew; it needs `pip install
gtsam`. Tests compare caspar with that file, and with GTSAM itself where it is installed.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from caspar.io.rotations import compose_se2, compose_se3

Array = NDArray[np.float64]
Inputs = dict[str, Array]

REFERENCE = Path(__file__).parent / "gtsam_reference.json"
NUM_INSTANCES = 4
PINHOLE = [520.0, 510.0, 320.0, 240.0]
OPENCV = [*PINHOLE, -0.12, 0.03, 0.002, -0.001]
STEREO = [*PINHOLE, 0.35]
LEVER_ARM = [0.4, -0.2, 1.1]
FIELD = [20.0, 3.0, -43.0]
MAGNET_BIAS = [1.5, -0.7, 0.4]
UP = [0.0, 0.0, 1.0]


def poses3(random: np.random.Generator, spread: float = 1.0) -> Array:
    """(n, 7) poses, as caspar stores them."""
    turns = spread * random.normal(size=(NUM_INSTANCES, 3))
    places = 2.0 * random.normal(size=(NUM_INSTANCES, 3))
    return np.concatenate([Rotation.from_rotvec(turns).as_quat(), places], axis=1)


def poses2(random: np.random.Generator) -> Array:
    """(n, 4) poses in the plane."""
    angles = random.uniform(-3.0, 3.0, NUM_INSTANCES)
    places = 2.0 * random.normal(size=(NUM_INSTANCES, 2))
    return np.column_stack([np.cos(angles), np.sin(angles), places])


# Angles of differences. GTSAM 4.3 itself is 1e-12 off the logarithm of SE(2) at 1e-4 and 1e-6 at
# 1e-10; that of SE(3) is 1e-7 off within 1e-3 of a half turn.
ANGLES3, ANGLES2 = (1e-9, 0.2, 2.0, np.pi - 0.01), (1e-2, 0.7, -2.0, np.pi - 1e-6)


def turned_further(start: Array, motion: Array | None, random: np.random.Generator) -> Array:
    """(n, dim) poses that differ from start * motion by `ANGLES3` or `ANGLES2` and up to 2 m."""
    if start.shape[1] == 4:
        angles = np.array(ANGLES2)
        places = 2.0 * random.normal(size=(NUM_INSTANCES, 2))
        further = np.column_stack([np.cos(angles), np.sin(angles), places])
        compose = compose_se2
    else:
        turns = directions(random) * np.array(ANGLES3)[:, None]
        places = 2.0 * random.normal(size=(NUM_INSTANCES, 3))
        further = np.concatenate([Rotation.from_rotvec(turns).as_quat(), places], axis=1)
        compose = compose_se3
    return compose(start if motion is None else compose(start, motion), further)


def directions(random: np.random.Generator) -> Array:
    """(n, 3) of unit length."""
    drawn = random.normal(size=(NUM_INSTANCES, 3))
    made: Array = drawn / np.linalg.norm(drawn, axis=1)[:, None]
    return made


def inputs() -> dict[str, Inputs]:
    """The arguments of each factor, by case."""
    random = np.random.default_rng(37)

    def drawn(*sizes: int, scale: float = 1.0) -> Array:
        return scale * random.normal(size=(NUM_INSTANCES, *sizes))

    def in_front() -> Array:
        return drawn(3) * 0.8 + [0.0, 0.0, 6.0]

    near = 0.2
    made: dict[str, Inputs] = {
        "between_pose3": {"a": poses3(random), "b": poses3(random), "a_from_b": poses3(random)},
        "between_pose2": {"a": poses2(random), "b": poses2(random), "a_from_b": poses2(random)},
        "prior_pose3": {"value": poses3(random), "expected": poses3(random)},
        "range_3d": {"a": poses3(random), "b": drawn(3), "distance": abs(drawn(1))},
        "range_2d": {"a": poses2(random), "b": drawn(2), "distance": abs(drawn(1))},
        "bearing_2d": {"pose": poses2(random), "point": drawn(2), "angle": drawn(1)},
        "bearing_3d": {"pose": poses3(random), "point": drawn(3), "direction": directions(random)},
        "bearing_range_2d": {
            **{"pose": poses2(random), "point": drawn(2), "angle": drawn(1)},
            "distance": abs(drawn(1)),
        },
        "gps_position": {"world_from_body": poses3(random), "position": drawn(3)},
        "gravity": {"world_from_body": poses3(random, 0.4), "direction": directions(random)},
        "magnetometer": {"world_from_body": poses3(random), "reading": drawn(3, scale=20.0)},
        "reprojection_pinhole": {
            **{"world_from_cam": poses3(random, near), "point": in_front()},
            "pixel": drawn(2, scale=100.0),
        },
        "reprojection_opencv": {
            **{"world_from_cam": poses3(random, near), "point": in_front()},
            "pixel": drawn(2, scale=100.0),
        },
        "stereo": {
            **{"world_from_cam": poses3(random, near), "point": in_front()},
            "pixel": drawn(3, scale=100.0),
        },
        "pseudorange": {
            **{"receiver": drawn(3, scale=4e6), "clock": drawn(1, scale=1e5)},
            **{"satellite": drawn(3, scale=2e7), "pseudorange": drawn(1, scale=1e6) + 2e7},
        },
        "imu": {"start": drawn(10), "end": drawn(10), "bias": drawn(6, scale=0.02)},
        "between_pose3_logarithm": {"a": poses3(random), "a_from_b": poses3(random)},
        "between_pose2_logarithm": {"a": poses2(random), "a_from_b": poses2(random)},
        "prior_pose3_logarithm": {"expected": poses3(random)},
        "prior_pose2_logarithm": {"expected": poses2(random)},
    }
    for name in ("pose3", "pose2"):
        between, prior = made[f"between_{name}_logarithm"], made[f"prior_{name}_logarithm"]
        between["b"] = turned_further(between["a"], between["a_from_b"], random)
        prior["value"] = turned_further(prior["expected"], None, random)
    for name in ("gravity",):
        # seen where they are, to within a turn of less than a right angle
        turned = Rotation.from_quat(made[name]["world_from_body"][:, :4]).inv().apply(UP)
        made[name]["direction"] = turned + 0.3 * made[name]["direction"]
        made[name]["direction"] /= np.linalg.norm(made[name]["direction"], axis=1)[:, None]
    for name in ("start", "end"):
        state = made["imu"][name]
        state[:, :4] /= np.linalg.norm(state[:, :4], axis=1)[:, None]
    return made


STEP_S = 0.002
GYRO_DENSITY, ACCEL_DENSITY, INTEGRATION_DENSITY = 2e-3, 2e-2, 1e-4
IMU_BIAS = [0.01, -0.02, 0.015, 0.1, -0.15, 0.2]
GRAVITY = [0.0, 0.0, -9.81]


def imu_readings() -> tuple[Array, Array]:
    """Gyroscope and accelerometer, (n, 200, 3), smooth."""
    random = np.random.default_rng(5)
    phase = STEP_S * np.arange(200)[None, :, None] * random.uniform(2.0, 6.0, (NUM_INSTANCES, 1, 3))
    gyro = random.normal(size=(NUM_INSTANCES, 1, 3)) * np.sin(phase + 0.3)
    accel = random.normal(size=(NUM_INSTANCES, 1, 3)) * np.cos(phase) + [0.3, -0.2, 9.7]
    return gyro, accel


# -- GTSAM -----------------------------------------------------------------------------------------


def by_gtsam() -> dict[str, Any]:
    """Version, and the residuals of every case, not whitened; of `imu` more."""
    import gtsam

    made = inputs()
    cases = {
        name: [compute(gtsam, row(made[name], i)).tolist() for i in range(NUM_INSTANCES)]
        for name, compute in CASES.items()
    }
    preintegrated = [_preintegrated(gtsam, i) for i in range(NUM_INSTANCES)]
    cases["imu"] = [
        _imu(gtsam, pim, row(made["imu"], i)).tolist() for i, pim in enumerate(preintegrated)
    ]
    summed = [
        {
            "rotation": pim.deltaRij().toQuaternion().coeffs().tolist(),
            "velocity": np.asarray(pim.deltaVij()).tolist(),
            "position": np.asarray(pim.deltaPij()).tolist(),
            "covariance": np.asarray(pim.preintMeasCov()).tolist(),
        }
        for pim in preintegrated
    ]
    return {"gtsam": _version(), "cases": cases, "preintegrated": summed}


def _version() -> str:
    from importlib.metadata import version

    return version("gtsam")


def row(case: Inputs, number: int) -> Inputs:
    """The arguments of one instance."""
    return {name: values[number] for name, values in case.items()}


def _pose3(gtsam: Any, storage: Array) -> Any:
    x, y, z, w = storage[:4]
    return gtsam.Pose3(gtsam.Rot3.Quaternion(w, x, y, z), storage[4:7])


def _pose2(gtsam: Any, storage: Array) -> Any:
    return gtsam.Pose2(storage[2], storage[3], np.arctan2(storage[1], storage[0]))


def _noise(gtsam: Any, dim: int) -> Any:
    return gtsam.noiseModel.Unit.Create(dim)


def _error(gtsam: Any, factor: Any, values: Sequence[Any]) -> Array:
    """Of a factor whose keys are 0, 1, ..."""
    held = gtsam.Values()
    for key, value in enumerate(values):
        held.insert(key, value)
    return np.asarray(factor.unwhitenedError(held))


def _between_pose3(gtsam: Any, x: Inputs) -> Array:
    a, b, measured = (_pose3(gtsam, x[name]) for name in ("a", "b", "a_from_b"))
    difference = measured.inverse().compose(a.between(b))
    factor = gtsam.BetweenFactorPose3(0, 1, measured, _noise(gtsam, 6))
    turn = _error(gtsam, factor, (a, b))[:3]
    return np.concatenate([turn, difference.translation()])


def _between_pose2(gtsam: Any, x: Inputs) -> Array:
    a, b, measured = (_pose2(gtsam, x[name]) for name in ("a", "b", "a_from_b"))
    difference = measured.inverse().compose(a.between(b))
    return np.array([difference.theta(), *difference.translation()])


def _prior_pose3(gtsam: Any, x: Inputs) -> Array:
    value, expected = _pose3(gtsam, x["value"]), _pose3(gtsam, x["expected"])
    turn = gtsam.Rot3.Logmap(expected.rotation().between(value.rotation()))
    return np.concatenate([turn, value.translation() - expected.translation()])


def _logarithm(gtsam: Any, factor: Any, values: Sequence[Any]) -> Array:
    """The error of a factor in GTSAM's own chart, the rotation first."""
    error = _error(gtsam, factor, values)
    return error if len(error) == 6 else error[[2, 0, 1]]


def _between_pose3_logarithm(gtsam: Any, x: Inputs) -> Array:
    a, b, measured = (_pose3(gtsam, x[name]) for name in ("a", "b", "a_from_b"))
    factor = gtsam.BetweenFactorPose3(0, 1, measured, _noise(gtsam, 6))
    return _logarithm(gtsam, factor, (a, b))


def _between_pose2_logarithm(gtsam: Any, x: Inputs) -> Array:
    a, b, measured = (_pose2(gtsam, x[name]) for name in ("a", "b", "a_from_b"))
    factor = gtsam.BetweenFactorPose2(0, 1, measured, _noise(gtsam, 3))
    return _logarithm(gtsam, factor, (a, b))


def _prior_pose3_logarithm(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.PriorFactorPose3(0, _pose3(gtsam, x["expected"]), _noise(gtsam, 6))
    return _logarithm(gtsam, factor, (_pose3(gtsam, x["value"]),))


def _prior_pose2_logarithm(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.PriorFactorPose2(0, _pose2(gtsam, x["expected"]), _noise(gtsam, 3))
    return _logarithm(gtsam, factor, (_pose2(gtsam, x["value"]),))


def _range_3d(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.RangeFactor3D(0, 1, x["distance"][0], _noise(gtsam, 1))
    return _error(gtsam, factor, (_pose3(gtsam, x["a"]), x["b"]))


def _range_2d(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.RangeFactor2D(0, 1, x["distance"][0], _noise(gtsam, 1))
    return _error(gtsam, factor, (_pose2(gtsam, x["a"]), x["b"]))


def _bearing_2d(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.BearingFactor2D(0, 1, gtsam.Rot2(x["angle"][0]), _noise(gtsam, 1))
    return _error(gtsam, factor, (_pose2(gtsam, x["pose"]), x["point"]))


def _bearing_3d(gtsam: Any, x: Inputs) -> Array:
    """In space: GTSAM's factor has rows across the estimated direction, caspar's the measured."""
    measured, pose = gtsam.Unit3(x["direction"]), _pose3(gtsam, x["pose"])
    turn = measured.localCoordinates(pose.bearing(x["point"]))
    factor = gtsam.BearingFactor3D(0, 1, measured, _noise(gtsam, 2))
    error = _error(gtsam, factor, (pose, x["point"]))
    np.testing.assert_allclose(np.linalg.norm(turn), np.linalg.norm(error))
    return np.asarray(measured.basis() @ turn)


def _bearing_range_2d(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.BearingRangeFactor2D(
        0, 1, gtsam.Rot2(x["angle"][0]), x["distance"][0], _noise(gtsam, 2)
    )
    return _error(gtsam, factor, (_pose2(gtsam, x["pose"]), x["point"]))


def _gps_position(gtsam: Any, x: Inputs) -> Array:
    factor = gtsam.GPSFactorArm(0, x["position"], np.array(LEVER_ARM), _noise(gtsam, 3))
    return _error(gtsam, factor, (_pose3(gtsam, x["world_from_body"]),))


def _gravity(gtsam: Any, x: Inputs) -> Array:
    """The angle: GTSAM's rows are as long as its sine."""
    factor = gtsam.AttitudeFactorPose3(
        0, gtsam.Unit3(np.array(UP)), _noise(gtsam, 2), gtsam.Unit3(x["direction"])
    )
    sines = _error(gtsam, factor, (_pose3(gtsam, x["world_from_body"]),))
    return np.array([np.arcsin(np.linalg.norm(sines))])


def _magnetometer(gtsam: Any, x: Inputs) -> Array:
    size = float(np.linalg.norm(FIELD))
    factor = gtsam.MagPoseFactorPose3(
        0, x["reading"], size, np.array(FIELD) / size, np.array(MAGNET_BIAS), _noise(gtsam, 3)
    )
    return _error(gtsam, factor, (_pose3(gtsam, x["world_from_body"]),))


def _reprojection_pinhole(gtsam: Any, x: Inputs) -> Array:
    fx, fy, cx, cy = PINHOLE
    factor = gtsam.GenericProjectionFactorCal3_S2(
        x["pixel"], _noise(gtsam, 2), 0, 1, gtsam.Cal3_S2(fx, fy, 0.0, cx, cy)
    )
    return _error(gtsam, factor, (_pose3(gtsam, x["world_from_cam"]), x["point"]))


def _reprojection_opencv(gtsam: Any, x: Inputs) -> Array:
    fx, fy, cx, cy, *distortion = OPENCV
    factor = gtsam.GenericProjectionFactorCal3DS2(
        x["pixel"], _noise(gtsam, 2), 0, 1, gtsam.Cal3DS2(fx, fy, 0.0, cx, cy, *distortion)
    )
    return _error(gtsam, factor, (_pose3(gtsam, x["world_from_cam"]), x["point"]))


def _stereo(gtsam: Any, x: Inputs) -> Array:
    fx, fy, cx, cy, baseline = STEREO
    factor = gtsam.GenericStereoFactor3D(
        gtsam.StereoPoint2(*x["pixel"]),
        *(_noise(gtsam, 3), 0, 1, gtsam.Cal3_S2Stereo(fx, fy, 0.0, cx, cy, baseline)),
    )
    return _error(gtsam, factor, (_pose3(gtsam, x["world_from_cam"]), x["point"]))


def _pseudorange(gtsam: Any, x: Inputs) -> Array:
    """GTSAM's clock is in seconds."""
    factor = gtsam.PseudorangeFactor(
        0, 1, x["pseudorange"][0], x["satellite"], 0.0, _noise(gtsam, 1)
    )
    return _error(gtsam, factor, (x["receiver"], x["clock"][0] / 299_792_458.0))


def _preintegrated(gtsam: Any, number: int) -> Any:
    parameters = gtsam.PreintegrationParams(np.array(GRAVITY))
    parameters.setGyroscopeCovariance(np.eye(3) * GYRO_DENSITY**2)
    parameters.setAccelerometerCovariance(np.eye(3) * ACCEL_DENSITY**2)
    parameters.setIntegrationCovariance(np.eye(3) * INTEGRATION_DENSITY**2)
    bias = gtsam.imuBias.ConstantBias(np.array(IMU_BIAS[3:]), np.array(IMU_BIAS[:3]))
    summed = gtsam.PreintegratedImuMeasurementsManifold(parameters, bias)
    gyro, accel = imu_readings()
    for rate, force in zip(gyro[number], accel[number], strict=True):
        summed.integrateMeasurement(force, rate, STEP_S)
    return summed


def _imu(gtsam: Any, summed: Any, x: Inputs) -> Array:
    """End minus prediction: rotation, velocity, position, in the axes of the start."""
    bias = gtsam.imuBias.ConstantBias(x["bias"][3:], x["bias"][:3])
    start, end = (gtsam.NavState(_pose3(gtsam, x[name]), x[name][7:]) for name in ("start", "end"))
    predicted = summed.predict(start, bias)
    turn = gtsam.Rot3.Logmap(predicted.attitude().between(end.attitude()))
    axes = start.attitude()
    velocity = axes.unrotate(end.velocity() - predicted.velocity())
    return np.concatenate([turn, velocity, axes.unrotate(end.position() - predicted.position())])


CASES: dict[str, Callable[[Any, Inputs], Array]] = {
    "between_pose3": _between_pose3,
    "between_pose2": _between_pose2,
    "prior_pose3": _prior_pose3,
    "range_3d": _range_3d,
    "range_2d": _range_2d,
    "bearing_2d": _bearing_2d,
    "bearing_3d": _bearing_3d,
    "bearing_range_2d": _bearing_range_2d,
    "gps_position": _gps_position,
    "gravity": _gravity,
    "magnetometer": _magnetometer,
    "reprojection_pinhole": _reprojection_pinhole,
    "reprojection_opencv": _reprojection_opencv,
    "stereo": _stereo,
    "pseudorange": _pseudorange,
    "between_pose3_logarithm": _between_pose3_logarithm,
    "between_pose2_logarithm": _between_pose2_logarithm,
    "prior_pose3_logarithm": _prior_pose3_logarithm,
    "prior_pose2_logarithm": _prior_pose2_logarithm,
}

if __name__ == "__main__":
    found = by_gtsam()
    lines = [f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in found["cases"].items()]
    rest = {name: value for name, value in found.items() if name != "cases"}
    text = json.dumps(rest)[:-1] + ',\n"cases": {\n' + ",\n".join(lines) + "\n}}\n"
    REFERENCE.write_text(text, encoding="utf-8")
