"""Vectors' kernels between launches as clusters, whose blocks send each other partials."""

import importlib
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.codegen.cuda.loop.barriers import CLUSTER_BLOCKS
from caspar.runtime.cuda.loop import loops, repeat
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


def exchanges(launch: Any) -> bool:
    """Whether its blocks send each other partials."""
    return "Exchange exchange;" in launch.bound.source.text


def test_a_cluster_does_what_a_grid_does(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    if not has_clusters():
        pytest.skip("a device without clusters")
    states = []
    with backend.scope():
        for first in (cuda_loop.FIRST_WITH_CLUSTERS, 1000):
            monkeypatch.setattr(cuda_loop, "FIRST_WITH_CLUSTERS", first)
            problem = conjugate(backend, *SIZES)
            loop = problem.loop(backend, shared=True, fused=False)
            (vectors,) = (one for one in loop.launches if one.bound.source.name == LOOP_NAME)
            assert vectors.loop.grid > 1
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
    exchanging: list[bool] = []
    usual = graph_while.launch_early

    def launch_early(launch: Any) -> None:
        begun.append((launch.bound.source.name, launch.call[1], launch.is_cooperative))
        exchanging.append(exchanges(launch))
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
    assert any(exchanging) == has_clusters()
    assert costs[1] == pytest.approx(6 * costs[0], rel=1e-3)


def keeps_sums_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over partials are launches too: their blocks share work that no exchange stands for."""
    keeps_products_apart(monkeypatch)
    fits = cuda_loop._is_resident

    def is_small(phase: Any) -> bool:
        names = [launch.bound.source.name for launch in phase]
        return bool(fits(phase)) and not any(
            name.startswith(("accumulate_", "reduce_")) for name in names
        )

    monkeypatch.setattr(cuda_loop, "_is_resident", is_small)


def needs_barriers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "exchanged_params", lambda *arguments: {})


def test_an_exchange_does_what_a_barrier_does(
    monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    """But for the order in which partials are summed."""
    if not has_clusters():
        pytest.skip("a device without clusters")
    keeps_sums_apart(monkeypatch)
    states = []
    with backend.scope():
        for is_exchange in (True, False):
            if not is_exchange:
                needs_barriers(monkeypatch)
            problem = conjugate(backend, *SIZES)
            loop = problem.loop(backend, shared=True, fused=False)
            (vectors,) = (one for one in loop.launches if one.bound.source.name == LOOP_NAME)
            assert vectors.loop.grid > 1
            assert not vectors.is_cooperative
            assert exchanges(vectors) == is_exchange
            loop.run(5)
            states.append(problem.state(backend))
            loop.run(MANY_RUNS)
            np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)
    sent, stored = (state.pop("descents") for state in states)
    assert not np.any(sent)
    assert np.all(stored != 0.0)
    assert states[0]["scalars"][4] == states[1]["scalars"][4] == 5.0
    for name, values in states[0].items():
        scale = np.abs(values).max()
        np.testing.assert_allclose(
            values, states[1][name], rtol=0.0, atol=1e-12 * scale, err_msg=name
        )


def test_solves_with_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the steps of those with a barrier."""
    if not has_clusters():
        pytest.skip("a device without clusters")
    exchanging: list[bool] = []
    usual = cuda.merged_launches

    def merged(*arguments: Any) -> Any:
        found = usual(*arguments)
        exchanging.extend(exchanges(one) for one in found if one.bound.source.name == LOOP_NAME)
        return found

    keeps_sums_apart(monkeypatch)
    monkeypatch.setattr(cuda, "merged_launches", merged)
    arrays = arrays_of(copies_of(read("problem-49-7776"), 6))
    records = []
    for is_exchange in (True, False):
        if not is_exchange:
            needs_barriers(monkeypatch)
        exchanging.clear()
        solver = caspar.Solver(
            [snavely],
            backend="cuda",
            precision="float64",
            linear_solver="schur_pcg",
            deterministic=True,
        )
        records.append(solver.solve(arrays, max_iterations=4).iterations)
        assert set(exchanging) == {is_exchange}
    for first, second in zip(*records, strict=True):
        assert first.linear_iterations == second.linear_iterations
        assert first.candidate_cost == pytest.approx(second.candidate_cost, rel=1e-9)
