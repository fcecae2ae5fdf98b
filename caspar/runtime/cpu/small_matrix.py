"""L D L^T of small matrices: compiled functions, which stand in lists of launches.

Calling a library costs a small problem more than the arithmetic does (`docs/design/0013`). The
arithmetic is QDLDL's, operation by operation (an up-looking factorisation), so that results have
the same bits. Of a full matrix the order is the given one, else the one that QDLDL has found.

The functions are written in the language of kernels, see `codegen.cpu.kernel`.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.memory.array import Array
from caspar.runtime.cpu.compile import function_address
from caspar.runtime.cpu.launch import CpuFunction, CpuLaunch, CpuSequence

MOST_ROWS = 96
"""Rows of a full matrix, at most: libraries factorise larger ones in blocks that suit caches."""

MOST_ENTRIES = 20_000
"""Entries of the factor of a sparse matrix, at most. With more, a step takes so long that the call
of a library does not matter, and users want to see the progress."""

_FULL = """\
def full(table, tile):
    values = as_float64(table[0])
    factor = as_float64(table[1])
    inverse = as_float64(table[2])
    row = as_float64(table[3])
    size = table[4]
    rhs = as_float64(table[5])
    x = as_float64(table[6])
    outcome = as_float64(table[7])
    outcome[0] = 1.0
    outcome[1] = 0.0
    for k in range(size):
        x[k] = 0.0
    least = float64("inf")
    for k in range(size):
        first = k * (k + 1) // 2
        for c in range(k):
            row[c] = values[first + c]
        pivot = values[first + k]
        for c in range(k):
            y = row[c]
            for j in range(c + 1, k):
                row[j] -= factor[c * size + j] * y
            share = y * inverse[c]
            factor[c * size + k] = share
            pivot -= y * share
        if pivot > 0.0:
            inverse[k] = 1.0 / pivot
            least = min(pivot, least)
        else:
            return
    for k in range(size):
        x[k] = rhs[k]
    for k in range(size):
        z = x[k]
        for j in range(k + 1, size):
            x[j] -= factor[k * size + j] * z
        x[k] = z * inverse[k]
    wrong = 0
    for step in range(size):
        k = size - 1 - step
        value = x[k]
        for j in range(k + 1, size):
            value -= factor[k * size + j] * x[j]
        x[k] = value
        if value - value == 0.0:
            continue
        wrong = 1
    if wrong == 0:
        outcome[0] = 0.0
        outcome[1] = 1.0 if size == 0 else least
    else:
        for k in range(size):
            x[k] = 0.0
"""
"""The table: entries of the lower triangle by rows, room for the factor by columns, for one over
its pivots, and for a row, the number of rows, right-hand side, solution and outcome."""

_SPARSE = """\
def sparse(table, tile):
    values = as_float64(table[0])
    starts = as_int32(table[1])
    rows = as_int32(table[2])
    places = as_int32(table[3])
    ends = as_int32(table[4])
    lower_rows = as_int32(table[5])
    parents = as_int32(table[6])
    order = as_int32(table[7])
    lower = as_float64(table[8])
    inverse = as_float64(table[9])
    y = as_float64(table[10])
    marks = as_int64(table[11])
    filled = as_int64(table[12])
    path = as_int64(table[13])
    columns = as_int64(table[14])
    size = table[15]
    rhs = as_float64(table[16])
    solution = as_float64(table[17])
    outcome = as_float64(table[18])
    outcome[0] = 1.0
    outcome[1] = 0.0
    for k in range(size):
        solution[k] = 0.0
        y[k] = 0.0
        marks[k] = 0 - 1
        filled[k] = ends[k]
    least = float64("inf")
    for k in range(size):
        pivot = 0.0
        num_columns = 0
        for at in range(starts[k], starts[k + 1]):
            row = rows[at]
            if row == k:
                pivot = values[places[at]]
                continue
            y[row] = values[places[at]]
            depth = 0
            reached = row
            if marks[row] == k:
                continue
            while reached < k:
                marks[reached] = k
                path[depth] = reached
                depth += 1
                reached = parents[reached]
                if marks[reached] == k:
                    reached = k
            while depth > 0:
                depth -= 1
                columns[num_columns] = path[depth]
                num_columns += 1
        for step in range(num_columns):
            c = columns[num_columns - 1 - step]
            yc = y[c]
            end = filled[c]
            for at in range(ends[c], end):
                y[lower_rows[at]] -= lower[at] * yc
            share = yc * inverse[c]
            lower[end] = share
            pivot -= yc * share
            filled[c] = end + 1
            y[c] = 0.0
        if pivot > 0.0:
            inverse[k] = 1.0 / pivot
            least = min(pivot, least)
        else:
            return
    for k in range(size):
        y[k] = rhs[order[k]]
    for k in range(size):
        z = y[k]
        for at in range(ends[k], ends[k + 1]):
            y[lower_rows[at]] -= lower[at] * z
        y[k] = z * inverse[k]
    wrong = 0
    for step in range(size):
        k = size - 1 - step
        value = y[k]
        for at in range(ends[k], ends[k + 1]):
            value -= lower[at] * y[lower_rows[at]]
        y[k] = value
        solution[order[k]] = value
        if value - value == 0.0:
            continue
        wrong = 1
    if wrong == 0:
        outcome[0] = 0.0
        outcome[1] = least
