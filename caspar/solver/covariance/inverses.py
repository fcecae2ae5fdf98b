"""The inverse of the reduced system, by one of four ways, and the directions that are free.

By size: singular values of the Jacobian itself, a dense inverse, a sparse factorisation and its
selected inverse, or columns by conjugate gradients. Input: all factors, linearised. Output: the
system, and a `ReducedInverse`. Cost tier: once for a covariance.

Directions that nothing determines come first, by inverse iteration on a block of vectors with a
small shift, and Rayleigh-Ritz (Golub and Van Loan, *Matrix Computations*, section 8.2): what is
free grows by 1 / shift in each iteration, everything else by at most 1 / eigenvalue. Then as many
unknowns are pinned.

Also here: entries of a sparse inverse where the factor has entries, without the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.linalg.lapack import get_lapack_funcs
from scipy.sparse import csc_matrix

from caspar.errors import BackendError, CasparError
from caspar.memory.array import Array
from caspar.options import LinearSolverChoice
from caspar.runtime.cpu.direct import QdldlFactorization, on_one_thread
from caspar.solver.choice.form import Recipe, choose_eliminated
from caspar.solver.normal.blocks import BlockList, TypePair, full_lists, matrix_entries
from caspar.solver.normal.matrix import FREE_EIGENVALUE, Linearized, NormalMatrix, add_rows

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _Supernode:
    """Neighbouring columns of L with one pattern."""

    first: int
    end: int
    rows: NDArray[np.int64]


class SelectedInverse:
    """The inverse on the pattern of the factor, after `compute`.

    `lower`: (n, n) L in CSC, without its diagonal of ones, rows ascending. `pivots`: (n,) D.
    `order`: (n,) row k of the factor is row order[k] of the matrix.
    """

    def __init__(self, lower: Any, pivots: FloatArray, order: NDArray[np.integer[Any]]) -> None:
        size = len(pivots)
        self._rank = np.empty(size, np.int64)
        self._rank[np.asarray(order)] = np.arange(size)
        self._lower, self._pivots = lower, pivots
        self._nodes = _supernodes(lower)
        self._owner = np.empty(size, np.int64)
        for number, node in enumerate(self._nodes):
            self._owner[node.first : node.end] = number
        self._columns: list[FloatArray] = [np.zeros((0, 0))] * len(self._nodes)
        (self._invert,) = get_lapack_funcs(("trtri",), dtype=np.float64)

    def blocks(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> FloatArray:
        """(k, a, b) blocks of the inverse, of (k, a) rows and (k, b) columns on the pattern."""
        shape = (*first.shape, second.shape[1])
        row = np.broadcast_to(self._rank[first][:, :, None], shape)
        column = np.broadcast_to(self._rank[second][:, None, :], shape)
        return self._entries(row.ravel(), column.ravel()).reshape(shape)

    def _entries(self, row: NDArray[np.int64], column: NDArray[np.int64]) -> FloatArray:
        row, column = np.maximum(row, column), np.minimum(row, column)
        values = np.zeros(len(row))
        owner = self._owner[column]
        order = np.argsort(owner, kind="stable")
        cuts = np.flatnonzero(np.diff(owner[order])) + 1
        for group in np.split(order, cuts):
            if len(group) == 0:
                continue
            node = self._nodes[owner[group[0]]]
            rows = np.concatenate([np.arange(node.first, node.end), node.rows])
            place = np.searchsorted(rows, row[group])
            assert bool((rows[np.minimum(place, len(rows) - 1)] == row[group]).all())
            stored = self._columns[owner[group[0]]]
            values[group] = stored[place, column[group] - node.first]
        return values

    @property
    def max_rows(self) -> int:
        """Rows of the largest block that is multiplied."""
        return max(node.end - node.first + len(node.rows) for node in self._nodes)

    def compute(self) -> None:
        """Compute the inverse, from the last supernode to the first."""
        fulls: dict[int, FloatArray] = {}
        num_children = np.zeros(len(self._nodes), np.int64)
        for node in self._nodes:
            if len(node.rows) > 0:
                num_children[self._owner[node.rows[0]]] += 1
        for number in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[number]
            below: FloatArray = np.zeros((0, 0))
            if len(node.rows) > 0:
                parent = int(self._owner[node.rows[0]])
                of_parent = self._nodes[parent]
                rows = np.concatenate([np.arange(of_parent.first, of_parent.end), of_parent.rows])
                place = np.searchsorted(rows, node.rows)
                below = fulls[parent][np.ix_(place, place)]
                num_children[parent] -= 1
                if num_children[parent] == 0:
                    del fulls[parent]
            own, down = self._solve(node, below)
            self._columns[number] = np.concatenate([own, down])
            if num_children[number] > 0:
                width, size = node.end - node.first, node.end - node.first + len(node.rows)
                full = np.empty((size, size))
                full[:width, :width], full[width:, :width] = own, down
                full[:width, width:], full[width:, width:] = down.T, below
                fulls[number] = full

    def _solve(self, node: _Supernode, below: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Z_JJ and Z_RJ of a supernode, from Z_RR."""
        width = node.end - node.first
        triangle = np.eye(width)
        rectangle = np.zeros((len(node.rows), width))
        pointers, data = self._lower.indptr, self._lower.data
        for k in range(width):
            start, end = pointers[node.first + k], pointers[node.first + k + 1]
            inside = width - 1 - k
            triangle[k + 1 :, k] = data[start : start + inside]
            rectangle[:, k] = data[start + inside : end]
        inverse, _ = self._invert(triangle, lower=1, unitdiag=1)
        own = inverse.T @ (inverse / self._pivots[node.first : node.end, None])
        if len(node.rows) == 0:
            return own, np.zeros((0, width))
        down = rectangle @ inverse
        result = -(below @ down)
        own = own - down.T @ result
        return 0.5 * (own + own.T), result


