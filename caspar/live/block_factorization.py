"""L D L^T of J^T J by blocks of unknowns, for a matrix whose pattern changes all the time.

Libraries analyse a new pattern for longer than they factorise it. Here the order of the blocks is
kept while unknowns are appended, the analysis is the elimination tree and nothing else, and J^T J
is not formed: the factorisation goes up the rows of L (Davis, *Direct Methods for Sparse Linear
Systems*, section 4.8) and takes each row of J^T J from the rows of J that touch its block.

The functions are compiled from texts in the language of kernels, see `codegen.cpu.kernel`, with the
size of a block as a literal, so that the loops over a block are unrolled.

Cost tiers: the order now and then; the analysis once for each pattern, a tenth of a factorisation;
a factorisation for each linearisation; a solve for each right-hand side.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, tril

from caspar.codegen.source import KernelSource
from caspar.live.linearization import RowGroup
from caspar.live.tables import Rows
from caspar.runtime.cpu.compile import function_address
from caspar.runtime.cpu.launch import CpuFunction, CpuLaunch, CpuSequence

MAX_BLOCK = 6
"""Unknowns of a block at most: the loops over larger ones would be long texts."""

MAX_GROWTH = 1.5
"""Operations of a factorisation, relative to those in the last order that was looked for and to the
number of blocks, from which on another order is looked for."""

NO_PIVOT = 1e-13
"""A pivot, relative to the entry of J^T J in its place, up to which the matrix is singular."""

_ANALYZE = """\
def analyze(table, tile):
    size = table[0]
    num_positions = table[1]
    first_position = as_int64(table[2])
    owner = as_int64(table[3])
    ranks = as_int64(table[4])
    starts = as_int64(table[5])
    touching = as_int64(table[6])
    parents = as_int64(table[7])
    counts = as_int64(table[8])
    marks = as_int64(table[9])
    for k in range(size + 1):
        starts[k] = 0
        parents[k] = size
        counts[k] = 0
        marks[k] = 0 - 1
    for p in range(num_positions):
        starts[ranks[p]] += 1
    total = 0
    for k in range(size):
        total += starts[k]
        starts[k] = total
    starts[size] = total
    for step in range(num_positions):
        p = num_positions - 1 - step
        place = starts[ranks[p]] - 1
        starts[ranks[p]] = place
        touching[place] = p
    for k in range(size):
        for at in range(starts[k], starts[k + 1]):
            row = owner[touching[at]]
            for q in range(first_position[row], first_position[row + 1]):
                reached = ranks[q]
                while reached < k:
                    if marks[reached] == k:
                        reached = size
                        continue
                    marks[reached] = k
                    counts[reached] += 1
                    if parents[reached] == size:
                        parents[reached] = k
                    reached = parents[reached]
"""
"""The table: blocks, positions; where the positions of each block of rows begin, the block of rows
of each position, the rank of the unknowns there; to be written: the positions of each rank, the
parent of each in the elimination tree, the blocks below the diagonal in each column of L; room."""

_GRADIENT = """\
def gradient(table, tile):
    num_rows = table[0]
    size = table[1]
    first_position = as_int64(table[2])
    heights = as_int64(table[3])
    first_entry = as_int64(table[4])
    first_residual = as_int64(table[5])
    blocks = as_int64(table[6])
    entries = as_float64(table[7])
    residual = as_float64(table[8])
    total = as_float64(table[9])
    squares = as_float64(table[10])
    for k in range(size):
        total[k] = 0.0
        squares[k] = 0.0
    for i in range(num_rows):
        at = first_entry[i]
        for row in range(heights[i]):
            r = residual[first_residual[i] + row]
            for q in range(first_position[i], first_position[i + 1]):
                unknown = blocks[q] * B
                for a in range(B):
                    slope = entries[at + a]
                    total[unknown + a] += slope * r
                    squares[unknown + a] += slope * slope
                at += B
