"""Entries of a sparse inverse where the factor has entries, without the others.

Input: L and D of A = L D L^T. Output: the inverse Z on the pattern of L. With J a supernode, that
is, columns of one pattern, and R the rows below it (Takahashi, Fagan and Chen, 1973; Lin and
others, SelInv, 2011):

    Y = L_RJ L_JJ^-1,   Z_RJ = -Z_RR Y,   Z_JJ = L_JJ^-T D_J^-1 L_JJ^-1 - Y^T Z_RJ

Z_RR is part of the block of the parent, the supernode of R's first row, which is done before. Cost
tier: once for a covariance, about what a factorisation costs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import get_lapack_funcs

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class _Supernode:
    """Neighbouring columns of L with one pattern.

    Attributes:
        first: First column.
        end: Behind the last one.
        rows: Rows below them, ascending.
    """

    first: int
    end: int
    rows: NDArray[np.int64]


class SelectedInverse:
    """The inverse on the pattern of the factor, after `compute`.

    Args:
        lower: (n, n) L in CSC, without its diagonal of ones, rows ascending.
        pivots: (n,) D.
        order: (n,) row k of the factor is row order[k] of the matrix.
    """

    def __init__(self, lower: Any, pivots: FloatArray, order: NDArray[np.integer[Any]]) -> None:
        size = len(pivots)
        self._rank = np.empty(size, np.int64)
        self._rank[np.asarray(order)] = np.arange(size)
        self._lower, self._pivots = lower, pivots
        self._nodes = _supernodes(lower)
        self._owner = np.empty(size, np.int64)
        for number, node in enumerate(self._nodes):
            self._owner[node.first : node.end] = number
        self._columns: list[FloatArray] = [np.zeros((0, 0))] * len(self._nodes)
        (self._invert,) = get_lapack_funcs(("trtri",), dtype=np.float64)

    def blocks(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> FloatArray:
        """Blocks of the inverse.

        Args:
            first: (k, a) rows of the matrix.
            second: (k, b) columns; all pairs of a block must be on the pattern.

        Returns:
            (k, a, b).
        """
        shape = (*first.shape, second.shape[1])
        row = np.broadcast_to(self._rank[first][:, :, None], shape)
        column = np.broadcast_to(self._rank[second][:, None, :], shape)
        return self._entries(row.ravel(), column.ravel()).reshape(shape)

    def _entries(self, row: NDArray[np.int64], column: NDArray[np.int64]) -> FloatArray:
        row, column = np.maximum(row, column), np.minimum(row, column)
        values = np.zeros(len(row))
        owner = self._owner[column]
        order = np.argsort(owner, kind="stable")
        cuts = np.flatnonzero(np.diff(owner[order])) + 1
        for group in np.split(order, cuts):
            if len(group) == 0:
                continue
            node = self._nodes[owner[group[0]]]
            rows = np.concatenate([np.arange(node.first, node.end), node.rows])
            place = np.searchsorted(rows, row[group])
            assert bool((rows[np.minimum(place, len(rows) - 1)] == row[group]).all())
            stored = self._columns[owner[group[0]]]
            values[group] = stored[place, column[group] - node.first]
        return values

    @property
    def max_rows(self) -> int:
        """Rows of the largest block that is multiplied."""
        return max(node.end - node.first + len(node.rows) for node in self._nodes)

    def compute(self) -> None:
        """From the last supernode to the first."""
        fulls: dict[int, FloatArray] = {}
        num_children = np.zeros(len(self._nodes), np.int64)
        for node in self._nodes:
            if len(node.rows) > 0:
                num_children[self._owner[node.rows[0]]] += 1
        for number in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[number]
            below: FloatArray = np.zeros((0, 0))
            if len(node.rows) > 0:
                parent = int(self._owner[node.rows[0]])
                of_parent = self._nodes[parent]
                rows = np.concatenate([np.arange(of_parent.first, of_parent.end), of_parent.rows])
                place = np.searchsorted(rows, node.rows)
                below = fulls[parent][np.ix_(place, place)]
                num_children[parent] -= 1
                if num_children[parent] == 0:
                    del fulls[parent]
            own, down = self._solve(node, below)
            self._columns[number] = np.concatenate([own, down])
            if num_children[number] > 0:
                width, size = node.end - node.first, node.end - node.first + len(node.rows)
                full = np.empty((size, size))
                full[:width, :width], full[width:, :width] = own, down
                full[:width, width:], full[width:, width:] = down.T, below
                fulls[number] = full

    def _solve(self, node: _Supernode, below: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Z_JJ and Z_RJ of a supernode, from Z_RR."""
        width = node.end - node.first
        triangle = np.eye(width)
        rectangle = np.zeros((len(node.rows), width))
        pointers, data = self._lower.indptr, self._lower.data
        for k in range(width):
            start, end = pointers[node.first + k], pointers[node.first + k + 1]
            inside = width - 1 - k
            triangle[k + 1 :, k] = data[start : start + inside]
            rectangle[:, k] = data[start + inside : end]
        inverse, _ = self._invert(triangle, lower=1, unitdiag=1)
        own = inverse.T @ (inverse / self._pivots[node.first : node.end, None])
        if len(node.rows) == 0:
            return own, np.zeros((0, width))
        down = rectangle @ inverse
        result = -(below @ down)
        own = own - down.T @ result
        return 0.5 * (own + own.T), result


def _supernodes(lower: Any) -> list[_Supernode]:
    """Columns whose pattern is that of the column before, without its first row."""
    pointers, indices = lower.indptr, lower.indices
    size = len(pointers) - 1
    counts = np.diff(pointers)
    follows = np.zeros(size, bool)
    for j in range(1, size):
        start = pointers[j - 1]
        follows[j] = counts[j - 1] == counts[j] + 1 and counts[j - 1] > 0 and indices[start] == j
    firsts = np.flatnonzero(~follows)
    ends = np.append(firsts[1:], size)
    return [
        _Supernode(
            int(first), int(end), indices[pointers[end - 1] : pointers[end]].astype(np.int64)
        )
        for first, end in zip(firsts, ends, strict=True)
    ]
