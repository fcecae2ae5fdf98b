"""Where the entries of the system's matrix come from.

Unknowns are numbered as the scalars of blocked float64 arrays, one of each reduced type behind the
other: right-hand side and solution are such arrays, and equations at the same time. Once for each
structure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caspar.errors import OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.runtime.array_tools import ArrayTools
from caspar.solver.linear.explicit.structure import BlockList, Structure, TypePair
from caspar.solver.plan.plan import NodePlan

CHUNK = DType.FLOAT64.chunk_length
"""Scalars of a full chunk: they are not padded."""

ALIGNMENT = 32
"""Scalars between the first ones of two arrays of blocks."""


@dataclass(frozen=True)
class Equations:
    """Numbers of the unknowns.

    Attributes:
        size: All of them, and what is between types so that each begins on 16 bytes.
        first: First unknown of each reduced type, by name.
        gaps: Numbers that no unknown has.
    """

    size: int
    first: Mapping[str, int]
    gaps: tuple[int, ...]


@dataclass(frozen=True)
class BlockMemory:
    """Where the blocks are in one float64 array.

    Attributes:
        size: Scalars of all of them.
        first: First scalar of the blocks of two types.
    """

    size: int
    first: Mapping[TypePair, int]

    @property
    def one(self) -> int:
        """Behind all blocks, a 1: on the diagonal of numbers that no unknown has."""
        return self.size


@dataclass(frozen=True)
class Entries:
    """Entries of the lower triangle, each once.

    Attributes:
        rows: (n,) int32 equations.
        columns: (n,) int32 unknowns.
        source: (n,) int32 scalar of the blocks.
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
        return sum(int(array.nbytes) for array in self.parts)

    def sent(self, tools: ArrayTools) -> "Entries":
        """The same on the device."""
        return Entries(*map(tools.send, self.parts))


def number_unknowns(nodes: tuple[NodePlan, ...]) -> Equations:
    """Of reduced node types, in their order."""
    first: dict[str, int] = {}
    gaps: list[int] = []
    size = 0
    for plan in nodes:
        if size % CHUNK != 0:
            gaps.append(size)
            size += 1
        first[plan.node.name] = size
        size += plan.count * plan.node.tangent_dim
    return Equations(size, first, tuple(gaps))


def place_blocks(structure: Structure) -> BlockMemory:
    """One list behind the other.

    Raises:
        OutOfMemoryError: More scalars than an int32 counts.
    """
    first: dict[TypePair, int] = {}
    size = 0
    for types, blocks in structure.blocks.items():
        first[types] = size
        size += -(-blocks.num_blocks * blocks.dim // ALIGNMENT) * ALIGNMENT
    if size >= np.iinfo(np.int32).max:
        raise OutOfMemoryError(
            f"the blocks of the system have {size:,} scalars; at most "
            f"{np.iinfo(np.int32).max:,} are allowed: use linear_solver='schur_pcg' or 'pcg'"
        )
    return BlockMemory(size, first)


def matrix_entries(structure: Structure, equations: Equations, memory: BlockMemory) -> Entries:
    """All entries, in the order of the blocks; arrays of the structure's tools."""
    xp = structure.tools.xp
    rows, columns, source = [], [], []
    for types, blocks in structure.blocks.items():
        for number, is_diagonal in _numbers(xp, blocks):
            row, column, place = _block_entries(xp, blocks, equations, number, is_diagonal)
            rows.append(xp.maximum(row, column).reshape(-1))
            columns.append(xp.minimum(row, column).reshape(-1))
            source.append((memory.first[types] + place).reshape(-1))
    gaps = xp.asarray(np.array(equations.gaps, dtype=np.int64))
    parts = (
        [*rows, gaps],
        [*columns, gaps],
        [*source, xp.full(gaps.shape, memory.one)],
    )
    return Entries(*(xp.concatenate(part).astype(np.int32) for part in parts))


def _numbers(xp: Any, blocks: BlockList) -> list[tuple[Array, bool]]:
    diagonal = xp.arange(blocks.num_diagonal)
    others = xp.arange(blocks.num_diagonal, blocks.num_blocks)
    return [(diagonal, True), (others, False)]


def _block_entries(
    xp: Any, blocks: BlockList, equations: Equations, number: Array, is_diagonal: bool
) -> tuple[Array, Array, Array]:
    """(blocks, entries) row, column and place among the scalars of the list."""
    num_rows, num_columns = blocks.row.node.tangent_dim, blocks.column.node.tangent_dim
    i, j = np.divmod(np.arange(num_rows * num_columns), num_columns)
    if is_diagonal:
        i, j = i[i >= j], j[i >= j]
        row_node = column_node = number
    else:
        row_node = blocks.rows[number - blocks.num_diagonal]
        column_node = blocks.columns[number - blocks.num_diagonal]
    row = scalar_numbers(xp, blocks.row.count, num_rows, row_node, i)
    column = scalar_numbers(xp, blocks.column.count, num_columns, column_node, j)
    place = scalar_numbers(xp, blocks.num_blocks, blocks.dim, number, i * num_columns + j)
    return (
        equations.first[blocks.row.node.name] + row,
        equations.first[blocks.column.node.name] + column,
        place,
    )


def scalar_numbers(xp: Any, count: int, dim: int, number: Array, component: Any) -> Array:
    """(objects, components) scalars of a blocked float64 array of `count` objects."""
    lane = component % CHUNK
    chunk = component - lane
    width = np.minimum(CHUNK, dim - chunk)
    start = xp.asarray(chunk * count + lane)
    return number[:, None] * xp.asarray(width) + start