"""
"""The table: blocks of rows and unknowns; what `Layout` has; entries and residual; to be written:
J^T r and the squared lengths of the columns."""


_HEAD = """\
def factorize(table, tile):
    size = table[0]
    first_position = as_int64(table[1])
    owner = as_int64(table[2])
    heights = as_int64(table[3])
    first_entry = as_int64(table[4])
    ranks = as_int64(table[5])
    starts = as_int64(table[6])
    touching = as_int64(table[7])
    parents = as_int64(table[8])
    ends = as_int64(table[9])
    marks = as_int64(table[10])
    filled = as_int64(table[11])
    path = as_int64(table[12])
    columns = as_int64(table[13])
    lower_rows = as_int64(table[14])
    entries = as_float64(table[15])
    lower = as_float64(table[16])
    own = as_float64(table[17])
    inverse = as_float64(table[18])
    y = as_float64(table[19])
    added = as_float64(table[20])
    outcome = as_float64(table[21])
    outcome[0] = 0.0
    for k in range(size + 1):
        marks[k] = 0 - 1
        filled[k] = ends[k]
    for e in range(size * SQUARE):
        y[e] = 0.0
    least = float64("inf")
    for k in range(size):
        num_columns = 0
        for at in range(starts[k], starts[k + 1]):
            p = touching[at]
            i = owner[p]
            begin = first_position[i]
            end = first_position[i + 1]
            width = (end - begin) * BLOCK
            mine = first_entry[i] + (p - begin) * BLOCK
            for q in range(begin, end):
                r = ranks[q]
                if r > k:
                    continue
                depth = 0
                reached = r
                while reached < k:
                    if marks[reached] == k:
                        reached = size
                        continue
                    marks[reached] = k
                    path[depth] = reached
                    depth += 1
                    reached = parents[reached]
                while depth > 0:
                    depth -= 1
                    columns[num_columns] = path[depth]
                    num_columns += 1
                target = r * SQUARE
                theirs = first_entry[i] + (q - begin) * BLOCK
                for row in range(heights[i]):
                    m = mine + row * width
                    t = theirs + row * width
