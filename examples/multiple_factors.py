# %% [markdown]
# # Several kinds of measurement, and a problem that grows

# %% [markdown]
"""A robot's path from several kinds of measurement, solved again each time that it crosses it.

A robot with a sensor drives a figure of eight. It measures how it moves (odometry), now and then
where it is (position fixes), that it has been here before (loop closures), and where landmarks
are, as the sensor sees them. Nobody knows exactly how the sensor is mounted: that is estimated
too. One solver, four factors, three node types. What the robot measures is made by kernels, and the
residuals call the same kernels.

    python examples/multiple_factors.py --poses 8000 --landmarks 300 --laps 2
"""

# %%
import argparse
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

import caspar

Array = NDArray[Any]

# %% [markdown]
# ## Types
#
# Three of them are what the solver moves: its nodes are named by their type.


# %%
class Pose(sf.Pose3):
    """The robot at one time: takes body to world coordinates. In storage qx qy qz qw x y z."""


class Landmark(sf.V3):
    """A landmark in world coordinates."""


class Mount(sf.Pose3):
    """The sensor on the robot: takes sensor to body coordinates."""


class Motion(sf.Pose3):
    """A relative pose, measured."""


class Position(sf.V3):
    """A position, measured."""


class Deviation(sf.V2):
    """Standard deviations: radians, metres."""


# %% [markdown]
# ## What a robot measures, as kernels
#
# Called with arrays, these make the data of a drive. Called with symbols, in a residual or in
# another kernel, they are the functions as they are written here.


# %%
@caspar.kernel
def motion_between(
    start: Annotated[Pose, caspar.ReadIndexed],
    end: Annotated[Pose, caspar.ReadIndexed],
) -> Annotated[sf.Pose3, caspar.WriteSequential]:
    """The end as the start sees it."""
    return start.inverse() * end


@caspar.kernel
def motion_of_step(
    pose: Annotated[caspar.Pair[Pose], caspar.ReadPair],
) -> Annotated[sf.Pose3, caspar.WriteSequential]:
    """From each pose to the next: a pair needs no indices."""
    return motion_between(pose[0], pose[1])


@caspar.kernel
def position_of(
    pose: Annotated[Pose, caspar.ReadIndexed],
) -> Annotated[sf.V3, caspar.WriteSequential]:
    """What a satellite receiver says."""
    return pose.t


@caspar.kernel
def seen_from(
    pose: Annotated[Pose, caspar.ReadShared],
    landmark: Annotated[Landmark, caspar.ReadShared],
    mount: Annotated[Mount, caspar.ReadUnique],
) -> Annotated[sf.V3, caspar.WriteSequential]:
    """A landmark in sensor coordinates."""
    return mount.inverse() * (pose.inverse() * landmark)


# %% [markdown]
# ## Factors
#
# What was predicted minus what was measured, in standard deviations.


# %%
def motion_error(step: sf.Pose3, motion: Motion, deviation: Deviation) -> sf.V6:
    """How far a step is off what was measured."""
    turned = motion.R.local_coordinates(step.R)
    moved = step.t - motion.t
    return sf.V6(*[x / deviation[0] for x in turned], *[x / deviation[1] for x in moved])


@caspar.factor
def odometry(
    pose: Annotated[caspar.Pair[Pose], caspar.TunablePair],
    motion: Annotated[Motion, caspar.ConstSequential],
    deviation: Annotated[Deviation, caspar.ConstUnique],
) -> sf.V6:
    """From each pose to the next."""
    return motion_error(motion_of_step(pose), motion, deviation)


@caspar.factor
def loop_closure(
    start: Annotated[Pose, caspar.TunableShared],
    end: Annotated[Pose, caspar.TunableShared],
    motion: Annotated[Motion, caspar.ConstSequential],
    deviation: Annotated[Deviation, caspar.ConstUnique],
) -> sf.V6:
    """Between any two poses: both are named by an index."""
    return motion_error(motion_between(start, end), motion, deviation)


@caspar.factor
def position_fix(
    pose: Annotated[Pose, caspar.TunableShared],
    position: Annotated[Position, caspar.ConstSequential],
) -> sf.V3:
    """A satellite fix, good to ten centimetres."""
    return (position_of(pose) - position) / 0.1


