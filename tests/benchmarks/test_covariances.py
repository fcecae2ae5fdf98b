"""The benchmark of covariances: graphs without errors, and digits of agreement."""

from types import ModuleType

import numpy as np
import pytest
from numpy.testing import assert_allclose

import caspar
from benchmarks import covariances
from examples import pose_graph, pose_graph_3d


def test_digits() -> None:
    assert covariances.digits([1.0, 2.0 + 2e-6], [1.0, 2.0]) == pytest.approx(6.0, abs=1e-3)


@pytest.mark.parametrize("example", [pose_graph, pose_graph_3d])
def test_graphs_without_errors(example: ModuleType) -> None:
    """The measurements that take their place are those of the poses, for caspar and for GTSAM."""
    arrays = example.read()
    name, edges = covariances._without_errors(arrays)
    solver = caspar.Solver(example.FACTORS, backend="cpu", precision="float64")
    result = solver.solve(arrays, max_iterations=1)
    assert result.initial_cost < 1e-15 * len(edges["index_a"])
    # rotations first in space, last in the plane, as GTSAM has them
    assert edges["measured"].shape[1] == {"Pose2": 3, "Pose": 7}[name]
    dim = edges["information"].shape[1]
    assert_allclose(edges["information"], edges["information"].transpose(0, 2, 1))
    assert np.linalg.eigvalsh(edges["information"]).min() > 0.0
    assert dim == {"Pose2": 3, "Pose": 6}[name]
