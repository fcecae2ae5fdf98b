"""Factors of a vehicle's sensors: satellites, gravity, magnetometer, velocity.

Each function returns a `caspar.Factor`. Poses are `world_from_body`, units metres, seconds and
radians unless a function says otherwise.

Raw satellite measurements, `pseudorange` and `doppler`: positions are earth-centred, earth-fixed
(ECEF); clocks are in metres too: seconds times the speed of light. Distances of 2e7 m need float64
residuals: precision `mixed` or `float64`. Corrections of satellite clock, ionosphere and
troposphere are added to the pseudorange before (IS-GPS-200, section 20.3.3).
"""

from typing import Any

import symforce.symbolic as sf

from caspar.factors.making import (
    Choices,
    Markers,
    NodeChoice,
    check_kind,
    common,
    each,
    library,
    make_factor,
    node,
    position,
    rotation,
    space_dim,
)
from caspar.factors.rotations import direction_error, length
from caspar.factors.whitening import NoiseChoice, vector_type
from caspar.frontend.factors.factor import Factor


@library
def gps_position(
    pose: NodeChoice = sf.Pose3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "gps_position",
    markers: Markers | None = None,
) -> Factor:
    """The position of an antenna is measured: t + R lever_arm - position.

    Rows: coordinates in the world's axes, in metres. Latitude and longitude must be made such
    coordinates before, for example east, north and up from a place nearby.

    Arguments of the factor: `world_from_body`, a node; `position`, (m, 2) or (m, 3); `lever_arm`,
    (2,) or (3,), the antenna in the axes of the body (a node by `markers={"lever_arm":
    caspar.TunableUnique}`).

    Args:
        pose: Node type, or a part of one: an `sf.Pose2` or `sf.Pose3`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: A type that is no pose, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> solver = caspar.Solver(caspar.factors.gps_position(sf.Pose2, noise="unit"))
        >>> fix = {"world_from_body": [0], "position": [[3.5, 6.0]], "lever_arm": [1.0, 0.0]}
        >>> found = solver.evaluate({"Pose2": [[0.0, 1.0, 4.0, 4.0]], "gps_position": fix})
        >>> found.residuals("gps_position").round(3)
        array([[ 0.5, -1. ]])
    """
    kind = check_kind("gps_position", "pose", pose, (sf.Pose2, sf.Pose3))
    dim = space_dim(kind)

    def error(world_from_body: Any, position: Any, lever_arm: Any) -> list[Any]:
        """Estimated minus measured position of the antenna."""
        return list(world_from_body * lever_arm - position)

    arguments = (
        node("world_from_body", pose),
        each("position", vector_type(dim)),
        common("lever_arm", vector_type(dim)),
    )
    return make_factor(error, dim, arguments, Choices(name, noise, markers))


@library
def gravity(
    pose: NodeChoice = sf.Pose3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "gravity",
    markers: Markers | None = None,
) -> Factor:
    """A direction of the world is measured in the body, such as that of gravity at rest.

    Rows: the turn from `direction` to R^-1 `reference` as two angles across `direction`, radians;
    their root sum of squares is the angle between both. An accelerometer at rest reads upwards: its
    reference is (0, 0, 1) where z is up. A sun sensor or a vanishing point fits too.

    Arguments of the factor: `world_from_body`, a node; `direction`, (m, 3), of unit length, in the
    axes of the body; `reference`, (3,), of any length, in those of the world.

    Args:
        pose: Node type, or a part of one: an `sf.Pose3` or `sf.Rot3`.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: A type that is no rotation, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("gravity", "pose", pose, (sf.Pose3, sf.Rot3))

    def error(world_from_body: Any, direction: Any, reference: Any) -> list[Any]:
        """The turn from the measured direction to the estimated one."""
        return direction_error(direction, rotation(world_from_body).inverse() * reference)

    arguments = (
        node("world_from_body", pose),
        each("direction", sf.V3),
        common("reference", sf.V3),
    )
    return make_factor(error, 2, arguments, Choices(name, noise, markers))


@library
def magnetometer(
    pose: NodeChoice = sf.Pose3,
    *,
    field: NodeChoice = sf.V3,
    bias: NodeChoice = sf.V3,
    noise: NoiseChoice = "sigma",
    name: str = "magnetometer",
    markers: Markers | None = None,
) -> Factor:
    """A magnetometer's reading: R^-1 field + bias - reading.

    Rows: in the axes of the body, in the unit of the readings, such as microtesla.

    Arguments of the factor: `world_from_body`, a node; `reading`, (m, 3); `field`, (3,), in the
    axes of the world, and `bias`, (3,), what the sensor reads too much: constants, unless `markers`
    makes nodes of them.

    Args:
        pose: Node type, or a part of one: an `sf.Pose3` or `sf.Rot3`.
        field: Type of the field: `sf.V3`, or a class of your own if it is a node.
        bias: Type of the bias, likewise.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, such as `{"bias": caspar.TunableUnique}`.

    Raises:
        FactorError: A type that is no rotation, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("magnetometer", "pose", pose, (sf.Pose3, sf.Rot3))
    check_kind("magnetometer", "field", field, (sf.V3,))
    check_kind("magnetometer", "bias", bias, (sf.V3,))

    def error(world_from_body: Any, reading: Any, field: Any, bias: Any) -> list[Any]:
        """Estimated minus measured field."""
        return list(rotation(world_from_body).inverse() * field + bias - reading)

    arguments = (
        node("world_from_body", pose),
        each("reading", sf.V3),
        common("field", field),
        common("bias", bias),
    )
    return make_factor(error, 3, arguments, Choices(name, noise, markers))


