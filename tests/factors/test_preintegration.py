"""Preintegration against fine integration, differences, and noise carried through it."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from caspar.errors import InputError
from caspar.factors.inertial import Preintegration

Array = NDArray[np.floating[Any]]

factors = caspar.factors
NOISE = factors.ImuNoise(2e-3, 3e-2, 1e-3)
GRAVITY = np.array([0.0, 0.0, -9.81])


def rates(time: Array) -> Array:
    """Smooth angular velocities, (n, 3)."""
    return np.stack([np.sin(2.0 * time), 0.7 * np.cos(3.0 * time), 0.5 + 0.2 * time], axis=1)


def forces(time: Array) -> Array:
    """Smooth specific forces, (n, 3)."""
    return np.stack([np.cos(4.0 * time), np.sin(2.5 * time), 9.8 + 0.5 * time], axis=1)


def by_small_steps(start: float, end: float, bias: Array, count: int = 20_000) -> Any:
    """Rotation, velocity, position: plain sums at the middle of steps of microseconds."""
    step = (end - start) / count
    time = start + step * (np.arange(count) + 0.5)
    turns = Rotation.from_rotvec((rates(time) - bias[:3]) * step).as_matrix()
    halves = Rotation.from_rotvec((rates(time) - bias[:3]) * step / 2.0).as_matrix()
    rotation, velocity, position = np.eye(3), np.zeros(3), np.zeros(3)
    for turn, half, force in zip(turns, halves, forces(time) - bias[3:], strict=True):
        gained = rotation @ half @ force * step
        position = position + (velocity + gained / 2.0) * step
        velocity = velocity + gained
        rotation = rotation @ turn
    return rotation, velocity, position


def error(found: Preintegration, wanted: Any, number: int = 0) -> Array:
    """Rotation vector, velocity, position: found minus wanted."""
    rotation, velocity, position = wanted
    turn = Rotation.from_matrix(rotation.T) * Rotation.from_quat(found.rotation[number])
    moved = (found.velocity[number] - velocity, found.position[number] - position)
    return np.concatenate([turn.as_rotvec(), *moved])


class TestMotion:
    def test_errors_fall_with_the_square_of_the_step(self) -> None:
        wanted = by_small_steps(0.0, 0.5, np.zeros(6))
        sizes = []
        for rate_hz in (100, 200, 400):
            time = np.arange(rate_hz + 1) / rate_hz
            found = factors.preintegrate(time, rates(time), forces(time), [0.0, 0.5], NOISE)
            sizes.append(np.linalg.norm(error(found, wanted)))
        assert sizes[0] < 2e-4
        assert_allclose(np.array(sizes[:-1]) / sizes[1:], 4.0, rtol=0.05)

    def test_keyframes_between_readings(self) -> None:
        """Intervals of different lengths, none of whose ends is the time of a reading."""
        time = np.sort(np.random.default_rng(0).uniform(0.0, 2.0, 1000))
        keyframes = [0.1234, 0.4321, 0.5, 1.8765]
        bias = np.array([0.01, -0.02, 0.03, 0.2, -0.1, 0.3])
        found = factors.preintegrate(time, rates(time), forces(time), keyframes, NOISE, bias)
        assert_allclose(found.duration_s, np.diff(keyframes))
        for number, (start, end) in enumerate(itertools.pairwise(keyframes)):
            assert abs(error(found, by_small_steps(start, end, bias), number)).max() < 2e-4

    def test_prediction(self) -> None:
        """A body at rest, tilted, stays where it is."""
        tilt = Rotation.from_rotvec([0.3, -0.2, 0.5])
        time = np.arange(101) / 100.0
        rest = np.tile(tilt.inv().apply(-GRAVITY), (101, 1))
        found = factors.preintegrate(time, np.zeros((101, 3)), rest, [0.0, 0.5, 1.0], NOISE)
        start = np.concatenate([tilt.as_quat(), [1.0, 2.0, 3.0], np.zeros(3)])
        assert_allclose(found.predict(start, GRAVITY), np.tile(start, (3, 1)), atol=1e-12)


def readings(count: int = 1, samples: int = 40) -> tuple[Array, Array, Array]:
    time = 0.01 * (np.arange(samples) + 0.5)
    tile = (count, 1, 1)
    steps = np.full((count, samples), 0.01)
    return np.tile(rates(time), tile), np.tile(forces(time), tile), steps


def parts(found: Preintegration) -> Any:
    return Rotation.from_quat(found.rotation[0]).as_matrix(), found.velocity[0], found.position[0]


class TestDerivatives:
    def test_by_the_bias(self) -> None:
        gyro, accel, steps = readings()
        bias = np.array([0.02, -0.01, 0.03, 0.1, 0.2, -0.1])
        exact = factors.preintegrate_steps(gyro, accel, steps, NOISE, bias)
        change = 1e-5
        for column in range(6):
            ends = []
            for sign in (1.0, -1.0):
                moved = bias + sign * change * np.eye(6)[column]
                shifted = factors.preintegrate_steps(gyro, accel, steps, NOISE, moved)
                ends.append(error(shifted, parts(exact)))
            slope = (ends[0] - ends[1]) / (2.0 * change)
            assert_allclose(exact.by_bias[0, :, column], slope, atol=1e-7)

    def test_covariance(self) -> None:
        """Differences by every reading, times its variance: density squared over the step."""
        samples = 12
        gyro, accel, steps = readings(1, samples)
        noise = factors.ImuNoise(2e-3, 3e-2, 0.0)
        exact = factors.preintegrate_steps(gyro, accel, steps, noise)
        wanted = np.zeros((9, 9))
        change = 1e-5
        for array, density in ((gyro, 2e-3), (accel, 3e-2)):
            for place in np.ndindex(samples, 3):
                ends = []
                for sign in (1.0, -1.0):
                    array[0][place] += sign * change
                    moved = factors.preintegrate_steps(gyro, accel, steps, noise)
                    array[0][place] -= sign * change
                    ends.append(error(moved, parts(exact)))
                slope = (ends[0] - ends[1]) / (2.0 * change)
                wanted += density**2 / 0.01 * np.outer(slope, slope)
        deviations = np.sqrt(np.diag(wanted))
        scale = np.outer(deviations, deviations)
        assert_allclose(exact.covariance[0] / scale, wanted / scale, atol=1e-7)

    def test_noise_of_the_integration(self) -> None:
        gyro, accel, steps = readings()
        with_it, without = (
            factors.preintegrate_steps(gyro, accel, steps, factors.ImuNoise(1e-3, 1e-2, one))
            for one in (0.1, 0.0)
        )
        added = with_it.covariance[0] - without.covariance[0]
        assert_allclose(added[6:, 6:], 0.1**2 * 0.4 * np.eye(3), rtol=1e-9)
        assert_allclose(added[:6, :6], 0.0, atol=1e-18)

    def test_steps_of_no_duration_change_nothing(self) -> None:
        gyro, accel, steps = readings()
        plain = factors.preintegrate_steps(gyro, accel, steps, NOISE)
        twice = [np.concatenate([one, one], axis=1) for one in (gyro, accel)]
        step_s = np.concatenate([steps, 0.0 * steps], axis=1)
        padded = factors.preintegrate_steps(twice[0], twice[1], step_s, NOISE)
        for name in ("rotation", "velocity", "position", "by_bias", "covariance", "duration_s"):
            assert_allclose(getattr(padded, name), getattr(plain, name), atol=1e-15)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"times_s": [0.0, 2.0, 1.0]}, r"times_s: entry 2, 1.0, is not after .* 2.0; sort"),
        ({"keyframe_times_s": [0.5, 0.5]}, r"keyframe_times_s: entry 1, 0.5, is not after"),
        ({"keyframe_times_s": [0.0, 3.0]}, r"from 0.0 to 3.0 s, readings only from 0.0 to 2.0 s"),
        ({"keyframe_times_s": [0.0]}, r"1 keyframes; it needs two or more"),
        ({"gyro": np.zeros((2, 3)), "accel": np.zeros((2, 3))}, r"3 times, but readings of shape"),
    ],
)
def test_wrong_readings(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        **{"times_s": [0.0, 1.0, 2.0], "gyro": np.zeros((3, 3)), "accel": np.zeros((3, 3))},
        **{"keyframe_times_s": [0.0, 1.5], "noise": NOISE},
    }
    with pytest.raises(InputError, match=message):
        factors.preintegrate(**{**given, **changes})


def test_wrong_steps() -> None:
    with pytest.raises(InputError, match=r"gyro \(1, 3, 3\) and accel \(1, 2, 3\) must both be"):
        factors.preintegrate_steps(
            np.zeros((1, 3, 3)), np.zeros((1, 2, 3)), np.zeros((1, 3)), NOISE
        )
