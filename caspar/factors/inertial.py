"""Factors of inertial sensors, and the preintegration of readings between keyframes with NumPy.

Forster, Carlone, Dellaert, Scaramuzza, *On-Manifold Preintegration for Real-Time Visual-Inertial
Odometry*, T-RO 2017. `preintegrate` makes the arrays. Poses are `world_from_body`, velocities are
in world coordinates, units are m, s and rad. A bias drifts from keyframe to keyframe: `between` on
biases, with the standard deviation of the drift.

The preintegration is discretised at the middle of each step: readings between two times are the
mean of their linear interpolation, rotations advance by the exponential, velocity and position by
half a step's turn in between, so that errors fall with the square of the step; with one reading
held per step, use `preintegrate_steps`. Cost: once per problem, some 50 us for each sample that an
interval has, for a few hundred intervals.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from caspar.errors import FactorError, InputError
from caspar.factors.making import (
    Argument,
    Choices,
    Markers,
    NodeChoice,
    Part,
    check_kind,
    common,
    each,
    library,
    make_factor,
    node,
    part,
)
from caspar.factors.rotations import rotation_vector
from caspar.factors.whitening import NoiseChoice, sqrt_information
from caspar.frontend.factors.factor import Factor


@dataclass
class NavState:
    """A body at a moment; in storage qx qy qz qw tx ty tz vx vy vz.

    Attributes:
        pose: `world_from_body`.
        velocity: In the axes of the world, m/s.
    """

    pose: sf.Pose3
    velocity: sf.V3


class ImuBias(sf.V6):
    """Bias of an inertial sensor: of the gyroscope, rad/s, then of the accelerometer, m/s^2."""


@dataclass
class ImuMotion:
    """Preintegrated readings; `Preintegration.arrays` makes their storage.

    Attributes:
        rotation: `start_from_end`.
        velocity: Gained, without gravity, in the axes of the start.
        position: Moved, without gravity and without the start's velocity, in the same axes.
        duration: In seconds.
        bias: The bias taken off the readings: gyroscope, accelerometer.
        rotation_by_gyro: Derivative of the rotation by the gyroscope's bias.
        velocity_by_gyro: Derivative of the velocity by the gyroscope's bias.
        velocity_by_accel: Derivative of the velocity by the accelerometer's bias.
        position_by_gyro: Derivative of the position by the gyroscope's bias.
        position_by_accel: Derivative of the position by the accelerometer's bias.
    """

    rotation: sf.Rot3
    velocity: sf.V3
    position: sf.V3
    duration: sf.Scalar
    bias: sf.V6
    rotation_by_gyro: sf.M33
    velocity_by_gyro: sf.M33
    velocity_by_accel: sf.M33
    position_by_gyro: sf.M33
    position_by_accel: sf.M33


@library
def imu(
    state: NodeChoice | tuple[NodeChoice, NodeChoice] = NavState,
    bias: NodeChoice = ImuBias,
    *,
    noise: NoiseChoice = "sqrt_information",
    name: str = "imu",
    markers: Markers | None = None,
) -> Factor:
    """Preintegrated readings of gyroscope and accelerometer between two keyframes.

    With R, p, v at both ends, duration T, gravity g and the preintegrated dR, dv, dp, corrected to
    first order for the bias (Forster et al., eq. 44), the rows are (eq. 45)

        Log(dR^T R_i^T R_j),  R_i^T (v_j - v_i - g T) - dv,
        R_i^T (p_j - p_i - v_i T - g T^2 / 2) - dp:

    rad, m/s and m. GTSAM has the position before the velocity.

    Arguments of the factor: `start` and `end`, nodes; `bias`, a node, the one at the start;
    `motion`, (m, 62), and `sqrt_information`, (m, 9, 9), from `Preintegration.arrays`; `gravity`,
    (3,), in the axes of the world, such as (0, 0, -9.81). If `state` is a pair of types, `start`
    becomes `start_pose` and `start_velocity`, and `end` likewise.

    Args:
        state: A dataclass with the fields `pose` and `velocity`, or a pair: type of the pose, an
            `sf.Pose3`, and type of the velocity, an `sf.V3`.
        bias: Node type, or a part of one: an `sf.V6`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("imu", "bias", bias, (sf.V6,))

    arguments = (
        *_state("start", state),
        *_state("end", state),
        node("bias", bias),
        each("motion", ImuMotion),
        common("gravity", sf.V3),
    )
    return make_factor(_error, 9, arguments, Choices(name, noise, markers))


