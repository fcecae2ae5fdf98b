# %% [markdown]
# # A drone's flight from inertial sensors

# %% [markdown]
"""A drone's flight from its inertial sensors and a few satellite fixes.

Gyroscope and accelerometer are read 200 times a second. Between two keyframes their readings are
summed up once (preintegrated) into one relative motion, with its covariance and its derivatives
by the sensors' biases: Forster, Carlone, Dellaert, Scaramuzza, *On-Manifold Preintegration for
Real-Time Visual-Inertial Odometry*, T-RO 2017. Estimated are poses and velocities, and the
biases, which drift.

    python examples/inertial_navigation.py
"""

# %%
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[np.float64]

# %% [markdown]
# ## What the solver moves


# %%
@dataclass
class State:
    """The body at a keyframe; in storage qx qy qz qw x y z vx vy vz.

    Attributes:
        pose: Takes body to world coordinates.
        velocity: In world coordinates.
    """

    pose: sf.Pose3
    velocity: sf.V3


class Bias(sf.V6):
    """What gyroscope (rad/s) and accelerometer (m/s^2) read too much."""


# %% [markdown]
# ## Factors


# %%
@dataclass
class Motion:
    """Preintegrated readings; in storage qx qy qz qw, velocity, position, duration, bias.

    Attributes:
        rotation: From the end's to the start's body coordinates.
        velocity: Gained without gravity, in the start's body coordinates.
        position: Moved without gravity and the start's velocity, likewise.
        duration: Seconds.
        bias: What was taken off the readings.
    """

    rotation: sf.Rot3
    velocity: sf.V3
    position: sf.V3
    duration: sf.Scalar
    bias: sf.V6


class Gravity(sf.V3):
    """In world coordinates."""


@caspar.factor
def preintegrated_imu(
    start: Annotated[State, caspar.TunableShared],
    bias: Annotated[Bias, caspar.TunableShared],
    end: Annotated[State, caspar.TunableShared],
    motion: Annotated[Motion, caspar.ConstSequential],
    rotation_by_gyro: Annotated[sf.M33, caspar.ConstSequential],
    velocity_by_gyro: Annotated[sf.M33, caspar.ConstSequential],
    velocity_by_accel: Annotated[sf.M33, caspar.ConstSequential],
    position_by_gyro: Annotated[sf.M33, caspar.ConstSequential],
    position_by_accel: Annotated[sf.M33, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M99, caspar.ConstSequential],
    gravity: Annotated[Gravity, caspar.ConstUnique],
) -> sf.V9:
    """Rotation, velocity and position against the readings, in standard deviations.

    Forster et al., eq. 37 (residuals) and 36 (first order change by the biases). The lower
    triangle of `sqrt_information` counts.
    """
    correction = bias - motion.bias
    gyro, accel = sf.V3(*correction[:3]), sf.V3(*correction[3:])
    time = motion.duration
    world_to_start = start.pose.R.inverse()
    turned = motion.rotation * sf.Rot3.from_tangent(rotation_by_gyro * gyro)
    gained = motion.velocity + velocity_by_gyro * gyro + velocity_by_accel * accel
    moved = motion.position + position_by_gyro * gyro + position_by_accel * accel
    fall = gravity * time
    change_of_velocity = end.velocity - start.velocity - fall
    path = end.pose.t - start.pose.t - start.velocity * time - fall * time / 2
    error = [
        *(turned.inverse() * world_to_start * end.pose.R).to_tangent(),
        *(world_to_start * change_of_velocity - gained),
        *(world_to_start * path - moved),
    ]
    weights = sqrt_information.lower_triangle()
    return weights * sf.V9(error)


@caspar.factor
def bias_walk(
    bias: Annotated[caspar.Pair[Bias], caspar.TunablePair],
    deviation: Annotated[sf.V2, caspar.ConstUnique],
) -> sf.V6:
    """Biases drift slowly; deviations from one keyframe to the next: gyroscope, accelerometer."""
    drift = bias[1] - bias[0]
    return sf.V6(*drift[:3] / deviation[0], *drift[3:] / deviation[1])


