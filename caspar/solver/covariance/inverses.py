"""Inverses of the reduced system: dense, selected entries of a sparse one, columns by PCG.

Input: a `NormalMatrix`. Output: a `ReducedInverse`; free directions are found first, and held by
unknowns that are pinned. Cost tier: once for a covariance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.backend import Backend
from caspar.runtime.factorization import load_direct_solver
from caspar.solver.covariance.layout import ReducedLayout
from caspar.solver.covariance.normal_matrix import NormalMatrix, Pattern
from caspar.solver.covariance.null_space import SHIFT, null_space, pinned_unknowns
from caspar.solver.covariance.selected_inverse import SelectedInverse
from caspar.solver.covariance.sums import add_rows

FloatArray = NDArray[np.float64]


class ReducedInverse(Protocol):
    """The inverse of the scaled reduced system, in which free directions are pinned.

    Attributes:
        method: In words.
        free: (size, k) orthonormal free directions of the reduced system, on the host.
    """

    method: str
    free: FloatArray

    @property
    def has_blocks(self) -> bool:
        """Whether blocks are known without solving."""

    def blocks(self, first: Array, second: Array) -> Array:
        """Blocks of pairs of objects that something couples, first <= second: (k, width, width)."""

    def solve(self, rhs: FloatArray) -> FloatArray:
        """The inverse times (size, k), on the host."""


@dataclass
class DenseInverse:
    """All of it, by LAPACK or cuSOLVER."""

    free: FloatArray
    _layout: ReducedLayout
    _backend: Backend
    _blocks: Array
    method: str = "dense factorisation"
    has_blocks: bool = True

    def blocks(self, first: Array, second: Array) -> Array:
        """Taken from the inverse."""
        return self._blocks[first, second]

    def solve(self, rhs: FloatArray) -> FloatArray:
        """A product."""
        size = self._layout.size
        inverse = self._blocks.transpose(0, 2, 1, 3).reshape(size, size)
        return np.asarray(self._backend.to_host(inverse @ self._backend.upload(rhs)))


def dense_inverse(normal: NormalMatrix) -> DenseInverse:
    """Form the reduced system as a dense matrix, and invert it."""
    backend, layout = normal.backend, normal.layout
    xp, num, width = backend.xp, layout.num_objects, layout.width
    blocks = normal.blocks(normal.full_pattern()).reshape(num, num, width, width)
    padded = blocks.transpose(0, 2, 1, 3).reshape(layout.size, layout.size)
    real = backend.upload(layout.real())
    matrix = padded[real][:, real]
    # only blocks on and above the diagonal have been summed
    upper = xp.triu(matrix)
    matrix = upper + xp.triu(matrix, 1).T
    size = len(real)
    factorization = backend.dense_factorization(size)
    diagonal = xp.arange(size)

    def factorize(added: Array | float) -> None:
        factorization.matrix[...] = matrix
        factorization.matrix[diagonal, diagonal] += added
        factorization.factorize()

    def solve(rhs: FloatArray) -> FloatArray:
        columns = backend.upload(np.ascontiguousarray(rhs.T))
        solutions = xp.empty_like(columns)
        for column, solution in zip(columns, solutions, strict=True):
            factorization.solve(column, solution)
        return np.asarray(backend.to_host(solutions)).T

    def apply(vectors: FloatArray) -> FloatArray:
        return np.asarray(backend.to_host(matrix @ backend.upload(vectors)))

    factorize(SHIFT)
    free = null_space(apply, solve, size)
    pinned = xp.zeros(size)
    pinned[backend.upload(pinned_unknowns(free))] = 1.0
    factorize(pinned)
    inverse = xp.empty((size, size))
    factorization.invert(inverse)
    _check(backend, factorization.failed)
    if size < layout.size:
        padded = xp.zeros((layout.size, layout.size))
        padded[real[:, None], real] = inverse
    else:
        padded = inverse
    split = padded.reshape(num, width, num, width).transpose(0, 2, 1, 3)
    whole = np.zeros((layout.size, free.shape[1]))
    whole[layout.real()] = free
    return DenseInverse(whole, layout, backend, xp.ascontiguousarray(split))


def _check(backend: Backend, failed: Array) -> None:
    if float(backend.to_host(failed)[0]) != 0.0:
        raise BackendError(
            "covariance: the factorisation of the reduced system failed although no direction was "
            "found to be free. Please report it"
        )


@dataclass
class SparseInverse:
    """The entries that the factor has, on the host by QDLDL."""

    free: FloatArray
    _backend: Backend
    _pattern: Pattern
    _blocks: Array
    _solve: Callable[[FloatArray], FloatArray]
    method: str = "sparse factorisation, selected inverse"
    has_blocks: bool = True

    def blocks(self, first: Array, second: Array) -> Array:
        """Taken from the selected inverse."""
        return self._blocks[self._pattern.slots(self._backend, first, second)]

    def solve(self, rhs: FloatArray) -> FloatArray:
        """Column by column."""
        return self._solve(rhs)


def sparse_inverse(normal: NormalMatrix, pattern: Pattern) -> SparseInverse:
    """Factorise the reduced system as a sparse matrix, and invert it on the factor's pattern."""
    backend, layout = normal.backend, normal.layout
    blocks = backend.to_host(normal.blocks(pattern))
    first, second = (
        np.asarray(backend.to_host(part)) for part in divmod(pattern.keys, layout.num_objects)
    )
    width, real = layout.width, layout.real()
    compact = np.full(layout.size, -1, np.int64)
    compact[real] = np.arange(len(real))
    within = np.arange(width)
    rows = compact[first[:, None] * width + within]
    columns = compact[second[:, None] * width + within]
    size = len(real)
    row, column = np.broadcast_arrays(rows[:, :, None], columns[:, None, :])
    kept = (row >= 0) & (row <= column)
    # the upper triangle by columns is the lower one by rows
    upper = coo_matrix((blocks[kept], (row[kept], column[kept])), shape=(size, size)).tocsc()
    upper.sort_indices()
    diagonal = upper.indptr[1:] - 1
    factorization = load_direct_solver("cpu.direct", "QdldlFactorization")(
        upper.indptr, upper.indices, size
    )

    def factorize(added: FloatArray | float) -> None:
        factorization.values[...] = upper.data
        factorization.values[diagonal] += added
        factorization.factorize()

    def solve(rhs: FloatArray) -> FloatArray:
        solutions = np.empty_like(rhs)
        for number in range(rhs.shape[1]):
            factorization.solve(rhs[:, number], solutions[:, number])
        return solutions

    symmetric = upper + upper.T
    symmetric.setdiag(upper.diagonal())
    factorize(SHIFT)
    free = null_space(lambda vectors: symmetric @ vectors, solve, size)
    pinned = np.zeros(size)
    pinned[pinned_unknowns(free)] = 1.0
    factorize(pinned)
    selected = SelectedInverse(*factorization.factors())
    found = selected.blocks(rows, columns)

    def solve_padded(rhs: FloatArray) -> FloatArray:
        result = np.zeros_like(rhs)
        result[real] = solve(rhs[real])
        return result

    whole = np.zeros((layout.size, free.shape[1]))
    whole[real] = free
    return SparseInverse(whole, backend, pattern, backend.upload(found), solve_padded)


