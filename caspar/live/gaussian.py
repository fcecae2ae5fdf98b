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

from caspar.live.block_functions import call, compiled
from caspar.live.linearization import RowGroup
from caspar.live.tables import Ids, Rows

NO_PIVOT = 1e-13
"""Length of a column, over the longest one, up to which it is taken for zero; and the same of
singular values."""

ROOM = 16
"""Room for the rows that eliminations leave, relative to those given; doubled until it suffices."""

_ELIMINATE = f"""\
def eliminate(table, tile):
    num_blocks = table[0]
    num_nodes = table[1]
    room = table[2]
    firsts = as_int64(table[3])
    node = as_int64(table[4])
    heights = as_int64(table[5])
    first_column = as_int64(table[6])
    first_entry = as_int64(table[7])
    columns = as_int64(table[8])
    entries = as_float64(table[9])
    place = as_int64(table[10])
    heads = as_int64(table[11])
    following = as_int64(table[12])
    num_rows = as_int64(table[13])
    outcome = as_int64(table[14])
    linked = 0
    left = 0
    for k in range(num_nodes + 1):
        for b in range(linked, num_blocks):
            owner = num_nodes
            for q in range(first_column[b], first_column[b + 1]):
                owner = min(node[columns[q]], owner)
            following[b] = heads[owner]
            heads[owner] = b
            num_rows[owner] += heights[b]
            left += heights[b]
        linked = num_blocks
        stop = num_nodes + 1 if 2 * num_rows[k] >= left else k + 1
        height = left if stop > num_nodes else num_rows[k]
        dim = firsts[stop] - firsts[k]
        for q in range(dim):
            place[firsts[k] + q] = q
        width = dim
        others = first_column[num_blocks] - dim
        for n in range(k, stop):
            b = heads[n]
            while b >= 0:
                for q in range(first_column[b], first_column[b + 1]):
                    if place[columns[q]] < 0:
                        place[columns[q]] = width
                        columns[others + width] = columns[q]
                        width += 1
                b = following[b]
        front = first_entry[num_blocks]
        sums = front + height * width
        if sums + width > room:
            return
        for at in range(front, sums):
            entries[at] = 0.0
        row = front
        for n in range(k, stop):
            b = heads[n]
            while b >= 0:
                for i in range(heights[b]):
                    at = first_entry[b] + i * (first_column[b + 1] - first_column[b])
                    for q in range(first_column[b], first_column[b + 1]):
                        entries[row + place[columns[q]]] += entries[at]
                        at += 1
                    row += width
                b = following[b]
        if stop > num_nodes:
            outcome[0] = k
            outcome[1] = height
            outcome[2] = front
            return
        left -= height
        rank = 0
        largest = 0.0
        for step in range(dim):
            best = rank
            most = 0.0
            for c in range(rank, dim):
                square = 0.0
                for i in range(rank, height):
                    square += entries[front + i * width + c] * entries[front + i * width + c]
                best = c if square > most else best
                most = square if square > most else most
            if most <= largest * {NO_PIVOT**2}:
                continue
            largest = most if most > largest else largest
            for i in range(height):
                value = entries[front + i * width + best]
                entries[front + i * width + best] = entries[front + i * width + rank]
                entries[front + i * width + rank] = value
            top = front + rank * width + rank
            share = 1.0 / (most + abs(entries[top]) * sqrt(most))
            entries[top] += copysign(sqrt(most), entries[top])
            for j in range(rank + 1, width):
                entries[sums + j] = 0.0
            for i in range(rank, height):
                value = entries[front + i * width + rank]
                for j in range(rank + 1, width):
                    entries[sums + j] += value * entries[front + i * width + j]
            for i in range(rank, height):
                value = share * entries[front + i * width + rank]
                for j in range(rank + 1, width):
                    entries[front + i * width + j] -= value * entries[sums + j]
            rank += 1
        for j in range(dim, width):
            place[columns[others + j]] = 0 - 1
        if rank == height:
            continue
        at = front
        for i in range(rank, height):
            for j in range(dim, width):
                entries[at] = entries[front + i * width + j]
                at += 1
        heights[num_blocks] = height - rank
        num_blocks += 1
        first_column[num_blocks] = others + width
        first_entry[num_blocks] = at
"""
"""Nodes are minimised over one after the other, by reflections of all rows that touch each, with
column pivots (Golub and Van Loan, *Matrix Computations*, algorithm 5.4.1): rows beneath its rank
are another block of rows. If half of the rows that are left touch a node, all of them are put
together instead. The table: blocks of rows and nodes that go; entries that there is room for; the
first column of each node, and the node of each column; blocks of rows: heights, where columns and
entries begin, these; -1 for each column and each node, room, 0 for each node; to be written: the
node at which rows are put together, how many, and where."""


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

    Nodes that few rows touch, such as the landmarks of a window, go one by one in a compiled
    function; nodes that most rows touch, such as its oldest pose, go by one QR decomposition.

    Args:
        groups: Rows that depend on no other unknowns.
        taken: The unknowns of each node that goes, nodes with few rows best first.
        kept: (d,) the unknowns that stay.

    Returns:
        (m, d) and (m,), m <= d; and the cost that is left whatever these unknowns are.
    """
    # the residual is one more unknown, the last one
    unknowns = np.concatenate([*taken, kept, [-1]])
    place = np.empty(int(unknowns.max(initial=0)) + 2, np.int64)
    place[unknowns] = np.arange(len(unknowns))
    firsts = np.cumsum([0, *map(len, taken), len(kept) + 1])
    rows = _put_together(groups, place, firsts)
    dim = rows.shape[1] - len(kept) - 1
    used = np.append(rows[:, dim:-1].any(axis=0), True)
    rows = _minimised(rows[:, np.append(np.full(dim, True), used)], dim)
    if len(rows) > rows.shape[1]:
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    size = rows.shape[1] - 1
    found = np.zeros((min(len(rows), size), len(kept)))
    found[:, used[:-1]] = rows[:size, :-1]
    rest = rows[size:, -1]
    return found, rows[:size, -1].copy(), 0.5 * float(rest @ rest)


def _put_together(
    groups: Sequence[RowGroup], place: NDArray[np.int64], firsts: NDArray[np.int64]
) -> Rows:
    """Eliminate nodes that few rows touch, and put the rows that are left together.

    Args:
        groups: Rows.
        place: The column of each unknown, and last that of the residual.
        firsts: The first column of each node that goes, and of the others; their number.

    Returns:
        (num_rows, num_columns), the last columns: those of the nodes before are gone.
    """
    num_nodes, end = len(firsts) - 2, int(firsts[-1])
    parts = [np.concatenate([one.entries, one.residual[:, :, None]], axis=2) for one in groups]
    names = [np.append(one.columns, np.full((len(one.columns), 1), -1), axis=1) for one in groups]
    counts, *shapes = np.array([part.shape for part in parts]).T
    heights, widths = (np.repeat(shape, counts) for shape in shapes)
    num_blocks = len(heights)
    firsts_of_blocks = np.zeros((2, num_blocks + num_nodes + 1), np.int64)
    np.cumsum([widths, heights * widths], axis=1, out=firsts_of_blocks[:, 1 : num_blocks + 1])
    given = np.concatenate([part.ravel() for part in parts])
    named = place[np.concatenate([name.ravel() for name in names])]
    node = np.repeat(np.arange(num_nodes + 1), np.diff(firsts))
    room, outcome = ROOM * (len(given) + end), np.full(3, -1)
    while outcome[0] < 0:
        columns, entries = np.empty(room, np.int64), np.empty(room)
        columns[: len(named)], entries[: len(given)] = named, given
        call(
            compiled("eliminate", _ELIMINATE),
            *(num_blocks, num_nodes, room, firsts, node),
            *(np.append(heights, np.zeros(num_nodes, np.int64)), *firsts_of_blocks),
            *(columns, entries, np.full(end, -1), np.full(num_nodes + 1, -1)),
            *(np.empty(len(heights) + num_nodes, np.int64), np.zeros(num_nodes + 1, np.int64)),
            outcome,
        )
        room *= 2
    stop, height, at = outcome.tolist()
    width = end - int(firsts[stop])
    return entries[at : at + height * width].reshape(height, width)


def _minimised(rows: Rows, dim: int) -> Rows:
    """Rows after their first columns were minimised over; these are gone."""
    height = len(rows)
    if height >= rows.shape[1]:
        rows, height = np.asarray(np.linalg.qr(rows, mode="r")), dim
    basis, sizes, _ = np.linalg.svd(rows[:height, :dim], full_matrices=False)
    basis = basis[:, sizes > NO_PIVOT * sizes.max(initial=0.0)]
    above, below = rows[:height, dim:], rows[height:, dim:]
    if basis.shape[1] == height:
        return below
    return np.concatenate([above - basis @ (basis.T @ above), below])