"""
"""The table: entries of the lower triangle by rows; of the reordered upper one where its columns
begin, their rows, and which entries these are; where columns of the factor begin, their rows, the
parent of each in the elimination tree, the row of the matrix that each is; room; the number of
rows, right-hand side, solution and outcome."""


@cache
def _function(name: str, text: str) -> CpuFunction:
    return CpuFunction(function_address(KernelSource(name, text, (), (1,))))


class _Compiled:
    """A factorisation that one function does.

    Its `values` are the entries of the lower triangle by rows; `arrays` are what the function is
    told before the number of rows.
    """

    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        function: CpuFunction,
        values: NDArray[np.float64],
        arrays: Sequence[Array],
        size: int,
        outcome: Array | None,
    ) -> None:
        self._function, self._size = function, size
        self.values = values
        self._arrays = arrays
        self.outcome = np.zeros(2) if outcome is None else outcome
        self.probes = False  # its pivots are known anyway

    @property
    def num_bytes(self) -> int:
        """Bytes of the values, the factor, and what is known of its pattern."""
        return int(self.values.nbytes + sum(array.nbytes for array in self._arrays))

    def factorize(self) -> None:
        """Do nothing: `solve` factorises too."""

    def solve(self, rhs: Array, solution: Array) -> None:
        CpuSequence([self.launch(rhs, solution)]).run()

    def launch(self, rhs: Array, solution: Array) -> CpuLaunch:
        before, behind = (self.values, *self._arrays), (rhs, solution, self.outcome)
        first, last = ([array.ctypes.data for array in part] for part in (before, behind))
        table = np.array([*first, self._size, *last], dtype=np.int64)
        return CpuLaunch(self._function, table, 1, (*before, *behind))


class FullFactorization(_Compiled):
    """A matrix that is full; see `SparseFactorization` for what all of them have."""

    def __init__(self, size: int, outcome: Array | None = None) -> None:
        work = np.zeros((size + 2, size))
        room = work[:size], work[size], work[size + 1]
        values = np.zeros(size * (size + 1) // 2)
        super().__init__(_function("full", _FULL), values, room, size, outcome)


class SmallFactorization(_Compiled):
    """A sparse matrix in an order that is known.

    `factor`: where the columns of L begin, without its diagonal of ones, and their rows; `order`:
    the row of the matrix that each of L is.
    """

    def __init__(
        self,
        indptr: Array,
        indices: Array,
        factor: Sequence[Array],
        order: Array,
        outcome: Array | None = None,
    ) -> None:
        size, narrow = len(order), np.int32
        rank = np.empty(size, dtype=narrow)
        rank[order] = np.arange(size, dtype=narrow)
        row, column = rank[indices], rank[np.repeat(np.arange(size), np.diff(indptr))]
        row, column = np.minimum(row, column), np.maximum(row, column)
        # QDLDL keeps the order of entries within a column, by which it walks the elimination tree
        places = np.argsort(column, kind="stable").astype(narrow)
        starts = np.searchsorted(column[places], np.arange(size + 1)).astype(narrow)
        ends, lower_rows = (one.astype(narrow) for one in factor)
        parents = np.full(size, size, dtype=narrow)
        has_rows = ends[1:] > ends[:-1]
        parents[has_rows] = lower_rows[ends[:-1][has_rows]]
        known = starts, row[places], places, ends, lower_rows, parents, order.astype(narrow)
        room = np.zeros(len(lower_rows)), *np.zeros((2, size))
        # the root's parent is no row, and has no mark
        counters = np.full((4, size + 1), -1, dtype=np.int64)
        arrays = (*known, *room, *counters)
        values = np.zeros(len(indices))
        super().__init__(_function("sparse", _SPARSE), values, arrays, size, outcome)


def is_small_and_full(size: int, num_entries: int) -> bool:
    """Return whether a pattern is that of such a matrix, by the entries of its lower triangle."""
    return size <= MOST_ROWS and num_entries == size * (size + 1) // 2
