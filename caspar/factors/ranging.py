"""Factors of distances and directions: range, bearing, both, and positions of landmarks.

Each function returns a `caspar.Factor`. Poses are `world_from_body`; a 2-D pose is an `sf.Pose2`
with points `sf.V2`, a 3-D pose an `sf.Pose3` with points `sf.V3`.
"""

from typing import Any

import symforce.symbolic as sf

from caspar.factors.making import (
    Choices,
    Markers,
    NodeChoice,
    check_kind,
    each,
    library,
    make_factor,
    node,
    position,
    space_dim,
)
from caspar.factors.rotations import angle_error, direction_error, length
from caspar.factors.whitening import NoiseChoice, vector_type
from caspar.frontend.factors.factor import Factor

PLACES: tuple[Any, ...] = (sf.V2, sf.V3, sf.Pose2, sf.Pose3)


@library
def range(
    a: NodeChoice = sf.Pose3,
    b: NodeChoice = sf.V3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "range",
    markers: Markers | None = None,
) -> Factor:
    """The distance of two places is measured: |b - a| - distance.

    One row, in the unit of the positions. Where the places coincide the derivative is zero.

    Arguments of the factor: `a` and `b`, nodes; `distance`, (m, 1).

    Args:
        a: Node type, or a part of one: a point, or a pose whose position counts.
        b: The same.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that have no distance, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Beacon(sf.V2): ...
        >>> solver = caspar.Solver(caspar.factors.range(Beacon, Beacon, noise="unit"))
        >>> distances = {"a": [0], "b": [1], "distance": [[4.5]]}
        >>> found = solver.evaluate({"Beacon": [[0.0, 0.0], [3.0, 4.0]], "range": distances})
        >>> found.residuals("range").round(3)
        array([[0.5]])
    """
    _same_space("range", {"a": a, "b": b})

    def error(a: Any, b: Any, distance: Any) -> list[Any]:
        """Estimated minus measured distance."""
        return [length(position(b) - position(a)) - distance[0]]

    arguments = (node("a", a), node("b", b), each("distance", sf.V1))
    return make_factor(error, 1, arguments, Choices(name, noise, markers))


@library
def bearing(
    pose: NodeChoice = sf.Pose3,
    point: NodeChoice = sf.V3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "bearing",
    markers: Markers | None = None,
) -> Factor:
    """The direction in which a point is seen is measured.

    In the plane one row: the angle from the measured to the estimated direction, -pi to pi, in
    radians. In space two rows: that turn as angles along two directions across the measured one;
    their root sum of squares is the angle between both. Where the point is at the pose's own
    position, residual and derivative are zero.

    Arguments of the factor: `pose` and `point`, nodes; in the plane `angle`, (m, 1), radians
    counterclockwise from the body's x; in space `direction`, (m, 3), of unit length, in the axes of
    the body.

    Args:
        pose: Node type, or a part of one: `world_from_body`, an `sf.Pose2` or `sf.Pose3`.
        point: Node type, or a part of one: a point, or a pose whose position counts.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.
    """
    dim = _pose_and_point("bearing", pose, point)
    error = _angle if dim == 2 else _direction
    arguments = (node("pose", pose), node("point", point), _measured(dim))
    return make_factor(error, dim - 1, arguments, Choices(name, noise, markers))