@caspar.factor
def satellite_fix(
    state: Annotated[State, caspar.TunableShared],
    position: Annotated[sf.V3, caspar.ConstSequential],
) -> sf.V3:
    """Where the body is, good to ten centimetres."""
    return (state.pose.t - position) / 0.1


@caspar.factor
def calibrated_bias(
    bias: Annotated[Bias, caspar.TunableShared],
    deviation: Annotated[sf.V2, caspar.ConstUnique],
) -> sf.V6:
    """A bias is small; deviations: gyroscope, accelerometer."""
    return sf.V6(*bias[:3] / deviation[0], *bias[3:] / deviation[1])


FACTORS = (preintegrated_imu, bias_walk, satellite_fix, calibrated_bias)

OPTIONS: dict[str, Any] = {
    "linear_tolerance": 1e-4,
    "min_linear_tolerance": 1e-6,
    "max_linear_iterations": 5000,
}
"""A flight is a long chain: loose steps would hardly move its far end."""

# %% [markdown]
# ## Preintegration

# %%
STEP_S = 0.005
NOISE = np.array([2e-4, 2e-3])
"""Of gyroscope (rad/s) and accelerometer (m/s^2), for one second."""


def cross_matrices(vectors: Array) -> Array:
    """(n, 3, 3): [v] such that [v] w = v x w."""
    x, y, z = vectors.T
    zero = np.zeros_like(x)
    return np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(-1, 3, 3)


def right_jacobians(vectors: Array) -> Array:
    """(n, 3, 3): J such that Exp(v + w) = Exp(v) Exp(J w), to second order in v."""
    cross = cross_matrices(vectors)
    return np.eye(3) - cross / 2.0 + cross @ cross / 6.0


def preintegrate(gyro: Array, accel: Array, bias: Array) -> dict[str, Array]:
    """Sum up readings (Forster et al., eq. 33-35, 59-63), all intervals at once.

    Args:
        gyro: (n, samples, 3) mean angular velocities, one every `STEP_S`.
        accel: (n, samples, 3) mean specific forces.
        bias: (n, 6) what to take off them.

    Returns:
        The arrays of `preintegrated_imu` that are not indices, by argument.
    """
    count, samples = gyro.shape[:2]
    rotation = np.tile(np.eye(3), (count, 1, 1))
    moved = np.zeros((count, 6))  # velocity, position
    by_bias = np.zeros((count, 9, 6))  # of rotation, velocity, position
    covariance = np.zeros((count, 9, 9))
    noise = np.repeat(NOISE**2 / STEP_S, 3)
    for sample in range(samples):
        turn = (gyro[:, sample] - bias[:, :3]) * STEP_S
        force = accel[:, sample] - bias[:, 3:]
        step = Rotation.from_rotvec(turn).as_matrix()
        by_turn = -rotation @ cross_matrices(force) * STEP_S
        # how the errors after this sample depend on those before it, and on those of the readings
        carry = np.tile(np.eye(9), (count, 1, 1))
        carry[:, :3, :3] = step.transpose(0, 2, 1)
        carry[:, 3:6, :3] = by_turn
        carry[:, 6:, :3] = by_turn * (STEP_S / 2.0)
        carry[:, 6:, 3:6] = STEP_S * np.eye(3)
        read = np.zeros((count, 9, 6))
        read[:, :3, :3] = right_jacobians(turn) * STEP_S
        read[:, 3:6, 3:] = rotation * STEP_S
        read[:, 6:, 3:] = rotation * (STEP_S**2 / 2.0)
        by_bias = carry @ by_bias - read
        covariance = carry @ covariance @ carry.transpose(0, 2, 1)
        covariance += (read * noise) @ read.transpose(0, 2, 1)
        gained = (rotation @ force[:, :, None])[:, :, 0] * STEP_S
        moved[:, 3:] += (moved[:, :3] + gained / 2.0) * STEP_S
        moved[:, :3] += gained
        rotation = rotation @ step
    turned = Rotation.from_matrix(rotation).as_quat()
    duration = np.full((count, 1), samples * STEP_S)
    return {
        "motion": np.concatenate([turned, moved, duration, bias], axis=1),
        "rotation_by_gyro": by_bias[:, :3, :3],
        "velocity_by_gyro": by_bias[:, 3:6, :3],
        "velocity_by_accel": by_bias[:, 3:6, 3:],
        "position_by_gyro": by_bias[:, 6:, :3],
        "position_by_accel": by_bias[:, 6:, 3:],
        "sqrt_information": np.linalg.inv(np.linalg.cholesky(covariance)),
    }


