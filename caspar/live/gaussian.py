"""Replace nodes that are removed by a Gaussian on their neighbours, in square-root form.

Input: rows of the whitened Jacobian that depend on the removed nodes. Output: rows on the rest that
have the same minimum and curvature. Rows are only transformed orthogonally, and no normal matrix
is formed: the result is positive semidefinite whatever rounding does, and weak information stays
weak (Bierman 1977; Demmel et al., Square Root Bundle Adjustment, CVPR 2021).
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
    node = np.repeat(np.arange(len(taken) + 1), [*map(len, taken), len(kept)])
    # by the first node that goes among those that a block depends on; the last list: by none
    blocks: list[list[_Block]] = [[] for _ in range(len(taken) + 1)]
    for group in groups:
        places = place[group.columns]
        rows = np.concatenate([group.entries, group.residual[:, :, None]], axis=2)
        for index, nodes in enumerate(node[places].tolist()):
            blocks[min(nodes)].append(_Block(places[index], rows[index]))
    start = 0
    for number, unknowns in enumerate(taken):
        start += len(unknowns)
        if len(blocks[number]) > 0:
            block = _without(_stacked(blocks[number]), start)
            blocks[int(node[block.columns].min(initial=len(taken)))].append(block)
    left = blocks[-1]
    rows = np.zeros((sum(len(block.rows) for block in left), len(kept) + 1))
    if len(left) > 0:
        block = _stacked(left)
        rows[:, np.append(block.columns - start, len(kept))] = block.rows
    rows = _compressed(rows)
    above, below = rows[: len(kept)], rows[len(kept) :, -1]
    return above[:, :-1].copy(), above[:, -1].copy(), 0.5 * float(below @ below)


@dataclass(frozen=True)
class _Block:
    """Rows that depend on few unknowns.

    Attributes:
        columns: (k,) the unknowns.
        rows: (m, k + 1) derivatives, and the residual.
    """

    columns: NDArray[np.int64]
    rows: Rows


def _stacked(blocks: Sequence[_Block]) -> _Block:
    """All rows of some blocks, with columns that ascend."""
    columns, places = np.unique(
        np.concatenate([block.columns for block in blocks]), return_inverse=True
    )
    rows = np.zeros((sum(len(block.rows) for block in blocks), len(columns) + 1))
    first = passed = 0
    for block in blocks:
        part = rows[first : first + len(block.rows)]
        own = places[passed : passed + len(block.columns)]
        part[:, -1] = block.rows[:, -1]
        if len(set(own.tolist())) == len(own):
            part[:, own] = block.rows[:, :-1]
        else:  # a factor that names a node twice
            for place, column in zip(own, block.rows[:, :-1].T, strict=True):
                part[:, place] += column
        first += len(part)
        passed += len(own)
    return _Block(columns, rows)


def _compressed(rows: Rows) -> Rows:
    """Return fewer rows with the same normal matrix."""
    return rows if len(rows) <= rows.shape[1] else np.asarray(np.linalg.qr(rows, mode="r"))


def _without(block: _Block, first: int) -> _Block:
    """The rows after the unknowns before one, all of a node that goes, were minimised over."""
    count = int(np.searchsorted(block.columns, first))
    rows = _compressed(block.rows)
    rotation, triangle, _ = qr(rows[:, :count], pivoting=True, mode="full", check_finite=False)
    pivots = np.abs(triangle.diagonal())
    rank = int((pivots > NO_PIVOT * pivots.max(initial=0.0)).sum())
    return _Block(block.columns[count:], rotation[:, rank:].T @ rows[:, count:])
