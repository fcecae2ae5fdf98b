"""Parts of the ways to invert: selected entries, roots of blocks, free directions, gradients."""

import numpy as np
import pytest
import qdldl
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import block_diag, csc_matrix

from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.covariance.inverses import (
    SHIFT,
    SelectedInverse,
    _conjugate_gradients,
    null_space,
    pinned_unknowns,
)
from caspar.solver.normal.matrix import Couplings, Elimination, add_rows, roots_of


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("density", [0.0, 0.02, 0.1, 1.0])
def test_selected_inverse(density: float, seed: int) -> None:
    """Every entry of the matrix, whatever the pattern; one block has nothing to do with others."""
    random = np.random.default_rng(seed)
    part = csc_matrix(np.where(random.random((60, 60)) < density, random.random((60, 60)), 0.0))
    matrix = csc_matrix(block_diag([part @ part.T, [[0.0]]]) + 5.0 * np.eye(61))
    solver = qdldl.Solver(matrix)
    selected = SelectedInverse(*solver.factors())
    selected.compute()
    inverse = np.linalg.inv(matrix.toarray())
    row, column = matrix.nonzero()
    found = selected.blocks(row[:, None], column[:, None])
    assert_allclose(found[:, 0, 0], inverse[row, column], atol=1e-14)
    whole = np.arange(61)[:, None]
    assert_allclose(selected.blocks(whole, whole)[:, 0, 0], inverse.diagonal(), atol=1e-14)


@pytest.mark.parametrize("dim", [1, 2, 3, 9])
def test_roots(dim: int) -> None:
    random = np.random.default_rng(0)
    wide = random.normal(size=(20, dim, dim + 2))
    blocks = wide @ wide.transpose(0, 2, 1)
    scale = np.sqrt(np.diagonal(blocks, axis1=1, axis2=2))
    blocks /= scale[:, :, None] * scale[:, None, :]
    roots, free = roots_of(CpuBackend(), blocks)
    assert free == ()
    assert_allclose(roots @ roots.transpose(0, 2, 1), np.linalg.inv(blocks), rtol=1e-9)


def test_roots_of_singular_blocks() -> None:
    """A block of rank 1 of three, one of zeros but for the diagonal that stands for nothing."""
    vector = np.ones(3)
    blocks = np.stack([np.eye(3), np.outer(vector, vector), np.eye(3)])
    roots, free = roots_of(CpuBackend(), blocks)
    assert [one.number for one in free] == [1, 1]
    for one in free:
        assert_allclose(one.direction @ vector, 0.0, atol=1e-12)
    assert_allclose(roots[1] @ roots[1].T, np.linalg.pinv(blocks[1]), atol=1e-12)
    assert_allclose(roots[[0, 2]], np.stack([np.eye(3)] * 2))


@pytest.mark.parametrize("num_free", [0, 1, 7, 8, 20])
def test_null_space(num_free: int) -> None:
    """Eigenvalues down to 1e-9 are not free."""
    random = np.random.default_rng(1)
    turn = np.linalg.qr(random.normal(size=(60, 60)))[0]
    values = np.geomspace(1e-9, 1.0, 60)
    values[:num_free] = 0.0
    matrix = turn * values @ turn.T
    shifted = turn / (values + SHIFT) @ turn.T
    free = null_space(lambda x: matrix @ x, lambda x: shifted @ x, 60)
    assert free.shape == (60, num_free)
    assert_allclose(free.T @ free, np.eye(num_free), atol=1e-12)
    assert np.abs(free - turn[:, :num_free] @ (turn[:, :num_free].T @ free)).max(initial=0.0) < 1e-5
    pinned = np.flatnonzero(pinned_unknowns(free))
    assert len(pinned) == num_free
    if num_free > 0:
        assert np.linalg.svd(free[pinned])[1].min() > 1e-3


def test_everything_free() -> None:
    zero = np.zeros((3, 3))
    free = null_space(lambda x: zero @ x, lambda x: x / SHIFT, 3)
    assert_allclose(free @ free.T, np.eye(3), atol=1e-12)


def test_gradients_solve_columns_of_any_size() -> None:
    matrix = np.diag(np.geomspace(1e-4, 1.0, 30)) + 0.1 * np.ones((30, 30))
    rhs = np.column_stack([np.ones(30), np.zeros(30), 1e-30 * np.arange(30.0), np.eye(30)[3]])
    solution, residual = _conjugate_gradients(np, lambda x: matrix @ x, lambda x: x, rhs)
    assert (residual <= 1e-12).all()
    assert_allclose(matrix @ solution, rhs, atol=1e-11)
    assert_array_equal(solution[:, 1], np.zeros(30))


def test_sums_by_index() -> None:
    random = np.random.default_rng(2)
    for size, count in ((5, 40), (40, 5), (4, 0)):
        index, rows = random.integers(0, size, count), random.normal(size=(count, 2, 3))
        target = random.normal(size=(size, 2, 3))
        wanted = target.copy()
        np.add.at(wanted, index, rows)
        add_rows(np, target, index, rows)
        assert_allclose(target, wanted, rtol=1e-12)


def test_pairs_of_couplings_are_counted() -> None:
    """Of three couplings of one node with each other, those of a node with another type too."""
    cameras = Couplings(np.array([0, 0, 2]), np.array([1, 4, 3]), np.zeros((3, 3, 6)), 5)
    lenses = Couplings(np.array([0]), np.array([0]), np.zeros((1, 3, 2)), 1)
    elimination = Elimination(np.zeros((3, 3, 3)), {"Cam": cameras, "Lens": lenses}, ())
    assert elimination.num_pairs(np) == 7
    assert sum(len(found.rows) for found in elimination.pairs(np, 1)) == 7