def _error(
    start_pose: Any,
    start_velocity: Any,
    end_pose: Any,
    end_velocity: Any,
    bias: Any,
    motion: Any,
    gravity: Any,
) -> list[Any]:
    """Rotation, velocity and position against the readings."""
    correction = bias - motion.bias
    gyro, accel = sf.V3(*correction[:3]), sf.V3(*correction[3:])
    time = motion.duration
    start_from_world = start_pose.R.inverse()
    turned = motion.rotation * sf.Rot3.from_tangent(list(motion.rotation_by_gyro * gyro))
    gained = motion.velocity + motion.velocity_by_gyro * gyro
    gained += motion.velocity_by_accel * accel
    moved = motion.position + motion.position_by_gyro * gyro
    moved += motion.position_by_accel * accel
    fall = gravity * time
    change = end_velocity - start_velocity - fall
    path = end_pose.t - start_pose.t - start_velocity * time - fall * time / 2
    return [
        *rotation_vector(turned.inverse() * start_from_world * end_pose.R),
        *(start_from_world * change - gained),
        *(start_from_world * path - moved),
    ]


def _state(
    end: str, state: NodeChoice | tuple[NodeChoice, NodeChoice]
) -> tuple[Argument, Argument]:
    if isinstance(state, tuple):
        pose, velocity = state
    elif isinstance(state, Part) or not {"pose", "velocity"} <= set(
        getattr(state, "__dataclass_fields__", ())
    ):
        raise FactorError(
            f"caspar.factors.imu, argument state: {state!r} must be a dataclass with the fields "
            "pose and velocity, or a pair of types: (pose, velocity)"
        )
    else:
        pose, velocity = part(state, "pose", end), part(state, "velocity", end)
    check_kind("imu", "state", pose, (sf.Pose3,))
    check_kind("imu", "state", velocity, (sf.V3,))
    return node(f"{end}_pose", pose), node(f"{end}_velocity", velocity)


Array = NDArray[np.float64]


@dataclass(frozen=True)
class ImuNoise:
    """Noise of an inertial sensor, as data sheets have it.

    Attributes:
        gyroscope: Noise density, rad/s per root of Hz.
        accelerometer: Noise density, m/s^2 per root of Hz.
        integration: Of the position beside that of the velocity, m/s per root of Hz: errors of the
            integration itself. Greater than zero makes covariances of short intervals safe.
    """

    gyroscope: float
    accelerometer: float
    integration: float = 1e-5


@dataclass(frozen=True, eq=False)
class Preintegration:
    """Readings summed up between pairs of keyframes; the first axis counts intervals.

    Attributes:
        rotation: (k, 4) `start_from_end`, qx qy qz qw.
        velocity: (k, 3) gained, without gravity, in the axes of the start.
        position: (k, 3) moved, without gravity and the start's velocity.
        duration_s: (k,).
        bias: (k, 6) taken off the readings: gyroscope, accelerometer.
        by_bias: (k, 9, 6) derivatives of rotation (right increment), velocity and position.
        covariance: (k, 9, 9) of errors of rotation (right increment), velocity and position.
    """

    rotation: Array
    velocity: Array
    position: Array
    duration_s: Array
    bias: Array
    by_bias: Array
    covariance: Array

    def arrays(self) -> dict[str, Array]:
        """The constants of the factor `imu`: `motion`, (k, 62), and `sqrt_information`."""
        count = len(self.duration_s)

        def columns(block: Array) -> Array:
            return block.transpose(0, 2, 1).reshape(count, 9)

        motion = [
            self.rotation,
            self.velocity,
            self.position,
            self.duration_s[:, None],
            self.bias,
            columns(self.by_bias[:, :3, :3]),
            columns(self.by_bias[:, 3:6, :3]),
            columns(self.by_bias[:, 3:6, 3:]),
            columns(self.by_bias[:, 6:, :3]),
            columns(self.by_bias[:, 6:, 3:]),
        ]
        return {
            "motion": np.concatenate(motion, axis=1),
            "sqrt_information": sqrt_information(self.covariance),
        }

    def predict(self, start: ArrayLike, gravity: ArrayLike) -> Array:
        """States at all keyframes from the first one, by the readings alone.

        Args:
            start: (10,) the first state, as `NavState` stores it.
            gravity: (3,) in the axes of the world.

        Returns:
            (k + 1, 10).

        Example:
            >>> import caspar
            >>> import numpy as np
            >>> times, noise = np.linspace(0.0, 1.0, 101), caspar.factors.ImuNoise(1e-3, 1e-2)
            >>> gyro, accel = np.zeros((101, 3)), np.tile([2.0, 1.0, 9.81], (101, 1))
            >>> motion = caspar.factors.preintegrate(times, gyro, accel, [0.0, 1.0], noise)
            >>> start = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]  # pose and velocity, at rest
            >>> states = motion.predict(start, np.array([0.0, 0.0, -9.81]))
            >>> states[-1, 4:6].round(3)  # x and y
            array([1. , 0.5])
        """
        states, pull = [np.asarray(start, np.float64)], np.asarray(gravity, np.float64)
        for number, time in enumerate(self.duration_s):
            rotation = Rotation.from_quat(states[-1][:4])
            position, velocity = states[-1][4:7], states[-1][7:]
            moved = velocity * time + 0.5 * pull * time**2
            moved = position + moved + rotation.apply(self.position[number])
            velocity = velocity + pull * time + rotation.apply(self.velocity[number])
            turned = (rotation * Rotation.from_quat(self.rotation[number])).as_quat()
            states.append(np.concatenate([turned, moved, velocity]))
        return np.stack(states)


