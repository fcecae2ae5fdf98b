"""The bordered system of Newton's method: all unknowns, then all entries of constraints.

Input: where instances of factors and constraints are in a Hessian. Output: the solution for values
of these. The pattern has a row for each entry of a constraint; one that is not active is a row of
the identity with the other sign. So a structure is analysed once, whatever is active. Cost tier:
the analysis once for a solve, a factorisation for a system.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from caspar.runtime.cpu.direct import QdldlFactorization
from caspar.solver.constraints.violations import Floats
from caspar.solver.gradients.system import Hessian

Integers = NDArray[np.int64]

REGULARISATION = 1e-8
"""In place of the zero block, negative, in units of the scaled system."""

MAX_REFINEMENTS = 6
"""Corrections by the residual of the system without it."""


@dataclass(frozen=True)
class System:
    """A system as it is, not scaled.

    Attributes:
        first: (nnz,) entries of the lower triangle of the first block.
        jacobian: (entries of J,) of all rows.
        active: (rows,) booleans.
        scale: (size,) of the unknowns; 0 for those that stay.
        upper: (size,) right-hand side of the unknowns.
        lower: (rows,) of the constraints.
        shift: Added to the scaled diagonal.
    """

    first: Floats
    jacobian: Floats
    active: NDArray[np.bool_]
    scale: Floats
    upper: Floats
    lower: Floats
    shift: float


class Border:
    """Systems of one structure.

    Args:
        hessian: The pattern of the first block.
        size: Unknowns.
        columns: (m, k) unknowns of each instance, of each constraint.
        dims: Entries of an instance, of each constraint.
    """

    def __init__(
        self, hessian: Hessian, size: int, columns: Sequence[Integers], dims: Sequence[int]
    ) -> None:
        self._hessian, self._size = hessian, size
        self._diagonal = hessian.starts[1:].astype(np.int64) - 1
        keys, first = [np.zeros(0, np.int64)], 0
        for own, dim in zip(columns, dims, strict=True):
            rows = first + np.arange(len(own) * dim, dtype=np.int64).reshape(-1, dim, 1)
            first += rows.size
            keys.append((rows * size + own[:, None, :]).ravel())
        self.num_rows = first
        unique, self._places = np.unique(np.concatenate(keys), return_inverse=True)
        self._rows, self._columns = np.divmod(unique, size)
        self._starts = np.searchsorted(self._rows, np.arange(first + 1))
        num, total = len(hessian.columns), np.arange(len(unique))
        self._inner = num + total + self._rows
        self._corner = num + self._starts[1:] + np.arange(first)
        self._indptr = np.concatenate([hessian.starts, self._corner + 1]).astype(np.int32)
        indices = np.zeros(num + len(unique) + first, np.int32)
        indices[:num], indices[self._inner] = hessian.columns, self._columns
        indices[self._corner] = size + np.arange(first)
        self._indices = indices
        self._factorization = QdldlFactorization(self._indptr, indices, size + first)

    def jacobian(self, blocks: Sequence[Floats]) -> Floats:
        """Entries of J, from the (m, dim, k) derivatives of the instances of each constraint."""
        entries = np.concatenate([np.zeros(0), *(one.ravel() for one in blocks)])
        summed = np.bincount(self._places, entries, minlength=len(self._columns))
        return np.asarray(summed, np.float64)

    def pulled(self, jacobian: Floats, rows: Floats) -> Floats:
        """J^T times a number for each row: (size,)."""
        summed = np.bincount(self._columns, jacobian * rows[self._rows], minlength=self._size)
        return np.asarray(summed, np.float64)

    def diagonal(self, first: Floats) -> Floats:
        """Return the diagonal of the first block."""
        return np.asarray(first[self._diagonal])

    def solved(self, system: System) -> tuple[Floats, Floats] | None:
        """Both parts of the solution; None: the pivots have other signs than near a minimum."""
        scale, size = system.scale, self._size
        data = np.zeros(len(self._indices))
        hessian = self._hessian
        data[: len(system.first)] = system.first * scale[hessian.rows] * scale[hessian.columns]
        data[self._diagonal] += (scale == 0.0) + system.shift
        scaled = np.where(system.active[self._rows], system.jacobian, 0.0) * scale[self._columns]
        squares = np.bincount(self._rows, scaled**2, minlength=self.num_rows)
        unit = np.where(squares > 0.0, 1.0 / np.sqrt(np.where(squares > 0.0, squares, 1.0)), 0.0)
        data[self._inner] = -scaled * unit[self._rows]
        rhs = np.concatenate(
            [system.upper * scale, np.where(system.active, system.lower, 0) * unit]
        )
        factorization = self._factorization
        data[self._corner] = np.where(system.active, -REGULARISATION, -1.0)
        factorization.values[...] = data
        try:
            factorization.factorize()
        except RuntimeError:  # a pivot is zero
            return None
        pivots = factorization.factors()[1]
        if np.count_nonzero(pivots < 0.0) != self.num_rows or not np.isfinite(pivots).all():
            return None
        data[self._corner] = np.where(system.active, 0.0, -1.0)
        solution = self._refined(data, rhs)
        if not bool(np.isfinite(solution).all()):
            return None
        return solution[:size] * scale, solution[size:] * unit

    def _refined(self, data: Floats, rhs: Floats) -> Floats:
        """The solution by the last factorisation, corrected by residuals of the system itself."""
        shape = (len(rhs), len(rhs))
        lower = csr_array((data, self._indices, self._indptr), shape=shape)
        upper, own = lower.T, np.concatenate([data[self._diagonal], data[self._corner]])

        def left_by(solution: Floats) -> Floats:
            return np.asarray(rhs - (lower @ solution + upper @ solution - own * solution))

        solution = self._factorization.solved(rhs)
        left = left_by(solution)
        for _ in range(MAX_REFINEMENTS):
            better = solution + self._factorization.solved(left)
            rest = left_by(better)
            if not np.linalg.norm(rest) < 0.5 * np.linalg.norm(left):
                break
            solution, left = better, rest
        return solution
