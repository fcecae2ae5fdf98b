"""The optima of the pose graphs are found again by exact steps in float64."""

import numpy as np
import pytest

from benchmarks.pose_graphs import DATA, OPTIMA, GraphProblem, read, torus


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


def test_a_torus_is_closed_and_near_its_optimum() -> None:
    problem = torus(12, 10)
    graph = problem.graph
    assert len(graph.poses) == 120
    np.testing.assert_allclose(np.linalg.norm(graph.poses[:, :4], axis=1), 1.0)
    # the odometry of a chain, and about four of five closures
    assert 119 + 80 < problem.num_observations < 119 + 110
    closures = (graph.index_b - graph.index_a)[119:] % 120
    assert closures.min() >= 7
    assert closures.max() <= 13
    # six residuals an edge, whose weights are the inverse of their deviation; six unknowns a pose
    expected = 0.5 * 6 * (problem.num_observations - 119)
    optimum = problem.optimum_near(graph.poses)
    assert optimum == pytest.approx(expected, rel=0.2)
    assert start_cost(problem) > 5.0 * optimum
