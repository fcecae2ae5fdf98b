"""Loops of launches on the device: one cooperative kernel has the bits of separate launches."""

from typing import Any

import numpy as np
import pytest

from tests.support_loops import Conjugate, conjugate

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

MANY_RUNS = 10_000
SIZES = {
    "one block": (200, 50, 100),
    "few blocks": (2_000, 200, 500),
    "a block each": (60_000, 900, 1_100),
    "several blocks each": (900_000, 1_000, 1_200),
}


def cuda_backend() -> Any:
    return pytest.importorskip("caspar.runtime.cuda").CudaBackend()


def solved(backend: Any, sizes: tuple[int, int, int], fused: bool) -> Conjugate:
    problem = conjugate(backend, *sizes)
    backend.loop(problem.phases, problem.flag, fused=fused).run(MANY_RUNS)
    return problem


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_one_kernel_has_the_bits_of_many(sizes: tuple[int, int, int]) -> None:
    backend = cuda_backend()
    with backend.scope():
        one, many = (solved(backend, sizes, fused) for fused in (True, False))
        assert float(one.flag[0]) == 1.0
        np.testing.assert_allclose(one.solution(backend), one.expected, atol=1e-8)
        expected = many.state(backend)
        for name, values in one.state(backend).items():
            np.testing.assert_array_equal(values, expected[name], name)


def test_a_loop_runs_again_and_again() -> None:
    """Launches leave the barrier ready for the next, however many barriers they had."""
    backend = cuda_backend()
    with backend.scope():
        problem = conjugate(backend, *SIZES["a block each"])
        loop = backend.loop(problem.phases, problem.flag)
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
        loop = backend.loop(problem.phases, problem.flag)
        loop.run(0)
        backend.stream.begin_capture()
        for name, array in problem.memory.items():
            backend.copy(array, start[name])
        loop.run(MANY_RUNS)
        graph = backend.stream.end_capture()
        for _ in range(3):
            graph.launch(stream=backend.stream)
            np.testing.assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)
