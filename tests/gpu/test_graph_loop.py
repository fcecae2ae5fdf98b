"""Loops whose launches stay launches: a graph that repeats itself, and graphs the host polls."""

import gc
import importlib
from threading import Event
from typing import Any

import numpy as np
import pytest

from caspar.options import JacobianName
from caspar.runtime.backend import SequenceLoop
from caspar.runtime.cuda.loop import repeat
from tests.gpu.loop_cases import (
    assert_same_bits,
    keeps_products_apart,
    ordered_solver,
    repeating_backend,
)
from tests.solver.bundles import arrays_of, read
from tests.support_loops import Conjugate, conjugate

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("caspar.runtime.cuda.backend")
cuda_launch = pytest.importorskip("caspar.runtime.cuda.launch.launch")
cuda_scalars = pytest.importorskip("caspar.runtime.cuda.launch.scalars")

MANY_RUNS = 10_000
SIZES = {
    "all in one kernel": (60_000, 900, 1_100),
    "large product": (900_000, 1_000, 1_200),
    "large product, vectors in a cluster": (900_000, 300, 100),
}
POLLED = "for a test"


@pytest.fixture
def backend() -> Any:
    return repeating_backend()


def loop_of(backend: Any, problem: Conjugate) -> Any:
    """What it is said to be: no remark is made where the device repeats."""
    loop = problem.loop(backend, fused=False)
    assert isinstance(loop, SequenceLoop) == (loop.remarks != ())
    return loop


def polls(monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    monkeypatch.setattr(repeat, "graph_loop_problem", lambda: reason)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_both_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, backend: Any, sizes: tuple[int, int, int]
) -> None:
    states = []
    with backend.scope():
        for reason in (None, POLLED):
            polls(monkeypatch, reason)
            problem = conjugate(backend, *sizes)
            loop = loop_of(backend, problem)
            assert (loop.remarks == ()) == (reason is None)
            loop.run(MANY_RUNS)
            states.append(problem.state(backend))
            assert float(problem.flag[0]) == 1.0
            np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)
    assert states[0]["scalars"][4] > 8
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name], name)


def test_at_most_so_many_runs(backend: Any) -> None:
    """Not rounded to whole groups, and nothing is left over from one call for the next."""
    with backend.scope():
        problem = conjugate(backend, *SIZES["large product"])
        loop = loop_of(backend, problem)
        for runs in (0, 1, 2, 4, 3, 5):
            loop.run(runs)
        assert backend.to_host(problem.memory["scalars"])[4] == 15.0
        loop.run(MANY_RUNS)
        np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


def test_a_set_flag_leaves_all_as_it_is(backend: Any) -> None:
    with backend.scope():
        problem = conjugate(backend, *SIZES["large product"])
        loop = loop_of(backend, problem)
        problem.flag[0] = 4.0
        before = problem.state(backend)
        loop.run(MANY_RUNS)
        for name, values in problem.state(backend).items():
            np.testing.assert_array_equal(values, before[name], name)
        problem.flag[0] = 0.0
        loop.run(2)
        assert backend.to_host(problem.memory["scalars"])[4] == 2.0


def test_a_graph_runs_again_with_other_numbers(backend: Any) -> None:
    with backend.scope():
        problem = conjugate(backend, *SIZES["large product"])
        start = {name: array.copy() for name, array in problem.memory.items()}
        loop = loop_of(backend, problem)
        for factor in (1.0, -2.0, 0.5):
            for name, array in problem.memory.items():
                power = 2 if name in ("curvatures", "descents") else 1
                array[...] = factor**power * start[name]
            scalars = problem.memory["scalars"]
            scalars[...] = start["scalars"] * factor**2
            loop.run(MANY_RUNS)
            found = problem.solution(backend)
            np.testing.assert_allclose(found, factor * problem.expected, atol=1e-8)


def test_the_host_does_not_wait(backend: Any) -> None:
    """The call returns while the device is held up: it cannot have read anything."""
    release = Event()
    with backend.scope():
        problem = conjugate(backend, *SIZES["large product"])
        loop = loop_of(backend, problem)
        loop.run(1)
        backend.synchronize()
        backend.stream.launch_host_func(lambda _: release.wait(20.0), None)
        loop.run(MANY_RUNS)
        was_held = not release.is_set() and not backend.stream.done
        release.set()
        assert was_held
        np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


def test_graphs_are_destroyed(backend: Any) -> None:
    """Free memory is the whole device's: others may take of it, but not each time."""
    with backend.scope():
        problem = conjugate(backend, *SIZES["all in one kernel"])

        def lost_memory() -> int:
            backend.synchronize()
            gc.collect()
            free: int = cupy.cuda.runtime.memGetInfo()[0]
            for _ in range(200):
                loop_of(backend, problem).run(1)
            backend.synchronize()
            gc.collect()
            return free - int(cupy.cuda.runtime.memGetInfo()[0])

        loop_of(backend, problem).run(1)
        assert min(lost_memory() for _ in range(5)) < 32 << 20


