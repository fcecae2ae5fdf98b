"""Factors of raw satellite measurements: pseudorange and Doppler, with the receiver's clock.

Each function returns a `caspar.Factor`. Positions are earth-centred, earth-fixed (ECEF), in metres;
clocks are in metres too: seconds times the speed of light. Distances of 2e7 m need float64
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
    each,
    library,
    make_factor,
    node,
    position,
)
from caspar.factors.rotations import length
from caspar.factors.whitening import NoiseChoice
from caspar.frontend.factors.factor import Factor

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