# %% [markdown]
# ## A simulated flight

# %%
GRAVITY = np.array([0.0, 0.0, -9.81])
FIRST_BIAS = np.array([0.01, -0.02, 0.015, 0.1, -0.15, 0.2])
DRIFT = np.array([1e-4, 1e-3])
"""Deviations of the biases from one keyframe to the next: gyroscope, accelerometer."""


@dataclass(frozen=True)
class Flight:
    """Truth and readings.

    Attributes:
        rotations: At the keyframes, body to world.
        positions: (n, 3) at the keyframes.
        velocities: (n, 3) at the keyframes.
        biases: (n, 6) from each keyframe to the next.
        gyro: (n - 1, samples, 3) readings.
        accel: (n - 1, samples, 3) readings.
    """

    rotations: Rotation
    positions: Array
    velocities: Array
    biases: Array
    gyro: Array
    accel: Array


def fly(num_keyframes: int, samples: int, random: np.random.Generator) -> Flight:
    """A climbing figure of eight, leaning into the curves."""
    time = STEP_S * np.arange((num_keyframes - 1) * samples + 1)
    rates = np.array([0.4, 0.8, 0.3])
    sizes = np.array([20.0, 10.0, 4.0])
    phase = time[:, None] * rates
    positions, velocities = sizes * np.sin(phase), sizes * rates * np.cos(phase)
    yaw = np.unwrap(np.arctan2(velocities[:, 1], velocities[:, 0]))
    lean = 0.3 * np.stack([np.sin(0.9 * time), np.cos(0.7 * time)], axis=1)
    rotations = Rotation.from_euler("zyx", np.column_stack([yaw, lean]))
    gyro = (rotations[:-1].inv() * rotations[1:]).as_rotvec() / STEP_S
    accel = rotations[:-1].inv().apply(np.diff(velocities, axis=0) / STEP_S - GRAVITY)
    drift = np.repeat(DRIFT, 3) * random.normal(size=(num_keyframes, 6))
    drift[0] = FIRST_BIAS
    biases = np.cumsum(drift, axis=0)
    readings = np.concatenate([gyro, accel], axis=1).reshape(num_keyframes - 1, samples, 6)
    readings += np.repeat(NOISE / np.sqrt(STEP_S), 3) * random.normal(size=readings.shape)
    readings += biases[:-1, None]
    return Flight(
        rotations[::samples],
        positions[::samples],
        velocities[::samples],
        biases,
        readings[:, :, :3],
        readings[:, :, 3:],
    )


def simulate(num_keyframes: int = 60, samples: int = 50, seed: int = 0) -> dict[str, Any]:
    """Measurements with noise, and start values from them.

    Args:
        num_keyframes: One every `samples` readings, and every fourth with a satellite fix.
        samples: Readings from one keyframe to the next.
        seed: Of the noise.

    Returns:
        What `caspar.Solver.solve` takes.
    """
    random = np.random.default_rng(seed)
    flight = fly(num_keyframes, samples, random)
    fixed = np.arange(0, num_keyframes, 4)
    fixes = flight.positions[fixed] + random.normal(0.0, 0.1, (len(fixed), 3))
    start = np.arange(num_keyframes - 1)
    imu = preintegrate(flight.gyro, flight.accel, np.zeros((num_keyframes - 1, 6)))
    places = np.stack(
        [np.interp(np.arange(num_keyframes), fixed, axis) for axis in fixes.T], axis=1
    )
    turns = [Rotation.from_rotvec([0.03, -0.02, 0.1]) * flight.rotations[0]]
    for turn in imu["motion"][:, :4]:
        turns.append(turns[-1] * Rotation.from_quat(turn))
    keyframe_s = samples * STEP_S
    return {
        "State": np.concatenate(
            [
                Rotation.concatenate(turns).as_quat(),
                places,
                np.gradient(places, keyframe_s, axis=0),
            ],
            axis=1,
        ),
        "Bias": np.zeros((num_keyframes, 6)),
        "preintegrated_imu": {
            "start": start,
            "bias": start,
            "end": start + 1,
            "gravity": GRAVITY,
            **imu,
        },
        "bias_walk": {"deviation": DRIFT},
        "satellite_fix": {"state": fixed, "position": fixes},
        "calibrated_bias": {"bias": [0], "deviation": np.array([0.05, 0.5])},
    }