class Broken:
    """Cannot be enqueued a third time: not before the body of a graph is captured."""

    def __init__(self, launch: Any) -> None:
        self.bound = launch.bound
        self._launch = launch
        self._num_runs = 0

    def run(self) -> None:
        self._num_runs += 1
        if self._num_runs > 2:
            raise RuntimeError("cannot be enqueued")
        self._launch.run()


def test_a_failure_leaves_no_stream_in_capture(backend: Any) -> None:
    graph_loop = importlib.import_module(repeat.GRAPH_MODULE).GraphLoop
    with backend.scope():
        problem = conjugate(backend, *SIZES["large product"])
        with pytest.raises(RuntimeError, match="cannot be enqueued"):
            graph_loop(backend.stream, [Broken(problem.launches[0])], problem.flag)
        assert not backend.stream.is_capturing()
        loop_of(backend, problem).run(MANY_RUNS)
        np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


@pytest.mark.parametrize("jacobian", ["recompute", "float16", "stored"])
def test_launches_that_begin_early_change_nothing(
    monkeypatch: pytest.MonkeyPatch, backend: Any, jacobian: JacobianName
) -> None:
    """A product and the vectors' kernel in turn, each begins before the other has ended."""
    graph_while = importlib.import_module(repeat.GRAPH_MODULE)
    begun: list[str] = []
    usual = graph_while.launch_early

    def launch_early(launch: Any) -> None:
        begun.append(launch.bound.source.name)
        usual(launch)

    keeps_products_apart(monkeypatch)
    monkeypatch.setattr(graph_while, "launch_early", launch_early)
    arrays = arrays_of(read("problem-21-11315"))
    results = []
    for reason in (None, POLLED):
        polls(monkeypatch, reason)
        solver = ordered_solver(jacobian)
        for _ in range(3):
            results.append(solver.solve(arrays))
        # two runs for a trial, and bodies of many runs and of one: the first launch of each waits
        # for all there is
        trial, body, one = (
            ["loop", *(runs - 1) * ["snavely__product", "loop"]]
            for runs in (2, graph_while.RUNS_AT_ONCE, 1)
        )
        assert begun == [*trial, *body, *one]
    assert [any(POLLED in text for text in result.remarks) for result in results] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    for result in results[1:]:
        assert_same_bits(results[0], result)


def test_a_driver_that_refuses_early_launches(
    monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    """By an error of its own: a capture in which there was one is not to be gone on with."""
    dependent = importlib.import_module("caspar.runtime.cuda.launch.dependent")
    usual = dependent._attributes

    def in_large_clusters(**more: bool) -> list[Any]:
        kind = dependent.driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        value = dependent.driver.CUlaunchAttributeValue()
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = 1024, 1, 1
        return [*usual(**more), dependent._attribute(kind, value)]

    keeps_products_apart(monkeypatch)
    arrays = arrays_of(read("problem-21-11315"))
    results = []
    for is_refused in (False, True):
        if is_refused:
            monkeypatch.setattr(dependent, "_attributes", in_large_clusters)
        solver = ordered_solver()
        results.append(solver.solve(arrays))
        told = any("no dependent launch: CUDA_ERROR" in text for text in results[-1].remarks)
        assert told == is_refused
    assert results[1].final_cost == results[0].final_cost


def test_one_read_an_iteration(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Of a solve as of a large problem: the polled loop does the same steps."""
    arrays = arrays_of(read("problem-21-11315"))
    results, reads, num_polls = [], [], []
    usual, usual_poll = cuda_scalars.CudaScalars.read, cuda_launch.CudaSequence.run_until

    def read_scalars(own: Any) -> Any:
        reads.append(1)
        return usual(own)

    def run_until(*arguments: Any) -> None:
        num_polls.append(1)
        usual_poll(*arguments)

    monkeypatch.setattr(cuda, "fits_device", lambda phases: False)
    monkeypatch.setattr(cuda_scalars.CudaScalars, "read", read_scalars)
    monkeypatch.setattr(cuda_launch.CudaSequence, "run_until", run_until)
    for reason in (None, POLLED):
        polls(monkeypatch, reason)
        solver = ordered_solver()
        for _ in range(2):
            reads.clear()
            results.append(solver.solve(arrays))
            # and the cost of the start
            assert len(reads) == len(results[-1].iterations) + 1
        assert len(num_polls) == (0 if reason is None else 2 * len(results[-1].iterations))
    assert [any(POLLED in text for text in result.remarks) for result in results] == [
        False,
        False,
        True,
        True,
    ]
    for result in results[1:]:
        counts = [record.linear_iterations for record in result.iterations]
        assert counts == [record.linear_iterations for record in results[0].iterations]
        assert_same_bits(results[0], result)
