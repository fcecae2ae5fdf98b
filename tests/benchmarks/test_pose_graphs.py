"""The optima of the pose graphs are found again by exact steps in float64."""

import numpy as np
import pytest

from benchmarks.pose_graphs import DATA, OPTIMA, GraphProblem, read


def start_cost(problem: GraphProblem) -> float:
    poses = problem.graph.poses
    return problem.cost_of({"Pose": poses, "PlanarPose": poses}, np)


def test_costs_of_the_start() -> None:
    assert start_cost(read("M3500", [DATA])) == pytest.approx(1.28333e6, rel=1e-5)
    assert start_cost(read("smallGrid3D", [DATA])) == pytest.approx(58323.8, rel=1e-5)


@pytest.mark.parametrize("name", ["smallGrid3D", "M3500"])
def test_optimum_is_found_again(name: str) -> None:
    problem = read(name, [DATA])
    assert problem.optimum_near(problem.graph.poses) == pytest.approx(OPTIMA[name], rel=1e-9)


def test_absent_file_names_the_folders() -> None:
    with pytest.raises(FileNotFoundError, match="kitti"):
        read("kitti", [DATA])
