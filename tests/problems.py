"""Small problems of every kind of argument and node type, each with measurements that have noise.

A problem is what `caspar.Solver` takes: factors, and the arrays of one solve.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar
from examples import multiple_factors

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """Factors, and a function that makes their arrays."""

    factors: tuple[caspar.Factor, ...]
    arrays: Callable[[], Arrays]


# -- the paper's multi-factor setting on Pose3 -----------------------------------------------------


def robot_arrays() -> Arrays:
    """A short drive of `examples.multiple_factors`."""
    return multiple_factors.simulate(num_poses=24, num_landmarks=10)


# -- a vehicle in the plane: dataclass nodes, pairs, all kinds of constants ------------------------


@dataclass
class State:
    """A vehicle at one time; in storage cos sin x y speed."""

    pose: sf.Pose2
    speed: sf.V1


class Duration(sf.V1):
    """Seconds."""


class Beacon(sf.V2):
    """Known position of a beacon."""


class Distance(sf.V1):
    """A measured distance."""


class Heading(sf.Rot2):
    """A measured heading."""


@dataclass
class Compass:
    """What is known of a compass."""

    declination: sf.Rot2
    deviation: sf.V1


class Tuning(sf.V3):
    """Standard deviations of a drive: metres, radians, metres a second."""


@caspar.factor
def drive(
    state: Annotated[caspar.Pair[State], caspar.TunablePair],
    turn: Annotated[Heading, caspar.ConstSequential],
    duration: Annotated[Duration, caspar.ConstSequential],
    tuning: Annotated[Tuning, caspar.ConstUnique],
) -> sf.V4:
    """Straight on at the speed of the first state, then a turn."""
    first, second = state
    step = first.pose.inverse() * second.pose
    turned = turn.local_coordinates(step.R)[0]
    return sf.V4(
        (step.t[0] - first.speed[0] * duration[0]) / tuning[0],
        step.t[1] / tuning[0],
        turned / tuning[1],
        (second.speed[0] - first.speed[0]) / tuning[2],
    )


@caspar.factor
def ranging(
    state: Annotated[State, caspar.TunableShared],
    beacon: Annotated[Beacon, caspar.ConstIndexed],
    distance: Annotated[Distance, caspar.ConstSequential],
) -> sf.V1:
    """Distance to one of a few beacons."""
    return sf.V1(((state.pose.t - beacon).norm(epsilon=sf.epsilon()) - distance[0]) / 0.1)


@caspar.factor
def compass(
    state: Annotated[State, caspar.TunableShared],
    heading: Annotated[Heading, caspar.ConstSequential],
    device: Annotated[Compass, caspar.ConstShared],
) -> sf.V1:
    """Heading by one of two compasses."""
    error = heading.local_coordinates(device.declination * state.pose.R)
    return sf.V1(error[0] / device.deviation[0])


def vehicle_arrays(count: int = 15, seed: int = 1) -> Arrays:
    """A curved drive among three beacons."""
    random = np.random.default_rng(seed)
    turns = random.uniform(-0.3, 0.4, count - 1)
    angles = np.concatenate([[0.2], 0.2 + np.cumsum(turns)])
    durations = random.uniform(0.5, 1.5, count - 1)
    speeds = 2.0 + 0.1 * np.sin(np.arange(count))
    steps = (speeds[:-1] * durations)[:, None] * _directions(angles[:-1])
    places = np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])
    beacons = np.array([[0.0, 10.0], [15.0, -5.0], [25.0, 12.0]])
    seeing, seen = (grid.ravel() for grid in np.meshgrid(np.arange(count), np.arange(3)))
    distances = np.linalg.norm(places[seeing] - beacons[seen], axis=1)
    declinations = np.array([0.1, -0.05])
    device = np.arange(count) % 2
    return {
        "State": np.column_stack(
            [
                _directions(angles + random.normal(0.0, 0.2, count)),
                places + random.normal(0.0, 1.0, (count, 2)),
                np.full(count, 1.5),
            ]
        ),
        "drive": {
            "turn": _directions(turns + random.normal(0.0, 0.02, count - 1)),
            "duration": durations,
            "tuning": np.array([0.1, 0.02, 0.2]),
        },
        "ranging": {
            "state": seeing,
            "beacon": {"values": beacons, "index": seen},
            "distance": distances + random.normal(0.0, 0.1, len(seen)),
        },
        "compass": {
            "state": np.arange(count),
            "heading": _directions(angles + declinations[device] + random.normal(0.0, 0.05, count)),
            "device": {
                "values": np.column_stack([_directions(declinations), [0.05, 0.08]]),
                "index": device,
            },
        },
    }


def _directions(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


# -- attitudes: Rot3 -------------------------------------------------------------------------------


class Attitude(sf.Rot3):
    """World from body."""


class Turn(sf.Rot3):
    """A measured relative rotation."""


class Direction(sf.V3):
    """A unit vector."""


@caspar.factor
def relative_turn(
    start: Annotated[Attitude, caspar.TunableShared],
    end: Annotated[Attitude, caspar.TunableShared],
    turn: Annotated[Turn, caspar.ConstSequential],
) -> sf.V3:
    """Rotation from one attitude to another."""
    return sf.V3(*turn.local_coordinates(start.inverse() * end)) / 0.02


@caspar.factor
def star(
    attitude: Annotated[Attitude, caspar.TunableShared],
    in_world: Annotated[Direction, caspar.ConstIndexed],
    in_body: Annotated[Direction, caspar.ConstSequential],
) -> sf.V3:
    """A known direction, seen from the body."""
    return (attitude.inverse() * in_world - in_body) / 0.01


def attitude_arrays(count: int = 12, seed: int = 2) -> Arrays:
    """Random attitudes, a ring of relative rotations and a few chords, two stars."""
    random = np.random.default_rng(seed)
    truth = Rotation.random(count, random_state=seed)
    start = np.concatenate([np.arange(count), np.arange(0, count, 3)])
    end = np.concatenate([(np.arange(count) + 1) % count, (np.arange(0, count, 3) + 5) % count])
    turns = truth[start].inv() * truth[end]
    turns = turns * Rotation.from_rotvec(random.normal(0.0, 0.02, (len(start), 3)))
    stars = np.array([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])
    seeing, seen = np.array([0, 4, 5, 9]), np.array([0, 1, 0, 1])
    in_body = truth[seeing].inv().apply(stars[seen])
    wrong = Rotation.from_rotvec(random.normal(0.0, 0.2, (count, 3)))
    return {
        "Attitude": (truth * wrong).as_quat(),
        "relative_turn": {"start": start, "end": end, "turn": turns.as_quat()},
        "star": {
            "attitude": seeing,
            "in_world": {"values": stars, "index": seen},
            "in_body": in_body + random.normal(0.0, 0.01, in_body.shape),
        },
    }


# -- vectors ---------------------------------------------------------------------------------------


class Place(sf.V2):
    """A place in the plane."""


class Offset(sf.V2):
    """A measured difference."""


@caspar.factor
def between(
    start: Annotated[Place, caspar.TunableShared],
    end: Annotated[Place, caspar.TunableShared],
    offset: Annotated[Offset, caspar.ConstSequential],
) -> sf.V2:
    """Linear: all of the Jacobian is literal."""
    return end - start - offset


@caspar.factor
def anchor(
    place: Annotated[Place, caspar.TunableShared],
    known: Annotated[Offset, caspar.ConstSequential],
) -> sf.V2:
    """Where a place is known to be."""
    return place - known


class Altitude(sf.V1):
    """A measured height."""


@caspar.factor
def height(
    place: Annotated[Place, caspar.TunableShared],
    known: Annotated[Altitude, caspar.ConstSequential],
) -> sf.V1:
    """One coordinate of a place: nothing depends on the other."""
    return sf.V1(place[1] - known[0])


def grid_arrays(side: int = 6, seed: int = 3) -> Arrays:
    """A grid of places, differences between neighbours, three known corners."""
    random = np.random.default_rng(seed)
    number = np.arange(side * side).reshape(side, side)
    truth = np.stack(np.divmod(number.ravel(), side), axis=1).astype(float)
    start = np.concatenate([number[:-1].ravel(), number[:, :-1].ravel()])
    end = np.concatenate([number[1:].ravel(), number[:, 1:].ravel()])
    corners = np.array([0, side - 1, side * side - 1])
    return {
        "Place": truth + random.normal(0.0, 0.5, truth.shape),
        "between": {
            "start": start,
            "end": end,
            "offset": truth[end] - truth[start] + random.normal(0.0, 0.1, (len(start), 2)),
        },
        "anchor": {
            "place": corners,
            "known": truth[corners] + random.normal(0.0, 0.1, (len(corners), 2)),
        },
    }


class Curve(sf.V3):
    """Height, rate and floor of an exponential decay."""


class Sample(sf.V2):
    """Abscissa and ordinate."""


@caspar.factor
def decay(
    curve: Annotated[Curve, caspar.TunableUnique],
    sample: Annotated[Sample, caspar.ConstSequential],
) -> sf.V1:
    """One node that every factor touches."""
    return sf.V1(curve[0] * sf.exp(-curve[1] * sample[0]) + curve[2] - sample[1])


def decay_arrays(count: int = 1000, seed: int = 4) -> Arrays:
    """Samples of 3 exp(-0.7 x) + 0.5."""
    random = np.random.default_rng(seed)
    x = random.uniform(0.0, 5.0, count)
    y = 3.0 * np.exp(-0.7 * x) + 0.5 + random.normal(0.0, 0.05, count)
    return {"Curve": np.ones((1, 3)), "decay": {"sample": np.stack([x, y], axis=1)}}


EXAMPLES = {
    "robot": Example(multiple_factors.FACTORS, robot_arrays),
    "vehicle": Example((drive, ranging, compass), vehicle_arrays),
    "attitudes": Example((relative_turn, star), attitude_arrays),
    "grid": Example((between, anchor), grid_arrays),
    "decay": Example((decay,), decay_arrays),
}