"""
"""Row k of J^T J goes to `y`, and the columns of L in which row k has entries to `columns`, the
last one first. The table: what `Layout` has, what `_ANALYZE` writes, where columns of L begin, and
room; to be written: their rows and blocks, its diagonal blocks, one over the pivots, room; what is
added to the diagonal, by rank; to be written: the least pivot relative to the entry of J^T J."""


def _factorize_text(size: int) -> str:
    """The function for blocks of some size."""
    head = _HEAD.replace("SQUARE", str(size * size)).replace("BLOCK", str(size))
    lines = [*_products(size), *_updates(size), *_pivots(size)]
    return "\n".join([head + lines[0], *lines[1:], "    outcome[0] = least", ""])


def _place(array: str, row: int, column: int, size: int) -> str:
    """An entry of the block that begins at a place."""
    return f"{array} + {row * size + column}"


def _products(size: int) -> list[str]:
    """Add the product of two blocks of J, row by row; then the damping of the diagonal."""
    each, inner = range(size), " " * 20
    lines = [f"{inner}m{c} = entries[m + {c}]" for c in each]
    for a in each:
        lines.append(f"{inner}t{a} = entries[t + {a}]")
        lines += [f"{inner}y[{_place('target', a, c, size)}] += t{a} * m{c}" for c in each]
    lines.append(f"        base = k * {size * size}")
    for j in each:
        place = f"y[{_place('base', j, j, size)}]"
        lines += [
            f"        given{j} = {place}",
            f"        scale{j} = given{j} if given{j} > 0.0 else 1.0",
            f"        {place} = given{j} + added[k * {size} + {j}] if given{j} > 0.0 else 1.0",
        ]
    return lines


def _updates(size: int) -> list[str]:
    """Block c of row k of L, and what it takes from the blocks behind it and from the diagonal."""
    each, square = range(size), size * size
    lines = [
        "        for step in range(num_columns):",
        "            c = columns[num_columns - 1 - step]",
        f"            column = c * {square}",
    ]
    for a in each:
        for e in each:
            terms = [f"own[{_place('column', a, m, size)}] * z{m}{e}" for m in range(a)]
            value = " - ".join([f"y[{_place('column', a, e, size)}]", *terms])
            lines.append(f"            z{a}{e} = {value}")
    lines += [
        "            end = filled[c]",
        "            for at in range(ends[c], end):",
        f"                target = lower_rows[at] * {square}",
        f"                block = at * {square}",
    ]
    for a in each:
        lines += [f"                l{q} = lower[{_place('block', a, q, size)}]" for q in each]
        for e in each:
            total = " + ".join(f"l{q} * z{q}{e}" for q in each)
            lines.append(f"                y[{_place('target', a, e, size)}] -= {total}")
    lines.append(f"            block = end * {square}")
    for q in each:
        lines.append(f"            pivot{q} = inverse[c * {size} + {q}]")
        for e in each:
            lines += [
                f"            x{q}{e} = z{q}{e} * pivot{q}",
                f"            lower[{_place('block', e, q, size)}] = x{q}{e}",
                f"            y[{_place('column', q, e, size)}] = 0.0",
            ]
    for e in each:
        for f in range(e + 1):
            total = " + ".join(f"z{q}{e} * x{q}{f}" for q in each)
            lines.append(f"            y[{_place('base', e, f, size)}] -= {total}")
    return [*lines, "            lower_rows[end] = k", "            filled[c] = end + 1"]


def _pivots(size: int) -> list[str]:
    """L D L^T of the diagonal block of row k."""
    lines = []
    for j in range(size):
        terms = [f"n{j}{m} * n{j}{m} * d{m}" for m in range(j)]
        pivot = " - ".join([f"y[{_place('base', j, j, size)}]", *terms])
        lines += [
            f"        d{j} = {pivot}",
            f"        if d{j} > 0.0:",
            f"            least = min(d{j} / scale{j}, least)",
            "        else:",
            "            return",
            f"        inverse[k * {size} + {j}] = 1.0 / d{j}",
        ]
        for i in range(j + 1, size):
            terms = [f"n{i}{m} * n{j}{m} * d{m}" for m in range(j)]
            value = " - ".join([f"y[{_place('base', i, j, size)}]", *terms])
            lines += [
                f"        n{i}{j} = ({value}) / d{j}",
                f"        own[{_place('base', i, j, size)}] = n{i}{j}",
            ]
    return [*lines, *(f"        y[base + {e}] = 0.0" for e in range(size * size))]


def _solve_text(size: int) -> str:
    """The function for blocks of some size."""
    each = range(size)
    lines = [
        "def solve(table, tile):",
        "    size = table[0]",
        "    order = as_int64(table[1])",
        "    ends = as_int64(table[2])",
        "    lower_rows = as_int64(table[3])",
        "    lower = as_float64(table[4])",
        "    own = as_float64(table[5])",
        "    inverse = as_float64(table[6])",
        "    x = as_float64(table[7])",
        "    rhs = as_float64(table[8])",
        "    solution = as_float64(table[9])",
        "    for k in range(size):",
        *(f"        x[k * {size} + {a}] = rhs[order[k] * {size} + {a}]" for a in each),
        "    for k in range(size):",
        f"        base = k * {size * size}",
    ]
    for a in each:
        terms = [f"own[{_place('base', a, m, size)}] * z{m}" for m in range(a)]
        lines.append(f"        z{a} = {' - '.join([f'x[k * {size} + {a}]', *terms])}")
    lines += [
        "        for at in range(ends[k], ends[k + 1]):",
        f"            row = lower_rows[at] * {size}",
        f"            block = at * {size * size}",
    ]
    for a in each:
        total = " + ".join(f"lower[{_place('block', a, q, size)}] * z{q}" for q in each)
        lines.append(f"            x[row + {a}] -= {total}")
    lines += [
        *(f"        x[k * {size} + {a}] = z{a} * inverse[k * {size} + {a}]" for a in each),
        "    for step in range(size):",
        "        k = size - 1 - step",
        f"        base = k * {size * size}",
        *(f"        v{q} = x[k * {size} + {q}]" for q in each),
        "        for at in range(ends[k], ends[k + 1]):",
        f"            row = lower_rows[at] * {size}",
        f"            block = at * {size * size}",
        *(f"            x{a} = x[row + {a}]" for a in each),
    ]
    for q in each:
        total = " + ".join(f"lower[{_place('block', a, q, size)}] * x{a}" for a in each)
        lines.append(f"            v{q} -= {total}")
    for q in reversed(each):
        lines += [f"        v{q} -= own[base + {a * size + q}] * v{a}" for a in each if a > q]
        lines += [
            f"        x[k * {size} + {q}] = v{q}",
            f"        solution[order[k] * {size} + {q}] = v{q}",
        ]
    return "\n".join([*lines, ""])


@cache
def _function(name: str, size: int) -> CpuFunction:
    texts = {"analyze": _ANALYZE, "gradient": _GRADIENT.replace("B", str(size))}
    texts |= {"factorize": _factorize_text(size), "solve": _solve_text(size)}
    return CpuFunction(function_address(KernelSource(name, texts[name], (), (1,))))


Integers = NDArray[np.int64]


class Layout:
    """Rows of J one after the other.

    Args:
        groups: Rows in blocks.
        size: Unknowns of a block; each run of as many columns is one block.

    Attributes:
        first_position: (count + 1,) begin of the blocks that each block of rows touches.
        owner: (num_positions,) block of rows of each of these.
        heights: (count,) rows of a block of rows.
        first_entry: (count,) where its derivatives begin, by rows.
        first_residual: (count,) where its residual begins.
        blocks: (num_positions,) blocks of unknowns.
    """

    def __init__(self, groups: Sequence[RowGroup], size: int) -> None:
        counts = [len(group.residual) for group in groups]
        heights = [group.residual.shape[1] for group in groups]
        widths = [group.columns.shape[1] // size for group in groups]
        self.heights: Integers = np.repeat(np.array(heights, np.int64), counts)
        each = np.repeat(np.array(widths, np.int64), counts)
        self.first_position: Integers = _begins(each, with_end=True)
        self.first_entry: Integers = _begins(self.heights * each * size)
        self.first_residual: Integers = _begins(self.heights)
        self.owner: Integers = np.repeat(np.arange(len(each)), each)
        parts = [group.columns[:, ::size].ravel() for group in groups]
        self.blocks: Integers = np.concatenate([np.zeros(0, np.int64), *parts]) // size


def _begins(lengths: Integers, *, with_end: bool = False) -> Integers:
    begins = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    return begins if with_end else begins[:-1]


class BlockFactorization:
    """The matrix J^T J of rows that may come and go between factorisations.

    Args:
        block_size: Unknowns of a block, 1 to `MAX_BLOCK`.

    Attributes:
        least_pivot: Of the last factorisation, relative to the entry of J^T J in its place; 0: one
            was not positive, or the pattern has changed since. Unknowns that no row depends on have
            pivots of 1.
        gradient: (num_unknowns,) J^T r.
        squares: (num_unknowns,) sums of the squared derivatives by each unknown.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self.least_pivot = 1.0
        self.gradient: Rows = np.zeros(0)
        self.squares: Rows = np.zeros(0)
        self._layout = Layout([], block_size)
        self._order: Integers = np.zeros(0, np.int64)
        self._ends: Integers = np.zeros(1, np.int64)
        self._work_in_order = 0.0
        self._arrays: list[NDArray[Any]] = []
        self._factor: list[NDArray[Any]] = []
        self._entries: Rows = np.zeros(0)

    @property
    def num_unknowns(self) -> int:
        """Rows of the matrix."""
        return len(self._order) * self._size

    def linearize(self, groups: Sequence[RowGroup], num_unknowns: int) -> None:
        """Take rows, and compute the gradient."""
        layout, num_blocks = Layout(groups, self._size), num_unknowns // self._size
        is_same = num_blocks == len(self._order) and all(
            np.array_equal(getattr(layout, name), getattr(self._layout, name))
            for name in ("blocks", "first_position", "heights")
        )
        if not is_same or len(self._arrays) == 0:
            self._layout = layout
            self._arrange(num_blocks)
        nothing = np.zeros(0)
        self._entries = np.concatenate([nothing, *(group.entries.ravel() for group in groups)])
        residual = np.concatenate([nothing, *(group.residual.ravel() for group in groups)])
        self.gradient, self.squares = np.empty((2, num_unknowns))
        _run(
            _function("gradient", self._size),
            len(layout.heights),
            num_unknowns,
            layout.first_position,
            layout.heights,
            layout.first_entry,
            layout.first_residual,
            layout.blocks,
            self._entries,
            residual,
            self.gradient,
            self.squares,
        )

    def factorize(self, added: Rows | float = 0.0) -> None:
        """Factorise J^T J with something added to its diagonal: a number, or (num_unknowns,)."""
        num_blocks, layout = len(self._order), self._layout
        by_block = np.broadcast_to(added, num_blocks * self._size).reshape(num_blocks, self._size)
        outcome = np.zeros(1)
        _run(
            _function("factorize", self._size),
            num_blocks,
            layout.first_position,
            layout.owner,
            layout.heights,
            layout.first_entry,
            *self._arrays,
            self._entries,
            *self._factor,
            by_block[self._order],
            outcome,
        )
        self.least_pivot = float(outcome[0]) if num_blocks > 0 else 1.0

    @property
    def is_definite(self) -> bool:
        """Return whether no pivot of the last factorisation was zero to rounding."""
        return self.least_pivot > NO_PIVOT

    def solve(self, rhs: Rows) -> Rows:
        """(num_unknowns,) the solution of J^T J x = rhs; NaN without a factorisation."""
        if self.least_pivot == 0.0:
            return np.full(self.num_unknowns, np.nan)
        _, _, _, _, ends, *_, lower_rows = self._arrays
        lower, own, inverse, room = self._factor
        solution = np.empty(self.num_unknowns)
        _run(
            _function("solve", self._size),
            len(self._order),
            self._order,
            ends,
            lower_rows,
            lower,
            own,
            inverse,
            room,
            np.ascontiguousarray(rhs),
            solution,
        )
        return solution

    def inverse_rows(self, unknowns: Integers) -> Rows:
        """(k, num_unknowns) rows of the inverse."""
        found = np.zeros((len(unknowns), self.num_unknowns))
        for row, unknown in zip(found, unknowns, strict=True):
            row[unknown] = 1.0
            row[...] = self.solve(row)
        return found

    # -- the order -----------------------------------------------------------------------------

    def keep(self, blocks: Integers) -> None:
        """Drop all unknowns but some blocks, which have the numbers 0, 1, ... from now on."""
        rank = np.full(1 + max(len(self._order), int(blocks.max(initial=0))), len(self._order))
        rank[self._order] = np.arange(len(self._order))
        self._order = np.argsort(rank[blocks], kind="stable")
        self._arrays, self.least_pivot = [], 0.0

    def _arrange(self, num_blocks: int) -> None:
        """Append blocks to the order, or look for another one, and analyse the pattern."""
        known = self._order if len(self._order) <= num_blocks else self._order[:0]
        work = self._analyze(np.concatenate([known, np.arange(len(known), num_blocks)]))
        if work > MAX_GROWTH * self._work_in_order * num_blocks:
            work = self._analyze(self._order_found(num_blocks))
            self._work_in_order = work / num_blocks

    def _order_found(self, num_blocks: int) -> Integers:
        """Ask AMD for an order: the block of each row of L."""
        from caspar.runtime.cpu.direct import QdldlFactorization

        layout = self._layout
        ones = np.ones(len(layout.blocks), np.int32)
        shape = (len(layout.heights), num_blocks)
        touches = csr_array((ones, layout.blocks, layout.first_position), shape=shape)
        alone = np.arange(num_blocks)
        diagonal = csr_array((np.ones(num_blocks, np.int32), (alone, alone)))
        pattern = tril(touches.T @ touches + diagonal, format="csr")
        pattern.sort_indices()
        starts, columns = pattern.indptr.astype(np.int32), pattern.indices.astype(np.int32)
        order = QdldlFactorization(starts, columns, num_blocks).pattern[2]
        return order[order < num_blocks].astype(np.int64)

    def _analyze(self, order: Integers) -> float:
        """Prepare for factorisations in an order; the operations of one, relative to others."""
        size, layout, num_blocks = self._size, self._layout, len(order)
        rank = np.empty(num_blocks, np.int64)
        rank[order] = np.arange(num_blocks)
        ranks = rank[layout.blocks]
        num_positions = len(ranks)
        starts, parents, counts, marks, filled, path, columns = np.empty(
            (7, num_blocks + 1), np.int64
        )
        touching = np.empty(num_positions, np.int64)
        _run(
            _function("analyze", size),
            num_blocks,
            num_positions,
            layout.first_position,
            layout.owner,
            ranks,
            starts,
            touching,
            parents,
            counts,
            marks,
        )
        ends = _begins(counts[:-1], with_end=True)
        num_lower, square = int(ends[-1]), size * size
        rooms = marks, filled, path, columns
        lower_rows = np.empty(num_lower, np.int64)
        self._order, self.least_pivot = order, 0.0
        self._arrays = [ranks, starts, touching, parents, ends, *rooms, lower_rows]
        self._factor = [
            np.empty(num_lower * square),
            np.empty(num_blocks * square),
            np.empty(num_blocks * size),
            np.empty(num_blocks * square),
        ]
        return float(((counts[:-1] + 1.0) ** 2).sum())


def _run(function: CpuFunction, *passed: int | NDArray[Any]) -> None:
    """Call a function with numbers and arrays."""
    table = [one if isinstance(one, int) else one.ctypes.data for one in passed]
    CpuSequence([CpuLaunch(function, np.array(table, np.int64), 1, ())]).run()