@library
def bearing_range(
    pose: NodeChoice = sf.Pose3,
    point: NodeChoice = sf.V3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "bearing_range",
    markers: Markers | None = None,
) -> Factor:
    """Direction and distance of a point are measured: the rows of `bearing`, then that of `range`.

    Arguments of the factor: `pose` and `point`, nodes; `angle`, (m, 1), or `direction`, (m, 3), as
    in `bearing`; `distance`, (m, 1).

    Args:
        pose: Node type, or a part of one: `world_from_body`, an `sf.Pose2` or `sf.Pose3`.
        point: Node type, or a part of one: a point, or a pose whose position counts.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import numpy as np
        >>> import symforce.symbolic as sf
        >>> class Beacon(sf.V2): ...
        >>> solver = caspar.Solver(caspar.factors.bearing_range(sf.Pose2, Beacon, noise="unit"))
        >>> sight = {"pose": [0], "point": [0], "angle": [[np.pi / 2]], "distance": [[3.0]]}
        >>> arrays = {"Pose2": [[1.0, 0, 1, 2]], "Beacon": [[2.0, 2.5]], "bearing_range": sight}
        >>> solver.solve(arrays, fixed={"Pose2": True}).values["Beacon"].round(3)
        array([[1., 5.]])
    """
    dim = _pose_and_point("bearing_range", pose, point)
    direction = _angle if dim == 2 else _direction

    def error(pose: Any, point: Any, distance: Any, **measured: Any) -> list[Any]:
        """Direction, then distance."""
        apart = length(position(point) - pose.t) - distance[0]
        return [*direction(pose=pose, point=point, **measured), apart]

    arguments = (node("pose", pose), node("point", point), _measured(dim), each("distance", sf.V1))
    return make_factor(error, dim, arguments, Choices(name, noise, markers))


@library
def landmark(
    pose: NodeChoice = sf.Pose3,
    point: NodeChoice = sf.V3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "landmark",
    markers: Markers | None = None,
) -> Factor:
    """The position of a point in the axes of the body is measured: body_from_world(point) - seen.

    Rows: the coordinates, in the unit of the positions. g2o's EDGE_SE2_XY and EDGE_SE3_TRACKXYZ.

    Arguments of the factor: `pose` and `point`, nodes; `seen`, (m, 2) or (m, 3).

    Args:
        pose: Node type, or a part of one: `world_from_body`, an `sf.Pose2` or `sf.Pose3`.
        point: Node type, or a part of one: a point, or a pose whose position counts.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Beacon(sf.V2): ...
        >>> solver = caspar.Solver(caspar.factors.landmark(sf.Pose2, Beacon, noise="unit"))
        >>> sight = {"pose": [0], "point": [0], "seen": [[3.0, 1.0]]}
        >>> arrays = {"Pose2": [[0.0, 1.0, 4.0, 2.0]], "Beacon": [[5.0, 5.0]], "landmark": sight}
        >>> solver.solve(arrays, fixed={"Pose2": True}).values["Beacon"].round(3)
        array([[3., 5.]])
    """
    dim = _pose_and_point("landmark", pose, point)

    def error(pose: Any, point: Any, seen: Any) -> list[Any]:
        """Estimated minus measured coordinates."""
        return list(pose.R.inverse() * (position(point) - pose.t) - seen)

    arguments = (node("pose", pose), node("point", point), each("seen", vector_type(dim)))
    return make_factor(error, dim, arguments, Choices(name, noise, markers))


def _measured(dim: int) -> Any:
    return each("angle", sf.V1) if dim == 2 else each("direction", sf.V3)


def _angle(pose: Any, point: Any, angle: Any) -> list[Any]:
    """The angle from the measured to the estimated direction."""
    return [angle_error(angle[0], pose.R.inverse() * (position(point) - pose.t))]


def _direction(pose: Any, point: Any, direction: Any) -> list[Any]:
    """The turn from the measured to the estimated direction."""
    return direction_error(direction, pose.R.inverse() * (position(point) - pose.t))


def _pose_and_point(factor: str, pose: NodeChoice, point: NodeChoice) -> int:
    check_kind(factor, "pose", pose, (sf.Pose2, sf.Pose3))
    return _same_space(factor, {"pose": pose, "point": point})


def _same_space(factor: str, choices: dict[str, NodeChoice]) -> int:
    """Return how many dimensions the space has that all of these are in."""
    dims = {
        name: space_dim(check_kind(factor, name, choice, PLACES))
        for name, choice in choices.items()
    }
    (first, dim), *others = dims.items()
    for name, other in others:
        # a point in the plane is not seen from a pose in space
        check_kind(
            factor, name, choices[name], (sf.V2, sf.Pose2) if dim == 2 else (sf.V3, sf.Pose3)
        )
        assert other == dim, first
    return dim
