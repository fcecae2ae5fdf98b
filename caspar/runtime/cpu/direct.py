"""Direct solvers on the processor: LAPACK through SciPy, and QDLDL.

Why these: `docs/design/0013-direct-solvers.md`.
"""

import math
import os
from collections.abc import Callable
from functools import cache, cached_property
from threading import Lock
from typing import Any

import numpy as np
import qdldl
from numpy.typing import NDArray
from scipy.linalg.lapack import get_lapack_funcs
from scipy.sparse import csc_matrix
from threadpoolctl import ThreadpoolController

from caspar.memory.array import Array
from caspar.runtime.factorization import padded_matrix

FloatArray = NDArray[np.float64]


FEW_ROWS = 768
"""Rows up to which one thread factorises. Threads of OpenBLAS spin while they wait for each other:
where cores have other work, 1,000 rows take 744 ms with two threads and 8 with one. By themselves,
ms with two threads and with one: 189 rows 0.13 and 0.09, 441 rows 0.73 and 0.79, 600 rows 1.5 and
1.8, 1,000 rows 5.3 and 7.5, 1,500 rows 16 and 24 (two cores). A solve of 12 steps with 600 rows
takes 34 ms instead of 31, and not 5 s now and then."""


@cache
def _threads() -> ThreadpoolController:
    """Find the loaded BLAS libraries; that takes longer than a small factorisation."""
    return ThreadpoolController().select(user_api="blas")


_ALONE = Lock()
"""Held while BLAS has one thread: that limit is the process's, and whoever changes it has to be the
one who changes it back."""

_USUAL: dict[Any, int] = {}
"""Threads that libraries are to have again. An interrupt in `on_one_thread` may leave some here:
whoever comes next gives them back, see `give_threads_back`."""


def on_one_thread(work: Callable[[], None]) -> None:
    """Run a function while BLAS has one thread."""
    with _ALONE:
        _give_back()
        try:
            for library in _threads().lib_controllers:
                _USUAL[library] = library.num_threads
                library.set_num_threads(1)
            work()
        finally:
            _give_back()


def _give_back() -> None:
    for library, num_threads in list(_USUAL.items()):
        library.set_num_threads(num_threads)
        del _USUAL[library]


def give_threads_back() -> None:
    """Give BLAS the threads back that an interrupt or a fork has left it without."""
    if len(_USUAL) > 0:
        with _ALONE:
            _give_back()


def _renew_lock() -> None:
    """Another thread may have held the lock at the fork."""
    global _ALONE
    _ALONE = Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_renew_lock)


class LapackCholesky:
    """A dense matrix, factorised in its place by LAPACK's potrf."""

    def __init__(self, size: int, outcome: Array | None = None) -> None:
        self.memory, self.matrix = padded_matrix(np, size)
        self.probes = False
        self.outcome = np.zeros(2) if outcome is None else outcome
        names = ("potrf", "potrs", "potri")
        self._factorize, self._solve, self._invert = get_lapack_funcs(names, (self.matrix,))
        self._factor, self._info = self.matrix.T, 0

    def factorize(self) -> None:
        """Cholesky's factorisation."""

        def work() -> None:
            # LAPACK goes down columns: the lower triangle by rows is the upper one by columns
            self._factor, self._info = self._factorize(
                self.matrix.T, lower=False, clean=False, overwrite_a=True
            )

        self._run(work)

    def solve(self, rhs: Array, solution: Array) -> None:
        """Solve by the factor."""
        info = self._info

        def work() -> None:
            nonlocal info
            columns = solution.T
            solved, info = self._solve(self._factor, columns, lower=False, overwrite_b=True)
            if solved is not columns:
                columns[...] = solved

        solution[...] = rhs
        if info == 0:
            self._run(work)
        self._write_outcome(info, solution)

    def launch(self, rhs: Array, solution: Array) -> None:
        """Return None: the host calls the library."""

    def invert(self, inverse: Array) -> None:
        """Invert by the factor."""
        info = self._info

        def work() -> None:
            nonlocal info
            upper, info = self._invert(self._factor, lower=False)
            inverse[...] = np.triu(upper) + np.triu(upper, 1).T

        if info == 0:
            self._run(work)
        self._write_outcome(info, inverse)

    def _write_outcome(self, info: int, found: FloatArray) -> None:
        # potrf does not notice entries that are not numbers
        if info != 0 or not np.isfinite(found).all():
            self.outcome[:] = 1.0, 0.0
        else:
            self.outcome[:] = 0.0, self._factor.diagonal().min(initial=1.0) ** 2

    def _run(self, work: Callable[[], None]) -> None:
        if len(self.matrix) <= FEW_ROWS:
            on_one_thread(work)
        else:
            work()


NO_PIVOT = 64.0
"""Roundings, in units of the largest pivot, up to which a pivot is taken for zero; or four times
the square root of the number of rows, if that is more. The entries are some roundings off."""