def preintegrate(
    times_s: Any,
    gyro: Any,
    accel: Any,
    keyframe_times_s: Any,
    noise: ImuNoise,
    bias: Any = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
) -> Preintegration:
    """Sum up raw readings between keyframes, which may lie between readings.

    Args:
        times_s: (n,) ascending times of the readings.
        gyro: (n, 3) angular velocities of the body, rad/s.
        accel: (n, 3) specific forces in the axes of the body, m/s^2: (0, 0, 9.81) at rest.
        keyframe_times_s: (k + 1,) ascending, within the times of the readings.
        noise: Of the sensor.
        bias: (6,) or (k, 6), taken off the readings; the factor corrects for others to first order.

    Returns:
        k intervals.

    Raises:
        InputError: Times that do not ascend or are outside, or arrays of other shapes.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> times, noise = np.linspace(0.0, 1.0, 101), caspar.factors.ImuNoise(1e-3, 1e-2)
        >>> gyro, accel = np.zeros((101, 3)), np.tile([2.0, 1.0, 9.81], (101, 1))
        >>> motion = caspar.factors.preintegrate(times, gyro, accel, [0.0, 0.5, 1.0], noise)
        >>> motion.velocity.round(3)
        array([[1.   , 0.5  , 4.905],
               [1.   , 0.5  , 4.905]])
    """
    times, keyframes = np.asarray(times_s, np.float64), np.asarray(keyframe_times_s, np.float64)
    readings = np.concatenate([np.asarray(gyro), np.asarray(accel)], axis=1).astype(np.float64)
    _check_times(times, keyframes, readings)
    cuts = np.union1d(times, keyframes)
    cuts = cuts[(cuts >= keyframes[0]) & (cuts <= keyframes[-1])]
    at_cuts = np.stack([np.interp(cuts, times, column) for column in readings.T], axis=1)
    means, steps = (at_cuts[1:] + at_cuts[:-1]) / 2.0, np.diff(cuts)
    first = np.searchsorted(cuts, keyframes)
    sizes = np.diff(first)
    # shorter intervals end with steps of no duration, which change nothing
    place = np.minimum(first[:-1, None] + np.arange(sizes.max()), len(steps) - 1)
    is_own = np.arange(sizes.max()) < sizes[:, None]
    padded = np.where(is_own, steps[place], 0.0)
    return preintegrate_steps(means[place, :3], means[place, 3:], padded, noise, bias)


def preintegrate_steps(
    gyro: Any, accel: Any, step_s: Any, noise: ImuNoise, bias: Any = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
) -> Preintegration:
    """Sum up readings that each hold for a step.

    Args:
        gyro: (k, s, 3) angular velocities, rad/s.
        accel: (k, s, 3) specific forces, m/s^2.
        step_s: (k, s) durations; zero for readings that do not exist.
        noise: Of the sensor.
        bias: (6,) or (k, 6), taken off the readings.

    Returns:
        k intervals.

    Raises:
        InputError: Arrays of other shapes.
    """
    gyro, accel = np.asarray(gyro, np.float64), np.asarray(accel, np.float64)
    steps = np.asarray(step_s, np.float64)
    count, samples = steps.shape
    if gyro.shape != (count, samples, 3) or accel.shape != (count, samples, 3):
        raise InputError(
            f"preintegrate_steps: gyro {gyro.shape} and accel {accel.shape} must both be "
            f"({count}, {samples}, 3), as step_s is {steps.shape}"
        )
    biases = np.broadcast_to(np.asarray(bias, np.float64), (count, 6))
    sums = _Sums.zero(count)
    for sample in range(samples):
        rates = gyro[:, sample] - biases[:, :3]
        sums.add(rates, accel[:, sample] - biases[:, 3:], steps[:, sample], noise)
    return Preintegration(
        Rotation.from_matrix(sums.rotation).as_quat(),
        sums.velocity,
        sums.position,
        steps.sum(axis=1),
        biases.copy(),
        sums.by_bias,
        sums.covariance,
    )