@library
def velocity(
    pose: NodeChoice = sf.Pose3,
    velocity: NodeChoice = sf.V3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "velocity",
    markers: Markers | None = None,
) -> Factor:
    """The velocity is measured in the axes of the body, as by wheels: R^-1 velocity - measured.

    Rows in metres per second. A wheeled vehicle that does not slide measures zero sideways and up.
    A velocity measured in the axes of the world is a `prior`.

    Arguments of the factor: `world_from_body` and `velocity`, nodes, the velocity in the axes of
    the world; `measured`, (m, 2) or (m, 3), in those of the body.

    Args:
        pose: Node type, or a part of one: a pose or a rotation.
        velocity: Node type, or a part of one: a vector.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Speed(sf.V2): ...
        >>> solver = caspar.Solver(caspar.factors.velocity(sf.Pose2, Speed, noise="unit"))
        >>> wheels = {"world_from_body": [0], "velocity": [0], "measured": [[2.0, 0.5]]}
        >>> arrays = {"Pose2": [[0.0, 1.0, 0.0, 0.0]], "Speed": [[1.0, 1.0]], "velocity": wheels}
        >>> solver.solve(arrays, fixed={"Pose2": True}).values["Speed"].round(3)
        array([[-0.5,  2. ]])
    """
    kind = check_kind("velocity", "pose", pose, (sf.Pose2, sf.Pose3, sf.Rot2, sf.Rot3))
    dim = space_dim(kind)
    check_kind("velocity", "velocity", velocity, (vector_type(dim),))

    def error(world_from_body: Any, velocity: Any, measured: Any) -> list[Any]:
        """Estimated minus measured velocity."""
        return list(rotation(world_from_body).inverse() * velocity - measured)

    arguments = (
        node("world_from_body", pose),
        node("velocity", velocity),
        each("measured", vector_type(dim)),
    )
    return make_factor(error, dim, arguments, Choices(name, noise, markers))


@library
def constant_velocity(
    a: NodeChoice = sf.Pose3,
    b: NodeChoice | None = None,
    velocity: NodeChoice = sf.V3,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "constant_velocity",
    markers: Markers | None = None,
) -> Factor:
    """Positions follow from a velocity: b - a - velocity * duration.

    Rows: in the axes of the world, in metres.

    Arguments of the factor: `a`, `b` and `velocity`, nodes; `duration`, (m, 1), in seconds.

    Args:
        a: Node type, or a part of one: a point, or a pose whose position counts.
        b: The same; None: as `a`.
        velocity: Node type, or a part of one: a vector in the axes of the world.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Place(sf.V2): ...
        >>> class Speed(sf.V2): ...
        >>> moved = caspar.factors.constant_velocity(Place, velocity=Speed, noise="unit")
        >>> move = {"a": [0], "b": [1], "velocity": [0], "duration": [[2.0]]}
        >>> places = [[0.0, 0.0], [3.0, 1.0]]
        >>> arrays = {"Place": places, "Speed": [[0.0, 0.0]], "constant_velocity": move}
        >>> caspar.Solver(moved).solve(arrays, fixed={"Place": True}).values["Speed"].round(3)
        array([[1.5, 0.5]])
    """
    end = a if b is None else b
    places = (sf.V2, sf.V3, sf.Pose2, sf.Pose3)
    dim = space_dim(check_kind("constant_velocity", "a", a, places))
    allowed = (vector_type(dim), sf.Pose2 if dim == 2 else sf.Pose3)
    check_kind("constant_velocity", "b", end, allowed)
    check_kind("constant_velocity", "velocity", velocity, allowed[:1])

    def error(a: Any, b: Any, velocity: Any, duration: Any) -> list[Any]:
        """Return the position, less the one to which the velocity leads."""
        return list(position(b) - position(a) - velocity * duration[0])

    arguments = (node("a", a), node("b", end), node("velocity", velocity), each("duration", sf.V1))
    return make_factor(error, dim, arguments, Choices(name, noise, markers))


