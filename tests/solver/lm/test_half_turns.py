"""Starts exactly on a kink, such as half a turn from what is measured, are no stationary points."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.frontend.factors.factor import Factor
from caspar.options import PrecisionName

IDENTITY = [0.0, 0.0, 0.0, 1.0]


class Place(sf.Pose3):
    """A pose in space; in storage qx qy qz qw tx ty tz."""


class Seen(sf.Pose3):
    """The pose of one place seen from another."""


class Attitude(sf.Rot3):
    """A rotation; in storage qx qy qz qw."""


class Turn(sf.Rot3):
    """A measured rotation."""


class Flat(sf.Pose2):
    """A pose in the plane; in storage cos sin x y."""


class FlatSeen(sf.Pose2):
    """The pose of one flat place seen from another."""


class Heading(sf.Rot2):
    """A rotation in the plane; in storage cos sin."""


class Reading(sf.Rot2):
    """A measured heading."""


@caspar.factor
def between(
    first: Annotated[Place, caspar.TunableShared],
    second: Annotated[Place, caspar.TunableShared],
    seen: Annotated[Seen, caspar.ConstSequential],
) -> sf.V6:
    """A pose graph's edge."""
    return sf.V6(seen.local_coordinates(first.between(second)))


@caspar.factor
def logarithm(
    attitude: Annotated[Attitude, caspar.TunableUnique],
    turn: Annotated[Turn, caspar.ConstSequential],
) -> sf.V3:
    """What is left of a rotation, as a vector."""
    return sf.V3((turn.inverse() * attitude).to_tangent())


@caspar.factor
def angle(
    attitude: Annotated[Attitude, caspar.TunableUnique],
    turn: Annotated[Turn, caspar.ConstSequential],
) -> sf.V1:
    """What is left of a rotation, as an angle."""
    return sf.V1(turn.between(attitude).to_tangent_norm())


@caspar.factor
def flat_between(
    first: Annotated[Flat, caspar.TunableShared],
    second: Annotated[Flat, caspar.TunableShared],
    seen: Annotated[FlatSeen, caspar.ConstSequential],
) -> sf.V3:
    """An edge in the plane."""
    return sf.V3(seen.local_coordinates(first.between(second)))


@caspar.factor
def heading_error(
    heading: Annotated[Heading, caspar.TunableUnique],
    reading: Annotated[Reading, caspar.ConstSequential],
) -> sf.V1:
    """What is left of a heading."""
    return sf.V1(reading.local_coordinates(heading))


AXES = np.array(
    [
        *([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]),
        *([0.6, 0.8, 0.0], [0.0, -0.6, 0.8], [1.0, 1.0, 1.0], [-2.0, 1.0, 0.5]),
    ]
)
AXES /= np.linalg.norm(AXES, axis=1, keepdims=True)
HALF_TURNS = np.concatenate([AXES, np.zeros((len(AXES), 1))], axis=1)

PRECISIONS = pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])


ZERO = {"float64": 1e-20, "mixed": 1e-10, "float32": 1e-10}

NEAREST_ANGLE = {"float64": 1e-14, "mixed": 5e-5, "float32": 5e-5}
"""The cost of an angle of zero: SymForce takes the arc cosine of 1 - epsilon."""


def _solved(
    factor: Factor, precision: PrecisionName, arrays: dict[str, Any], least: dict[str, float] = ZERO
) -> None:
    result = caspar.Solver([factor], precision=precision, backend="cpu").solve(arrays)
    assert result.status.is_success
    assert result.initial_cost > 0.1
    assert result.final_cost < least[precision]


@PRECISIONS
@pytest.mark.parametrize("turn", HALF_TURNS, ids=str)
def test_an_edge_of_half_a_turn(turn: np.ndarray, precision: PrecisionName) -> None:
    for sign in (1.0, -1.0):
        arrays = {
            "Place": [[*IDENTITY, 0.0, 0.0, 0.0]] * 2,
            "between": {"first": [0], "second": [1], "seen": [[*(sign * turn), 1.0, -2.0, 0.5]]},
        }
        _solved(between, precision, arrays)


@PRECISIONS
@pytest.mark.parametrize(
    ("factor", "least"), [(logarithm, ZERO), (angle, NEAREST_ANGLE)], ids=["vector", "angle"]
)
def test_a_rotation_of_half_a_turn(
    factor: Factor, least: dict[str, float], precision: PrecisionName
) -> None:
    for turn in HALF_TURNS:
        for start in (IDENTITY, [0.0, 0.0, 0.0, -1.0]):
            arrays = {"Attitude": [start], factor.name: {"turn": [turn]}}
            _solved(factor, precision, arrays, least)


@PRECISIONS
def test_half_a_turn_in_the_plane(precision: PrecisionName) -> None:
    for sine in (0.0, -0.0):
        arrays: dict[str, Any] = {
            "Flat": [[1.0, 0.0, 0.0, 0.0]] * 2,
            "flat_between": {"first": [0], "second": [1], "seen": [[-1.0, sine, 1.0, 2.0]]},
        }
        _solved(flat_between, precision, arrays)
        arrays = {"Heading": [[1.0, 0.0]], "heading_error": {"reading": [[-1.0, sine]]}}
        _solved(heading_error, precision, arrays)


class Level(sf.V1):
    """Any number."""


def _kinked(name: str, function: Any) -> Factor:
    def residual(level: Annotated[Level, caspar.TunableUnique]) -> sf.V1:
        return sf.V1(function(level[0]))

    residual.__name__ = name
    return caspar.factor(residual)


KINKED = {
    "magnitude": (_kinked("magnitude", lambda x: sf.Abs(x) - 1), 0.0),
    "magnitude_below": (_kinked("magnitude_below", lambda x: sf.Abs(x - 2) - 1), 2.0),
    "cubed": (_kinked("cubed", lambda x: (1 + sf.Abs(x)) ** 3 - 8), 0.0),
    "ramp": (_kinked("ramp", lambda x: sf.Max(x, 0) - 1), 0.0),
    "ramp_down": (_kinked("ramp_down", lambda x: sf.Min(x, 0) + 1), 0.0),
    "ramp_of_a_sum": (_kinked("ramp_of_a_sum", lambda x: sf.Max(3, 2 * x + 1) - 4), 1.0),
    "clamped_below": (_kinked("clamped_below", lambda x: sf.clamp(x, 0, 2) - 1), 0.0),
    "clamped_above": (_kinked("clamped_above", lambda x: sf.clamp(x, -2, 0) + 1), 0.0),
}


@PRECISIONS
@pytest.mark.parametrize("name", KINKED)
def test_a_start_on_a_kink(name: str, precision: PrecisionName) -> None:
    factor, start = KINKED[name]
    for signed in (start, -start) if start == 0.0 else (start,):
        _solved(factor, precision, {"Level": [[signed]], name: {}})