class LapackQr:
    """A least-squares problem with a dense matrix, by LAPACK's QR decomposition.

    Rows are sorted by their size and columns are pivoted, so that rows of any weights keep their
    digits. If the matrix has less than full rank, unknowns that are not determined are zero. The
    order of the columns is kept for the next matrix as long as no pivot of it is zero: without
    pivoting LAPACK is several times as fast.

    Attributes:
        matrix: (size, num_rows), each row a column of the matrix; `solve` makes its length 1.
        rhs: (num_rows,) right-hand side; it is kept.
        lengths: (size,) of the columns of the last matrix.
        pivots: (rank,) of the last matrix, those that are not zero to rounding.
        explained: (rank,) the right-hand side along the directions of the pivots: half of the sum
            of its squares is what the solution takes away from half of |rhs|^2.
    """

    def __init__(self, num_rows: int, size: int) -> None:
        self.matrix: FloatArray = np.zeros((size, num_rows))
        self.rhs: FloatArray = np.zeros(num_rows)
        names = ("geqp3", "geqrf", "ormqr", "trtrs")
        self._pivoted, self._in_order, self._rotate, self._solve = get_lapack_funcs(
            names, (self.matrix,)
        )
        self._order: NDArray[np.intp] | None = None
        self.lengths: FloatArray = np.ones(size)
        self._factors: FloatArray = np.zeros((0, size))
        self._columns: NDArray[np.intp] = np.arange(size)
        self.pivots: FloatArray = np.zeros(0)
        self.explained: FloatArray = np.zeros(0)

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix and its sorted copy."""
        return 2 * int(self.matrix.nbytes) + int(self.rhs.nbytes)

    def solve(self) -> tuple[FloatArray, FloatArray]:
        """The (size,) solution, and (2,): 1 if it failed, and the least pivot's square.

        Pivots are relative to the largest one; those that are zero to rounding do not count.
        """
        failed = np.zeros(len(self.matrix)), np.array([1.0, 0.0])
        self.pivots = self.explained = np.zeros(0)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.linalg.norm(self.matrix, axis=1)
            self.lengths = np.where(lengths > 0.0, lengths, 1.0)
            self.matrix /= self.lengths[:, None]
        sizes = np.abs(self.matrix).max(axis=0, initial=0.0)
        if not np.isfinite(sizes).all() or not np.isfinite(self.rhs).all():
            return failed
        order = np.argsort(-sizes, kind="stable")
        order = order[: np.count_nonzero(sizes)]
        found = failed

        def work() -> None:
            nonlocal found
            found = self._solved(order)

        if len(self.matrix) <= FEW_ROWS:
            on_one_thread(work)
        else:
            work()
        return found

    def _solved(self, order: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        solution = np.zeros(len(self.matrix))
        if len(order) == 0:
            return solution, np.array([0.0, 1.0])
        tau = self._decompose(order)
        rank = len(self.pivots)
        rhs = self.rhs[order, None]
        rotations = self._factors[:, : len(tau)]
        work = self._rotate("L", "T", rotations, tau, rhs, -1)[1]
        rotated, _, _ = self._rotate("L", "T", rotations, tau, rhs, int(work[0]))
        self.explained = rotated[:rank, 0]
        solved, info = self._solve(self._factors[:rank, :rank], rotated[:rank])
        solution[self._columns[:rank]] = solved[:, 0]
        solution /= self.lengths
        failed = info != 0 or not np.isfinite(solution).all()
        return solution, np.array([float(failed), (self.pivots.min() / self.pivots.max()) ** 2])

    def null_space(self) -> FloatArray:
        """(k, size) directions that the last matrix does not determine, of length 1."""
        rank, size = len(self.pivots), len(self.matrix)
        found = np.zeros((size - rank, size))
        if rank < size:
            determined = np.zeros((rank, size - rank))
            if rank > 0:
                triangle, others = self._factors[:rank, :rank], self._factors[:rank, rank:]
                determined, _ = self._solve(triangle, -others)
            found[:, self._columns[:rank]] = determined.T
            found[np.arange(size - rank), self._columns[rank:]] = 1.0
            found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found

    def _decompose(self, order: NDArray[np.intp]) -> Any:
        """Set factors, order of columns and pivots of the rows in that order; return tau."""
        rounding = max(NO_PIVOT, 4.0 * math.sqrt(len(order))) * float(np.finfo(np.float64).eps)
        if self._order is not None:
            rows = self.matrix[self._order][:, order].T
            work = self._in_order(rows, lwork=-1)[2]
            factors, tau, _, _ = self._in_order(rows, lwork=int(work[0]), overwrite_a=True)
            pivots = np.abs(factors.diagonal())
            if len(pivots) == len(self.matrix) and (pivots > rounding * pivots.max()).all():
                self._factors, self._columns, self.pivots = factors, self._order, pivots
                return tau
        rows = self.matrix[:, order].T
        work = self._pivoted(rows, lwork=-1)[3]
        factors, columns, tau, _, _ = self._pivoted(rows, lwork=int(work[0]), overwrite_a=True)
        pivots = np.abs(factors.diagonal())
        self._factors, self._columns = factors, columns.astype(np.intp) - 1
        self.pivots = pivots[pivots > rounding * pivots[0]]
        self._order = self._columns if len(self.pivots) == len(self.matrix) else None
        return tau


FEW_DENSE = 30
"""Rows that AMD may put last without a look, as it does with those of more than 10 sqrt(size)
entries. Many such rows fill the matrix: 3,500 poses in space with 100 landmarks, each seen from 300
of them, take 1,070 ms a factorisation, and 21 in the order that it finds if it looks."""

MANY_DENSE = 0.25
"""Share of such rows from which on a matrix is full in any order."""

MOST_PADDING = 64
"""Times as large a matrix may be made for that. Twice costs nothing, nine times 3 of 24 ms."""


def size_for_ordering(degrees: NDArray[np.integer[Any]], most_padding: float = MOST_PADDING) -> int:
    """Rows of a matrix in which AMD looks at all rows but a few, from their degrees.

    The matrix may be made `most_padding` times as large for that.
    """
    size = len(degrees)
    unseen = np.sort(degrees[degrees > 10.0 * math.sqrt(size)])
    if not FEW_DENSE < len(unseen) <= MANY_DENSE * size:
        return size
    needed = int(unseen[-1 - FEW_DENSE]) ** 2 // 100 + 1
    return needed if needed <= most_padding * size else size


class QdldlFactorization:
    """A sparse matrix, factorised by QDLDL (L D L^T) in the order that AMD finds.

    Rows of the identity are added, up to `most_padding` times the size, where that makes for a
    better order. `values` are the (nnz,) entries of a matrix that is factorised at once; None: the
    pattern is analysed by factorising the identity. `remarks` say why this library was taken.
    """

    def __init__(
        self,
        indptr: Array,
        indices: Array,
        size: int,
        outcome: Array | None = None,
        most_padding: float = MOST_PADDING,
        remarks: tuple[str, ...] = (),
        values: Array | None = None,
    ) -> None:
        self.remarks = remarks
        indptr, indices, num_entries = np.asarray(indptr), np.asarray(indices), len(indices)
        degrees = np.bincount(indices, minlength=size) + np.diff(indptr) - 2
        added = np.arange(size_for_ordering(degrees, most_padding) - size, dtype=np.int32)
        if len(added) > 0:
            indices = np.concatenate([indices, size + added])
            indptr = np.concatenate([indptr, num_entries + 1 + added])
        self._added = np.zeros(len(added))
        size += len(added)
        # the lower triangle by rows is the upper one by columns, which QDLDL takes; the class
        # must be csc_matrix, not csc_array, or QDLDL converts it every time
        pattern = (np.zeros(len(indices)), indices, indptr)
        self._matrix = csc_matrix(pattern, shape=(size, size))
        # analysis comes with a first factorisation
        self._matrix.data[self._matrix.indptr[1:] - 1] = 1.0
        if values is not None:
            self._matrix.data[:num_entries] = values
        self._solver = qdldl.Solver(self._matrix, upper=True)
        self.probes = False  # its pivots are known anyway
        self.values: FloatArray = self._matrix.data[:num_entries]
        self.outcome = np.zeros(2) if outcome is None else outcome

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, and of the numbers where rows begin."""
        return int(self.values.nbytes + self._matrix.indptr.nbytes)

    @property
    def operations_of_entry(self) -> float:
        """Operations of a factorisation by entries of the factor."""
        starts, _, _ = self.pattern
        lengths = np.diff(starts).astype(np.float64) + 1.0
        return float(lengths @ lengths) / float(lengths.sum())

    @cached_property
    def pattern(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """The starts of the columns of L, their rows, and the row of the matrix that each is."""
        lower, _, order = self.factors()
        return lower.indptr, lower.indices, order

    @property
    def is_padded(self) -> bool:
        """Return whether rows were added."""
        return len(self._added) > 0

    def factorize(self) -> None:
        """L D L^T, in the order that was found."""
        self._solver.update(self._matrix, upper=True)

    def launch(self, rhs: Array, solution: Array) -> None:
        """Return None: the host calls the library."""

    def factors(self) -> tuple[csc_matrix, FloatArray, NDArray[np.integer[Any]]]:
        """L without its diagonal of ones, D, and the row of the matrix that each of theirs is.

        They have the rows of the identity that were added, behind those of the matrix.
        """
        lower, pivots, order = self._solver.factors()
        return lower, pivots, order

    def solved(self, rhs: Array) -> FloatArray:
        """The solution by the factors, without a look at their pivots."""
        padded = rhs if len(self._added) == 0 else np.concatenate([rhs, self._added])
        found: FloatArray = self._solver.solve(padded)[: len(rhs)]
        return found

    def solve(self, rhs: Array, solution: Array) -> None:
        """Solve by the factors."""
        solution[...] = self.solved(rhs)
        # negative pivots are nothing special to QDLDL, and zero ones end it without a word
        _, pivots, _ = self._solver.factors()
        least = float(pivots.min())
        if not least > 0.0 or not np.isfinite(solution).all():
            self.outcome[:] = 1.0, 0.0
        else:
            self.outcome[:] = 0.0, least
