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
        shift: Added to the scaled diagonal.
    """

    first: Floats
    jacobian: Floats
    active: NDArray[np.bool_]
    scale: Floats
    shift: float


@dataclass(frozen=True)
class Factored:
    """The system that was factorised last.

    Attributes:
        system: As it is.
        unit: (rows,) the scale of the constraints.
    """

    system: System
    unit: Floats


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
        indptr = np.concatenate([hessian.starts, self._corner + 1]).astype(np.int32)
        indices = np.zeros(num + len(unique) + first, np.int32)
        indices[:num], indices[self._inner] = hessian.columns, self._columns
        indices[self._corner] = size + np.arange(first)
        self._factorization = QdldlFactorization(indptr, indices, size + first)
        shape = (size + first, size + first)
        self._lower = csr_array((np.zeros(len(indices)), indices, indptr), shape=shape)
        self._upper = self._lower.T  # of the same numbers

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

    def only_diagonal(self, first: Floats) -> Floats:
        """Entries of the first block with zeros off its diagonal, which is made positive."""
        entries = np.zeros_like(first)
        entries[self._diagonal] = np.abs(first[self._diagonal])
        return entries

    def factorized(self, system: System) -> Factored | None:
        """Factorise a system; None: the pivots have other signs than near a minimum."""
        scale = system.scale
        hessian, data = self._hessian, np.zeros(len(self._lower.data))
        data[: len(system.first)] = system.first * scale[hessian.rows] * scale[hessian.columns]
        data[self._diagonal] += (scale == 0.0) + system.shift
        scaled = np.where(system.active[self._rows], system.jacobian, 0.0) * scale[self._columns]
        squares = np.bincount(self._rows, scaled**2, minlength=self.num_rows)
        unit = np.where(squares > 0.0, 1.0 / np.sqrt(np.where(squares > 0.0, squares, 1.0)), 0.0)
        data[self._inner] = -scaled * unit[self._rows]
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
        self._lower.data[...] = data
        return Factored(system, unit)

    def solved(
        self, factored: Factored, upper: Floats, lower: Floats
    ) -> tuple[Floats, Floats] | None:
        """Both parts of the solution of the system factorised last; None: it is not finite.

        Args:
            factored: That system.
            upper: (size,) right-hand side of the unknowns.
            lower: (rows,) of the constraints.
        """
        scale, size = factored.system.scale, self._size
        rhs = [upper * scale, np.where(factored.system.active, lower, 0.0) * factored.unit]
        solution = self._refined(np.concatenate(rhs))
        if not bool(np.isfinite(solution).all()):
            return None
        return solution[:size] * scale, solution[size:] * factored.unit

    def _refined(self, rhs: Floats) -> Floats:
        """The solution by the last factorisation, corrected by residuals of the system itself."""
        lower, upper = self._lower, self._upper
        own = np.concatenate([lower.data[self._diagonal], lower.data[self._corner]])

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