@caspar.factor
def sighting(
    pose: Annotated[Pose, caspar.TunableShared],
    landmark: Annotated[Landmark, caspar.TunableShared],
    mount: Annotated[Mount, caspar.TunableUnique],
    seen: Annotated[Position, caspar.ConstSequential],
) -> sf.V3:
    """A landmark in sensor coordinates, good to five centimetres. All share one mount."""
    return (seen_from(pose, landmark, mount) - seen) / 0.05


FACTORS = (odometry, loop_closure, position_fix, sighting)

# %% [markdown]
# ## A simulated drive
#
# One more kernel puts the robot on its figure of eight, and one disturbs what it measures.

# %%
TRUE_MOUNT = np.array([0.1, -0.1, 0.1, np.sqrt(0.97), 0.4, -0.1, 0.8])
DEVIATION = np.array([0.002, 0.02])
LANDMARKS_IN_VIEW = 10


@caspar.kernel
def pose_on_eight(
    angle: Annotated[sf.Symbol, caspar.ReadSequential],
    radius: Annotated[sf.Symbol, caspar.ReadUnique],
) -> Annotated[Pose, caspar.WriteSequential]:
    """Ahead on a figure of eight, rolling and pitching."""
    heading = sf.atan2(sf.cos(2 * angle), sf.cos(angle))
    pitch, roll = 0.3 * sf.sin(3 * angle), 0.3 * sf.cos(2 * angle)
    place = radius * sf.V3(sf.sin(angle), sf.sin(2 * angle) / 2, sf.sin(angle) / 10)
    return Pose(sf.Rot3.from_yaw_pitch_roll(heading, pitch, roll), place)


@caspar.kernel
def disturbed(
    motion: Annotated[Motion, caspar.ReadSequential],
    noise: Annotated[sf.V6, caspar.ReadSequential],
    deviation: Annotated[Deviation, caspar.ReadUnique],
) -> Annotated[Motion, caspar.WriteSequential]:
    """A motion with noise: rotation, then translation, in standard deviations."""
    turn = sf.Rot3.from_tangent([deviation[0] * x for x in noise[:3]])
    return Motion(motion.R * turn, motion.t + deviation[1] * sf.V3(*noise[3:]))