def _supernodes(lower: Any) -> list[_Supernode]:
    """Columns whose pattern is that of the column before, without its first row."""
    pointers, indices = lower.indptr, lower.indices
    size = len(pointers) - 1
    counts = np.diff(pointers)
    follows = np.zeros(size, bool)
    for j in range(1, size):
        start = pointers[j - 1]
        follows[j] = counts[j - 1] == counts[j] + 1 and counts[j - 1] > 0 and indices[start] == j
    firsts = np.flatnonzero(~follows)
    ends = np.append(firsts[1:], size)
    return [
        _Supernode(
            int(first), int(end), indices[pointers[end - 1] : pointers[end]].astype(np.int64)
        )
        for first, end in zip(firsts, ends, strict=True)
    ]


Solve = Callable[[FloatArray], FloatArray]
Operator = Callable[[Array], Array]

KnownBlocks = Callable[[TypePair, Array, Array], Array]
"""(k, rows, columns) blocks of an inverse, on the device, of pairs of nodes of two types."""

SHIFT = 1e-12
"""Added to the diagonal, whose entries are 1: well above roundings of a factorisation."""

NUM_VECTORS = 8
"""Vectors at first; twice as many as long as all of them turn out to be free."""

NUM_ITERATIONS = 4

FREE_SINGULAR_VALUE = 1e-12
"""Singular values up to which a direction is free, relative to the largest. Columns of J have
length 1, and entries are known to about 1e-15."""

FEW_ROWS = 2000
"""Rows of the largest block up to which one thread computes the selected inverse."""

MAX_ITERATIONS = 20_000

TOLERANCE = 1e-12
"""Residual of a column, relative to its right-hand side, at which conjugate gradients end."""

USABLE = 1e-8
"""The same, if rounding ends the iterations before TOLERANCE."""


@dataclass(frozen=True)
class ReducedInverse:
    """The inverse of the scaled reduced system, in which free directions are pinned.

    Attributes:
        free: (size, k) orthonormal free directions of the reduced system, on the host.
        solve: The inverse times (size, k), on the host.
        blocks: Blocks of pairs of nodes between which the system has one; None: only columns can be
            had, by `solve`.
    """

    method: str
    free: FloatArray
    solve: Solve
    blocks: KnownBlocks | None


def choose_inverse(recipe: Recipe, linearized: Linearized) -> tuple[NormalMatrix, ReducedInverse]:
    """The system and its inverse, by its size and how full it is."""
    limits = recipe.limits
    work = linearized.num_residuals * linearized.num_unknowns**2
    if work <= limits.max_svd_work:
        whole = NormalMatrix(linearized, ())
        return whole, _svd_inverse(whole)
    normal = NormalMatrix(linearized, _eliminated(recipe, linearized))
    size = normal.unknowns.size
    if size <= limits.max_small_dense_covariance:
        return normal, _dense_inverse(normal)
    if normal.num_eliminated_pairs <= limits.max_fill_pairs and size <= limits.max_sparse:
        lists = normal.lists()
        num_entries = sum(one.num_blocks * one.dim for one in lists.values())
        if num_entries < limits.full_share_covariance * 0.5 * size**2:
            return normal, _sparse_inverse(normal, lists)
    if size <= limits.max_dense_covariance:
        return normal, _dense_inverse(normal)
    return normal, _iterative_inverse(normal)


