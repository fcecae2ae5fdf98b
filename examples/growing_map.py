"""A map that grows while a truck drives: Victoria Park, or another planar graph, pose by pose.

Each pose of the truck is added to a `caspar.Problem` with the odometry that leads to it and the
trees that are seen from it, and an update moves everything that this tells something of. So the map
is known at any moment, and takes milliseconds for each pose. `--show` draws it in a window
meanwhile. Loop closures come with the later of their poses, as in `data/M3500.g2o.bz2`.

    python examples/growing_map.py [FILE] [--poses 6969] [--show] [--picture IMAGE.png]
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from matplotlib import pyplot as plt
from numpy.typing import NDArray

import caspar
from caspar.io import read_g2o, read_gtsam

Array = NDArray[Any]

DRIVE = Path(__file__).parents[1] / "data" / "victoria_park.txt.bz2"
EVERY = 100
"""Poses between two pictures."""


class Tree(sf.V2):
    """A landmark, in metres."""


ODOMETRY = caspar.factors.between(sf.Pose2, noise="sqrt_information", name="odometry")


@caspar.factor
def sighting(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    tree: Annotated[Tree, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstSequential],
    sqrt_information: Annotated[sf.Scalar, caspar.ConstSequential],
) -> sf.V2:
    """Where a tree is in the axes of the truck, less where it was seen."""
    return sqrt_information * (pose.inverse() * tree - measured)


def moved(pose: Array, motion: Array) -> Array:
    """(..., 4) a pose, cos, sin, x, y, and then a motion in its axes."""
    cos, sin, x, y = pose
    c, s, forward, left = motion
    return np.array(
        [
            cos * c - sin * s,
            sin * c + cos * s,
            x + cos * forward - sin * left,
            y + sin * forward + cos * left,
        ]
    )


@dataclass
class Map:
    """The map of a drive so far.

    Attributes:
        problem: The poses and trees.
        poses: Their ids, in order.
        trees: The id of each tree that has been seen, by its number in the file.
    """

    problem: caspar.Problem
    poses: Array
    trees: dict[int, int]

    def draw(self, title: str) -> None:
        """Draw the drive and the trees into the current figure."""
        places = self.problem.values_of("Pose2", self.poses)[:, 2:]
        plt.clf()
        plt.plot(*places.T, lw=0.8, color="tab:blue")
        if len(self.trees) > 0:
            plt.plot(*self.problem.values["Tree"].T, "^", ms=4, color="tab:green")
        plt.axis("equal")
        plt.title(title)


def begun(graph: caspar.io.PoseGraph) -> Map:
    """A map with the first pose, which stays where it is."""
    problem = caspar.Problem([ODOMETRY, sighting], backend="cpu", precision="float64")
    first = problem.add_nodes("Pose2", graph.poses[:1])
    problem.set_fixed("Pose2", first)
    return Map(problem, first, {})


def extend(made: Map, graph: caspar.io.PoseGraph, step: int) -> caspar.UpdateResult:
    """Add a pose with the motions and sightings that end there, and update."""
    problem, seen = made.problem, graph.sightings
    first, second = graph.index_a, graph.index_b
    motions = np.flatnonzero(np.maximum(first, second) == step)
    (from_last,) = motions[(first[motions] == step - 1) & (second[motions] == step)]
    (last,) = problem.values_of("Pose2", made.poses[-1:])
    here = moved(last, graph.measurement[from_last])
    made.poses = np.append(made.poses, problem.add_nodes("Pose2", here[None]))
    odometry = {
        "a": made.poses[first[motions]],
        "b": made.poses[second[motions]],
        "a_from_b": graph.measurement[motions],
        "sqrt_information": caspar.factors.rotation_first(graph.sqrt_information[motions]),
    }
    problem.add_factors("odometry", odometry)
    for number in np.flatnonzero(seen.pose == step):
        tree, offset = int(seen.landmark[number]), seen.measurement[number]
        if tree not in made.trees:
            place = moved(here, np.array([1.0, 0.0, *offset]))[2:]
            (made.trees[tree],) = problem.add_nodes("Tree", place[None])
        sight = {
            "pose": made.poses[-1:],
            "tree": np.array([made.trees[tree]]),
            "measured": offset[None],
            "sqrt_information": seen.sqrt_information[number, :1, 0],
        }
        problem.add_factors("sighting", sight)
    return problem.update(max_iterations=5, cost_tolerance=1e-4)


def grow(graph: caspar.io.PoseGraph, num_poses: int, *, show: bool) -> tuple[Map, Array]:
    """The map after some poses, and milliseconds for each of them."""
    made, spent_ms = begun(graph), []
    for step in range(1, num_poses):
        start = time.perf_counter()
        updated = extend(made, graph, step)
        spent_ms.append(1e3 * (time.perf_counter() - start))
        if show and step % EVERY == 0:
            made.draw(f"{step} poses, {len(made.trees)} trees, cost {updated.cost:.1f}")
            plt.pause(0.001)
    return made, np.array(spent_ms)


def main(arguments: Sequence[str] = ()) -> tuple[Map, caspar.SolveResult]:
    """Drive, print how long it took, and compare with a solve of everything from there."""
    parser = argparse.ArgumentParser(prog="python examples/growing_map.py")
    parser.add_argument("file", type=Path, nargs="?", default=DRIVE, help="g2o or GTSAM's text")
    parser.add_argument("--poses", type=int, default=2000)
    parser.add_argument("--show", action="store_true", help="draw the map while it grows")
    parser.add_argument("--picture", type=Path, help="where the map at the end is drawn")
    chosen = parser.parse_args(arguments)
    read = read_g2o if ".g2o" in chosen.file.name else read_gtsam
    graph = read(chosen.file)
    made, spent_ms = grow(graph, min(chosen.poses, graph.num_poses), show=chosen.show)
    last = made.problem.update()
    print(f"{len(made.poses)} poses and {len(made.trees)} trees, cost {last.cost:.3f}")
    later = spent_ms[20:]  # the first ones compile
    print(f"a pose took {later.mean():.1f} ms on average, {later.max():.0f} ms at most")
    if chosen.picture is not None:
        made.draw(f"{len(made.poses)} poses, {len(made.trees)} trees")
        plt.savefig(chosen.picture)
    result = made.problem.solve()
    print(result)
    return made, result


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
