# %% [markdown]
# # A truck among trees: Victoria Park

# %% [markdown]
"""SLAM with landmarks, real data: a truck with a laser scanner drives through a park.

Odometry links 6,969 poses, and 3,640 sightings of 151 trees, by direction and distance, say where
the truck has been before. Odometry alone is off by hundreds of metres at the end, and a solve of
the whole drive from there ends in a bad minimum. So the drive is solved as it grows, in twenty
pieces, each from where the last one ended, and the optimum is compared with GTSAM's.

E. Nebot, University of Sydney; the file is from GTSAM's examples.

    python examples/victoria_park.py --plot out/victoria_park.png
"""

# %% tags=["active-py"]
import argparse

# %%
import bz2
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from numpy.typing import NDArray

import caspar

Array = NDArray[np.float64]
Index = NDArray[np.int64]

DATA = Path(caspar.__file__).parents[1] / "data" / "victoria_park.txt.bz2"

GTSAM_COST = 2339.21954
"""Half of chi2 at GTSAM 4.3.0's optimum, started from caspar's. It measures the error of a motion
by the logarithm of SE(2). From odometry alone it ends at 105,099."""


# %%
class Tree(sf.V2):
    """The place of a tree, metres."""


@dataclass(frozen=True)
class Drive:
    """What was measured.

    Attributes:
        motion: (n - 1, 3) from each pose to the next: x ahead, y to the left, angle.
        motion_sigma: (3,) standard deviations in the same order.
        pose: (m,) pose at which a tree was seen.
        tree: (m,) which tree.
        seen: (m, 2) where: x ahead, y to the left.
        seen_sigma: Standard deviation of a distance; of a direction it is less by the root of 10.
    """

    motion: Array
    motion_sigma: Array
    pose: Index
    tree: Index
    seen: Array
    seen_sigma: float


def read(path: Path = DATA) -> Drive:
    """The lines of GTSAM's text form: ODOMETRY and LANDMARK, with covariances."""
    lines = [line.split() for line in bz2.decompress(path.read_bytes()).decode().splitlines()]
    odometry = np.array([line[1:] for line in lines if line[0] == "ODOMETRY"], float)
    sightings = np.array([line[1:] for line in lines if line[0] == "LANDMARK"], float)
    ids = np.append(odometry[0, 0], odometry[:, 1])  # each line links a pose and the next
    pose = np.searchsorted(ids, sightings[:, 0])
    # trees in the order in which they were first seen
    _, first, tree = np.unique(sightings[:, 1], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return Drive(
        odometry[:, 2:5],
        np.sqrt(odometry[0, [5, 8, 10]]),
        pose,
        order[tree],
        sightings[:, 2:4],
        float(np.sqrt(sightings[0, 4])),
    )


# %% [markdown]
# ## Factors

# %%
FACTORS = (
    caspar.factors.prior(sf.Pose2),
    caspar.factors.between(sf.Pose2, name="odometry"),
    caspar.factors.bearing_range(sf.Pose2, Tree, name="sighting"),
)


def as_pose(motion: Array) -> Array:
    """(n, 4) poses as caspar stores them, from (n, 3) x, y, angle."""
    angle = motion[:, 2]
    return np.column_stack([np.cos(angle), np.sin(angle), motion[:, :2]])


def compose(pose: Array, motion: Array) -> Array:
    """(4,) pose after a motion."""
    turn = np.array([[pose[0], -pose[1]], [pose[1], pose[0]]])
    return np.concatenate([turn @ motion[:2], pose[2:] + turn @ motion[2:]])


def arrays(drive: Drive, num_poses: int, poses: Array, trees: Array) -> dict[str, Any]:
    """The first part of the drive, from what is known of it.

    Args:
        drive: The whole.
        num_poses: How many poses take part.
        poses: (k, 4) those that were solved for before; the others follow by odometry.
        trees: (j, 2) likewise; the others are where they were first seen from.
    """
    motion = as_pose(drive.motion)
    known = list(poses)
    while len(known) < num_poses:
        known.append(compose(known[-1], motion[len(known) - 1]))
    start = np.arange(num_poses - 1)
    use = drive.pose < num_poses
    pose, tree, seen = drive.pose[use], drive.tree[use], drive.seen[use]
    found = list(trees)
    for number in range(len(trees), tree.max() + 1):
        first = int(np.argmax(tree == number))
        found.append(compose(known[pose[first]], np.array([1.0, 0.0, *seen[first]]))[2:])
    x, y, angle = drive.motion_sigma
    return {
        "Pose2": np.stack(known),
        "Tree": np.stack(found),
        "prior": {"value": [0], "expected": [[1.0, 0.0, 0.0, 0.0]], "sigma": [1e-3] * 3},
        "odometry": {
            **{"a": start, "b": start + 1, "a_from_b": motion[: num_poses - 1]},
            "sigma": [angle, x, y],
        },
        "sighting": {
            **{"pose": pose, "point": tree},
            "angle": np.arctan2(seen[:, 1], seen[:, 0])[:, None],
            "distance": np.linalg.norm(seen, axis=1)[:, None],
            "sigma": [drive.seen_sigma / np.sqrt(10.0), drive.seen_sigma],
        },
    }


# %%
def solve(drive: Drive, num_pieces: int = 20) -> list[caspar.SolveResult]:
    """Solve the drive as it grows; the last result is that of all of it."""
    solver = caspar.Solver(FACTORS, precision="float64")
    ends = np.linspace(0, len(drive.motion) + 1, num_pieces + 1).astype(int)[1:]
    results: list[caspar.SolveResult] = []
    poses, trees = np.array([[1.0, 0.0, 0.0, 0.0]]), np.zeros((0, 2))
    for end in ends:
        given = arrays(drive, end, poses, trees)
        results.append(solver.solve(given, max_iterations=200, verbose=False))
        poses, trees = (results[-1].values[name] for name in ("Pose2", "Tree"))
    return results


def draw(drive: Drive, result: caspar.SolveResult) -> Figure:
    """The path by odometry alone, and the path and the trees that were found."""
    start = np.array([[1.0, 0.0, 0.0, 0.0]])
    alone = arrays(drive, len(drive.motion) + 1, start, np.zeros((0, 2)))
    figure, axis = plt.subplots(figsize=(7.0, 6.0), layout="constrained")
    axis.plot(*alone["Pose2"][:, 2:].T, lw=0.7, color="0.7", label="odometry alone")
    axis.plot(*result.values["Pose2"][:, 2:].T, lw=0.7, label="path")
    axis.plot(*result.values["Tree"].T, ".", color="C2", label="trees")
    axis.set(aspect="equal", xlabel="m", ylabel="m")
    axis.legend()
    return figure


# %% tags=["active-ipynb"]
# drive = read()
# results = solve(drive)
# print(results[-1])

# %% tags=["active-ipynb"]
# draw(drive, results[-1]);


# %% tags=["active-py"]
def main(arguments: list[str] | None = None) -> caspar.SolveResult:
    """Solve, print the report, and draw where that is wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", type=Path, help="file for the picture")
    options = parser.parse_args(arguments)
    drive = read()
    results = solve(drive)
    print(results[-1])
    print(f"\nhalf of chi2: {results[-1].final_cost:.4f}, by GTSAM {GTSAM_COST:.4f}")
    if options.plot is not None:
        draw(drive, results[-1]).savefig(options.plot)
    return results[-1]


if __name__ == "__main__":
    main()
