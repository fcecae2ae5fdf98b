"""Jacobians by the tangent of a factor's nodes: derived, stored, read back.

A stored Jacobian J D^-1/2 has columns of unit length over all factors, so that 16 bits hold its
entries. Those that are always zero are not kept; equal ones of a column and negatives of each other
share a slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from caspar.frontend.derive import gradient
from caspar.frontend.lower import Lowering
from caspar.frontend.precision import Types
from caspar.frontend.trace import Argument
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential

Blocks = dict[str, list[list[Scalar]]]
"""By the node argument's name: rows x tangent_dim."""


@dataclass(frozen=True)
class Linearization:
    """The derivative of a residual by the tangents of its nodes, as a map.

    From the entries of the Jacobian. Derivatives in a direction, without the entries, were tried:
    276 operations for the product of bundle adjustment instead of 270.
    """

    blocks: Blocks

    def forward(self, vectors: Mapping[str, Sequence[Scalar]]) -> list[Scalar]:
        """The sum of J p over node arguments, by name their (tangent_dim,) p."""
        terms = [
            [dot(row, vector) for row in self.blocks[name]] for name, vector in vectors.items()
        ]
        return [total(row) for row in zip(*terms, strict=True)]

    def transposed(self, argument: Argument, weights: Sequence[Scalar]) -> list[Scalar]:
        """J^T w by the tangent of a node argument."""
        columns = zip(*self.blocks[argument.name], strict=True)
        return [dot(column, weights) for column in columns]


class JacobianStorage(Enum):
    """Where Jacobians are between linearisation and product.

    STORED: in memory, as precise as they are computed. FLOAT16: in memory. RECOMPUTED: nowhere;
    every product derives them again from the values.
    """

    STORED = "stored"
    FLOAT16 = "float16"
    RECOMPUTED = "recomputed"

    @property
    def is_stored(self) -> bool:
        """Whether they are in memory; they are scaled then."""
        return self is not JacobianStorage.RECOMPUTED

    @property
    def is_rounded(self) -> bool:
        """Whether what is read is not what was computed."""
        return self is JacobianStorage.FLOAT16

    def dtype(self, types: Types) -> DType:
        """Type in memory."""
        return DType.FLOAT16 if self is JacobianStorage.FLOAT16 else types.storage


@dataclass(frozen=True)
class _Slot:
    """A stored entry, or its negative."""

    number: int
    negated: bool


@dataclass(frozen=True)
class JacobianSlots:
    """Where each entry is: in a slot among the stored ones; None: it is zero.

    Attributes:
        entries: For each node argument's name, rows x tangent_dim.
        num_stored: Number of slots.
        dtype: Type in memory.
    """

    entries: dict[str, list[list[_Slot | None]]]
    num_stored: int
    dtype: DType


def tangent_jacobians(
    kernel: KernelBuilder,
    nodes: Sequence[Argument],
    rows: Sequence[Scalar],
    lowering: Lowering,
    storage: dict[str, list[Scalar]],
) -> Blocks:
    """d residual / d tangent of each node: rows x tangent_dim, by the argument's name."""
    inputs = [scalar.value for node in nodes for scalar in storage[node.name]]
    by_row = []
    for number, residual in enumerate(rows):
        kernel.graph.origin = f"Jacobian by the storage, row {number}"
        by_row.append(gradient(kernel.graph, residual.value, inputs))
    blocks = {}
    first = 0
    for node in nodes:
        assert node.node is not None
        chart = node.storage_by_tangent
        kernel.graph.origin = f"Jacobian by the tangent of {node.name}"
        block = []
        for row in by_row:
            block.append(
                [
                    total(
                        Scalar(kernel.graph, row[first + place])
                        * Scalar(kernel.graph, lowering.lower(chart[place, column]))
                        for place in range(node.storage_dim)
                    )
                    for column in range(node.node.tangent_dim)
                ]
            )
        blocks[node.name] = block
        first += node.storage_dim
    return blocks


def scaled_blocks(blocks: Blocks, scales: Mapping[str, Sequence[Scalar]]) -> Blocks:
    """The columns times a factor each."""
    return {
        name: [
            [entry * factor for entry, factor in zip(row, scales[name], strict=True)]
            for row in block
        ]
        for name, block in blocks.items()
    }


def store_jacobian(
    kernel: KernelBuilder, blocks: Blocks, scales: Mapping[str, Sequence[Scalar]], dtype: DType
) -> JacobianSlots:
    """Write the entries, their columns scaled, that are not always zero, each once."""
    kernel.graph.origin = "Jacobian"
    slots: dict[tuple[int, int], int] = {}
    entries = {
        name: [
            [
                _slot(kernel, slots, entry, factor)
                for entry, factor in zip(row, scales[name], strict=True)
            ]
            for row in block
        ]
        for name, block in blocks.items()
    }
    stored = [Scalar(kernel.graph, entry) * Scalar(kernel.graph, factor) for entry, factor in slots]
    kernel.write("jacobian", stored, dtype, WriteSequential())
    return JacobianSlots(entries, len(slots), dtype)


def _slot(
    kernel: KernelBuilder, slots: dict[tuple[int, int], int], entry: Scalar, factor: Scalar
) -> _Slot | None:
    """Where an entry is to be found; `slots` maps what is stored, and its factor, to its number."""
    literal = kernel.graph.literal(entry.value)
    if literal == 0.0:
        return None
    # the builder's negation of a negation is the value itself
    negative = kernel.graph.producer_of(entry.value).op is Op.NEG
    negative = negative or (literal is not None and literal < 0.0)
    magnitude = kernel.graph.neg(entry.value) if negative else entry.value
    return _Slot(slots.setdefault((magnitude, factor.value), len(slots)), negative)


def load_jacobian(kernel: KernelBuilder, slots: JacobianSlots) -> Blocks:
    """Read what `store_jacobian` wrote."""
    stored: list[Scalar] = []
    if slots.num_stored > 0:
        stored = kernel.read("jacobian", slots.num_stored, slots.dtype, ReadSequential(once=True))

    def entry(where: _Slot | None) -> Scalar:
        if where is None:
            return Scalar(kernel.graph, kernel.graph.const(0.0))
        return -stored[where.number] if where.negated else stored[where.number]

    return {
        name: [[entry(where) for where in row] for row in rows]
        for name, rows in slots.entries.items()
    }
