"""The unknowns of a normal matrix, the blocks that are not zero, and their entries.

Input: node types with their counts, and pairs of nodes that something couples. Output: for each
pair of types a list of blocks; for each coupling the number of its block; rows, columns and places
of all scalars of the lower triangle. Once for each structure, by NumPy or CuPy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Any

import numpy as np

from caspar.ir.dtype import DType
from caspar.memory.array import Array

TypePair = tuple[str, str]
"""Names of the node types of the rows and of the columns of a block."""

CHUNK = DType.FLOAT64.chunk_length
"""Scalars of a full chunk of the arrays that kernels read: they are not padded."""

SMALL_TABLE = 1 << 14
"""Entries of a table that takes less time than sorting a few numbers."""


@dataclass(frozen=True)
class NodeUnknowns:
    """The unknowns of a node type."""

    name: str
    count: int
    dim: int
    first: int


@dataclass(frozen=True)
class Unknowns:
    """Numbers of the unknowns, one node type after the other.

    Attributes:
        chunk: The scalars of so many components stand together, node after node; None: all of them,
            so that the unknowns of a type are a (count, dim) array.
    """

    nodes: Mapping[str, NodeUnknowns]
    size: int
    gaps: tuple[int, ...] = ()
    chunk: int | None = None

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, int]], chunk: int | None = None) -> "Unknowns":
        """Return the unknowns of node types by (count, dim); each type begins a new chunk."""
        nodes, gaps, size = {}, [], 0
        for name, (count, dim) in shapes.items():
            if chunk is not None and size % chunk != 0:
                gaps.append(size)
                size += 1
            nodes[name] = NodeUnknowns(name, count, dim, size)
            size += count * dim
        return Unknowns(nodes, size, tuple(gaps), chunk)

    def numbers(self, xp: Any, name: str, index: Array, component: Any) -> Array:
        """(nodes, components) numbers of some components of some nodes of a type."""
        node = self.nodes[name]
        return node.first + scalar_numbers(xp, node.count, node.dim, index, component, self.chunk)

    def split(self, vectors: Array) -> dict[str, Array]:
        """(size, ...) without chunks as (count, dim, ...) of each node type."""
        return {
            name: vectors[node.first : node.first + node.count * node.dim].reshape(
                node.count, node.dim, *vectors.shape[1:]
            )
            for name, node in self.nodes.items()
        }

    def joined(self, xp: Any, by_node: Mapping[str, Array]) -> Array:
        """The other way."""
        parts = [by_node[name].reshape(-1, *by_node[name].shape[2:]) for name in self.nodes]
        return xp.concatenate(parts)


@dataclass(frozen=True)
class Coupling:
    """Pairs of nodes that share a block: (n,) int64 each, of one type with row >= column."""

    types: TypePair
    rows: Array
    columns: Array


@dataclass(frozen=True)
class BlockList:
    """The blocks of two node types.

    Of one type all diagonal blocks are first, in the order of the nodes, and the others are below
    the diagonal.

    Attributes:
        column: Type of the columns; the same or an earlier one.
        keys: (n,) int64 of the blocks off the diagonal, ascending: the node of the rows times the
            nodes of the columns' type, plus the node of the columns. None: there is a block for
            every pair of nodes, in the order of such keys.
    """

    row: NodeUnknowns
    column: NodeUnknowns
    keys: Array | None

    @property
    def num_diagonal(self) -> int:
        """Diagonal blocks, which are listed first."""
        return self.row.count if self.row.name == self.column.name else 0

    @property
    def num_blocks(self) -> int:
        """All of them."""
        if self.keys is None:
            return self.row.count * self.column.count
        return self.num_diagonal + int(self.keys.shape[0])

    @property
    def dim(self) -> int:
        """Scalars of a block."""
        return self.row.dim * self.column.dim

    def diagonal(self, index: Array) -> Array:
        """(n,) the diagonal block of each node."""
        return index if self.keys is not None else index * (self.row.count + 1)

    def numbers(self, xp: Any, rows: Array, columns: Array) -> Array:
        """(n,) the block of each pair of nodes, int64, whose row is not before its column."""
        key = rows * self.column.count + columns
        if self.keys is None:
            return key
        size = self.row.count * self.column.count
        if size <= max(key.shape[0], SMALL_TABLE):
            table = xp.zeros(size, dtype=np.int64)
            table[self.keys] = xp.arange(self.keys.shape[0])
            place = table[key]
        else:
            place = xp.searchsorted(self.keys, key)
        number = self.num_diagonal + place
        return xp.where(rows == columns, rows, number) if self.num_diagonal > 0 else number

    def nodes(self, xp: Any) -> tuple[Array, Array]:
        """(num_blocks,) int64 nodes of the rows and of the columns of what is listed."""
        assert self.keys is not None
        rows, columns = xp.divmod(self.keys, self.column.count)
        own = xp.arange(self.num_diagonal)
        return xp.concatenate([own, rows]), xp.concatenate([own, columns])


@dataclass(frozen=True)
class Entries:
    """Entries of the lower triangle, each once.

    Attributes:
        source: (n,) integers: scalar of the blocks, whose lists stand one behind the other.
    """

    rows: Array
    columns: Array
    source: Array

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """Rows, columns and source."""
        return self.rows, self.columns, self.source

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(one.nbytes) for one in self.parts)

    def by_rows(self, xp: Any, size: int) -> tuple["Entries", Array]:
        """The same row after row with columns ascending, and where the rows begin, (size + 1,)."""
        order = xp.argsort(self.rows.astype(np.int64) * size + self.columns)
        entries = Entries(*(part[order] for part in self.parts))
        numbers = xp.arange(size + 1, dtype=entries.rows.dtype)
        return entries, xp.searchsorted(entries.rows, numbers).astype(np.int32)


def block_lists(
    xp: Any, unknowns: Unknowns, couplings: Sequence[Coupling]
) -> dict[TypePair, BlockList]:
    """Distinct pairs of nodes by types; of every type with itself at least the diagonal."""
    pairs = [(name, name) for name in unknowns.nodes]
    pairs += list(dict.fromkeys(one.types for one in couplings if one.types not in pairs))
    lists = {}
    for types in pairs:
        row, column = (unknowns.nodes[name] for name in types)
        keys = [xp.empty(0, dtype=np.int64)]
        for one in couplings:
            if one.types == types:
                key = one.rows * column.count + one.columns
                keys.append(key[one.rows != one.columns] if row is column else key)
        distinct = _distinct(xp, xp.concatenate(keys), row.count * column.count)
        lists[types] = BlockList(row, column, distinct)
    return lists


def coupled(xp: Any, unknowns: Unknowns, nodes: Iterable[tuple[str, Array]]) -> list[Coupling]:
    """Pairs of nodes that the instances of a factor touch together."""
    ranks = {name: rank for rank, name in enumerate(unknowns.nodes)}
    ordered = sorted((one for one in nodes if one[0] in ranks), key=lambda one: ranks[one[0]])
    found = []
    for (column, first), (row, second) in combinations(ordered, 2):
        rows, columns = second.astype(np.int64), first.astype(np.int64)
        if row == column:
            rows, columns = xp.maximum(rows, columns), xp.minimum(rows, columns)
        found.append(Coupling((row, column), rows, columns))
    return found


def full_lists(unknowns: Unknowns) -> dict[TypePair, BlockList]:
    """A block for every pair of nodes."""
    nodes = list(unknowns.nodes.values())
    return {
        (row.name, column.name): BlockList(row, column, None)
        for place, row in enumerate(nodes)
        for column in nodes[: place + 1]
    }


def _distinct(xp: Any, keys: Array, size: int) -> Array:
    """Return which of the numbers below `size` are among the keys, ascending."""
    if size > max(keys.shape[0], SMALL_TABLE):
        return xp.unique(keys)
    is_there = xp.zeros(size, dtype=np.bool_)
    is_there[keys] = True
    return xp.flatnonzero(is_there)


def matrix_entries(
    xp: Any,
    lists: Mapping[TypePair, BlockList],
    unknowns: Unknowns,
    first: Mapping[TypePair, int] | None = None,
    *,
    one: int = 0,
    dtype: type[np.integer[Any]] = np.int64,
) -> Entries:
    """All entries, in the order of the blocks.

    `first`: By types the first scalar of their blocks; None: they stand one behind the other.
    `one`: The scalar that is a 1, on the diagonal of gaps.
    """
    if first is None:
        ends = accumulate(blocks.num_blocks * blocks.dim for blocks in lists.values())
        first = dict(zip(lists, [0, *ends], strict=False))
    gaps = xp.asarray(np.array(unknowns.gaps, dtype=np.int64))
    parts = [
        tuple(part.reshape(-1) for part in (row, column, first[types] + place))
        for types, blocks in lists.items()
        for row, column, place in _block_entries(xp, blocks, unknowns)
    ]
    parts.append((gaps, gaps, xp.full(gaps.shape, one)))
    return Entries(*(xp.concatenate(part).astype(dtype) for part in zip(*parts, strict=True)))


def _block_entries(
    xp: Any, blocks: BlockList, unknowns: Unknowns
) -> Iterable[tuple[Array, Array, Array]]:
    """(blocks, entries) row, column and place in the list: of diagonal blocks, and of others."""
    row, column, num = blocks.row, blocks.column, blocks.num_diagonal
    rows, columns = blocks.nodes(xp)
    i, j = np.divmod(np.arange(blocks.dim), column.dim)
    for chosen, is_entry in ((slice(num), i >= j), (slice(num, None), i >= 0)):
        a, b = i[is_entry], j[is_entry]
        number = xp.arange(blocks.num_blocks)[chosen]
        first = unknowns.numbers(xp, row.name, rows[chosen], a)
        second = unknowns.numbers(xp, column.name, columns[chosen], b)
        component = a * column.dim + b
        place = scalar_numbers(xp, blocks.num_blocks, blocks.dim, number, component, unknowns.chunk)
        yield xp.maximum(first, second), xp.minimum(first, second), place


def scalar_numbers(
    xp: Any, count: int, dim: int, number: Array, component: Any, chunk: int | None = CHUNK
) -> Array:
    """(objects, components) scalars of an array of `count` objects of `dim` components.

    `number`: (objects,) which objects. `component`: (components,) which of their components, on the
    host. `chunk`: Components that stand together; None: all of an object.
    """
    chunk = dim if chunk is None else chunk
    lane = component % chunk
    start = component - lane
    width = np.minimum(chunk, dim - start)
    return number[:, None] * xp.asarray(width) + xp.asarray(start * count + lane)


def pairs_within(xp: Any, owner: Array) -> tuple[Array, Array]:
    """All pairs of items of one owner, the later one first, and each item with itself."""
    order = xp.argsort(owner, kind="stable")
    parts = [(order[later], order[earlier]) for later, earlier in pairs_in_pieces(xp, owner[order])]
    return parts[0] if len(parts) == 1 else (order, order)


def pairs_in_pieces(
    xp: Any, owner: Array, most: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Each item with itself and those before it of the same owner: the later ones, the others.

    `owner`: (n,) of each item, ascending. `most`: Pairs of a piece, unless one item has more; None:
    one piece.
    """
    num = int(owner.shape[0])
    start = xp.searchsorted(owner, owner, side="left")
    ends = xp.cumsum(xp.arange(1, num + 1) - start)
    total = int(ends[-1]) if num > 0 else 0
    cuts = (
        []
        if most is None
        else xp.searchsorted(ends, xp.arange(most, total + most, most), side="right").tolist()
    )
    begin, passed = 0, 0
    for cut in [*cuts, num]:
        end = min(max(cut, begin + 1), num)
        if end > begin:
            own = ends[begin:end] - passed
            size = int(own[-1])
            # every item is later than at least itself, so that no two begin at the same pair
            begins = xp.zeros(size + 1, dtype=np.int8)
            begins[own] = 1
            later = xp.cumsum(begins[:size], dtype=np.int64)
            first = xp.concatenate([xp.zeros(1, dtype=own.dtype), own[:-1]])
            earlier = xp.arange(size) + (start[begin:end] - first)[later]
            yield begin + later, earlier
            begin, passed = end, passed + size