def _eliminated(recipe: Recipe, linearized: Linearized) -> tuple[str, ...]:
    """The node types to eliminate, whatever solves the linear systems of the solver."""
    names = {jacobian.name for jacobian in linearized.jacobians}
    usual = replace(
        recipe,
        factors=tuple(factor for factor in recipe.factors if factor.name in names),
        nodes=linearized.nodes,
        linear_solver=LinearSolverChoice.AUTO,
        eliminate=None,
    )
    return tuple(node.name for node in choose_eliminated(usual, linearized.counts))


# -- free directions -------------------------------------------------------------------------------


def null_space(apply: Solve, solve_shifted: Solve, size: int) -> FloatArray:
    """An orthonormal basis of the free directions.

    `apply`: The matrix times (size, k). `solve_shifted`: The inverse of the matrix plus SHIFT times
    (size, k). Returns (size, number of free directions).
    """
    generator = np.random.default_rng(0)
    num_vectors = min(NUM_VECTORS, size)
    while True:
        vectors = generator.normal(size=(size, num_vectors))
        for _ in range(NUM_ITERATIONS):
            vectors = np.linalg.qr(solve_shifted(vectors))[0]
        values, turns = np.linalg.eigh(vectors.T @ apply(vectors))
        num_free = int((values <= FREE_EIGENVALUE).sum())
        if num_free < num_vectors or num_vectors == size:
            return np.ascontiguousarray(vectors @ turns[:, :num_free])
        num_vectors = min(2 * num_vectors, size)


def pinned_unknowns(free: FloatArray) -> NDArray[np.float64]:
    """(size,) 1 for as many unknowns as (size, k) `free` has columns: if held, nothing is free."""
    pinned = np.zeros(len(free))
    if free.shape[1] > 0:
        _, order = qr(free.T, mode="r", pivoting=True, check_finite=False)
        pinned[order[: free.shape[1]]] = 1.0
    return pinned


# -- dense -----------------------------------------------------------------------------------------


def _svd_inverse(normal: NormalMatrix) -> ReducedInverse:
    """The pseudo-inverse of the scaled J^T J of small systems, of which nothing is eliminated.

    Forming J^T J squares the condition number: of curves whose parameters are nearly
    interchangeable half of the digits are lost. Cost: at most `Limits.max_svd_work`
    multiplications.
    """
    jacobian, size = normal.dense_jacobian(), normal.unknowns.size
    present = np.flatnonzero(jacobian.any(axis=0))
    # with as many rows as columns the singular vectors are all there
    num_missing = max(len(present) - len(jacobian), 0)
    rows = np.concatenate([jacobian[:, present], np.zeros((num_missing, len(present)))])
    _, values, turns = np.linalg.svd(rows, full_matrices=False)
    is_free = values <= FREE_SINGULAR_VALUE * values.max(initial=0.0)
    root = turns.T * np.where(is_free, 0.0, 1.0 / np.where(is_free, 1.0, values))
    inverse = np.zeros((size, size))
    inverse[np.ix_(present, present)] = root @ root.T
    free = np.zeros((size, int(is_free.sum())))
    free[present] = turns[is_free].T
    method = "singular values of the Jacobian"
    return _of_matrix(normal, normal.backend.upload(inverse), free, method)


def _dense_inverse(normal: NormalMatrix) -> ReducedInverse:
    """Form the reduced system as a dense matrix, and invert it by LAPACK or cuSOLVER."""
    backend, xp, size = normal.backend, normal.backend.xp, normal.unknowns.size
    matrix = _dense_matrix(normal)
    factorization = backend.dense_factorization(size)
    diagonal = xp.arange(size)

    def factorize(added: Array | float) -> None:
        factorization.matrix[...] = matrix
        factorization.matrix[diagonal, diagonal] += added
        factorization.factorize()

    def solve(rhs: FloatArray) -> FloatArray:
        columns = backend.upload(np.ascontiguousarray(rhs.T))
        solutions = xp.empty_like(columns)
        factorization.solve(columns, solutions)
        return np.asarray(backend.to_host(solutions)).T

    factorize(SHIFT)
    free = null_space(
        lambda vectors: np.asarray(backend.to_host(matrix @ backend.upload(vectors))), solve, size
    )
    factorize(backend.upload(pinned_unknowns(free)))
    inverse = xp.empty((size, size))
    factorization.invert(inverse)
    if float(backend.to_host(factorization.outcome)[0]) != 0.0:
        raise BackendError(
            "covariance: the factorisation of the reduced system failed although its free "
            "directions are held; this is a defect of caspar, please report it"
        )
    return _of_matrix(normal, inverse, free, "dense factorisation")


