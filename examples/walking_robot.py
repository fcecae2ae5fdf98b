# %% [markdown]
# # A walking robot's inertial sensor

# %% [markdown]
"""Preintegrated inertial readings of a walking robot, from standing still to 140 m/s^2.

The sensor of a quadruped (in simulation) reads 400 times a second: it stands, then walks, and each
step is a shock. A bias is added to its readings. While the robot stands, it is known not to move:
that tells the bias. Then nothing but the readings says how it moves, for a second. Attitude
and path are compared with the sensor's own attitude, and with a plain sum of the readings without
the bias along that attitude.

    python examples/walking_robot.py --plot out/walking_robot.png
"""

# %% tags=["active-py"]
import argparse

# %%
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[np.float64]
State, Bias = caspar.factors.NavState, caspar.factors.ImuBias

DATA = Path(caspar.__file__).parents[1] / "data" / "walking_robot.npz"
GRAVITY = np.array([0.0, 0.0, -9.81])
ADDED_BIAS = np.array([0.02, -0.03, 0.01, 0.2, -0.1, 0.15])
"""Of gyroscope, rad/s, and accelerometer, m/s^2."""
NOISE = caspar.factors.ImuNoise(gyroscope=1e-4, accelerometer=1e-3)
KEYFRAME_SAMPLES = 20
STANDS_S = 2.4
"""So long does the robot stand."""


# %%
@dataclass(frozen=True)
class Recording:
    """What the sensor says.

    Attributes:
        time_s: (n,).
        attitude: n rotations from the sensor's axes to the world's, by its own filter.
        gyro: (n, 3) rad/s, the mean since the reading before.
        accel: (n, 3) m/s^2, likewise.
    """

    time_s: Array
    attitude: Rotation
    gyro: Array
    accel: Array


def read(path: Path = DATA) -> Recording:
    """The recording, with the bias added."""
    with np.load(path) as file:
        time_s = 1e-9 * (file["time_ns"] - file["time_ns"][0])
        readings = np.concatenate([file["gyro"], file["accel"]], axis=1).astype(float) + ADDED_BIAS
        attitude = Rotation.from_quat(file["orientation"].astype(float))
    return Recording(time_s, attitude, readings[:, :3], readings[:, 3:])


# %% [markdown]
# ## Factors
#
# The readings between keyframes, a known start, and rest: while the robot stands its velocity is
# zero, and it does not turn. The last factor sees the rotation of a state only.

# %%
FACTORS = (
    caspar.factors.imu(State, Bias),
    caspar.factors.prior(State, name="start"),
    caspar.factors.prior(caspar.factors.part(State, "velocity"), name="rest"),
    caspar.factors.between(caspar.factors.part(State, lambda state: state.pose.R), name="no_turn"),
    caspar.factors.prior(Bias, name="calibration"),
)


def arrays(recording: Recording) -> dict[str, Any]:
    """What the solver takes: keyframes every 50 ms, predicted by the readings as they are."""
    step = recording.time_s[1]
    count = (len(recording.time_s) - 1) // KEYFRAME_SAMPLES
    # the reading at the end of each step holds for it
    used = slice(1, count * KEYFRAME_SAMPLES + 1)
    motion = caspar.factors.preintegrate_steps(
        recording.gyro[used].reshape(count, KEYFRAME_SAMPLES, 3),
        recording.accel[used].reshape(count, KEYFRAME_SAMPLES, 3),
        np.full((count, KEYFRAME_SAMPLES), step),
        NOISE,
    )
    first = np.concatenate([recording.attitude[0].as_quat(), np.zeros(6)])
    interval = np.arange(count)
    standing = np.arange(int(STANDS_S / (KEYFRAME_SAMPLES * step)))
    return {
        "NavState": motion.predict(first, GRAVITY),
        "ImuBias": np.zeros((1, 6)),
        "imu": {
            **{"start": interval, "end": interval + 1, "bias": np.zeros(count, int)},
            **motion.arrays(),
            "gravity": GRAVITY,
        },
        "start": {"value": [0], "expected": first[None], "sigma": [1e-4] * 3 + [1e-3] * 6},
        "rest": {
            **{"value": standing, "expected": np.zeros((len(standing), 3))},
            "sigma": [1e-3] * 3,
        },
        "no_turn": {
            **{"a": standing[:-1], "b": standing[1:], "sigma": [1e-4] * 3},
            "a_from_b": np.tile([0.0, 0.0, 0.0, 1.0], (len(standing) - 1, 1)),
        },
        "calibration": {"value": [0], "expected": np.zeros((1, 6)), "sigma": [0.1] * 3 + [1.0] * 3},
    }


