"""Factors of pose graphs in the plane. Errors are g2o's: translation, then angle."""

from typing import Annotated

import symforce.symbolic as sf

from caspar.frontend.factors.factor import factor
from caspar.frontend.markers import ConstSequential, TunableShared


class Pose(sf.Pose2):
    """Takes body to world coordinates; in storage cos sin x y."""


class Landmark(sf.V2):
    """A point in world coordinates."""


def _difference(measured: sf.Pose2, found: sf.Pose2) -> sf.V3:
    error = measured.inverse() * found
    return sf.V3(error.t[0], error.t[1], error.R.to_tangent()[0])


@factor
def edge(
    a: Annotated[Pose, TunableShared],
    b: Annotated[Pose, TunableShared],
    measured: Annotated[sf.Pose2, ConstSequential],
    sqrt_information: Annotated[sf.M33, ConstSequential],
) -> sf.V3:
    """The motion from a to b against the measured one."""
    return sqrt_information * _difference(measured, a.inverse() * b)


@factor
def sighting(
    pose: Annotated[Pose, TunableShared],
    landmark: Annotated[Landmark, TunableShared],
    offset: Annotated[sf.Pose2, ConstSequential],
    measured: Annotated[sf.V2, ConstSequential],
    sqrt_information: Annotated[sf.M22, ConstSequential],
) -> sf.V2:
    """A landmark in the axes of a sensor at pose * offset, against the measured place."""
    return sqrt_information * (offset.inverse() * (pose.inverse() * landmark) - measured)


@factor
def bearing(
    pose: Annotated[Pose, TunableShared],
    landmark: Annotated[Landmark, TunableShared],
    offset: Annotated[sf.Pose2, ConstSequential],
    direction: Annotated[sf.V2, ConstSequential],
    sqrt_information: Annotated[sf.V1, ConstSequential],
) -> sf.V1:
    """The angle from the measured direction, a unit vector, to where the sensor has a landmark."""
    x, y = offset.inverse() * (pose.inverse() * landmark)
    cosine, sine = direction
    # Turned back by the measured angle, so that the error is within half a turn of zero.
    return sf.V1(
        sqrt_information[0]
        * sf.atan2(cosine * y - sine * x, cosine * x + sine * y, epsilon=sf.epsilon())
    )


@factor
def pose_prior(
    pose: Annotated[Pose, TunableShared],
    offset: Annotated[sf.Pose2, ConstSequential],
    measured: Annotated[sf.Pose2, ConstSequential],
    sqrt_information: Annotated[sf.M33, ConstSequential],
) -> sf.V3:
    """The pose of a sensor in the world against the measured one."""
    return sqrt_information * _difference(measured, pose.compose(offset))


@factor
def position_prior(
    pose: Annotated[Pose, TunableShared],
    measured: Annotated[sf.V2, ConstSequential],
    sqrt_information: Annotated[sf.M22, ConstSequential],
) -> sf.V2:
    """The position of a pose in the world, such as GPS measures it."""
    return sqrt_information * (pose.t - measured)


@factor
def landmark_prior(
    landmark: Annotated[Landmark, TunableShared],
    measured: Annotated[sf.V2, ConstSequential],
    sqrt_information: Annotated[sf.M22, ConstSequential],
) -> sf.V2:
    """The position of a landmark in the world."""
    return sqrt_information * (landmark - measured)
