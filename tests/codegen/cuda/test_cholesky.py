"""The kernel that factorises a small matrix and solves by it."""

import numpy as np
import pytest

from caspar.codegen.cuda.cholesky import CHOLESKY, CHOLESKY_THREADS, MOST_UNKNOWNS
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import compile_cuda, find_compiler
from tests.harness.schedule import DEFAULT_SCHEDULES

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_nothing_is_in_local_memory(arch: str) -> None:
    compiled = compile_text(CHOLESKY.text, arch)
    assert compiled.warnings == (), compiled.log
    assert compiled.resources[CHOLESKY.name].stack_bytes == 0


def solved(matrix: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Solution and outcome; the same in all orders of threads."""
    module = compile_cuda(CHOLESKY.text)
    found = []
    for schedule in DEFAULT_SCHEDULES:
        solution, outcome = np.full_like(rhs, np.nan), np.full(2, np.nan)
        arguments = (matrix, rhs, np.uint32(len(rhs)), solution, outcome)
        module.launch(CHOLESKY.name, 1, CHOLESKY_THREADS, arguments, schedule=schedule)
        found.append((solution, outcome))
    for others in zip(*found, strict=True):
        for other in others[1:]:
            np.testing.assert_array_equal(other, others[0])
    return found[0]


@needs_compiler
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 31, 60, MOST_UNKNOWNS])
def test_solution_and_least_pivot(size: int) -> None:
    rng = np.random.default_rng(size)
    half = rng.standard_normal((size, size + 3))
    matrix = half @ half.T + 0.01 * np.eye(size)
    rhs = rng.standard_normal(size)
    given = np.where(np.tril(np.ones((size, size), bool)), matrix, np.nan)  # what is read
    solution, outcome = solved(given, rhs)
    expected = np.linalg.cholesky(matrix)
    assert np.linalg.norm(matrix @ solution - rhs) < 1e-10 * np.linalg.norm(rhs)
    least = min(1.0, float((expected.diagonal() ** 2).min()))
    np.testing.assert_allclose(outcome, [0.0, least], rtol=1e-9)


@needs_compiler
@pytest.mark.parametrize("fault", [-1.0, 0.0, np.nan])
@pytest.mark.parametrize("place", [0, 8, 10])
def test_what_has_no_factorisation(place: int, fault: float) -> None:
    matrix = np.eye(11)
    matrix[place, place] = fault
    _, outcome = solved(matrix, np.ones(11))
    np.testing.assert_array_equal(outcome, [1.0, 0.0])


@needs_compiler
def test_a_side_that_is_zero_or_not_finite() -> None:
    matrix, rhs = 4.0 * np.eye(3), np.zeros(3)
    solution, outcome = solved(matrix, rhs)
    np.testing.assert_array_equal(solution, rhs)
    np.testing.assert_array_equal(outcome, [0.0, 1.0])
    rhs[1] = np.inf
    np.testing.assert_array_equal(solved(matrix, rhs)[1], [1.0, 0.0])


def test_shared_memory_is_what_every_device_has() -> None:
    resources = compile_text(CHOLESKY.text, "sm_75").resources[CHOLESKY.name]
    assert 4 * MOST_UNKNOWNS**2 < resources.shared_bytes <= 48 * 1024
