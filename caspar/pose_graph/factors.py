"""Factors of pose graphs, in the plane and in space.

Input: the kind of a graph. Output: a factor; it is traced by a solver. Errors are g2o's: the
translation, then in the plane the angle, in space the vector part of the quaternion, half the angle
if it is small. `sqrt_information` multiplies them. Factors are made once for each kind.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import symforce.symbolic as sf

from caspar.factors.making import Choices, each, library, make_factor, node
from caspar.frontend.factors.factor import Factor
from caspar.io.graphs.pose_graph import PoseGraphKind


class Plane:
    """Node types in the plane."""

    class Pose(sf.Pose2):
        """Takes body to world coordinates; in storage cos sin x y."""

    class Landmark(sf.V2):
        """A point in world coordinates."""


class Space:
    """Node types in space."""

    class Pose(sf.Pose3):
        """Takes body to world coordinates; in storage qx qy qz qw tx ty tz."""

    class Landmark(sf.V3):
        """A point in world coordinates."""


_NODES: dict[PoseGraphKind, Any] = {PoseGraphKind.SE2: Plane, PoseGraphKind.SE3: Space}
_POSES: dict[PoseGraphKind, Any] = {PoseGraphKind.SE2: sf.Pose2, PoseGraphKind.SE3: sf.Pose3}
_POINTS: dict[PoseGraphKind, Any] = {PoseGraphKind.SE2: sf.V2, PoseGraphKind.SE3: sf.V3}


def node_types(kind: PoseGraphKind) -> dict[str, type]:
    """The node types of a kind of graph, by name."""
    types = _NODES[kind]
    return {"Pose": types.Pose, "Landmark": types.Landmark}


@library
def edge(kind: PoseGraphKind) -> Factor:
    """The motion from pose `a` to pose `b` against the measured one."""

    def error(a: Any, b: Any, measured: Any) -> list[Any]:
        return _difference(measured, a.inverse() * b)

    pose = _NODES[kind].Pose
    arguments = (node("a", pose), node("b", pose), each("measured", _POSES[kind]))
    return _made("edge", error, kind.tangent_dim, *arguments)


@library
def sensor_edge(kind: PoseGraphKind) -> Factor:
    """The motion from a sensor at a * offset_a to one at b * offset_b against the measured one."""

    def error(a: Any, b: Any, offset_a: Any, offset_b: Any, measured: Any) -> list[Any]:
        return _difference(measured, (a * offset_a).inverse() * (b * offset_b))

    pose, constant = _NODES[kind].Pose, _POSES[kind]
    arguments = (
        *(node("a", pose), node("b", pose)),
        *(each(name, constant) for name in ("offset_a", "offset_b", "measured")),
    )
    return _made("sensor_edge", error, kind.tangent_dim, *arguments)


@library
def sighting(kind: PoseGraphKind) -> Factor:
    """A landmark in the axes of a sensor at pose * offset, against the measured place."""

    def error(pose: Any, landmark: Any, offset: Any, measured: Any) -> list[Any]:
        return list(offset.inverse() * (pose.inverse() * landmark) - measured)

    arguments = (*_seen(kind), each("measured", _POINTS[kind]))
    return _made("sighting", error, kind.dim, *arguments)


@library
def bearing(kind: PoseGraphKind) -> Factor:
    """The angle from the measured direction, a unit vector, to where the sensor has a landmark.

    In the plane only.
    """

    def error(pose: Any, landmark: Any, offset: Any, direction: Any) -> list[Any]:
        x, y = offset.inverse() * (pose.inverse() * landmark)
        cosine, sine = direction
        # Turned back by the measured angle, so that the error is within half a turn of zero.
        turned = cosine * y - sine * x, cosine * x + sine * y
        return [sf.atan2(*turned, epsilon=sf.epsilon())]

    return _made("bearing", error, 1, *_seen(kind), each("direction", sf.V2))


@library
def pose_prior(kind: PoseGraphKind) -> Factor:
    """The pose of a sensor in the world, at pose * offset, against the measured one."""

    def error(pose: Any, offset: Any, measured: Any) -> list[Any]:
        return _difference(measured, pose * offset)

    constant = _POSES[kind]
    arguments = (
        node("pose", _NODES[kind].Pose),
        *(each("offset", constant), each("measured", constant)),
    )
    return _made("pose_prior", error, kind.tangent_dim, *arguments)


@library
def position_prior(kind: PoseGraphKind) -> Factor:
    """The position of a pose in the world, such as GPS measures it."""

    def error(pose: Any, measured: Any) -> list[Any]:
        return list(pose.t - measured)

    arguments = (node("pose", _NODES[kind].Pose), each("measured", _POINTS[kind]))
    return _made("position_prior", error, kind.dim, *arguments)


@library
def landmark_prior(kind: PoseGraphKind) -> Factor:
    """The position of a landmark in the world."""

    def error(landmark: Any, measured: Any) -> list[Any]:
        return list(landmark - measured)

    arguments = (node("landmark", _NODES[kind].Landmark), each("measured", _POINTS[kind]))
    return _made("landmark_prior", error, kind.dim, *arguments)


@cache
def factors(kind: PoseGraphKind) -> Mapping[str, Factor]:
    """Return all factors of graphs of a kind, by name."""
    makers = [edge, sensor_edge, sighting, pose_prior, position_prior, landmark_prior]
    if kind is PoseGraphKind.SE2:
        makers.append(bearing)
    made = [maker(kind) for maker in makers]
    return {one.name: one for one in made}


def _seen(kind: PoseGraphKind) -> tuple[Any, ...]:
    """Arguments of a landmark that a sensor sees."""
    types = _NODES[kind]
    return (
        *(node("pose", types.Pose), node("landmark", types.Landmark)),
        each("offset", _POSES[kind]),
    )


def _made(name: str, error: Callable[..., list[Any]], dim: int, *arguments: Any) -> Factor:
    return make_factor(error, dim, arguments, Choices(name, "sqrt_information", None))


def _difference(measured: Any, found: Any) -> list[Any]:
    """Translation, then rotation, of inverse(measured) * found."""
    error = measured.inverse() * found
    if isinstance(error, sf.Pose2):
        return [*error.t, error.R.to_tangent()[0]]
    turn = error.R.q
    # A quaternion and its negative are one rotation: that with w not below 0 has the small error.
    return [*error.t, *(sf.sign_no_zero(turn.w) * turn.xyz)]
