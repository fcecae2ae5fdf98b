"""Sparse factorisation on the processor: by supernodes with RSLAB, or entry by entry with QDLDL.

Supernodes are columns of the factor with one pattern, which are factorised as dense blocks. They
pay if a factor has many operations an entry; `docs/design/0013-direct-solvers.md` has the figures.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from caspar.memory.array import Array
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.runtime.cpu.driver import num_threads
from caspar.runtime.cpu.small_matrix import (
    MOST_ENTRIES,
    FullFactorization,
    SmallFactorization,
    is_small_and_full,
)
from caspar.runtime.factorization import SparseFactorization

try:
    import rslab
except ImportError:  # no wheel for this machine
    rslab = None

_SLOWER = (
    "QDLDL factorised the matrix. RSLAB is several times as fast for most matrices, but cannot be "
    "imported: `caspar doctor` says why. Install it with: pip install rslab."
)

_FORKED = (
    "QDLDL factorised the matrix. RSLAB is several times as fast for most matrices, but its "
    "threads do not survive a fork, and this process was forked after RSLAB had been used. Start "
    "workers with multiprocessing.get_context('spawn') or 'forkserver' to have RSLAB there too."
)

MIN_OPERATIONS = 80.0
"""Operations for each entry of the factor from which on supernodes pay."""

FEW_ROWS = 500
"""Rows up to which QDLDL's analysis comes before RSLAB's, which takes four times as long: 0.1 and
0.4 ms of 60 rows."""

FEW_OPERATIONS = 0.65
"""Times `MIN_OPERATIONS` that QDLDL's factor may have without a look at RSLAB's: that has 1.03 to
1.5 times as many, as it counts full blocks."""

MIN_PARALLEL_OPERATIONS = 1e9
"""Operations of a factorisation from which on it has more than one thread."""

MAX_THREADS = 4
"""Threads of a factorisation at most: RSLAB gains little by more."""


class _Threads:
    """RSLAB's threads. It keeps them until the process ends, and a fork has none of them.

    Attributes:
        were_started: RSLAB has been used in this process or in one that it was forked from.
        are_lost: They were started before this process was forked. RSLAB offers no way to start
            them again, and would wait for them for ever.
    """

    def __init__(self) -> None:
        self.were_started = self.are_lost = False
        if hasattr(os, "register_at_fork"):  # Windows has no forks
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.are_lost = self.were_started


_THREADS = _Threads()


def sparse_factorization(
    indptr: Array, indices: Array, size: int, outcome: Array | None = None
) -> SparseFactorization:
    """The factorisation that suits a pattern; see `SupernodalFactorization` for the arguments."""
    if is_small_and_full(size, len(indices)):
        return FullFactorization(size, outcome)
    if rslab is None:
        return QdldlFactorization(indptr, indices, size, outcome, remarks=(_SLOWER,))
    if _THREADS.are_lost:
        return QdldlFactorization(indptr, indices, size, outcome, remarks=(_FORKED,))
    if size <= FEW_ROWS:
        by_entries = QdldlFactorization(indptr, indices, size, outcome)
        if by_entries.operations_of_entry < FEW_OPERATIONS * MIN_OPERATIONS:
            *factor, order = by_entries.pattern
            if by_entries.is_padded or len(factor[1]) > MOST_ENTRIES:
                return by_entries
            return SmallFactorization(indptr, indices, factor, order, outcome)
    supernodal = SupernodalFactorization(indptr, indices, size, outcome)
    if supernodal.operations_of_entry >= MIN_OPERATIONS:
        return supernodal
    return QdldlFactorization(indptr, indices, size, supernodal.outcome)


class SupernodalFactorization:
    """A sparse matrix, factorised by RSLAB (L D L^T) in an order that it chooses by the fill.

    The result does not depend on the number of threads. In a process that was forked since it was
    made, QDLDL factorises instead. `operations_of_entry` are the operations of a factorisation by
    entries of the factor.
    """

    def __init__(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> None:
        num_entries = len(indices)
        numbers = csr_array((np.arange(num_entries), indices, indptr), shape=(size, size)).tocsc()
        # RSLAB reads the lower triangle by columns
        self._by_columns: NDArray[np.int32] = numbers.data.astype(np.int32)
        numbers.data = np.zeros(num_entries)
        _THREADS.were_started = True
        # the solver has scaled the matrix already
        self._analysis = rslab.analyze(numbers, path="ldlt", scaling="identity")
        estimate = self._analysis.estimate_memory()
        operations = estimate["factor_flops"]
        self.operations_of_entry = operations / max(estimate["factor_nnz"], 1)
        is_large = operations >= MIN_PARALLEL_OPERATIONS
        self.num_threads = min(num_threads(), MAX_THREADS) if is_large else 1
        self.values: NDArray[np.float64] = np.zeros(num_entries)
        self.outcome = np.zeros(2) if outcome is None else outcome
        self.probes = False
        self._factor: Any = None
        self._pattern = indptr, indices, size
        self._after_fork: QdldlFactorization | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """See `SparseFactorization`."""
        return (_FORKED,) if _THREADS.are_lost else ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, of their order by columns, and of the numbers where rows begin."""
        return int(self.values.nbytes + self._by_columns.nbytes + self._pattern[0].nbytes)

    def launch(self, rhs: Array, solution: Array) -> None:
        """Return None: the host calls the library."""

    def factorize(self) -> None:
        """L D L^T, in the order that was found."""
        self._factor = None  # its memory goes before there is another
        if _THREADS.are_lost:
            if self._after_fork is None:
                self._after_fork = QdldlFactorization(*self._pattern, self.outcome)
            self._after_fork.values[...] = self.values
            self._after_fork.factorize()
            return
        try:
            self._factor = self._analysis.factor(
                self.values[self._by_columns], threads=self.num_threads
            )
        except RuntimeError as error:
            # a pivot is zero or no number; `solve` tells of it
            if "rank-deficient" not in str(error):
                raise

    def solve(self, rhs: Array, solution: Array) -> None:
        """Solve by the factors."""
        if self._after_fork is not None:
            self._after_fork.solve(rhs, solution)
            return
        if self._factor is None:
            self.outcome[:] = 1.0, 0.0
            return
        solution[...] = self._factor.solve(rhs)
        num_positive, _, _ = self._factor.inertia
        if num_positive < len(rhs) or not np.isfinite(solution).all():
            self.outcome[:] = 1.0, 0.0
        else:
            self.outcome[:] = 0.0, self._least_eigenvalue(solution) if self.probes else 1.0

    def _least_eigenvalue(self, solution: NDArray[np.float64]) -> float:
        """An estimate from above, by a step of inverse iteration: RSLAB keeps its pivots."""
        length = float(np.linalg.norm(solution))
        if length == 0.0:
            return 1.0
        return 1.0 / max(float(np.linalg.norm(self._factor.solve(solution / length))), 1.0)
