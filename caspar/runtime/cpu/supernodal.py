"""Sparse factorisation on the processor: by supernodes with RSLAB, or entry by entry with QDLDL.

Supernodes are columns of the factor with one pattern, which are factorised as dense blocks. They
pay if a factor has many operations an entry; `docs/design/0013-direct-solvers.md` has the figures.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from caspar.memory.array import Array
from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.runtime.cpu.driver import num_threads
from caspar.runtime.factorization import SparseFactorization

try:
    import rslab
except ImportError:  # no wheel for this machine
    rslab = None

_SLOWER = (
    "QDLDL factorised the matrix. RSLAB is several times as fast for most matrices, but cannot be "
    "imported: `caspar doctor` says why. Install it with: pip install rslab."
)

MIN_OPERATIONS = 80.0
"""Operations for each entry of the factor from which on supernodes pay."""

MIN_PARALLEL_OPERATIONS = 1e9
"""Operations of a factorisation from which on it has more than one thread."""

MAX_THREADS = 4
"""Threads of a factorisation at most: RSLAB gains little by more."""


def sparse_factorization(
    indptr: Array, indices: Array, size: int, outcome: Array | None = None
) -> SparseFactorization:
    """The factorisation that suits a pattern; see `SupernodalFactorization` for the arguments."""
    if rslab is None:
        return QdldlFactorization(indptr, indices, size, outcome, remarks=(_SLOWER,))
    supernodal = SupernodalFactorization(indptr, indices, size, outcome)
    if supernodal.operations_of_entry >= MIN_OPERATIONS:
        return supernodal
    return QdldlFactorization(indptr, indices, size, supernodal.outcome)


class SupernodalFactorization:
    """A sparse matrix, factorised by RSLAB (L D L^T) in an order that it chooses by the fill.

    The result does not depend on the number of threads.

    Args:
        indptr: (size + 1,) where the rows of the lower triangle begin.
        indices: (nnz,) columns, ascending within a row; each row ends with its diagonal entry.
        size: Rows and columns.
        outcome: (2,) float64 that `solve` writes; None: its own.

    Attributes:
        probes: As in `SparseFactorization`.
        operations_of_entry: Operations of a factorisation by entries of the factor.
        num_threads: Threads that factorise.
    """

    remarks: tuple[str, ...] = ()

    def __init__(
        self, indptr: Array, indices: Array, size: int, outcome: Array | None = None
    ) -> None:
        num_entries = len(indices)
        numbers = csr_array((np.arange(num_entries), indices, indptr), shape=(size, size)).tocsc()
        # RSLAB reads the lower triangle by columns
        self._by_columns: NDArray[np.int32] = numbers.data.astype(np.int32)
        numbers.data = np.zeros(num_entries)
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

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, and of their order by columns."""
        return int(self.values.nbytes + self._by_columns.nbytes)

    def factorize(self) -> None:
        """L D L^T, in the order that was found."""
        self._factor = None  # its memory goes before there is another
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
