"""A pose graph in the plane: M3500, a simulated city, from its g2o file.

Every edge measures the motion between two poses, weighted by the square root of its information.
A prior holds the first pose, as edges alone leave the whole graph free to move. Such graphs need
exact steps, as loose ones lead into worse minima: the linear systems are factorised.
"""

from pathlib import Path
from typing import Annotated, Any

import symforce.symbolic as sf

import caspar
from caspar.io import read_g2o

GRAPH = Path(__file__).parents[1] / "data" / "M3500.g2o.bz2"


@caspar.factor
def edge(
    a: Annotated[sf.Pose2, caspar.TunableShared],
    b: Annotated[sf.Pose2, caspar.TunableShared],
    measured: Annotated[sf.Pose2, caspar.ConstSequential],
    sqrt_information: Annotated[sf.M33, caspar.ConstSequential],
) -> sf.V3:
    """The motion from a to b against the measured one: translation, then angle, as in g2o."""
    error = measured.inverse() * a.inverse() * b
    return sqrt_information * sf.V3(error.t[0], error.t[1], error.R.to_tangent()[0])


@caspar.factor
def prior(
    pose: Annotated[sf.Pose2, caspar.TunableShared],
    expected: Annotated[sf.Pose2, caspar.ConstSequential],
) -> sf.V3:
    """Hold a pose where it is."""
    return 1000.0 * sf.V3(*expected.local_coordinates(pose))


FACTORS = (edge, prior)


def read(path: Path = GRAPH) -> dict[str, Any]:
    """What `caspar.Solver.solve` takes, from a g2o file."""
    graph = read_g2o(path)
    return {
        "Pose2": graph.poses,
        "edge": {
            "a": graph.index_a,
            "b": graph.index_b,
            "measured": graph.measurement,
            "sqrt_information": graph.sqrt_information,
        },
        "prior": {"pose": [0], "expected": graph.poses[:1]},
    }


def main() -> caspar.SolveResult:
    """Solve the graph and print a report."""
    result = caspar.Solver(FACTORS).solve(read())
    print(result)
    print(f"\nchi2 {2.0 * result.initial_cost:,.1f} -> {2.0 * result.final_cost:.4f}")
    return result


if __name__ == "__main__":
    main()
