"""L D L^T of J^T J by blocks of unknowns, for a matrix that grows and changes in parts.

Libraries analyse a new pattern for longer than they factorise it. Here the order of the blocks is
kept while unknowns are appended, the analysis is the elimination tree and nothing else, and J^T J
is not formed: the factorisation goes up the rows of L (Davis, *Direct Methods for Sparse Linear
Systems*, section 4.8) and takes each row of J^T J from the rows of J that touch its block.

A row of L is computed again only if J has changed enough in rows that touch its block, or if a row
of L that it is computed from has been. Such rows are its descendants in the elimination tree, so a
changed block costs the rows on its path to the root (Kaess et al. 2012 do the same with cliques).
The gradient is always that of the current J: with a factor that is a little old, steps are a little
longer or shorter, and end at the same minimum.

Cost tiers: the order now and then; a look at all of J once for each linearisation; the analysis of
new rows and blocks once; a factorisation for each linearisation; a solve for each right-hand side.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, tril

from caspar.live.block_functions import NO_PARENT, run_function
from caspar.live.linearization import RowGroup
from caspar.live.tables import GrowingRows, Rows

MAX_BLOCK = 6
"""Unknowns of a block at most: the loops over larger ones would be long texts."""

MAX_GROWTH = 1.5
"""Operations of a factorisation, relative to those in the last order that was looked for and to the
number of blocks, from which on another order is looked for."""

LEAST_WORK = 2e4
"""Products of blocks of a factorisation up to which no order is looked for: it takes as long."""

NO_PIVOT = 1e-13
"""A pivot, relative to the entry of J^T J in its place, up to which the matrix is singular."""

FORGOTTEN = 1e-12
"""Share of the largest rhs^T x so far. If a solution has less, it is found from nothing, because
what is kept of the solves before has the rounding of larger numbers."""

Integers = NDArray[np.int64]


def _integers() -> GrowingRows:
    return GrowingRows(1, np.int64)


class Store:
    """Rows of J in the order in which they came, and where they stay.

    Args:
        size: Unknowns of a block; each run of as many columns is one block.

    Attributes:
        first_position: (count + 1,) begin of the blocks that each block of rows touches.
        owner: (num_positions,) block of rows of each of these.
        heights: (count,) rows of a block of rows.
        first_entry: (count,) where its derivatives begin, by rows.
        blocks: (num_positions,) blocks of unknowns.
        following: (num_positions,) the next position of the same block, or -1.
        entries: (num_entries,) the derivatives that the factor is made of.
        differs: (count,) 1 for blocks of rows whose derivatives are others now.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.first_position, self.owner, self.heights = _integers(), _integers(), _integers()
        self.first_entry, self.blocks, self.following = _integers(), _integers(), _integers()
        self.entries, self.differs = GrowingRows(1), _integers()
        self.first_position.append(np.zeros(1, np.int64))
        self._slots: dict[Hashable, GrowingRows] = {}

    @property
    def count(self) -> int:
        """Blocks of rows."""
        return self.heights.count

    def slots(self, key: Hashable, group: RowGroup) -> tuple[Integers, int]:
        """Return the numbers of all blocks of rows of a factor, and how many there were before."""
        slots = self._slots.setdefault(key, _integers())
        known = slots.count
        if known < len(group.residual):
            slots.append(self._added(group.chosen(slice(known, None))))
        column: Integers = slots.column
        return column, known

    def _added(self, group: RowGroup) -> Integers:
        blocks = group.columns[:, :: self._size] // self._size
        (count, width), height = blocks.shape, group.residual.shape[1]
        made = np.arange(self.count, self.count + count)
        num_entries = height * width * self._size
        self.first_position.append(self.blocks.count + width * np.arange(1, count + 1))
        self.first_entry.append(self.entries.count + num_entries * np.arange(count))
        self.heights.append(np.full(count, height))
        self.differs.append(np.zeros(count, np.int64))
        self.owner.append(np.repeat(made, width))
        self.blocks.append(blocks.ravel())
        self.following.append(np.full(blocks.size, -1))
        self.entries.append(np.zeros(count * num_entries))
        return made