# %% [markdown]
# ## By summing up
#
# Without bias, and with the attitude known, velocity and path are sums of turned readings.


# %%
def by_sums(recording: Recording) -> Array:
    """(n, 3) positions: readings without the bias, turned by the sensor's own attitude."""
    step = recording.time_s[1]
    middle = recording.attitude[:-1] * Rotation.from_rotvec(
        (recording.gyro[1:] - ADDED_BIAS[:3]) * step / 2.0
    )
    accelerations = middle.apply(recording.accel[1:] - ADDED_BIAS[3:]) + GRAVITY
    velocities = np.cumsum(accelerations * step, axis=0)
    moves = (velocities - accelerations * step / 2.0) * step
    return np.concatenate([np.zeros((1, 3)), np.cumsum(moves, axis=0)])


@dataclass(frozen=True)
class Comparison:
    """Differences from the sensor's own attitude and from plain sums, by keyframe.

    Attributes:
        time_s: (k,).
        degrees: (k,).
        metres: (k,).
    """

    time_s: Array
    degrees: Array
    metres: Array


def compare(recording: Recording, states: Array) -> Comparison:
    """Compare estimated states with what is known otherwise."""
    at = KEYFRAME_SAMPLES * np.arange(len(states))
    turns = (Rotation.from_quat(states[:, :4]).inv() * recording.attitude[at]).magnitude()
    apart = np.linalg.norm(states[:, 4:7] - by_sums(recording)[at], axis=1)
    return Comparison(recording.time_s[at], np.degrees(turns), apart)


def draw(recording: Recording, comparisons: dict[str, Comparison]) -> Figure:
    """Readings, and errors with and without estimating the bias."""
    figure, axes = plt.subplots(1, 3, figsize=(12.0, 3.2), layout="constrained")
    axes[0].plot(recording.time_s, np.linalg.norm(recording.accel, axis=1), lw=0.6)
    axes[0].set(xlabel="s", ylabel="specific force, m/s^2")
    for name, one in comparisons.items():
        axes[1].semilogy(one.time_s, one.degrees, label=name)
        axes[2].semilogy(one.time_s[1:], one.metres[1:], label=name)
    axes[1].set(xlabel="s", ylabel="error of the attitude, degrees")
    axes[2].set(xlabel="s", ylabel="error of the position, m")
    axes[2].legend()
    return figure


# %%
def solve(recording: Recording) -> tuple[caspar.SolveResult, dict[str, Comparison]]:
    """The solve, and how good its states are beside those that it started from."""
    solver = caspar.Solver(FACTORS, precision="float64")
    given = arrays(recording)
    result = solver.solve(given, verbose=False)
    return result, {
        "readings as they are": compare(recording, given["NavState"]),
        "bias estimated": compare(recording, result.values["NavState"]),
    }


# %% tags=["active-ipynb"]
# recording = read()
# result, comparisons = solve(recording)
# print(result)
# print("bias: found", result.values["ImuBias"][0].round(4), "added", ADDED_BIAS)

# %% tags=["active-ipynb"]
# draw(recording, comparisons);


# %% tags=["active-py"]
def main(arguments: list[str] | None = None) -> caspar.SolveResult:
    """Solve, print the report, and draw where that is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path, help="file for the picture")
    options = parser.parse_args(arguments)
    recording = read()
    result, comparisons = solve(recording)
    print(result)
    print("\nbias: gyroscope, accelerometer")
    print("  found", result.values["ImuBias"][0].round(4))
    print("  added", ADDED_BIAS)
    for name, one in comparisons.items():
        print(f"{name:<20} at the end {one.degrees[-1]:.3f} degrees, {one.metres[-1]:.3f} m off")
    if options.plot is not None:
        draw(recording, comparisons).savefig(options.plot)
    return result


if __name__ == "__main__":
    main()
