"""Factors of pose graphs in space.

Errors are g2o's: translation, then the vector part of a quaternion, half the angle if it is small.
"""

from typing import Annotated

import symforce.symbolic as sf

from caspar.frontend.factors.factor import factor
from caspar.frontend.markers import ConstSequential, TunableShared


class Pose(sf.Pose3):
    """Takes body to world coordinates; in storage qx qy qz qw tx ty tz."""


class Landmark(sf.V3):
    """A point in world coordinates."""


def _difference(measured: sf.Pose3, found: sf.Pose3) -> sf.V6:
    error = measured.inverse() * found
    turn = error.R.q
    # A quaternion and its negative are one rotation: that with w not below 0 has the small error.
    return sf.V6(*error.t, *(sf.sign_no_zero(turn.w) * turn.xyz))


@factor
def edge(
    a: Annotated[Pose, TunableShared],
    b: Annotated[Pose, TunableShared],
    measured: Annotated[sf.Pose3, ConstSequential],
    sqrt_information: Annotated[sf.M66, ConstSequential],
) -> sf.V6:
    """The motion from a to b against the measured one."""
    return sqrt_information * _difference(measured, a.inverse() * b)


@factor
def sighting(
    pose: Annotated[Pose, TunableShared],
    landmark: Annotated[Landmark, TunableShared],
    offset: Annotated[sf.Pose3, ConstSequential],
    measured: Annotated[sf.V3, ConstSequential],
    sqrt_information: Annotated[sf.M33, ConstSequential],
) -> sf.V3:
    """A landmark in the axes of a sensor at pose * offset, against the measured place."""
    return sqrt_information * (offset.inverse() * (pose.inverse() * landmark) - measured)


@factor
def pose_prior(
    pose: Annotated[Pose, TunableShared],
    offset: Annotated[sf.Pose3, ConstSequential],
    measured: Annotated[sf.Pose3, ConstSequential],
    sqrt_information: Annotated[sf.M66, ConstSequential],
) -> sf.V6:
    """The pose of a sensor in the world against the measured one."""
    return sqrt_information * _difference(measured, pose.compose(offset))


@factor
def position_prior(
    pose: Annotated[Pose, TunableShared],
    measured: Annotated[sf.V3, ConstSequential],
    sqrt_information: Annotated[sf.M33, ConstSequential],
) -> sf.V3:
    """The position of a pose in the world, such as GPS measures it."""
    return sqrt_information * (pose.t - measured)


@factor
def landmark_prior(
    landmark: Annotated[Landmark, TunableShared],
    measured: Annotated[sf.V3, ConstSequential],
    sqrt_information: Annotated[sf.M33, ConstSequential],
) -> sf.V3:
    """The position of a landmark in the world."""
    return sqrt_information * (landmark - measured)