def crossings(lap: int, num_laps: int) -> tuple[Array, Array]:
    """Pairs of poses in one place: the start of a lap, half of it, and its end."""
    pairs = np.array([[0, lap // 2 - 1], [0, lap - 1], [lap // 2 - 1, lap - 1]])
    first, second = np.add.outer(lap * np.arange(num_laps), pairs).reshape(-1, 2).T
    return first, second


def views(num_poses: int, num_landmarks: int, lap: int) -> tuple[Array, Array]:
    """Poses and the landmarks they see: every third pose those ahead, which are numbered so.

    Raises:
        ValueError: There are more landmarks than can be seen.
    """
    if 3 * num_landmarks > LANDMARKS_IN_VIEW * lap:
        raise ValueError(f"{num_landmarks} landmarks: {lap} poses a lap would not see all of them")
    pose = np.arange(0, num_poses, 3)
    ahead = np.arange(min(LANDMARKS_IN_VIEW, num_landmarks))
    seen = np.add.outer(pose * num_landmarks // lap, ahead).ravel() % num_landmarks
    return pose.repeat(len(ahead)), seen


def measure(
    num_poses: int, num_landmarks: int, num_laps: int = 1, seed: int = 0
) -> dict[str, dict[str, Array]]:
    """What the robot measures: the arrays of all factors, in the order of the drive.

    Args:
        num_poses: Poses on all laps, about a metre apart.
        num_landmarks: Landmarks along a lap; from every third pose the next ones are seen.
        num_laps: How often the robot drives the eight.
        seed: Of the noise.
    """
    random = np.random.default_rng(seed)
    lap = num_poses // num_laps
    radius = np.array([lap / 6.0])
    poses = pose_on_eight(2.0 * np.pi * np.arange(num_poses) / lap, radius)
    along = pose_on_eight(2.0 * np.pi * np.arange(num_landmarks) / num_landmarks, radius)
    landmarks = position_of({"values": along, "index": np.arange(num_landmarks)})
    landmarks += random.uniform([-9.0, -9.0, -3.0], [9.0, 9.0, 3.0], landmarks.shape)

    steps = motion_of_step(poses)
    closing, closed = crossings(lap, num_laps)
    closings = motion_between(
        start={"values": poses, "index": closing}, end={"values": poses, "index": closed}
    )
    fixed = np.arange(0, num_poses, 5)
    fixes = position_of({"values": poses, "index": fixed})
    seeing, seen = views(num_poses, num_landmarks, lap)
    sightings = seen_from(
        pose={"values": poses, "index": seeing},
        landmark={"values": landmarks, "index": seen},
        mount=TRUE_MOUNT,
    )
    return {
        "odometry": {
            "motion": disturbed(steps, random.normal(size=(len(steps), 6)), DEVIATION),
            "deviation": DEVIATION,
        },
        "loop_closure": {
            "start": closing,
            "end": closed,
            "motion": disturbed(closings, random.normal(size=(len(closings), 6)), DEVIATION),
            "deviation": DEVIATION,
        },
        "position_fix": {
            "pose": fixed,
            "position": fixes + random.normal(0.0, 0.1, fixes.shape),
        },
        "sighting": {
            "pose": seeing,
            "landmark": seen,
            "seen": sightings + random.normal(0.0, 0.05, sightings.shape),
        },
    }


# %% tags=["active-ipynb"]
# short = measure(num_poses=100, num_landmarks=25)
# {name: {key: array.shape for key, array in arrays.items()} for name, arrays in short.items()}

# %% [markdown]
# ## Where to start
#
# A new pose starts where odometry leads from the last one that is known. Chained motions are a
# product of poses, and all partial products of n poses take log2(n) calls of a kernel that
# multiplies pairs of them: after the k-th call every entry holds the product of up to 2^k.
# A new landmark starts where it was first seen.


# %%
@caspar.kernel
def product(
    first: Annotated[sf.Pose3, caspar.ReadSequential],
    second: Annotated[sf.Pose3, caspar.ReadSequential],
) -> Annotated[sf.Pose3, caspar.WriteSequential]:
    """One pose after the other."""
    return first * second


@caspar.kernel
def landmark_where_seen(
    pose: Annotated[Pose, caspar.ReadIndexed],
    mount: Annotated[Mount, caspar.ReadUnique],
    seen: Annotated[Position, caspar.ReadIndexed],
) -> Annotated[sf.V3, caspar.WriteSequential]:
    """The inverse of `seen_from`."""
    return pose * (mount * seen)


def chained(poses: Array) -> Array:
    """(n, 7) of motions, after a first pose, the poses that they lead to."""
    chain, stride = poses.copy(), 1
    while stride < len(chain):
        chain[stride:] = product(chain[:-stride], chain[stride:])
        stride *= 2
    return chain


def continued(
    measured: Mapping[str, Mapping[str, Array]], values: Mapping[str, Array]
) -> dict[str, Array]:
    """Start values of all nodes that measurements name.

    Args:
        measured: What `measure` returns, or the part of it that is known.
        values: The nodes that are known already, at least the first pose.
    """
    mount = values.get("Mount", np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]))
    poses, landmarks = values["Pose"], values.get("Landmark", np.empty((0, 3)))
    steps = measured["odometry"]["motion"][len(poses) - 1 :]
    poses = np.concatenate([poses[:-1], chained(np.concatenate([poses[-1:], steps]))])
    sightings = measured["sighting"]
    _, first = np.unique(sightings["landmark"], return_index=True)
    new = first[len(landmarks) :]
    where_seen = landmark_where_seen(
        pose={"values": poses, "index": sightings["pose"][new]},
        mount=mount,
        seen={"values": sightings["seen"], "index": new},
    )
    return {"Pose": poses, "Landmark": np.concatenate([landmarks, where_seen]), "Mount": mount}


def simulate(
    num_poses: int = 60, num_landmarks: int = 25, num_laps: int = 1, seed: int = 0
) -> dict[str, Any]:
    """A whole drive and where to start: what `caspar.Solver.solve` takes. See `measure`."""
    measured = measure(num_poses, num_landmarks, num_laps, seed)
    return {**continued(measured, {"Pose": first_pose()}), **measured}


def first_pose() -> Array:
    """(1, 7): the robot knows where it starts."""
    pose: Array = pose_on_eight(np.zeros(1), np.ones(1))
    return pose


# %% [markdown]
# ## A problem that grows
#
# At every crossing of its path the robot solves what it knows, from where the last solve ended:
# twice a lap. The solver is the same: its kernels are compiled once, for any number of nodes and
# factors.


# %%
def known_by(
    drive: Mapping[str, Mapping[str, Array]], num_poses: int
) -> dict[str, dict[str, Array]]:
    """The measurements that name the first poses only."""
    known = {}
    for name, arrays in drive.items():
        indices = [arrays[key] for key in ("pose", "start", "end") if key in arrays]
        if len(indices) == 0:  # a pair: number i from pose i to the next
            indices = [np.arange(1, len(arrays["motion"]) + 1)]
        is_known = np.max(indices, axis=0) < num_poses
        known[name] = {
            key: array if key == "deviation" else array[is_known] for key, array in arrays.items()
        }
    return known


def sizes(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Of the drive: from a shell, or 8000 poses and 300 landmarks."""
    parser = argparse.ArgumentParser(description="A robot's path, solved while it drives.")
    parser.add_argument("--poses", type=int, default=8000, help="on all laps")
    parser.add_argument("--landmarks", type=int, default=300, help="along a lap")
    parser.add_argument("--laps", type=int, default=2, help="of the same figure of eight")
    return parser.parse_args(arguments)


def drive_and_solve(
    drive: Mapping[str, Mapping[str, Array]], num_laps: int
) -> list[caspar.SolveResult]:
    """Solve after every half lap of a drive; print a line for each."""
    solver = caspar.Solver(FACTORS)
    num_poses = len(drive["odometry"]["motion"]) + 1
    values: Mapping[str, Array] = {"Pose": first_pose()}
    results = []
    print("  poses  landmarks  factors  iterations                    cost      time")
    for known_poses in np.linspace(0, num_poses, 2 * num_laps + 1).astype(int)[1:]:
        measured = known_by(drive, known_poses)
        result = solver.solve({**continued(measured, values), **measured})
        nodes, factors = result.problem.nodes, sum(result.problem.factors.values())
        costs = f"{result.initial_cost:.3g} -> {result.final_cost:.5g}"
        print(
            f"{nodes['Pose']:7,} {nodes['Landmark']:10,} {factors:8,} "
            f"{len(result.iterations):11} {costs:>23} {result.solve_time_s:7.2f} s"
        )
        values = result.values
        results.append(result)
    return results


def show_mount(result: caspar.SolveResult) -> None:
    """Print how the sensor is mounted, as it was found and as it is."""
    print("\nsensor on the robot, qx qy qz qw x y z")
    print("  estimated", result.values["Mount"][0].round(3))
    print("  true     ", TRUE_MOUNT.round(3))


# %% tags=["active-ipynb"]
# given = sizes(["--poses", "2000", "--landmarks", "100"])  # all of it takes some seconds more
# drive = measure(given.poses, given.landmarks, given.laps)
# results = drive_and_solve(drive, given.laps)


# %%
def draw(results: Sequence[caspar.SolveResult], drive: Mapping[str, Mapping[str, Array]]) -> Figure:
    """The map after each solve: path, landmarks, and the loops that hold it together."""
    figure, axes = plt.subplots(
        *(2, len(results) // 2), figsize=(10.0, 5.2), layout="constrained", sharex=True, sharey=True
    )
    alone = chained(np.concatenate([first_pose(), drive["odometry"]["motion"]]))
    for axis, result in zip(axes.flat, results, strict=True):
        poses, landmarks = result.values["Pose"], result.values["Landmark"]
        axis.plot(*alone[: len(poses), 4:6].T, color="0.8", lw=1.0, label="odometry alone")
        axis.plot(*poses[:, 4:6].T, color="C0", lw=1.2, label="path")
        axis.plot(*landmarks[:, :2].T, ".", color="#1a7f37", ms=3, label="landmark")
        axis.set_title(f"{len(poses):,} poses", fontsize="medium")
        axis.set_aspect("equal")
        axis.set_axis_off()
    axes[0, 0].legend(loc="lower left", fontsize="small", frameon=False)
    return figure


# %% tags=["active-ipynb"]
# draw(results, drive);

# %% tags=["active-ipynb"]
# show_mount(results[-1])
# results[-1]


# %% tags=["active-py"]
def main(arguments: Sequence[str] | None = None) -> caspar.SolveResult:
    """Drive, solve, print; the last result."""
    given = sizes(arguments)
    drive = measure(given.poses, given.landmarks, given.laps)
    result = drive_and_solve(drive, given.laps)[-1]
    print(f"\n{result}")
    show_mount(result)
    return result


if __name__ == "__main__":
    main()
