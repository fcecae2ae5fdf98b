"""A pose graph in space: smallGrid3D, a simulated walk through a grid, from its g2o file.

Every edge measures the motion between two poses, weighted by the square root of its information.
A prior holds the first pose, as edges alone leave the whole graph free to move. The start is found
from the edges: the file's own is a hundred times as far away.

    python examples/pose_graph_3d.py
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar
from caspar.io import read_g2o

GRAPH = Path(__file__).parents[1] / "data" / "smallGrid3D.g2o.bz2"


class Pose(sf.Pose3):
    """Takes body to world coordinates. In storage qx qy qz qw x y z."""


class Motion(sf.Pose3):
    """A measured relative pose."""


@caspar.factor
def odometry(
    start: Annotated[Pose, caspar.TunableShared],
    end: Annotated[Pose, caspar.TunableShared],
    motion: Annotated[Motion, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M66, caspar.ConstSequential],
) -> sf.V6:
    """The motion from start to end against the measured one: translation, then rotation vector."""
    error = motion.inverse() * start.inverse() * end
    return sqrt_information * sf.V6(*error.t, *error.R.to_tangent())


@caspar.factor
def prior(
    pose: Annotated[Pose, caspar.TunableShared],
    expected: Annotated[Pose, caspar.ConstSequential],
) -> sf.V6:
    """Hold a pose where it is."""
    return 1000.0 * sf.V6(*expected.local_coordinates(pose))


FACTORS = (odometry, prior)


def read(path: Path = GRAPH) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes, from a g2o file."""
    graph = read_g2o(path)
    # g2o's error is the vector part of a quaternion: half the rotation vector
    halves = np.array([1.0, 1.0, 1.0, 0.5, 0.5, 0.5])
    return {
        "Pose": graph.poses,
        "odometry": {
            "start": graph.index_a,
            "end": graph.index_b,
            "motion": graph.measurement,
            "sqrt_information": graph.sqrt_information * halves,
        },
        "prior": {"pose": [0], "expected": graph.poses[:1]},
    }


def main() -> caspar.SolveResult:
    """Solve the graph and print a report."""
    arrays = {**read(), "Pose": caspar.initialize.chordal(read_g2o(GRAPH))}
    result = caspar.Solver(FACTORS).solve(arrays)
    print(result)
    print(f"\nchi2 {2.0 * result.initial_cost:,.1f} -> {2.0 * result.final_cost:.2f}")
    return result


if __name__ == "__main__":
    main()
