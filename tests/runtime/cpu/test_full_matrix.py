"""Small full matrices: the bits of QDLDL, in one launch."""

import numpy as np
import pytest
from numpy.typing import NDArray

from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.runtime.cpu.full_matrix import MOST_ROWS, FullFactorization

Floats = NDArray[np.float64]


def full_pattern(size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where rows of the lower triangle begin, and columns."""
    starts = np.concatenate([[0], np.cumsum(np.arange(1, size + 1))])
    return starts.astype(np.int32), np.tril_indices(size)[1].astype(np.int32)


def lower_triangle(size: int, rng: np.random.Generator) -> Floats:
    """Of a positive definite matrix, by rows."""
    root = rng.standard_normal((size, size + 2))
    matrix: Floats = root @ root.T
    return matrix[np.tril_indices(size)]


def solved(made: FullFactorization | QdldlFactorization, values: Floats, rhs: Floats) -> Floats:
    made.values[...] = values
    solution = np.full_like(rhs, np.nan)
    made.factorize()
    made.solve(rhs, solution)
    return solution


@pytest.mark.parametrize("size", [1, 2, 3, 6, 17, MOST_ROWS])
def test_bits_are_those_of_the_library(size: int) -> None:
    rng = np.random.default_rng(size)
    made = CpuBackend().sparse_factorization(*full_pattern(size), size)
    library = QdldlFactorization(*full_pattern(size), size)
    assert isinstance(made, FullFactorization)
    for _ in range(3):
        values, rhs = lower_triangle(size, rng), rng.standard_normal(size)
        np.testing.assert_array_equal(solved(made, values, rhs), solved(library, values, rhs))
        np.testing.assert_array_equal(made.outcome, library.outcome)


@pytest.mark.parametrize("number", [-1.0, 0.0, np.nan])
def test_a_matrix_that_is_not_positive_definite_is_told(number: float) -> None:
    rng = np.random.default_rng(0)
    made, values = FullFactorization(4), lower_triangle(4, rng)
    values[-1] = number
    assert solved(made, values, np.ones(4)).tolist() == [0.0] * 4
    assert made.outcome.tolist() == [1.0, 0.0]


def test_a_right_hand_side_that_is_not_finite_is_told() -> None:
    made = FullFactorization(2)
    solved(made, np.array([1.0, 0.0, 1.0]), np.array([1.0, np.inf]))
    assert made.outcome.tolist() == [1.0, 0.0]


def test_no_rows() -> None:
    made = FullFactorization(0)
    assert solved(made, np.zeros(0), np.zeros(0)).shape == (0,)
    assert made.outcome.tolist() == [0.0, 1.0]


def test_larger_and_sparser_matrices_are_left_to_libraries() -> None:
    large = CpuBackend().sparse_factorization(*full_pattern(MOST_ROWS + 1), MOST_ROWS + 1)
    diagonal = np.arange(4, dtype=np.int32)
    sparse = CpuBackend().sparse_factorization(diagonal, diagonal[:3], 3)
    assert not isinstance(large, FullFactorization)
    assert not isinstance(sparse, FullFactorization)