def _dense_matrix(normal: NormalMatrix) -> Array:
    """The reduced system, both triangles."""
    lists = full_lists(normal.unknowns)
    matrix = normal.backend.xp.zeros((normal.unknowns.size, normal.unknowns.size))
    for types, blocks in normal.blocks(lists).items():
        rows, columns = lists[types].row, lists[types].column
        by_pair = blocks.reshape(rows.count, columns.count, rows.dim, columns.dim)
        _by_pair(normal, matrix, types)[...] = by_pair
    # only blocks on and below the diagonal have been summed
    lower = normal.backend.xp.tril(matrix)
    return lower + normal.backend.xp.tril(lower, -1).T


def _by_pair(normal: NormalMatrix, matrix: Array, types: TypePair) -> Array:
    """A view of a matrix: (row nodes, column nodes, row dim, column dim)."""
    row, column = (normal.unknowns.nodes[name] for name in types)
    part = matrix[
        row.first : row.first + row.count * row.dim,
        column.first : column.first + column.count * column.dim,
    ]
    return part.reshape(row.count, row.dim, column.count, column.dim).transpose(0, 2, 1, 3)


def _of_matrix(
    normal: NormalMatrix, inverse: Array, free: FloatArray, method: str
) -> ReducedInverse:
    """A `ReducedInverse` of a (size, size) matrix on the device."""
    backend = normal.backend

    def solve(rhs: FloatArray) -> FloatArray:
        return np.asarray(backend.to_host(inverse @ backend.upload(rhs)))

    def blocks(types: TypePair, rows: Array, columns: Array) -> Array:
        return _by_pair(normal, inverse, types)[rows, columns]

    return ReducedInverse(method, free, solve, blocks)


# -- sparse ----------------------------------------------------------------------------------------


def _sparse_inverse(normal: NormalMatrix, lists: Mapping[TypePair, BlockList]) -> ReducedInverse:
    """Factorise the reduced system as a sparse matrix, and invert it on the factor's pattern.

    On the host; on CUDA too, as cuDSS keeps its factor to itself.
    """
    backend, xp, unknowns = normal.backend, normal.backend.xp, normal.unknowns
    size = unknowns.size
    entries, starts = matrix_entries(xp, lists, unknowns).by_rows(xp, size)
    flat = xp.concatenate([one.ravel() for one in normal.blocks(lists).values()])
    values, columns, starts = map(backend.to_host, (flat[entries.source], entries.columns, starts))
    # the lower triangle by rows is the upper one by columns
    upper = csc_matrix((values, columns.astype(np.int32), starts), shape=(size, size))
    diagonal = upper.indptr[1:] - 1
    factorization = QdldlFactorization(upper.indptr, upper.indices, size)

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
    # threads of BLAS that wait for each other make work on small blocks up to 100 times slower
    found = []
    factorize(SHIFT)
    on_one_thread(lambda: found.append(null_space(lambda x: symmetric @ x, solve, size)))
    (free,) = found
    factorize(pinned_unknowns(free))
    selected = SelectedInverse(*factorization.factors())
    if selected.max_rows <= FEW_ROWS:
        on_one_thread(selected.compute)
    else:
        selected.compute()
    known = {}
    for types, one in lists.items():
        nodes = map(backend.to_host, one.nodes(xp))
        places = [
            unknowns.numbers(np, node.name, index, np.arange(node.dim))
            for node, index in zip((one.row, one.column), nodes, strict=True)
        ]
        known[types] = backend.upload(selected.blocks(*places))

    def blocks(types: TypePair, rows: Array, columns: Array) -> Array:
        return known[types][lists[types].numbers(xp, rows, columns)]

    return ReducedInverse("sparse factorisation and selected inverse", free, solve, blocks)


# -- columns ---------------------------------------------------------------------------------------


