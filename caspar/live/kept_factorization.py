"""Steps of a problem that grows, by a factorisation that is kept.

With J^T J of some rows and unknowns x factorised, let rows come that depend on x and on new
unknowns y: R = [R_x R_y]. With s = R_x x + R_y y, elimination of x from the normal equations of all
rows leaves

    M s - R_y y = R_x u,    M = I + R_x (J^T J)^-1 R_x^T,    u = (J^T J)^-1 b_x,
    R_y^T s = b_y,

which is small as long as few rows came. Rows that touch no x add their own normal matrix to that of
y. Then x = u - (J^T J)^-1 R_x^T s: one sparse solve for a step, and one for each row of R_x when it
comes. This is exact: only the values at which rows were linearised grow old.

Cost tiers: analysis and factorisation when it is made; `append` once for new rows; `solve` for each
step.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array, diags_array, tril, vstack

from caspar.live.linearization import RowGroup
from caspar.live.tables import Rows

MAX_ROWS = 64
"""Appended rows that depend on factorised unknowns, from which on factorising anew is quicker."""

MAX_UNKNOWNS = 192
"""Appended unknowns, likewise."""

FEW_UNKNOWNS = 160
"""Unknowns up to which the matrix is factorised as a dense one."""

NO_PIVOT = 1e-13
"""A pivot of the scaled matrix up to which it is taken for singular."""


class KeptFactorization:
    """The normal matrix of some rows, factorised, and what was appended.

    Columns are scaled to length 1.

    Args:
        groups: All rows.
        num_unknowns: Unknowns that they depend on.
        damping: Added to the diagonal of the scaled matrix.

    Attributes:
        num_base: Unknowns that were factorised.
        num_unknowns: With those appended.
        scales: (num_base,) one over the length of each column; 1 for a column of zeros.
        is_definite: Whether all pivots were positive, and none was 0 to rounding.
    """

    def __init__(
        self,
        groups: Sequence[RowGroup],
        num_unknowns: int,
        damping: float = 0.0,
    ) -> None:
        self.num_base = self.num_unknowns = num_unknowns
        nothing = csr_array((0, num_unknowns))
        jacobian = vstack([nothing, *(one.matrix(num_unknowns) for one in groups)], format="csr")
        squares = np.bincount(jacobian.indices, jacobian.data**2, minlength=num_unknowns)
        self.scales = 1.0 / np.sqrt(np.where(squares > 0.0, squares, 1.0))
        jacobian.data *= self.scales[jacobian.indices]
        # ones for unknowns that no row depends on, and for what is held
        added = damping + (squares == 0.0)
        factorize = _dense if num_unknowns <= FEW_UNKNOWNS else _sparse
        least_pivot, self._base_solved = factorize(jacobian, added)
        self.is_definite = least_pivot > NO_PIVOT
        self._coupled = nothing
        self._responses: Rows = np.zeros((0, num_unknowns))
        self._coupled_new: Rows = np.zeros((0, 0))
        self._schur: Rows = np.zeros((0, 0))
        self._own: Rows = np.zeros((0, 0))

    def is_too_small(self, num_unknowns: int) -> bool:
        """Whether it is time to factorise anew, before unknowns up to a number come."""
        return self._coupled.shape[0] > MAX_ROWS or num_unknowns - self.num_base > MAX_UNKNOWNS

    def append(self, groups: Sequence[RowGroup], num_unknowns: int) -> None:
        """Take rows that came, and unknowns up to a number."""
        num_base, num_new = self.num_base, num_unknowns - self.num_base
        grown = num_new - len(self._own)
        self._own = np.pad(self._own, (0, grown))
        self._coupled_new = np.pad(self._coupled_new, ((0, 0), (0, grown)))
        self.num_unknowns = num_unknowns
        for group in groups:
            rows = group.matrix(num_unknowns)
            base, new = rows[:, :num_base], rows[:, num_base:].toarray()
            is_coupled = np.diff(base.indptr) > 0
            if not is_coupled.all():
                own = new[~is_coupled]
                self._own += own.T @ own
            if is_coupled.any():
                self._couple(base[is_coupled], new[is_coupled])

    def _couple(self, base: csr_array, new: Rows) -> None:
        scaled = csr_array(base)
        scaled.data = scaled.data * self.scales[scaled.indices]
        solved = np.stack([self._base_solved(row) for row in scaled.toarray()])
        num_old = self._coupled.shape[0]
        self._coupled = csr_array(vstack([self._coupled, scaled]))
        self._responses = np.concatenate([self._responses, solved])
        self._coupled_new = np.concatenate([self._coupled_new, new])
        beside = self._coupled @ solved.T
        grown = np.pad(self._schur, (0, len(new)))
        grown[:, num_old:] = beside
        grown[num_old:] = beside.T
        grown[np.arange(num_old, len(grown)), np.arange(num_old, len(grown))] += 1.0
        self._schur = grown

    def solve(self, rhs: Rows) -> Rows | None:
        """(num_unknowns,) the solution of J^T J x = rhs; None: the matrix is singular."""
        base, new = rhs[: self.num_base] * self.scales, rhs[self.num_base :]
        solved = self._base_solved(base)
        if self.num_unknowns == self.num_base and self._coupled.shape[0] == 0:
            return solved * self.scales
        moved = self._coupled @ solved
        try:
            whitened = _solved(self._schur, np.column_stack([self._coupled_new, moved]))
            reduced = self._own + self._coupled_new.T @ whitened[:, :-1]
            diagonal = reduced.diagonal()
            # what nothing depends on yet, and what is held, stays
            scales = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
            reduced = reduced * scales[:, None] * scales
            reduced[np.arange(len(new)), np.arange(len(new))] += diagonal == 0.0
            right = new - self._coupled_new.T @ whitened[:, -1]
            step = scales * _solved(reduced, scales * right)
        except np.linalg.LinAlgError:
            return None
        shadow = whitened[:, -1] + whitened[:, :-1] @ step
        solved -= shadow @ self._responses
        return np.concatenate([solved * self.scales, step])

    def columns(self, unknowns: NDArray[np.int64]) -> Rows:
        """(k, num_unknowns) rows of the inverse, for unknowns that were factorised."""
        found = np.zeros((len(unknowns), self.num_unknowns))
        for row, unknown in zip(found, unknowns, strict=True):
            rhs = np.zeros(self.num_unknowns)
            rhs[unknown] = 1.0
            solved = self.solve(rhs)
            row[...] = np.nan if solved is None else solved
        return found


def _solved(matrix: Rows, rhs: Rows) -> Rows:
    """The solution of a small positive definite system.

    Raises:
        LinAlgError: It is not.
    """
    if len(matrix) == 0:
        return rhs
    found: Rows = cho_solve(cho_factor(matrix, lower=True, check_finite=False), rhs)
    return found


Solve = Callable[[Rows], Rows]


def _dense(jacobian: csr_array, added: Rows) -> tuple[float, Solve]:
    """The least pivot of J^T J with something added to its diagonal, and what solves with it."""
    dense = jacobian.toarray()
    normal = dense.T @ dense
    normal[np.arange(len(added)), np.arange(len(added))] += added
    try:
        factor = cho_factor(normal, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return 0.0, np.zeros_like
    pivots = factor[0].diagonal() ** 2
    return float(pivots.min(initial=1.0)), lambda rhs: cho_solve(factor, rhs, check_finite=False)


def _sparse(jacobian: csr_array, added: Rows) -> tuple[float, Solve]:
    """The same by QDLDL, whose analysis is the quickest: there is one factorisation for each."""
    from caspar.runtime.cpu.direct import QdldlFactorization

    normal = tril(jacobian.T @ jacobian + diags_array(added), format="csr")
    normal.sort_indices()
    starts, columns = normal.indptr.astype(np.int32), normal.indices.astype(np.int32)
    try:
        made = QdldlFactorization(starts, columns, len(added), values=normal.data)
    except RuntimeError:  # a pivot is zero
        return 0.0, np.zeros_like
    made.solve(np.zeros(len(added)), np.zeros(len(added)))
    failed, least_pivot = made.outcome
    return 0.0 if failed else float(least_pivot), made.solved
