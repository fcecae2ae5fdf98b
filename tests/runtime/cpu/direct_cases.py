"""What every direct solver of a backend must do; run on the processor and on CUDA."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from caspar.runtime.backend import Backend
from caspar.runtime.factorization import Factorization, SparseFactorization

Array = NDArray[np.floating[Any]]
MakeSparse = Callable[..., SparseFactorization]


@dataclass(frozen=True)
class SparsePattern:
    """The lower triangle of a symmetric matrix in CSR, int32."""

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    size: int

    def full(self, values: Array) -> Array:
        """The dense matrix of some values."""
        shape = (self.size, self.size)
        lower = sparse.csr_array((values, self.indices, self.indptr), shape=shape).toarray()
        return np.asarray(lower + np.tril(lower, -1).T)


def lower_pattern(matrix: Any) -> tuple[SparsePattern, Array]:
    """Pattern and values of a SciPy matrix's lower triangle."""
    lower = sparse.csr_array(sparse.tril(matrix, format="csr"))
    lower.sort_indices()
    pattern = SparsePattern(
        lower.indptr.astype(np.int32), lower.indices.astype(np.int32), lower.shape[0]
    )
    return pattern, lower.data


def blocks_pattern(num_blocks: int, block: int, rng: np.random.Generator) -> SparsePattern:
    """A chain of blocks, and as many loops."""
    ends = rng.integers(0, num_blocks, (num_blocks, 2))
    rows = np.concatenate([np.arange(num_blocks), np.arange(1, num_blocks), ends[:, 0]])
    columns = np.concatenate([np.arange(num_blocks), np.arange(num_blocks - 1), ends[:, 1]])
    graph = sparse.coo_array((np.ones(len(rows)), (rows, columns)))
    return lower_pattern(sparse.kron(graph + graph.T, np.ones((block, block))))[0]


def positive_values(pattern: SparsePattern, rng: np.random.Generator) -> Array:
    """Values of a matrix that is positive definite: its diagonal is larger than its rows' sums."""
    values = rng.standard_normal(len(pattern.indices))
    full = np.abs(pattern.full(values))
    values[pattern.indptr[1:] - 1] = full.sum(axis=1) + 0.1
    return values


def solved(backend: Backend, solver: Factorization, rhs: Array) -> tuple[Array, bool]:
    """Solution, and whether the solver says that it failed; the right-hand side is kept."""
    with backend.scope():
        on_device = backend.upload(rhs.copy())
        solution = backend.upload(np.full_like(rhs, np.nan))
        solver.factorize()
        solver.solve(on_device, solution)
        np.testing.assert_array_equal(backend.to_host(on_device), rhs)
        failed, _ = backend.to_host(solver.outcome)
        return backend.to_host(solution), bool(failed)


def check_solution(matrix: Array, rhs: Array, solution: Array) -> None:
    residual = matrix @ solution - rhs
    assert np.linalg.norm(residual) < 1e-11 * np.linalg.norm(rhs)


def check_dense(backend: Backend, size: int) -> None:
    """New matrices one after the other, some of which have no factorisation."""
    rng = np.random.default_rng(size)
    flags = backend.upload(np.full(4, 7.0))
    solver = backend.dense_factorization(size, flags[1:3])
    for kind in ("positive", "indefinite", "positive", "singular", "nan", "positive"):
        half = rng.standard_normal((size, size + 10))
        matrix = half @ half.T / size + np.eye(size)
        if kind == "indefinite":
            matrix[-1, -1] = -1.0
        elif kind == "singular":
            matrix[size // 2] = 0.0
        elif kind == "nan":
            matrix[size // 2, size // 2] = np.nan
        # only the lower triangle is read
        given = np.where(np.tril(np.ones((size, size), bool)), matrix, np.nan)
        rhs = rng.standard_normal(size)
        with backend.scope():
            backend.write(solver.matrix, given)
        solution, failed = solved(backend, solver, rhs)
        assert failed == (kind != "positive"), kind
        if not failed:
            check_solution(matrix, rhs, solution)
    sides = rng.standard_normal((3, size))
    with backend.scope():
        backend.write(solver.matrix, matrix)
    solutions, failed = solved(backend, solver, sides)
    assert not failed
    for rhs, solution in zip(sides, solutions, strict=True):
        check_solution(matrix, rhs, solution)
    # LAPACK factorises U^T U, whose pivots are those of the matrix
    least_pivot = (np.linalg.cholesky(matrix).diagonal() ** 2).min(initial=1.0)
    np.testing.assert_allclose(backend.to_host(flags), [7.0, 0.0, least_pivot, 7.0], rtol=1e-9)


def check_sparse(
    backend: Backend, num_blocks: int, block: int, make: MakeSparse | None = None
) -> None:
    """New values one after the other, some of which have no factorisation.

    Args:
        backend: Whose arrays are used.
        num_blocks: Rows of blocks.
        block: Rows of a block.
        make: Makes the factorisation; None: the backend does.
    """
    rng = np.random.default_rng(num_blocks)
    pattern = blocks_pattern(num_blocks, block, rng)
    flags = backend.upload(np.full(4, 7.0))
    with backend.scope():
        indptr, indices = backend.upload(pattern.indptr), backend.upload(pattern.indices)
        make = backend.sparse_factorization if make is None else make
        solver = make(indptr, indices, pattern.size, flags[1:3])
    diagonal = pattern.indptr[1:] - 1
    for kind in ("positive", "indefinite", "positive", "zero", "nan", "positive"):
        values = positive_values(pattern, rng)
        if kind == "indefinite":
            values[diagonal[pattern.size // 3]] *= -1.0
        elif kind == "zero":
            values[:] = 0.0
        elif kind == "nan":
            values[diagonal[pattern.size // 3]] = np.nan
        rhs = rng.standard_normal(pattern.size)
        if kind == "indefinite":
            # of the unit vector along which the curvature is negative
            rhs = pattern.full(values)[pattern.size // 3]
        with backend.scope():
            backend.write(solver.values, values)
        solution, failed = solved(backend, solver, rhs)
        assert failed == (kind != "positive"), kind
        if not failed:
            check_solution(pattern.full(values), rhs, solution)
    before, failed, least_pivot, after = backend.to_host(flags)
    assert (before, failed, after) == (7.0, 0.0, 7.0)
    assert 0.0 < least_pivot
    np.testing.assert_array_equal(backend.to_host(solver.values), values)


def check_normal_equations(backend: Backend, matrix: Any, make: MakeSparse | None = None) -> None:
    """Such as those of a pose graph, which are far from well conditioned."""
    pattern, values = lower_pattern(matrix)
    rhs = np.random.default_rng(0).standard_normal(pattern.size)
    with backend.scope():
        indptr, indices = backend.upload(pattern.indptr), backend.upload(pattern.indices)
        make = backend.sparse_factorization if make is None else make
        solver = make(indptr, indices, pattern.size)
        backend.write(solver.values, values)
    solution, failed = solved(backend, solver, rhs)
    assert not failed
    assert np.linalg.norm(matrix @ solution - rhs) < 1e-9 * np.linalg.norm(rhs)
