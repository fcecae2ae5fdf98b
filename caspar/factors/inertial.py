"""Factors of inertial sensors: preintegrated readings between keyframes.

Forster, Carlone, Dellaert, Scaramuzza, *On-Manifold Preintegration for Real-Time Visual-Inertial
Odometry*, T-RO 2017. `preintegrate` makes the arrays. Poses are `world_from_body`, velocities are
in world coordinates, units are m, s and rad. A bias drifts from keyframe to keyframe: `between` on
biases, with the standard deviation of the drift.
"""

from dataclasses import dataclass
from typing import Any

import symforce.symbolic as sf

from caspar.errors import FactorError
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
from caspar.factors.whitening import NoiseChoice
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
    """Pose and velocity at one end."""
    if isinstance(state, tuple):
        pose, velocity = state
    elif isinstance(state, Part) or not {"pose", "velocity"} <= set(_fields(state)):
        raise FactorError(
            f"caspar.factors.imu, argument state: {state!r} must be a dataclass with the fields "
            "pose and velocity, or a pair of types: (pose, velocity)"
        )
    else:
        pose, velocity = part(state, "pose", end), part(state, "velocity", end)
    check_kind("imu", "state", pose, (sf.Pose3,))
    check_kind("imu", "state", velocity, (sf.V3,))
    return node(f"{end}_pose", pose), node(f"{end}_velocity", velocity)


def _fields(state: Any) -> tuple[str, ...]:
    return tuple(getattr(state, "__dataclass_fields__", ()))