# %% [markdown]
# ## Solve

# %% tags=["active-ipynb"]
# arrays = simulate()
# solver = caspar.Solver(FACTORS, precision="float64")
# result = solver.solve(arrays, verbose=False, **OPTIONS)
# result

# %% [markdown]
# The start joins the satellite fixes by straight lines; turns and speeds come from the inertial
# sensors, and the path through the fixes is round. The biases, which nobody measures, come out too:
# grey is what they are, the line what is found, the band two standard errors of it.


# %%
def draw(
    arrays: dict[str, Any], result: caspar.SolveResult, errors: Array, samples: int = 50
) -> Figure:
    """The path, and the biases over time with their standard errors, (n, 6)."""
    count = len(arrays["State"])
    flight = fly(count, samples, np.random.default_rng(0))
    figure = plt.figure(figsize=(10.5, 4.6), layout="constrained")
    path = figure.add_subplot(1, 2, 1, projection="3d")
    path.plot(*arrays["State"][:, 4:7].T, "--", color="0.6", lw=1.0, label="start")
    path.plot(*flight.positions.T, color="0.8", lw=5.0, label="true")
    path.plot(*result.values["State"][:, 4:7].T, color="C0", lw=1.5, label="found")
    path.scatter(*arrays["satellite_fix"]["position"].T, color="#e5383b", s=14, label="fix")
    path.set_box_aspect(np.ptp(flight.positions, axis=0) + 4.0, zoom=1.2)
    path.tick_params(labelsize="x-small")
    path.locator_params(nbins=4)
    path.legend(loc="upper left", fontsize="small")
    time = samples * STEP_S * np.arange(count)
    for place, (first, name, unit) in enumerate(
        ((0, "gyroscope", "mrad/s"), (3, "accelerometer", "mm/s$^2$"))
    ):
        axis = figure.add_subplot(2, 2, 2 + 2 * place)
        for axis_number in range(3):
            row, color = first + axis_number, f"C{axis_number}"
            found, error = 1e3 * result.values["Bias"][:, row], 2e3 * errors[:, row]
            axis.plot(time, 1e3 * flight.biases[:, row], color="0.75", lw=3.0)
            axis.fill_between(time, found - error, found + error, color=color, alpha=0.2)
            axis.plot(time, found, color=color, lw=1.2, label="xyz"[axis_number])
        axis.set(title=f"bias of the {name}, {unit}", xlim=(0.0, time[-1]))
        axis.legend(ncols=3, fontsize="small", loc="lower right")
    axis.set_xlabel("time, s")
    return figure


# %% tags=["active-ipynb"]
# cov = solver.covariance({**arrays, **result.values}, {"Bias": "all"})
# draw(arrays, result, cov.standard_errors("Bias"));


# %% tags=["active-py"]
def main() -> caspar.SolveResult:
    """Solve and print the report."""
    solver = caspar.Solver(FACTORS, precision="float64")
    result = solver.solve(simulate(), **OPTIONS)
    print(result)
    print("\nbiases at the start: gyroscope, accelerometer")
    print("  estimated", result.values["Bias"][0].round(3))
    print("  true     ", FIRST_BIAS)
    return result


if __name__ == "__main__":
    main()