@dataclass
class _Sums:
    """The sums after some samples; rotations are matrices."""

    rotation: Array
    velocity: Array
    position: Array
    by_bias: Array
    covariance: Array

    @staticmethod
    def zero(count: int) -> "_Sums":
        zeros = np.zeros
        return _Sums(
            np.tile(np.eye(3), (count, 1, 1)),
            zeros((count, 3)),
            zeros((count, 3)),
            zeros((count, 9, 6)),
            zeros((count, 9, 9)),
        )

    def add(self, rate: Array, force: Array, step: Array, noise: ImuNoise) -> None:
        """Add one sample of every interval (Forster et al., eq. 35, 59 to 63).

        The force turns by half of the step's turn: it is that of the middle of the step.
        """
        step = step[:, None]
        turn = rate * step
        half = Rotation.from_rotvec(turn / 2.0).as_matrix()
        whole = half @ half
        middle = self.rotation @ half
        cross = _cross_matrices(force)
        # by the rotation before the step, and by the half turn in it, as right increments
        by_rotation = -middle @ cross @ half.transpose(0, 2, 1)
        by_half = -middle @ cross @ _right_jacobians(turn / 2.0) * (step / 2.0)[..., None]
        wide = step[..., None]
        carry = np.tile(np.eye(9), (len(step), 1, 1))
        carry[:, :3, :3] = whole.transpose(0, 2, 1)
        carry[:, 3:6, :3] = by_rotation * wide
        carry[:, 6:, :3] = by_rotation * (wide**2 / 2.0)
        carry[:, 6:, 3:6] = np.eye(3) * wide
        read = np.zeros((len(step), 9, 6))
        read[:, :3, :3] = _right_jacobians(turn) * wide
        read[:, 3:6, :3], read[:, 3:6, 3:] = by_half * wide, middle * wide
        read[:, 6:] = read[:, 3:6] * (wide / 2.0)
        self.by_bias = carry @ self.by_bias - read
        # densities become variances of means over a step: density^2 / step
        per_step = np.divide(1.0, wide, out=np.zeros_like(wide), where=wide > 0.0)
        density = np.repeat([noise.gyroscope, noise.accelerometer], 3)
        added = (read * density**2 * per_step) @ read.transpose(0, 2, 1)
        added[:, 6:, 6:] += np.eye(3) * noise.integration**2 * wide
        self.covariance = carry @ self.covariance @ carry.transpose(0, 2, 1) + added
        gained = (middle @ force[:, :, None])[:, :, 0] * step
        self.position = self.position + (self.velocity + gained / 2.0) * step
        self.velocity = self.velocity + gained
        self.rotation = self.rotation @ whole


def _check_times(times: Array, keyframes: Array, readings: Array) -> None:
    if readings.shape != (len(times), 6):
        raise InputError(
            f"preintegrate: {len(times)} times, but readings of shape {readings.shape}; gyro and "
            f"accel must both be ({len(times)}, 3)"
        )
    if len(keyframes) < 2:
        raise InputError(f"preintegrate: {len(keyframes)} keyframes; it needs two or more")
    for name, values in (("times_s", times), ("keyframe_times_s", keyframes)):
        falls = np.flatnonzero(~(np.diff(values) > 0.0))
        if len(falls) > 0:
            raise InputError(
                f"preintegrate, {name}: entry {falls[0] + 1}, {values[falls[0] + 1]}, is not after "
                f"the one before it, {values[falls[0]]}; sort the readings and drop repeated ones"
            )
    if keyframes[0] < times[0] or keyframes[-1] > times[-1]:
        raise InputError(
            f"preintegrate: keyframes from {keyframes[0]} to {keyframes[-1]} s, readings only from "
            f"{times[0]} to {times[-1]} s; leave out the keyframes outside"
        )


def _cross_matrices(vectors: Array) -> Array:
    x, y, z = vectors.T
    zero = np.zeros_like(x)
    return np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=1).reshape(-1, 3, 3)


def _right_jacobians(vectors: Array) -> Array:
    """(n, 3, 3): J such that Exp(v + w) = Exp(v) Exp(J w) for small w (eq. 8)."""
    cross = _cross_matrices(vectors)
    square = (vectors**2).sum(axis=1)[:, None, None]
    angle = np.sqrt(square)
    is_small = angle < 1e-3
    safe = np.where(is_small, 1.0, angle)
    first = np.where(is_small, 0.5 - square / 24.0, (1.0 - np.cos(safe)) / safe**2)
    second = np.where(is_small, 1.0 / 6.0 - square / 120.0, (safe - np.sin(safe)) / safe**3)
    jacobians: Array = np.eye(3) - first * cross + second * (cross @ cross)
    return jacobians