MAX_GRADIENTS = 20_000
"""Iterations of PCG for one block of columns."""

GRADIENT_TOLERANCE = 1e-12
"""Of the residual of a column, relative to its right-hand side."""


@dataclass
class IterativeInverse:
    """Columns by preconditioned conjugate gradients; the system is never formed."""

    free: FloatArray
    _solve: Callable[[FloatArray], FloatArray]
    method: str = "conjugate gradients"
    has_blocks: bool = False

    def blocks(self, first: Array, second: Array) -> Array:
        """Not known."""
        raise NotImplementedError

    def solve(self, rhs: FloatArray) -> FloatArray:
        """All columns at once."""
        return self._solve(rhs)


def iterative_inverse(normal: NormalMatrix) -> IterativeInverse:
    """Prepare columns: only the remaining nodes' own blocks and the couplings are kept."""
    backend, layout = normal.backend, normal.layout
    xp, num, width = backend.xp, layout.num_objects, layout.width
    pattern = normal.pattern(eliminates=False)
    blocks = normal.blocks(pattern, eliminates=False)
    first, second = divmod(pattern.keys, num)
    is_off = xp.flatnonzero(first != second)
    objects = xp.arange(num)
    own = blocks[pattern.slots(backend, objects, objects)].copy()
    for elimination in normal.eliminations.values():
        z = elimination.blocks
        add_rows(xp, own, elimination.object, -(z.transpose(0, 2, 1) @ z))
    preconditioner = xp.linalg.inv(own + SHIFT * xp.eye(width))

    def apply(vectors: Array) -> Array:
        parts = vectors.reshape(num, width, -1)
        result = xp.zeros_like(parts)
        add_rows(xp, result, first, blocks @ parts[second])
        off = blocks[is_off].transpose(0, 2, 1) @ parts[first[is_off]]
        add_rows(xp, result, second[is_off], off)
        for elimination in normal.eliminations.values():
            z, dim = elimination.blocks, int(elimination.blocks.shape[1])
            moved = xp.zeros((len(elimination.roots), dim, int(parts.shape[2])))
            add_rows(xp, moved, elimination.node, z @ parts[elimination.object])
            taken = z.transpose(0, 2, 1) @ moved[elimination.node]
            add_rows(xp, result, elimination.object, -taken)
        return result.reshape(vectors.shape)

    def precondition(vectors: Array) -> Array:
        return (preconditioner @ vectors.reshape(num, width, -1)).reshape(vectors.shape)

    def on_host(added: Array | float) -> Callable[[FloatArray], FloatArray]:
        def solve(rhs: FloatArray) -> FloatArray:
            found = _conjugate_gradients(
                xp, lambda p: apply(p) + added * p, precondition, backend.upload(rhs)
            )
            return np.asarray(backend.to_host(found))

        return solve

    def apply_on_host(vectors: FloatArray) -> FloatArray:
        return np.asarray(backend.to_host(apply(backend.upload(vectors))))

    free = null_space(apply_on_host, on_host(SHIFT), layout.size)
    pinned = np.zeros((layout.size, 1))
    pinned[pinned_unknowns(free)] = 1.0
    return IterativeInverse(free, on_host(backend.upload(pinned)))


def _conjugate_gradients(
    xp: object, apply: Callable[[Array], Array], precondition: Callable[[Array], Array], rhs: Array
) -> Array:
    """Solve for all columns of `rhs`, each with its own alpha and beta."""
    solution, residual = 0.0 * rhs, rhs.copy()
    z = precondition(residual)
    direction = z
    descent = (residual * z).sum(axis=0)
    goal = GRADIENT_TOLERANCE**2 * (rhs**2).sum(axis=0)
    for _ in range(MAX_GRADIENTS):
        is_open = (residual**2).sum(axis=0) > goal
        if not bool(is_open.any()):
            break
        product = apply(direction)
        curvature = (direction * product).sum(axis=0)
        is_open &= curvature > 0.0
        if not bool(is_open.any()):
            break
        alpha = is_open * descent / (curvature + ~is_open)
        solution += alpha * direction
        residual -= alpha * product
        z = precondition(residual)
        after = (residual * z).sum(axis=0)
        beta = is_open * after / (descent + (descent == 0.0))
        direction = z + beta * direction
        descent = after
    return solution
