"""The independent solver of pose graphs is right itself."""

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.typing import NDArray

from caspar.io import PoseGraph, PoseGraphKind, read_g2o
from tests.solver.pose_graphs import (
    DATA,
    KNOWN_OPTIMA,
    RotationError,
    minimize,
    residuals,
    retract,
    tangent_jacobians,
)

in_data = pytest.mark.parametrize(
    ("name", "error"),
    [(name, error) for name, error in KNOWN_OPTIMA if (DATA / f"{name}.g2o.bz2").exists()],
)


def graph_away_from_its_start(name: str) -> tuple[PoseGraph, NDArray[np.float64]]:
    graph = read_g2o(DATA / f"{name}.g2o.bz2")
    step = np.random.default_rng(0).standard_normal(graph.num_poses * graph.kind.tangent_dim)
    return graph, retract(graph.kind, graph.poses, 0.3 * step)


@in_data
def test_residuals_are_those_of_symforce(name: str, error: RotationError) -> None:
    graph, poses = graph_away_from_its_start(name)
    found = residuals(graph, poses, error)
    pose = sf.Pose2 if graph.kind is PoseGraphKind.SE2 else sf.Pose3
    for edge in range(0, graph.num_edges, graph.num_edges // 20):
        a, b, measured = (
            pose.from_storage(list(row))
            for row in (
                poses[graph.index_a[edge]],
                poses[graph.index_b[edge]],
                graph.measurement[edge],
            )
        )
        delta = measured.inverse() * a.inverse() * b
        if graph.kind is PoseGraphKind.SE2:
            rotation = delta.R.to_tangent()
        elif error is RotationError.ROTATION_VECTOR:
            rotation = [0.5 * part for part in delta.R.to_tangent(epsilon=1e-12)]
        else:
            x, y, z, w = delta.R.to_storage()
            rotation = [part if w >= 0 else -part for part in (x, y, z)]
        unweighted = np.array([*delta.t.to_storage(), *rotation], dtype=float)
        whitened = graph.sqrt_information[edge] @ unweighted
        np.testing.assert_allclose(found[edge], whitened, atol=1e-8)


@in_data
def test_jacobians_are_the_derivatives(name: str, error: RotationError) -> None:
    graph, poses = graph_away_from_its_start(name)
    dim, length = graph.kind.tangent_dim, 1e-6
    step = np.random.default_rng(1).standard_normal((graph.num_poses, dim))
    by_a, by_b = tangent_jacobians(graph, poses, error)
    derivative = np.einsum("nij,nj->ni", by_a, step[graph.index_a])
    derivative += np.einsum("nij,nj->ni", by_b, step[graph.index_b])
    forward, back = (
        residuals(graph, retract(graph.kind, poses, sign * length * step.reshape(-1)), error)
        for sign in (1.0, -1.0)
    )
    difference = (forward - back) / (2.0 * length)
    np.testing.assert_allclose(derivative, difference, atol=1e-8 * np.abs(derivative).max())


@in_data
def test_finds_the_known_optimum(name: str, error: RotationError) -> None:
    found = minimize(read_g2o(DATA / f"{name}.g2o.bz2"), error)
    known = KNOWN_OPTIMA[name, error]
    np.testing.assert_allclose(found.initial_cost, known.initial_cost, rtol=1e-10)
    np.testing.assert_allclose(found.cost, known.cost, rtol=1e-10)
    assert found.gradient_norm < 1e-5
