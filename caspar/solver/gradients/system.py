"""The linear system of a gradient: H z = b, with H by a sparse factorisation on the host.

H is scaled to a diagonal of ones, so that units do not matter. What is held, and what no residual
depends on, is a row of the identity. A singular H is damped: without a damping z would be infinite
or NaN. Cost tier: the analysis once for a structure, the rest once for a gradient.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix

from caspar.runtime.factorization import load_direct_solver
from caspar.solver.gradients.pattern import Pattern

Floats = NDArray[np.float64]

SINGULAR_PIVOT = 1e-12
"""Pivot of the scaled H up to which it counts as singular; entries are known to about 1e-15."""

DAMPING = 1e-8
"""What is added to the diagonal of a singular H, in units of its scaled diagonal."""

REFINEMENTS = 2
"""Corrections by the residual of the system."""


@dataclass(frozen=True)
class Solution:
    """Of H z = b.

    Attributes:
        z: (size,); 0 for what stays.
        stays: (size,) true for what is held, and for what no residual depends on.
        damping: What was added to the scaled diagonal; 0: nothing.
        is_definite: Whether all pivots are positive: at a minimum they are.
    """

    z: Floats
    stays: NDArray[np.bool_]
    damping: float
    is_definite: bool


class HessianSystem:
    """Systems of one pattern.

    Args:
        pattern: It.
    """

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._diagonal = pattern.diagonal
        self._factorization: Any = load_direct_solver("cpu.direct", "QdldlFactorization")(
            pattern.indptr, pattern.indices, pattern.size
        )

    def solve(self, entries: Floats, rhs: Floats, moves: NDArray[np.bool_] | None) -> Solution:
        """Solve for one right-hand side.

        Args:
            entries: (nnz,) of H.
            rhs: (size,) b.
            moves: (size,) false for what is held; None: nothing is.
        """
        pattern, diagonal = self._pattern, self._diagonal
        scale = self._scales(entries, moves)
        values = entries * scale[pattern.rows] * scale[pattern.indices]
        values[diagonal] += scale == 0.0
        scaled = rhs * scale
        damping, pivots = 0.0, self._factorized(values)
        while not np.abs(pivots).min(initial=np.inf) > SINGULAR_PIVOT and damping < 1.0:
            damping = DAMPING if damping == 0.0 else 100.0 * damping
            damped = values.copy()
            damped[diagonal] += damping
            pivots = self._factorized(damped)
        solution = self._refined(values, scaled)
        is_definite = bool(pivots.min(initial=1.0) > 0.0)
        return Solution(solution * scale, scale == 0.0, damping, is_definite)

    def _scales(self, entries: Floats, moves: NDArray[np.bool_] | None) -> Floats:
        """What makes the diagonal of H one; 0 for what is held, and for rows of zeros."""
        sizes = np.abs(entries[self._diagonal])
        if not sizes.all():
            pattern, largest = self._pattern, np.zeros(len(sizes))
            np.maximum.at(largest, pattern.rows, np.abs(entries))
            np.maximum.at(largest, pattern.indices, np.abs(entries))
            sizes = np.where(sizes > 0.0, sizes, largest)
        if moves is not None:
            sizes = np.where(moves, sizes, 0.0)
        return np.where(sizes > 0.0, 1.0 / np.sqrt(np.where(sizes > 0.0, sizes, 1.0)), 0.0)

    def _factorized(self, values: Floats) -> Floats:
        """Factorise, and return the pivots."""
        self._factorization.values[...] = values
        self._factorization.factorize()
        pivots: Floats = self._factorization.factors()[1]
        return pivots

    def _refined(self, values: Floats, rhs: Floats) -> Floats:
        """The solution by the last factorisation, corrected by residuals of the system itself."""
        pattern = self._pattern
        shape = (pattern.size, pattern.size)
        upper = csc_matrix((values, pattern.indices, pattern.indptr), shape=shape)
        lower, diagonal = upper.T, values[self._diagonal]
        solution, step = np.zeros(pattern.size), np.empty(pattern.size)
        left = rhs
        for _ in range(1 + REFINEMENTS):
            self._factorization.solve(left, step)
            solution = solution + step
            left = rhs - (upper @ solution + lower @ solution - diagonal * solution)
        return solution
