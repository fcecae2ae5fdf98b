"""A robot's path from several kinds of measurement: one solver, four factors, three node types.

A robot with a sensor drives a figure of eight. It measures how it moves (odometry), now and then
where it is (position fixes), that it has been here before (loop closures), and where landmarks
are, as the sensor sees them. Nobody knows exactly how the sensor is mounted: that is estimated
too.

    python examples/multiple_factors.py
"""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import caspar

Array = NDArray[Any]

# -- node types: what the solver moves -------------------------------------------------------------


class Pose(sf.Pose3):
    """The robot at one time: takes body to world coordinates. In storage qx qy qz qw x y z."""


class Landmark(sf.V3):
    """A landmark in world coordinates."""


class Mount(sf.Pose3):
    """The sensor on the robot: takes sensor to body coordinates."""


# -- factors: what was measured, and how well ------------------------------------------------------


class Motion(sf.Pose3):
    """A measured relative pose."""


class Position(sf.V3):
    """A measured position."""


class Deviation(sf.V2):
    """Standard deviations: radians, metres."""


def motion_error(start: Pose, end: Pose, motion: Motion, deviation: Deviation) -> sf.V6:
    """How far the step from start to end is off what was measured, in standard deviations."""
    step = start.inverse() * end
    turned = motion.R.local_coordinates(step.R)
    moved = step.t - motion.t
    return sf.V6(*[x / deviation[0] for x in turned], *[x / deviation[1] for x in moved])


@caspar.factor
def odometry(
    pose: Annotated[caspar.Pair[Pose], caspar.TunablePair],
    motion: Annotated[Motion, caspar.ConstSequential],
    deviation: Annotated[Deviation, caspar.ConstUnique],
) -> sf.V6:
    """From each pose to the next: a pair needs no indices."""
    return motion_error(pose[0], pose[1], motion, deviation)


@caspar.factor
def loop_closure(
    start: Annotated[Pose, caspar.TunableShared],
    end: Annotated[Pose, caspar.TunableShared],
    motion: Annotated[Motion, caspar.ConstSequential],
    deviation: Annotated[Deviation, caspar.ConstUnique],
) -> sf.V6:
    """Between any two poses: both are named by an index."""
    return motion_error(start, end, motion, deviation)


@caspar.factor
def position_fix(
    pose: Annotated[Pose, caspar.TunableShared],
    position: Annotated[Position, caspar.ConstSequential],
) -> sf.V3:
    """A satellite fix, good to ten centimetres."""
    return (pose.t - position) / 0.1


@caspar.factor
def sighting(
    pose: Annotated[Pose, caspar.TunableShared],
    landmark: Annotated[Landmark, caspar.TunableShared],
    mount: Annotated[Mount, caspar.TunableUnique],
    seen: Annotated[Position, caspar.ConstSequential],
) -> sf.V3:
    """A landmark in sensor coordinates, good to five centimetres. All share one mount."""
    in_body = pose.inverse() * landmark
    return (mount.inverse() * in_body - seen) / 0.05


FACTORS = (odometry, loop_closure, position_fix, sighting)

# -- a simulated drive -----------------------------------------------------------------------------

TRUE_MOUNT = np.array([0.1, -0.1, 0.1, np.sqrt(0.97), 0.4, -0.1, 0.8])


def simulate(num_poses: int = 60, num_landmarks: int = 25, seed: int = 0) -> dict[str, Any]:
    """Measurements with noise, and start values as a robot would have them.

    Args:
        num_poses: Poses along the loop.
        num_landmarks: Landmarks around it, each seen from every third pose.
        seed: Of the noise.

    Returns:
        What `caspar.Solver.solve` takes.
    """
    random = np.random.default_rng(seed)
    angle = np.linspace(0.0, 2.0 * np.pi, num_poses)
    heading = np.arctan2(10.0 * np.cos(2.0 * angle), 10.0 * np.cos(angle))
    tilts = 0.3 * np.stack([np.sin(3.0 * angle), np.cos(2.0 * angle)], axis=1)
    turns = Rotation.from_euler("zyx", np.column_stack([heading, tilts]))
    places = np.stack([10.0 * np.sin(angle), 5.0 * np.sin(2.0 * angle), np.sin(angle)], axis=1)
    landmarks = random.uniform([-15.0, -15.0, -3.0], [15.0, 15.0, 3.0], (num_landmarks, 3))
    mount_turn, mount_place = Rotation.from_quat(TRUE_MOUNT[:4]), TRUE_MOUNT[4:]

    deviation = np.array([0.01, 0.05])
    step = np.arange(num_poses - 1)
    steps = _measured_motion(turns, places, step, step + 1, deviation, random)
    closing_start, closing_end = np.array([0, 1, 2]), num_poses - np.array([1, 2, 3])
    closings = _measured_motion(turns, places, closing_start, closing_end, deviation, random)
    fixed = np.arange(0, num_poses, 5)
    fixes = places[fixed] + random.normal(0.0, 0.1, (len(fixed), 3))
    pairs = np.meshgrid(np.arange(0, num_poses, 3), np.arange(num_landmarks))
    seeing, seen = (grid.ravel() for grid in pairs)
    in_body = turns[seeing].inv().apply(landmarks[seen] - places[seeing])
    in_sensor = mount_turn.inv().apply(in_body - mount_place)
    sightings = in_sensor + random.normal(0.0, 0.05, in_sensor.shape)
    return {
        "Pose": _dead_reckoning(turns[0], places[0], steps),
        "Landmark": landmarks + random.normal(0.0, 0.5, landmarks.shape),
        "Mount": np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]),
        "odometry": {"motion": steps, "deviation": deviation},
        "loop_closure": {
            "start": closing_start,
            "end": closing_end,
            "motion": closings,
            "deviation": deviation,
        },
        "position_fix": {"pose": fixed, "position": fixes},
        "sighting": {"pose": seeing, "landmark": seen, "seen": sightings},
    }


def _measured_motion(
    turns: Rotation,
    places: Array,
    start: Array,
    end: Array,
    deviation: Array,
    random: np.random.Generator,
) -> Array:
    """(n, 7) noisy relative poses."""
    noise = random.normal(0.0, 1.0, (len(start), 6))
    turned = turns[start].inv() * turns[end]
    turned = turned * Rotation.from_rotvec(deviation[0] * noise[:, :3])
    moved = turns[start].inv().apply(places[end] - places[start]) + deviation[1] * noise[:, 3:]
    return np.concatenate([turned.as_quat(), moved], axis=1)


def _dead_reckoning(turn: Rotation, place: Array, steps: Array) -> Array:
    """(n + 1, 7) poses: the first one, and what n steps make of it."""
    poses = [np.concatenate([turn.as_quat(), place])]
    for step in steps:
        place = place + turn.apply(step[4:])
        turn = turn * Rotation.from_quat(step[:4])
        poses.append(np.concatenate([turn.as_quat(), place]))
    return np.array(poses)


def main(arrays: Mapping[str, Any] | None = None) -> caspar.SolveResult:
    """Solve and print the report."""
    solver = caspar.Solver(FACTORS)
    result = solver.solve(simulate() if arrays is None else arrays)
    print(result)
    print("\nsensor on the robot, qx qy qz qw x y z")
    print("  estimated", result.values["Mount"][0].round(3))
    print("  true     ", TRUE_MOUNT.round(3))
    return result


if __name__ == "__main__":
    main()