def _iterative_inverse(normal: NormalMatrix) -> ReducedInverse:
    """Columns of the inverse by preconditioned conjugate gradients; the system is never formed.

    Only diagonal blocks, blocks between nodes that one factor touches, and the couplings of
    eliminated nodes are in memory. Cost: some hundred products for each column.
    """
    backend, size = normal.backend, normal.unknowns.size
    apply, precondition = _operators(normal)

    def on_host(operator: Operator, *, is_strict: bool) -> Solve:
        def solve(rhs: FloatArray) -> FloatArray:
            solution, residual = _conjugate_gradients(
                backend.xp, operator, precondition, backend.upload(rhs)
            )
            worst = float(residual.max())
            if is_strict and not worst <= USABLE:
                raise CasparError(
                    f"covariance: conjugate gradients left {worst:.1e} of a column after "
                    f"{MAX_ITERATIONS:,} iterations. The system of {size:,} unknowns is too large "
                    "to be factorised, and too badly conditioned for them; hold more of it, for "
                    "example by priors, or split the problem"
                )
            return np.asarray(backend.to_host(solution))

        return solve

    free = null_space(
        lambda vectors: np.asarray(backend.to_host(apply(backend.upload(vectors)))),
        # of a direction that is free the length does not matter
        on_host(lambda vectors: apply(vectors) + SHIFT * vectors, is_strict=False),
        size,
    )
    held = backend.upload(pinned_unknowns(free)[:, None])
    solve = on_host(lambda vectors: apply(vectors) + held * vectors, is_strict=True)
    return ReducedInverse("conjugate gradients", free, solve, None)


def _operators(normal: NormalMatrix) -> tuple[Operator, Operator]:
    """The reduced system times (size, k), and its diagonal blocks' inverse."""
    xp, unknowns = normal.backend.xp, normal.unknowns
    lists = normal.lists(eliminates=False)
    own, off = {}, []
    for types, block in normal.blocks(lists, eliminates=False).items():
        num = lists[types].num_diagonal
        rows, columns = lists[types].nodes(xp)
        if num > 0:
            own[types[0]] = block[:num]
        if len(block) > num:
            off.append((types, rows[num:], columns[num:], block[num:]))
    left = {name: block.copy() for name, block in own.items()}
    for elimination in normal.eliminations.values():
        for name, one in elimination.couplings.items():
            add_rows(xp, left[name], one.other, -(one.blocks.transpose(0, 2, 1) @ one.blocks))
    inverses = {
        name: xp.linalg.inv(block + SHIFT * xp.eye(block.shape[1])) for name, block in left.items()
    }

    def apply(vectors: Array) -> Array:
        parts = unknowns.split(vectors)
        result = {name: own[name] @ part for name, part in parts.items()}
        for (row, column), rows, columns, block in off:
            add_rows(xp, result[row], rows, block @ parts[column][columns])
            add_rows(xp, result[column], columns, block.transpose(0, 2, 1) @ parts[row][rows])
        for elimination in normal.eliminations.values():
            for name, part in elimination.taken(xp, elimination.moved(xp, parts)).items():
                result[name] -= part
        return unknowns.joined(xp, result)

    def precondition(vectors: Array) -> Array:
        parts = unknowns.split(vectors)
        return unknowns.joined(xp, {name: inverses[name] @ part for name, part in parts.items()})

    return apply, precondition


def _conjugate_gradients(
    xp: ModuleType, apply: Operator, precondition: Operator, rhs: Array
) -> tuple[Array, Array]:
    """Solve for all columns, each with its own alpha and beta: solution, relative residuals."""
    solution, residual = xp.zeros_like(rhs), rhs.copy()
    z = precondition(residual)
    direction = z
    descent = (residual * z).sum(axis=0)
    sizes = xp.sqrt((rhs**2).sum(axis=0))
    sizes = sizes + (sizes == 0.0)
    for _ in range(MAX_ITERATIONS):
        is_open = xp.sqrt((residual**2).sum(axis=0)) > TOLERANCE * sizes
        product = apply(direction)
        curvature = (direction * product).sum(axis=0)
        # rounding may leave a curvature that is not positive
        is_open &= curvature > 0.0
        if not bool(is_open.any()):
            break
        alpha = is_open * descent / xp.where(is_open, curvature, 1.0)
        solution += alpha * direction
        residual = residual - alpha * product
        z = precondition(residual)
        after = (residual * z).sum(axis=0)
        direction = z + is_open * after / xp.where(descent > 0.0, descent, 1.0) * direction
        descent = after
    return solution, xp.sqrt((residual**2).sum(axis=0)) / sizes
