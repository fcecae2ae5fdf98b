"""What nodes knew that were taken out: a Gaussian on their neighbours, in square-root form.

Input: rows of the whitened Jacobian that depend on what is taken out. Output: rows on the rest that
have the same minimum and curvature. By orthogonal transformations of rows alone, so that no
normal matrix is formed: the result is positive semidefinite whatever rounding does, and what was
known weakly stays weak (Bierman 1977; Demmel et al., Square Root Bundle Adjustment, CVPR 2021).
Cost tier: once for each marginalisation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from caspar.live.linearization import RowGroup
from caspar.live.tables import Ids, Rows

NO_PIVOT = 1e-13
"""A pivot of the decomposition, over the largest entry, up to which it is taken for zero."""


@dataclass(frozen=True)
class Gaussian:
    """A quadratic cost of some nodes: constant + 1/2 |rows d + residual|^2.

    d are the steps from the values at which it was made to the current ones, one node after the
    other, in the order of `nodes`. Its derivatives by the nodes are `rows` times those of d, so
    that `rows` keep the tangent space of the first estimate.

    Attributes:
        nodes: By node type (k,) ids.
        values: By node type (k, storage_dim) values at which it was made.
        rows: (m, sum of k tangent_dim) whitened; m is at most as large.
        residual: (m,).
        constant: What the factors that were taken out cost at their minimum, to second order.
    """

    nodes: Mapping[str, Ids]
    values: Mapping[str, Rows]
    rows: Rows
    residual: Rows
    constant: float = 0.0

    def __post_init__(self) -> None:
        """Let arrays be read only: several may share them."""
        for array in (*self.nodes.values(), *self.values.values(), self.rows, self.residual):
            array.setflags(write=False)

    @property
    def information(self) -> Rows:
        """(d, d) the inverse of the covariance of d, in which what is not known is zero."""
        found: Rows = self.rows.T @ self.rows
        return found


def eliminated(
    groups: Sequence[RowGroup], taken: Sequence[NDArray[np.int64]], kept: NDArray[np.int64]
) -> tuple[Rows, Rows, float]:
    """Rows and residual on the unknowns that are kept, after others were minimised over.

    Args:
        groups: Rows that depend on no other unknowns.
        taken: The unknowns of each node that goes, nodes with few rows best first: each is taken
            out of the rows that depend on it alone.
        kept: (d,) the unknowns that stay.

    Returns:
        (m, d) and (m,), m <= d; and the cost that is left whatever these unknowns are.
    """
    columns = np.concatenate([*taken, kept])
    place = np.zeros(int(columns.max(initial=-1)) + 1, np.int64)
    place[columns] = np.arange(len(columns))
    rows = np.zeros((sum(group.residual.size for group in groups), len(columns) + 1))
    first = 0
    for group in groups:
        count, height, _ = group.entries.shape
        block = np.zeros((count, height, len(columns) + 1))
        # a block may depend on an unknown twice
        chosen = np.broadcast_to(place[group.columns][:, None, :], group.entries.shape)
        block_index, row_index = np.ogrid[:count, :height]
        np.add.at(block, (block_index[..., None], row_index[..., None], chosen), group.entries)
        block[:, :, -1] = group.residual
        rows[first : first + count * height] = block.reshape(count * height, -1)
        first += count * height
    start = 0
    for unknowns in taken:
        rows = _without(rows, slice(start, start + len(unknowns)))
        start += len(unknowns)
    rows = rows[:, start:]
    if len(rows) > len(kept):
        # as few rows with the same normal matrix; the last one has no unknown
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    left = rows[len(kept) :, -1]
    rows = rows[: len(kept)]
    return rows[:, :-1].copy(), rows[:, -1].copy(), 0.5 * float(left @ left)


def _without(rows: Rows, own: slice) -> Rows:
    """The rows after the unknowns of some columns were minimised over."""
    is_touched = rows[:, own].any(axis=1)
    touched = rows[is_touched]
    if len(touched) == 0:
        return rows
    # other columns than those that these rows depend on stay zero
    used = np.flatnonzero(touched.any(axis=0))
    rotation, triangle, _ = qr(touched[:, own], pivoting=True, mode="full")
    pivots = np.abs(triangle.diagonal())
    rank = int((pivots > NO_PIVOT * pivots.max(initial=0.0)).sum())
    rest = np.zeros((len(touched) - rank, rows.shape[1]))
    rest[:, used] = rotation[:, rank:].T @ touched[:, used]
    rest[:, own] = 0.0
    return np.concatenate([rows[~is_touched], rest])