LIGHT_M_PER_S = 299_792_458.0
"""Speed of light."""

EARTH_RAD_PER_S = 7.2921151467e-5
"""Turn of the earth (IS-GPS-200)."""


@library
def pseudorange(
    receiver: NodeChoice = sf.V3,
    clock: NodeChoice = sf.V1,
    *,
    earth_rotation: bool = True,
    noise: NoiseChoice = "sigma",
    name: str = "pseudorange",
    markers: Markers | None = None,
) -> Factor:
    """A pseudorange: |satellite - receiver| + clock - pseudorange, in metres.

    With `earth_rotation` the distance has Sagnac's term, omega / c (x_s y_r - y_s x_r): what the
    earth turns while the signal travels, where the satellite's position is in the axes of the time
    at which it was sent.

    Arguments of the factor: `receiver` and `clock`, nodes; `satellite`, (m, 3); `pseudorange`,
    (m, 1), plus the satellite's clock offset and minus atmospheric delays, in metres. Receivers of
    several systems (GPS, Galileo) have a clock for each.

    Args:
        receiver: Node type, or a part of one: a point, or a pose whose position counts, ECEF.
        clock: Node type, or a part of one: `sf.V1`, what the receiver's clock is ahead, in metres.
        earth_rotation: Whether to take the turn of the earth into account.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("pseudorange", "receiver", receiver, (sf.V3, sf.Pose3))
    check_kind("pseudorange", "clock", clock, (sf.V1,))

    def error(receiver: Any, clock: Any, satellite: Any, pseudorange: Any) -> list[Any]:
        """Estimated minus measured pseudorange."""
        place = position(receiver)
        distance = length(satellite - place)
        if earth_rotation:
            turned = satellite[0] * place[1] - satellite[1] * place[0]
            distance += EARTH_RAD_PER_S / LIGHT_M_PER_S * turned
        return [distance + clock[0] - pseudorange[0]]

    arguments = (
        node("receiver", receiver),
        node("clock", clock),
        each("satellite", sf.V3),
        each("pseudorange", sf.V1),
    )
    return make_factor(error, 1, arguments, Choices(name, noise, markers))


@library
def doppler(
    receiver: NodeChoice = sf.V3,
    velocity: NodeChoice = sf.V3,
    clock_drift: NodeChoice = sf.V1,
    *,
    noise: NoiseChoice = "sigma",
    name: str = "doppler",
    markers: Markers | None = None,
) -> Factor:
    """A range rate from a Doppler shift: e . (v_satellite - v_receiver) + drift - rate, in m/s.

    e is the unit vector from receiver to satellite. A shift of f Hz on a carrier of wavelength l is
    a rate of -l f. The turn of the earth during the travel is left out: some mm/s.

    Arguments of the factor: `receiver`, `velocity` and `clock_drift`, nodes; `satellite` and
    `satellite_velocity`, (m, 3), ECEF; `range_rate`, (m, 1), plus the satellite's clock drift.

    Args:
        receiver: Node type, or a part of one: a point, or a pose whose position counts, ECEF.
        velocity: Node type, or a part of one: the receiver's velocity, ECEF, m/s.
        clock_drift: Node type, or a part of one: `sf.V1`, rate of the receiver's clock, m/s.
        noise: `sigma`, `sqrt_information` or `unit`, see `Noise`.
        name: The factor's name.
        markers: Markers of arguments by name, instead of the usual ones.

    Raises:
        FactorError: Types that do not fit, or wrong markers.
        OptionError: Unknown noise.
    """
    check_kind("doppler", "receiver", receiver, (sf.V3, sf.Pose3))
    check_kind("doppler", "velocity", velocity, (sf.V3,))
    check_kind("doppler", "clock_drift", clock_drift, (sf.V1,))

    def error(
        receiver: Any,
        velocity: Any,
        clock_drift: Any,
        satellite: Any,
        satellite_velocity: Any,
        range_rate: Any,
    ) -> list[Any]:
        """Estimated minus measured range rate."""
        line = satellite - position(receiver)
        rate = line.dot(satellite_velocity - velocity) / length(line)
        return [rate + clock_drift[0] - range_rate[0]]

    arguments = (
        node("receiver", receiver),
        node("velocity", velocity),
        node("clock_drift", clock_drift),
        each("satellite", sf.V3),
        each("satellite_velocity", sf.V3),
        each("range_rate", sf.V1),
    )
    return make_factor(error, 1, arguments, Choices(name, noise, markers))
