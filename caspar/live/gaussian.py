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

from caspar.live.linearization import RowGroup
from caspar.live.tables import Ids, Rows

NO_PIVOT = 1e-13
"""A singular value, over the largest one, up to which it is taken for zero."""


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

    Nodes are taken out in rounds. All nodes that stand first in each of their blocks of rows go in
    the same round, since no two of them share a block: the landmarks of a window, then its pose.

    Args:
        groups: Rows that depend on no other unknowns.
        taken: The unknowns of each node that goes, nodes with few rows best first.
        kept: (d,) the unknowns that stay.

    Returns:
        (m, d) and (m,), m <= d; and the cost that is left whatever these unknowns are.
    """
    columns = np.concatenate([*taken, kept])
    place = np.zeros(int(columns.max(initial=-1)) + 1, np.int64)
    place[columns] = np.arange(len(columns))
    dims = np.array([*map(len, taken), len(kept)])
    node = np.repeat(np.arange(len(dims)), dims)
    left = [
        _Blocks(place[one.columns], np.concatenate([one.entries, one.residual[:, :, None]], axis=2))
        for one in groups
    ]
    done: list[_Blocks] = []
    while len(left) > 0:
        owners = [node[blocks.columns].min(axis=1, initial=len(taken)) for blocks in left]
        is_first = np.ones(len(dims), np.bool_)
        for blocks, owner in zip(left, owners, strict=True):
            names = node[blocks.columns]
            is_first[names[names != owner[:, None]]] = False
        is_first[-1] = False
        later, now = [], []
        for blocks, owner in zip(left, owners, strict=True):
            goes, stays = is_first[owner], owner == len(taken)
            done += blocks.some(stays)
            later += blocks.some(~goes & ~stays)
            now += [(part, owner[goes]) for part in blocks.some(goes)]
        left = later + (_without(now, dims) if len(now) > 0 else [])
    start = len(columns) - len(kept)
    rows = _dense(done, np.arange(start, len(columns)))
    above, below = rows[: len(kept)], rows[len(kept) :, -1]
    return above[:, :-1].copy(), above[:, -1].copy(), 0.5 * float(below @ below)


@dataclass(frozen=True)
class _Blocks:
    """Blocks of rows that depend on few unknowns each.

    Attributes:
        columns: (m, k) the unknowns; one may stand twice.
        rows: (m, height, k + 1) derivatives, and the residual.
    """

    columns: NDArray[np.int64]
    rows: Rows

    def some(self, flags: NDArray[np.bool_]) -> "list[_Blocks]":
        """Return the blocks with flags, or nothing if there are none."""
        if flags.all():
            return [self] if len(flags) > 0 else []
        return [_Blocks(self.columns[flags], self.rows[flags])] if flags.any() else []


def _dense(parts: Sequence[_Blocks], columns: NDArray[np.int64]) -> Rows:
    """All rows on some columns, which ascend, and the residual; fewer rows with the same cost."""
    rows = np.zeros((sum(part.rows[:, :, 0].size for part in parts), len(columns) + 1))
    end = 0
    for part in parts:
        count, height, _ = part.rows.shape
        begin, end = end, end + count * height
        row = np.arange(begin, end).reshape(count, height, 1)
        places = np.searchsorted(columns, part.columns)[:, None, :]
        np.add.at(rows, (row, places), part.rows[:, :, :-1])
        rows[begin:end, -1] = part.rows[:, :, -1].ravel()
    return np.asarray(np.linalg.qr(rows, mode="r")) if len(rows) > len(columns) else rows


def _without(
    parts: Sequence[tuple[_Blocks, NDArray[np.int64]]], dims: NDArray[np.int64]
) -> list[_Blocks]:
    """Rows after some nodes were minimised over, of which no two share a block.

    Args:
        parts: Blocks of rows, and the node of each, which has the first columns among them.
        dims: By node how many columns it has.
    """
    size, firsts = int(dims.sum()), np.cumsum(dims) - dims
    nodes = np.unique(np.concatenate([owner for _, owner in parts]))
    # each pair of a node and a column of its rows is a number; those of a node follow each other
    own = [node * size + firsts[node] + np.arange(dims[node]) for node in nodes]
    others = [(owner[:, None] * size + part.columns).ravel() for part, owner in parts]
    pairs = np.unique(np.concatenate([*own, *others]))
    begins = np.searchsorted(pairs, nodes * size)
    widths = np.diff(begins, append=len(pairs))
    heights = sum(
        part.rows.shape[1] * np.bincount(np.searchsorted(nodes, owner), minlength=len(nodes))
        for part, owner in parts
    )
    # nodes of one size with about as many rows and columns share an array, padded with zeros
    lengths = np.frexp([heights, widths - dims[nodes]])[1]
    _, shapes = np.unique(np.stack([dims[nodes], *lengths]), axis=1, return_inverse=True)
    found = []
    for shape in range(int(shapes.max()) + 1):
        members = np.flatnonzero(shapes == shape)
        dim, width = int(dims[nodes[members[0]]]), int(widths[members].max())
        rows = np.zeros((len(members), int(np.max(heights[members])), width + 1))
        ends = np.zeros(len(members), np.int64)
        for part, owner in parts:
            slots = np.searchsorted(nodes[members], owner)
            is_member = nodes[members][np.minimum(slots, len(members) - 1)] == owner
            for chosen in part.some(is_member):
                slot = slots[is_member]
                columns = np.searchsorted(pairs, owner[is_member, None] * size + chosen.columns)
                columns -= begins[members][slot, None]
                row, ends = _next_rows(slot, ends, chosen.rows.shape[1])
                places = (slot[:, None, None], row[:, :, None], columns[:, None, :])
                np.add.at(rows, places, chosen.rows[:, :, :-1])
                rows[slot[:, None], row, -1] = chosen.rows[:, :, -1]
        # columns of zeros in the place of those that a node lacks
        beside = np.minimum(np.arange(dim, width), widths[members, None] - 1)
        columns = pairs[begins[members, None] + beside] % size
        left = _Blocks(columns, _minimised(rows, dim))
        union = np.unique(columns)
        if len(members) > 1 and len(union) <= 2 * columns.shape[1]:
            left = _Blocks(union[None], _dense([left], union)[None])
        found.append(left)
    return found


def _next_rows(
    slots: NDArray[np.int64], ends: NDArray[np.int64], height: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(m, height) rows behind the ends that are in use in each of some slots; the ends then."""
    counts = np.bincount(slots, minlength=len(ends))
    before = np.empty(len(slots), np.int64)
    order = np.argsort(slots, kind="stable")
    before[order] = np.arange(len(slots)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = (ends[slots] + height * before)[:, None] + np.arange(height)
    return rows, ends + height * counts


def _minimised(rows: Rows, dim: int) -> Rows:
    """(k, rows, width) matrices after their first columns were minimised over; these are gone."""
    is_triangular = rows.shape[1] >= rows.shape[2]
    if is_triangular:
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    basis, sizes, _ = np.linalg.svd(rows[:, :, :dim], full_matrices=False)
    counts = sizes > NO_PIVOT * sizes.max(axis=1, keepdims=True, initial=0.0)
    rest = rows[:, :, dim:]
    if is_triangular and counts.all():
        return rest[:, dim:]
    basis = basis * counts[:, None, :]
    return np.asarray(rest - basis @ (basis.swapaxes(1, 2) @ rest))
