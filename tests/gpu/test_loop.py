"""Loops of launches on the device: one cooperative kernel does what separate launches do."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caspar
from examples import pose_graph_3d
from tests.solver.pose_graphs import DATA
from tests.support_loops import conjugate

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
cuda_launch = pytest.importorskip("caspar.runtime.cuda.launch.launch")
cuda_loop = pytest.importorskip("caspar.runtime.cuda.loop.loop")

MANY_RUNS = 10_000
SOME_RUNS = 5
SIZES = {
    "one block": (200, 50, 100),
    "few blocks": (2_000, 200, 500),
    "a block each": (60_000, 900, 1_100),
    "several blocks each": (900_000, 1_000, 1_200),
}


def cuda_backend() -> Any:
    return pytest.importorskip("caspar.runtime.cuda.backend").CudaBackend()


def state_after(
    backend: Any, sizes: tuple[int, int, int], runs: int, *, fused: bool
) -> dict[str, NDArray[np.float64]]:
    problem = conjugate(backend, *sizes)
    problem.loop(backend, fused=fused).run(runs)
    return problem.state(backend)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_one_kernel_does_what_many_do(sizes: tuple[int, int, int]) -> None:
    """But for rounding: kernels of one block have more threads when they run alone."""
    backend = cuda_backend()
    with backend.scope():
        one = state_after(backend, sizes, SOME_RUNS, fused=True)
        again = state_after(backend, sizes, SOME_RUNS, fused=True)
        problem = conjugate(backend, *sizes)
        for _ in range(SOME_RUNS):
            backend.sequence(problem.launches).run()
        many = problem.state(backend)
        for name, values in one.items():
            scale = float(np.max(np.abs(values)))
            np.testing.assert_array_equal(values, again[name], name)
            np.testing.assert_allclose(values, many[name], rtol=1e-11, atol=1e-11 * scale)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_conjugate_gradients_reach_the_solution(sizes: tuple[int, int, int], fused: bool) -> None:
    backend = cuda_backend()
    with backend.scope():
        problem = conjugate(backend, *sizes)
        problem.loop(backend, fused=fused).run(MANY_RUNS)
        np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)
        assert float(problem.flag[0]) == 1.0


def test_one_block_does_without_a_barrier_of_the_grid() -> None:
    backend = cuda_backend()
    with backend.scope():
        problem = conjugate(backend, *SIZES["one block"])
        loop = problem.loop(backend, [[launch] for launch in problem.launches])
        assert loop.launch.call[1] == 1
        loop.run(MANY_RUNS)
        np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


def test_a_loop_runs_again_and_again() -> None:
    """Launches leave the barrier ready for the next, however many barriers they had."""
    backend = cuda_backend()
    with backend.scope():
        problem = conjugate(backend, *SIZES["a block each"])
        loop = problem.loop(backend)
        for runs in (0, 1, 2, 1, 3):
            loop.run(runs)
        backend.synchronize()
        assert float(problem.memory["scalars"][4]) == 7.0
        loop.run(MANY_RUNS)
        np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


def test_a_loop_can_be_captured_with_other_work() -> None:
    backend = cuda_backend()
    with backend.scope():
        problem = conjugate(backend, *SIZES["a block each"])
        start = {name: array.copy() for name, array in problem.memory.items()}
        loop = problem.loop(backend)
        loop.run(0)
        backend.stream.begin_capture()
        for name, array in problem.memory.items():
            backend.copy(array, start[name])
        loop.run(MANY_RUNS)
        graph = backend.stream.end_capture()
        for _ in range(3):
            graph.launch(stream=backend.stream)
            np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


def test_an_interrupted_capture_leaves_the_stream_usable() -> None:
    """As by Ctrl-C in a notebook; the next run captures again."""
    backend = cuda_backend()

    class Interrupted:
        def __init__(self, launch: Any) -> None:
            self.launch, self.is_first = launch, True

        def run(self) -> None:
            self.launch.run()
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt

    with backend.scope():
        target = cupy.ones(4, dtype=cupy.float32)
        wanted = conjugate(backend, *SIZES["one block"])
        for launch in wanted.launches:
            launch.run()
        problem = conjugate(backend, *SIZES["one block"])
        first, *others = problem.launches
        sequence = cuda_launch.CudaSequence(backend.stream, [Interrupted(first), *others])
        with pytest.raises(KeyboardInterrupt):
            sequence.run()
        backend.clear(target)
        sequence.run()
        for name, values in problem.state(backend).items():
            np.testing.assert_array_equal(values, wanted.state(backend)[name], name)
    backend.synchronize()
    assert target.tolist() == [0.0] * 4


def test_loads_ahead_of_barriers_do_not_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poses in float64 need all registers for their products."""
    spilled = []
    for roomy_blocks in (cuda_loop.ROOMY_BLOCKS, 0):
        monkeypatch.setattr(cuda_loop, "ROOMY_BLOCKS", roomy_blocks)
        made = caspar.Solver(pose_graph_3d.FACTORS, backend="cuda", linear_solver="pcg")
        with made.system(pose_graph_3d.read(DATA / "smallGrid3D.g2o.bz2")) as system:
            loop: Any = system.solvers.current
            spilled.append(loop._iterate.launch.kernel.function.local_bytes)
    assert spilled[0] <= spilled[1]