class Columns:
    """L by columns that have room to grow, the elimination tree, and which rows are outdated.

    Args:
        size: Unknowns of a block.

    Attributes:
        heads: (count,) by rank: the last position of its block, or -1.
        parents: (count,) the parent in the elimination tree, or `NO_PARENT`.
        counts: (count,) blocks below the diagonal in a column, once all rows are computed.
        begins: (count,) where they begin in `lower`.
        filled: (count,) where those that are computed end.
        outdated: (count,) 1 for rows that have to be computed.
        own: (count, size * size) diagonal blocks.
        inverse: (count, size) one over the pivots.
        used: (count, size) what was added to the diagonal.
        pivots: (count, 1) the least pivot of a row, relative to the entry of J^T J in its place; 0:
            one was not positive.
        lower_rows: (room,) the rank of each block of L.
        lower: (room, size * size) the blocks.
        known: (count, size) the right-hand side of the last solve.
        left: (count, size) the same, less what the rows before take.
        forwarded: (count, size) its solution by L alone.
        renewed: (count,) 1 for rows whose solution has to be found again.
    """

    def __init__(self, size: int) -> None:
        self.heads, self.parents, self.counts = _integers(), _integers(), _integers()
        self.begins, self.filled, self.outdated = _integers(), _integers(), _integers()
        self._room = _integers()
        self.own, self.inverse = GrowingRows(size * size), GrowingRows(size)
        self.used, self.pivots = GrowingRows(size), GrowingRows(1)
        self.lower_rows, self.lower = _integers(), GrowingRows(size * size)
        self.known, self.left = GrowingRows(size), GrowingRows(size)
        self.forwarded, self.renewed = GrowingRows(size), _integers()

    def append(self, count: int) -> None:
        """Add rows that are to be computed."""
        first = {"heads": -1, "parents": NO_PARENT, "outdated": 1}
        for name, rows in vars(self).items():
            if name not in ("lower_rows", "lower"):
                width = rows.memory.shape[1]
                rows.append(np.full((count, width), first.get(name, 0), rows.memory.dtype))

    def make_room(self) -> None:
        """Move columns that have less room than entries to the end, with room for more."""
        counts, begins, filled = self.counts.column, self.begins.column, self.filled.column
        (lacking,) = np.nonzero(counts > self._room.column)
        if len(lacking) == 0:
            return
        rooms = 2 * counts[lacking] + 8
        ends = self.lower_rows.count + np.cumsum(rooms)
        total = int(rooms.sum())
        self.lower_rows.append(np.zeros(total, np.int64))
        self.lower.append(np.zeros((total, self.lower.memory.shape[1])))
        firsts, before, lengths = ends - rooms, begins[lacking], (filled - begins)[lacking]
        for one in np.flatnonzero(lengths):
            first, old, length = firsts[one], before[one], lengths[one]
            for rows in (self.lower_rows.rows, self.lower.rows):
                rows[first : first + length] = rows[old : old + length]
        begins[lacking], filled[lacking] = firsts, firsts + lengths
        self._room.column[lacking] = rooms


