"""Small matrices: the bits of QDLDL, in one launch."""

import numpy as np
import pytest
from numpy.typing import NDArray

from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.runtime.cpu.small_matrix import MOST_ROWS, FullFactorization, SmallFactorization
from caspar.runtime.factorization import SparseFactorization

Floats = NDArray[np.float64]
Integers = NDArray[np.int32]


def sparse_pattern(size: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Of a chain whose ends and some others are joined."""
    joined = rng.random((size, size)) < 2.0 / size
    lower = np.tril(joined | np.eye(size, dtype=bool) | np.eye(size, k=-1, dtype=bool))
    lower[-1, 0] = True
    rows, columns = np.nonzero(lower)
    starts = np.searchsorted(rows, np.arange(size + 1))
    return starts.astype(np.int32), columns.astype(np.int32)


def dominant(pattern: tuple[Integers, Integers], rng: np.random.Generator) -> Floats:
    """Entries of the lower triangle of a positive definite matrix."""
    starts, columns = pattern
    values = rng.standard_normal(len(columns))
    values[starts[1:] - 1] = 30.0 + rng.random(len(starts) - 1)
    return values


def full_pattern(size: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where rows of the lower triangle begin, and columns."""
    starts = np.concatenate([[0], np.cumsum(np.arange(1, size + 1))])
    return starts.astype(np.int32), np.tril_indices(size)[1].astype(np.int32)


def lower_triangle(size: int, rng: np.random.Generator) -> Floats:
    """Of a positive definite matrix, by rows."""
    root = rng.standard_normal((size, size + 2))
    matrix: Floats = root @ root.T
    return matrix[np.tril_indices(size)]


def solved(made: SparseFactorization, values: Floats, rhs: Floats) -> Floats:
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


@pytest.mark.parametrize("size", [3, 4, 10, 75, 300])
def test_bits_of_a_sparse_matrix_are_those_of_the_library(size: int) -> None:
    rng = np.random.default_rng(size)
    pattern = sparse_pattern(size, rng)
    made = CpuBackend().sparse_factorization(*pattern, size)
    library = QdldlFactorization(*pattern, size)
    assert isinstance(made, FullFactorization if size == 3 else SmallFactorization)
    for _ in range(3):
        values, rhs = dominant(pattern, rng), rng.standard_normal(size)
        np.testing.assert_array_equal(solved(made, values, rhs), solved(library, values, rhs))
        np.testing.assert_array_equal(made.outcome, library.outcome)


@pytest.mark.parametrize("number", [-1.0, 0.0, np.nan])
def test_a_sparse_matrix_that_is_not_positive_definite_is_told(number: float) -> None:
    rng = np.random.default_rng(0)
    pattern = sparse_pattern(10, rng)
    made, values = CpuBackend().sparse_factorization(*pattern, 10), dominant(pattern, rng)
    expected = solved(made, values, np.ones(10))
    wrong = values.copy()
    wrong[-1] = number
    assert solved(made, wrong, np.ones(10)).tolist() == [0.0] * 10
    assert made.outcome.tolist() == [1.0, 0.0]
    # nothing of the failure is left
    np.testing.assert_array_equal(solved(made, values, np.ones(10)), expected)


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
    assert not isinstance(large, FullFactorization | SmallFactorization)
    assert not isinstance(sparse, FullFactorization)
