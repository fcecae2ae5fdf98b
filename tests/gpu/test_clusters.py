"""Vectors' kernels between launches as thread block clusters."""

import importlib
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.codegen.cuda.loop.fuse import CLUSTER_BLOCKS
from caspar.runtime.cuda.loop import repeat
from caspar.runtime.cuda.loop.loops import LOOP_NAME
from tests.gpu.loop_cases import keeps_products_apart, repeating_backend
from tests.solver.bundles import arrays_of, copies_of, read
from tests.support_loops import conjugate

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("caspar.runtime.cuda.backend")
cuda_loop = pytest.importorskip("caspar.runtime.cuda.loop.loop")

MANY_RUNS = 10_000
SIZES = 900_000, 300, 100
"""A large product, vectors of a few blocks."""


@pytest.fixture
def backend() -> Any:
    return repeating_backend()


def has_clusters() -> bool:
    device = cupy.cuda.Device()
    is_large = int(device.attributes["MultiProcessorCount"]) >= int(cuda_loop.ROOM_FOR_A_CLUSTER)
    return is_large and int(device.compute_capability) >= int(cuda_loop.FIRST_WITH_CLUSTERS)


def test_a_cluster_does_what_a_grid_does(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    if not has_clusters():
        pytest.skip("a device without clusters")
    states = []
    with backend.scope():
        for first in (cuda_loop.FIRST_WITH_CLUSTERS, 1000):
            monkeypatch.setattr(cuda_loop, "FIRST_WITH_CLUSTERS", first)
            problem = conjugate(backend, *SIZES)
            loop = problem.loop(backend, fused=False)
            (vectors,) = (one for one in loop.launches if one.bound.source.name == LOOP_NAME)
            assert vectors.call[1] > 1
            assert vectors.is_cooperative == (first == 1000)
            loop.run(MANY_RUNS)
            states.append(problem.state(backend))
            np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name], name)


def test_a_cluster_begins_early(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Cameras of six problems take several blocks."""
    graph_while = importlib.import_module(repeat.GRAPH_MODULE)
    begun: list[tuple[str, int, bool]] = []
    usual = graph_while.launch_early

    def launch_early(launch: Any) -> None:
        begun.append((launch.bound.source.name, launch.call[1], launch.is_cooperative))
        usual(launch)

    keeps_products_apart(monkeypatch)
    monkeypatch.setattr(graph_while, "launch_early", launch_early)
    problem = read("problem-49-7776")
    costs = []
    for number in (1, 6):
        begun.clear()
        solver = caspar.Solver([snavely], backend="cuda", linear_solver="schur_pcg")
        result = solver.solve(arrays_of(copies_of(problem, number)))
        assert not any("the one ahead" in text for text in result.remarks)
        costs.append(result.final_cost)
    vectors = {(grid, is_cooperative) for name, grid, is_cooperative in begun if name == LOOP_NAME}
    ((grid, is_cooperative),) = vectors
    assert 1 < grid <= CLUSTER_BLOCKS
    assert is_cooperative != has_clusters()
    assert costs[1] == pytest.approx(6 * costs[0], rel=1e-3)