class BlockFactorization:
    """The matrix J^T J of rows that may come between factorisations.

    Args:
        block_size: Unknowns of a block, 1 to `MAX_BLOCK`.

    Attributes:
        least_pivot: Of the last factorisation, relative to the entry of J^T J in its place; 0: one
            was not positive, or rows were forgotten since. Unknowns that no row depends on have
            pivots of 1.
        gradient: (num_unknowns,) J^T r.
        squares: (num_unknowns,) sums of the squared derivatives by each unknown.
        is_exact: Whether the next factorisation is that of the current J.
        changed: (num_blocks,) 1 for blocks whose derivatives have changed since the last one.
    """

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self.is_exact = True
        self._work_in_order = 0.0
        self._order: Integers = np.zeros(0, np.int64)
        self._forget()

    def _forget(self) -> None:
        """Forget all rows of J and of L; the order stays."""
        self.least_pivot = 0.0
        self._store = Store(self._size)
        self.changed: Integers = np.zeros(0, np.int64)
        self.gradient, self.squares, self._reduced = np.zeros((3, 0))
        self._start()

    def _start(self) -> None:
        """Forget all rows of L."""
        self._columns, self._num_linked, self._largest = Columns(self._size), 0, 0.0
        self._ordered, self._ranks = self._order[:0], self._order[:0]

    @property
    def num_unknowns(self) -> int:
        """Rows of the matrix."""
        return len(self.gradient)

    def linearize(
        self,
        groups: Mapping[Any, RowGroup],
        num_unknowns: int,
        *,
        most_change: float = 0.0,
        changed: Mapping[Any, tuple[Integers, RowGroup]] | None = None,
    ) -> None:
        """Take the derivatives of rows, and compute the gradient.

        Args:
            groups: By name: rows that were taken before, in the same order and by the same
                unknowns, and behind them others. Only `keep` forgets rows.
            num_unknowns: Unknowns; more than before if some have been appended.
            most_change: Change of the derivatives of a block of rows, relative to their length, up
                to which the next factorisation has them as they were.
            changed: By name: which of the rows that were taken before have changed, and these as
                they were; None: all may have.
        """
        size, store = self._size, self._store
        added = num_unknowns - len(self.gradient)
        self.changed = np.append(self.changed, np.ones(added // size, np.int64))
        if changed is None:
            self.gradient, self.squares = np.zeros((2, num_unknowns))
        elif added > 0:
            self.gradient = np.append(self.gradient, np.zeros(added))
            self.squares = np.append(self.squares, np.zeros(added))
        for key, group in groups.items():
            slots, known = store.slots(key, group)
            if changed is None:
                self._take(slots, group, most_change)
                continue
            if known < len(slots):
                new = slice(known, None)
                self._take(slots[new], group.chosen(new), most_change)
            if key in changed:
                places, before = changed[key]
                self._take(slots[places], group.chosen(places), most_change, before)
        self.is_exact = not store.differs.column.any()

    def _take(
        self, slots: Integers, group: RowGroup, most_change: float, before: RowGroup | None = None
    ) -> None:
        """Take some rows; of those that were taken as they were `before` the change."""
        store, (count, height, width) = self._store, group.entries.shape
        old = group if before is None else before
        run_function(
            "take",
            self._size,
            count,
            height,
            width // self._size,
            slots,
            store.first_position,
            store.first_entry,
            store.blocks,
            np.ascontiguousarray(group.entries),
            np.ascontiguousarray(group.residual),
            store.entries,
            self.gradient,
            self.squares,
            self.changed,
            store.differs,
            np.array([most_change**2, 0.0 if before is None else 1.0]),
            np.ascontiguousarray(old.entries),
            np.ascontiguousarray(old.residual),
        )

    def factorize(self, added: Rows | float = 0.0) -> None:
        """Factorise J^T J with something added to its diagonal: a number, or (num_unknowns,)."""
        num_blocks, size = len(self.changed), self._size
        if num_blocks == 0:
            self.least_pivot = 1.0
            return
        self._extend(num_blocks)
        store, columns = self._store, self._columns
        by_block = np.broadcast_to(added, num_blocks * size).reshape(num_blocks, size)
        by_rank = np.ascontiguousarray(by_block[self._ordered], np.float64)
        used = columns.used.rows
        differs = ((by_rank > 2.0 * used) | (by_rank < 0.5 * used)).any(axis=1)
        columns.outdated.column[differs | (self.changed[self._ordered] > 0)] = 1
        self.changed[:] = 0
        path, found = np.empty((2, num_blocks), np.int64)
        run_function(
            "factorize",
            size,
            num_blocks,
            *(store.first_position, store.owner, store.heights, store.first_entry),
            *(store.blocks, store.following, store.entries, self._ranks),
            *(columns.heads, columns.parents, columns.begins, columns.filled),
            *(columns.outdated, columns.own, columns.inverse, columns.used),
            *(columns.pivots, columns.lower_rows, columns.lower),
            by_rank,
            np.full(num_blocks, -1),
            path,
            found,
            np.zeros(num_blocks * size * size),
            *(columns.known, columns.left, columns.forwarded, columns.renewed),
        )
        self.least_pivot = float(columns.pivots.column.min())

    @property
    def is_definite(self) -> bool:
        """Return whether no pivot of the last factorisation was zero to rounding."""
        return self.least_pivot > NO_PIVOT

    def weakest(self, sizes: Rows) -> tuple[float, int]:
        """Return the least pivot, relative to (num_unknowns,) sizes, and its unknown."""
        if self.least_pivot == 0.0 or len(sizes) == 0:
            return 0.0, 0
        shares = self._columns.inverse.rows * sizes.reshape(-1, self._size)[self._ordered]
        rank, place = divmod(int(shares.argmax()), self._size)
        return 1.0 / float(shares[rank, place]), int(self._ordered[rank]) * self._size + place

    def forward(self, rhs: Rows) -> float:
        """Begin to solve J^T J x = rhs; rhs^T x, or NaN without a factorisation.

        It begins with what the last call has left. Only some rows of L are gone through: those that
        were computed since, those whose right-hand side has changed, and the ancestors of both in
        the elimination tree. See `FORGOTTEN` for when all are.
        """
        if self.least_pivot == 0.0:
            return np.nan
        columns = self._columns
        state = columns.known, columns.left, columns.forwarded, columns.renewed
        found = self._forwarded(rhs, *state)
        self._largest = max(self._largest, found)
        if not found > FORGOTTEN * self._largest:
            for rows in state:
                rows.rows[...] = 0
            found = self._forwarded(rhs, *state)
            self._largest = max(found, 0.0)
        return found

    def _forwarded(self, rhs: Rows, *state: GrowingRows | NDArray[Any]) -> float:
        """Forward substitution from what `Columns` have of another one."""
        columns, outcome = self._columns, np.zeros(1)
        self._reduced = np.empty(self.num_unknowns)
        run_function(
            "forward",
            self._size,
            len(self._ordered),
            self._ordered,
            *(columns.begins, columns.filled, columns.own, columns.inverse),
            *(columns.lower_rows, columns.lower),
            *state,
            self._reduced,
            np.ascontiguousarray(rhs),
            outcome,
        )
        return float(outcome[0])

    def backward(self, least: float = 0.0) -> Rows:
        """(num_unknowns,) the solution of what was begun, without small entries.

        Args:
            least: Blocks of which no entry changes the residuals by more than this, whatever the
                others do, are zero: x_i^2 `squares`_i is at most the square of it. 0: no block.
        """
        if self.least_pivot == 0.0:
            return np.full(self.num_unknowns, np.nan)
        columns, size = self._columns, len(self._ordered)
        solution = np.empty(self.num_unknowns)
        run_function(
            "backward",
            self._size,
            size,
            self._ordered,
            *(columns.begins, columns.filled, columns.own, columns.lower_rows, columns.lower),
            self._reduced,
            self.squares,
            np.array([least**2 if least > 0.0 else -1.0]),
            np.empty(size, np.int64),
            solution,
        )
        return solution

    def solve(self, rhs: Rows) -> Rows:
        """(num_unknowns,) the solution of J^T J x = rhs; NaN without a factorisation."""
        if self.least_pivot == 0.0:
            return np.full(self.num_unknowns, np.nan)
        nothing = np.zeros((3, self.num_unknowns))
        self._forwarded(rhs, *nothing, np.zeros(len(self._ordered), np.int64))
        return self.backward()

    def inverse_rows(self, unknowns: Integers) -> Rows:
        """(k, num_unknowns) rows of the inverse."""
        found = np.zeros((len(unknowns), self.num_unknowns))
        for row, unknown in zip(found, unknowns, strict=True):
            row[unknown] = 1.0
            row[...] = self.solve(row)
        return found

    # -- the order -----------------------------------------------------------------------------

    def keep(self, blocks: Integers) -> None:
        """Drop all rows, and all unknowns but some blocks, which are 0, 1, ... from now on."""
        rank = np.full(1 + max(len(self._order), int(blocks.max(initial=0))), len(self._order))
        rank[self._order] = np.arange(len(self._order))
        self._order = np.argsort(rank[blocks], kind="stable")
        self._forget()

    def _append(self, blocks: Integers) -> None:
        """Put blocks behind those that are in order."""
        if len(blocks) == 0:
            return
        self._columns.append(len(blocks))
        self._ordered = np.append(self._ordered, blocks)
        self._ranks = np.empty_like(self._ordered)
        self._ranks[self._ordered] = np.arange(len(self._ordered))

    def _extend(self, num_blocks: int) -> None:
        """Analyse blocks and rows that are new; look for another order if it has become bad."""
        if len(self._ordered) == num_blocks and self._num_linked == self._store.count:
            return
        known = self._ordered
        if len(known) == 0:
            # rows were forgotten: the order of the blocks that are left is still a good one
            self._append(self._order if len(self._order) <= num_blocks else self._order[:0])
        first = len(known)
        new = np.arange(len(self._ordered), num_blocks)
        if len(new) > 1:
            # landmarks before the pose that sees them
            uses = np.bincount(self._store.blocks.column, minlength=num_blocks)[new]
            new = new[np.argsort(uses, kind="stable")]
        self._append(new)
        if not self._analyze(first):
            self._restart(self._ordered)
        if self._work() > max(MAX_GROWTH * self._work_in_order * num_blocks, LEAST_WORK):
            self._restart(self._order_found(num_blocks))
            self._work_in_order = self._work() / num_blocks
        self._order = self._ordered
        self._columns.make_room()

    def _restart(self, order: Integers) -> None:
        """Begin with the rows of L anew, in some order of all blocks."""
        self._start()
        self._append(order)
        self._analyze(0)

    def _work(self) -> float:
        """The operations of a whole factorisation, relative to others."""
        return float(((self._columns.counts.column + 1.0) ** 2).sum())

    def _analyze(self, first_rank: int) -> bool:
        """Link new rows of J, and count the blocks of new rows of L.

        Returns:
            Whether the other rows of L have blocks in the same places as before.
        """
        store, columns, num_blocks = self._store, self._columns, len(self._ordered)
        outcome = np.zeros(1, np.int64)
        run_function(
            "extend",
            self._size,
            self._num_linked,
            store.count,
            first_rank,
            num_blocks,
            *(store.first_position, store.blocks, store.following, self._ranks),
            *(columns.heads, store.owner, columns.parents, columns.counts),
            *(columns.begins, columns.filled, columns.lower_rows),
            np.full(num_blocks, -1),
            outcome,
        )
        self._num_linked = store.count
        return int(outcome[0]) == 0

    def _order_found(self, num_blocks: int) -> Integers:
        """Ask AMD for an order: the block of each row of L."""
        from caspar.runtime.cpu.direct import QdldlFactorization

        store = self._store
        blocks = store.blocks.column
        ones = np.ones(len(blocks), np.int32)
        touches = csr_array(
            (ones, blocks, store.first_position.column), shape=(store.count, num_blocks)
        )
        alone = np.arange(num_blocks)
        diagonal = csr_array((np.ones(num_blocks, np.int32), (alone, alone)))
        pattern = tril(touches.T @ touches + diagonal, format="csr")
        pattern.sort_indices()
        starts, columns = pattern.indptr.astype(np.int32), pattern.indices.astype(np.int32)
        order = QdldlFactorization(starts, columns, num_blocks).pattern[2]
        return order[order < num_blocks].astype(np.int64)
