"""Factors of the library compiled and solved on the processor, beside SciPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.io import read_g2o
from tests.factors.every_factor import FACTORS
from tests.solver.reference import minimize_with_scipy

Array = NDArray[Any]

factors = caspar.factors
ROOT = Path(__file__).parents[2]


class Beacon(sf.V2):
    """A point in the plane."""


def test_a_drive_past_beacons() -> None:
    """Odometry, bearings and ranges: SciPy's optimum, and a robust loss on top."""
    random = np.random.default_rng(2)
    parts = [
        factors.prior(sf.Pose2),
        factors.between(sf.Pose2, noise="sqrt_information", name="odometry"),
        factors.bearing_range(sf.Pose2, Beacon).with_loss(caspar.loss.Huber),
    ]
    angles = np.linspace(0.0, 3.0, 12)
    truth = np.column_stack(
        [-np.sin(angles), np.cos(angles), 5.0 * np.cos(angles), 5.0 * np.sin(angles)]
    )
    beacons = random.uniform(-8.0, 8.0, (4, 2))
    pose, beacon = (one.ravel() for one in np.meshgrid(range(12), range(4), indexing="ij"))
    apart = beacons[beacon] - truth[pose, 2:]
    seen = np.arctan2(apart[:, 1], apart[:, 0]) - np.arctan2(truth[pose, 1], truth[pose, 0])
    step = np.array([np.cos(3.0 / 11.0), np.sin(3.0 / 11.0), 1.36, 0.19])
    start = truth.copy()
    start[:, 2:] += 0.1 * random.normal(size=(12, 2))
    arrays: dict[str, Any] = {
        "Pose2": start,
        "Beacon": beacons + 0.3 * random.normal(size=(4, 2)),
        "prior": {"value": [0], "expected": truth[:1], "sigma": [0.01, 0.02, 0.02]},
        "odometry": {
            **{"a": np.arange(11), "b": np.arange(1, 12), "a_from_b": np.tile(step, (11, 1))},
            "sqrt_information": np.tile(np.diag([30.0, 10.0, 10.0]), (11, 1, 1)),
        },
        "bearing_range": {
            **{"pose": pose, "point": beacon, "sigma": [0.02, 0.1]},
            "angle": (seen + 0.02 * random.normal(size=48))[:, None],
            "distance": (np.linalg.norm(apart, axis=1) + 0.1 * random.normal(size=48))[:, None],
        },
    }
    stored = {name: dict(one) if isinstance(one, dict) else one for name, one in arrays.items()}
    stored["odometry"]["sqrt_information"] = (
        arrays["odometry"]["sqrt_information"].transpose(0, 2, 1).reshape(11, 9)
    )
    arrays["bearing_range"]["loss_scale"] = 100.0  # no residual is as long
    wanted = minimize_with_scipy([one.with_loss(None) for one in parts], stored)
    result = caspar.Solver(parts, precision="float64").solve(arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(wanted.cost, rel=1e-7)
    assert_allclose(result.values["Beacon"], wanted.values["Beacon"], atol=1e-4)


def test_a_flight() -> None:
    """Inertial readings and antenna positions give back the bias that was put in."""
    random = np.random.default_rng(3)
    time = np.arange(0.0, 12.0001, 0.005)
    rates = np.array([0.5, 0.8, 0.3])
    places = np.sin(time[:, None] * rates) * [20.0, 10.0, 4.0]
    accelerations = -np.sin(time[:, None] * rates) * [20.0, 10.0, 4.0] * rates**2
    turns = Rotation.from_euler("zyx", np.column_stack([0.3 * time, 0.2 * np.sin(time), 0 * time]))
    gyro = np.zeros((len(time), 3))
    middle = (turns[:-2].inv() * turns[2:]).as_rotvec() / 0.01
    gyro[1:-1] = middle
    gyro[[0, -1]] = middle[[0, -1]]
    gravity = np.array([0.0, 0.0, -9.81])
    accel = turns.inv().apply(accelerations - gravity)
    bias = np.array([0.01, -0.02, 0.015, 0.1, -0.15, 0.2])
    noise = factors.ImuNoise(1e-4, 1e-3)
    keyframes = np.arange(0.5, 11.6, 0.5)
    motion = factors.preintegrate(time, gyro + bias[:3], accel + bias[3:], keyframes, noise)
    fixes = np.round(keyframes / 0.005).astype(int)
    arm = np.array([0.5, 0.0, 1.0])
    antenna = places[fixes] + turns[fixes].apply(arm) + 0.01 * random.normal(size=(len(fixes), 3))
    velocity = np.cos(time[fixes[0]] * rates) * [20.0, 10.0, 4.0] * rates
    first = np.concatenate([turns[fixes[0]].as_quat(), places[fixes[0]], velocity])
    count = len(keyframes)
    index = np.arange(count - 1)
    body = factors.part(factors.NavState, "pose", "state")
    solver = caspar.Solver([factors.imu(), factors.gps_position(body)], precision="float64")
    arrays = {
        "NavState": motion.predict(first, gravity),
        "ImuBias": np.zeros((1, 6)),
        "imu": {
            **{"start": index, "end": index + 1, "bias": np.zeros(count - 1, int)},
            **motion.arrays(),
            "gravity": gravity,
        },
        "gps_position": {
            **{"state": np.arange(count), "position": antenna, "lever_arm": arm},
            "sigma": [0.01, 0.01, 0.01],
        },
    }
    result = solver.solve(arrays)
    assert result.status.is_success
    assert abs(result.values["NavState"][:, 4:7] - places[fixes]).max() < 0.03
    covariance = solver.covariance({**arrays, **result.values}, {"ImuBias": "all"})
    deviations = covariance.standard_errors("ImuBias")[0]
    assert deviations.max() < 0.03
    assert (abs(result.values["ImuBias"][0] - bias) < 4.0 * deviations).all()


def test_a_pose_graph_file() -> None:
    """g2o's matrices, in the order of `between`, give g2o's chi2 of M3500."""
    graph = read_g2o(ROOT / "data/M3500.g2o.bz2")
    solver = caspar.Solver(
        [factors.between(sf.Pose2, noise="sqrt_information"), factors.prior(sf.Pose2)],
        precision="float64",
    )
    result = solver.solve(
        {
            "Pose2": graph.poses,
            "between": {
                **{"a": graph.index_a, "b": graph.index_b, "a_from_b": graph.measurement},
                "sqrt_information": factors.rotation_first(graph.sqrt_information),
            },
            "prior": {"value": [0], "expected": graph.poses[:1], "sigma": [1e-3] * 3},
        }
    )
    assert 2.0 * result.initial_cost == pytest.approx(2_566_670, rel=1e-6)
    assert 2.0 * result.final_cost == pytest.approx(137.91295, rel=1e-6)


class Receiver(sf.V3):
    """A place, ECEF."""


class Velocity(sf.V3):
    """Its velocity."""


class Clock(sf.V1):
    """What its clock is ahead, metres."""


class Drift(sf.V1):
    """How the clock drifts, metres a second."""


@pytest.mark.parametrize("precision", ["mixed", "float64"])
def test_a_satellite_receiver(precision: Any) -> None:
    """Two clocks, GPS and Galileo, from the centre of the earth to the true place."""
    random = np.random.default_rng(4)
    place, velocity = np.array([3783200.0, 899600.0, 5038100.0]), np.array([5.0, -12.0, 3.0])
    zenith = place / np.linalg.norm(place)
    directions = zenith + 0.8 * random.normal(size=(12, 3))
    satellite = 2.656e7 * directions / np.linalg.norm(directions, axis=1)[:, None]
    flight = 3000.0 * np.cross(satellite / 2.656e7, random.normal(size=(12, 3)))
    system = np.arange(12) % 2
    line = satellite - place
    distance = np.linalg.norm(line, axis=1)
    turned = satellite[:, 0] * place[1] - satellite[:, 1] * place[0]
    ranges = distance + 7.2921151467e-5 / 299_792_458.0 * turned + np.array([9e4, 9.1e4])[system]
    rates = (line * (flight - velocity)).sum(axis=1) / distance + 40.0
    arrays: dict[str, Any] = {
        "Receiver": np.zeros((1, 3)),
        "Clock": np.zeros((2, 1)),
        "Velocity": np.zeros((1, 3)),
        "Drift": np.zeros((1, 1)),
        "pseudorange": {
            **{"receiver": np.zeros(12, int), "clock": system, "satellite": satellite},
            "pseudorange": (ranges + 2.0 * random.normal(size=12))[:, None],
            "sigma": [2.0],
        },
        "doppler": {
            **{name: np.zeros(12, int) for name in ("receiver", "velocity", "clock_drift")},
            **{"satellite": satellite, "satellite_velocity": flight},
            "range_rate": (rates + 0.05 * random.normal(size=12))[:, None],
            "sigma": [0.05],
        },
    }
    solver = caspar.Solver(
        [factors.pseudorange(Receiver, Clock), factors.doppler(Receiver, Velocity, Drift)],
        precision=precision,
    )
    result = solver.solve(arrays)
    assert result.status.is_success
    assert np.linalg.norm(result.values["Receiver"][0] - place) < 10.0
    assert np.linalg.norm(result.values["Velocity"][0] - velocity) < 0.2
    assert_allclose(result.values["Clock"][:, 0], [9e4, 9.1e4], atol=10.0)
    assert_allclose(result.values["Drift"], 40.0, atol=0.1)
    # 24 measurements, 9 unknowns
    assert 2.0 * result.final_cost == pytest.approx(15.0, abs=12.0)


@pytest.mark.parametrize("name", ["gravity", "plane_to_plane"])
def test_compiles_for_cuda(name: str) -> None:
    """By NVRTC, without a device; everything fits into registers."""
    resources = str(FACTORS[name].inspect("mixed", "cuda", "sm_90")["linearize"].resources)
    assert "spilled         0 bytes stored, 0 loaded" in resources
