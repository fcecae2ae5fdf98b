"""Jacobians by the tangent of a factor's nodes: derived, stored, read back.

A stored Jacobian J D^-1/2 has columns of at most unit length over all factors, so that 16 bits
hold its entries. Those that are always zero are not kept; equal ones of a column and negatives of
each other share a slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol

from caspar.frontend.factors.trace import Argument
from caspar.frontend.precision import Types
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.lower import Lowering
from caspar.frontend.symbolic.turned_vectors import QUATERNION, TurnedVector, rotation_matrix
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential

Blocks = dict[str, list[list[Scalar]]]
"""Jacobians of rows x tangent_dim scalars, by the node argument's name."""


class RowFactor(Protocol):
    """A symmetric matrix by which the rows of a Jacobian are multiplied."""

    def times(self, rows: Sequence[Scalar]) -> list[Scalar]:
        """Return the product of this matrix and a vector."""

    def times_blocks(self, blocks: Blocks) -> Blocks:
        """Return the product of this matrix and a Jacobian."""


@dataclass(frozen=True)
class Linearization:
    """The derivative of a residual by the tangents of its nodes, as a map.

    From the entries of the Jacobian. Derivatives in a direction, without the entries, were tried:
    276 operations for the product of bundle adjustment instead of 270, both by quaternions.
    `row_factor` is K of a corrected Jacobian K J, which need not be formed to multiply with it;
    None: it is J.
    """

    entries: Blocks
    row_factor: "RowFactor | None" = None

    @cached_property
    def blocks(self) -> Blocks:
        """The Jacobian, corrected."""
        factor = self.row_factor
        return self.entries if factor is None else factor.times_blocks(self.entries)

    def forward(self, vectors: Mapping[str, Sequence[Scalar]]) -> Sequence[Scalar]:
        """The sum of J p over node arguments, by name their (tangent_dim,) p."""
        terms = [
            [dot(row, vector) for row in self.entries[name]] for name, vector in vectors.items()
        ]
        return self._times([total(row) for row in zip(*terms, strict=True)])

    def transposed(self, argument: Argument, weights: Sequence[Scalar]) -> list[Scalar]:
        """J^T w by the tangent of a node argument."""
        columns = zip(*self.entries[argument.name], strict=True)
        weights = self._times(weights)
        return [dot(column, weights) for column in columns]

    def _times(self, rows: Sequence[Scalar]) -> Sequence[Scalar]:
        return rows if self.row_factor is None else self.row_factor.times(rows)


class JacobianStorage(Enum):
    """Storage of Jacobians from linearisation to product.

    STORED: in memory, in the type of storage. FLOAT16: in memory. RECOMPUTED: nowhere; products
    derive them again from the values, rounded to the type of storage.
    """

    STORED = "stored"
    FLOAT16 = "float16"
    RECOMPUTED = "recomputed"

    @property
    def is_stored(self) -> bool:
        """Return whether Jacobians are in memory; they are scaled then."""
        return self is not JacobianStorage.RECOMPUTED

    def is_rounded(self, types: Types) -> bool:
        """Return whether what is read is not what was computed."""
        return self.is_stored and self.dtype(types) is not types.values

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
    """The slot of each entry, by node argument, rows x tangent_dim; None: the entry is zero."""

    entries: dict[str, list[list[_Slot | None]]]
    num_stored: int
    dtype: DType


def tangent_jacobians(
    kernel: KernelBuilder,
    nodes: Sequence[Argument],
    rows: Sequence[Scalar],
    lowering: Lowering,
    storage: Mapping[str, list[Scalar]],
    turned: Sequence[TurnedVector],
) -> Blocks:
    """d residual / d tangent of each node: rows x tangent_dim, by the argument's name.

    `rows` are the residual's, `storage` what was read of each argument, `turned` the rotations that
    need no derivative by their quaternion.
    """
    turned = [one for one in turned if any(one.node == node.name for node in nodes)]
    places = _places_to_derive_by(nodes, turned)
    inputs = [storage[name][place].value for name, place in places]
    by_row: list[dict[tuple[str, int], Scalar]] = []
    for number, residual in enumerate(rows):
        kernel.graph.origin = f"Jacobian by the storage, row {number}"
        slopes = gradient(kernel.graph, residual.value, inputs)
        scalars = (Scalar(kernel.graph, slope) for slope in slopes)
        by_row.append(dict(zip(places, scalars, strict=True)))
    blocks = {}
    for node in nodes:
        kernel.graph.origin = f"Jacobian by the tangent of {node.name}"
        chart = chart_columns(kernel, node, lowering)
        rotations = [
            _rotation(node, one, storage, lowering) for one in turned if one.node == node.name
        ]
        blocks[node.name] = [_tangent_row(node, chart, row, rotations) for row in by_row]
    return blocks


def _places_to_derive_by(
    nodes: Sequence[Argument], turned: Sequence[TurnedVector]
) -> list[tuple[str, int]]:
    """Arguments' names and places of scalars: nodes but for rotations, and what these turn."""
    left_out = {(one.node, one.start + k) for one in turned for k in range(QUATERNION)}
    places = [(node.name, place) for node in nodes for place in range(node.storage_dim)]
    vectors = [place for one in turned for place in one.vector.places]
    return list(dict.fromkeys([place for place in places if place not in left_out] + vectors))


def chart_columns(
    kernel: KernelBuilder, node: Argument, lowering: Lowering
) -> list[list[tuple[int, Scalar]]]:
    """d storage / d tangent: of each scalar of the tangent, the places it moves and how fast.

    Of a vector of n scalars that is n entries instead of n^2.
    """
    chart = node.storage_by_tangent
    columns: list[list[tuple[int, Scalar]]] = [[] for _ in range(node.tangent_dim)]
    for place in range(node.storage_dim):
        for column, moved in enumerate(columns):
            entry = lowering.lower(chart[place, column])
            if kernel.graph.literal(entry) != 0.0:
                moved.append((place, Scalar(kernel.graph, entry)))
    return columns


@dataclass(frozen=True)
class _Rotation:
    """A rotation, its arm a = p - o, (3,), and the columns of R if it is an inverse."""

    found: TurnedVector
    arm: list[Scalar]
    columns: list[list[Scalar]] | None

    def row(self, slopes: Mapping[tuple[str, int], Scalar]) -> list[Scalar]:
        """Three entries of a row of the Jacobian: a x (d r / d p), or R^T ((d r / d p) x a)."""
        by_vector = [slopes[place] for place in self.found.vector.places]
        if self.columns is None:
            return _cross(self.arm, by_vector)
        turned = _cross(by_vector, self.arm)
        return [dot(column, turned) for column in self.columns]


def _rotation(
    node: Argument, found: TurnedVector, storage: Mapping[str, Sequence[Scalar]], lowering: Lowering
) -> _Rotation:
    arm = [storage[name][place] for name, place in found.vector.places]
    if found.origin is not None:
        origin = [storage[name][place] for name, place in found.origin.places]
        arm = [p - o for p, o in zip(arm, origin, strict=True)]
    if not found.is_inverse:
        return _Rotation(found, arm, None)
    columns = rotation_matrix(node, found.start).transpose().to_list()
    graph = arm[0].builder
    entries = [[Scalar(graph, lowering.lower(entry)) for entry in column] for column in columns]
    return _Rotation(found, arm, entries)


def _cross(left: Sequence[Scalar], right: Sequence[Scalar]) -> list[Scalar]:
    (x, y, z), (a, b, c) = left, right
    return [y * c - z * b, z * a - x * c, x * b - y * a]


def _tangent_row(
    node: Argument,
    chart: list[list[tuple[int, Scalar]]],
    slopes: Mapping[tuple[str, int], Scalar],
    rotations: Sequence[_Rotation],
) -> list[Scalar]:
    row: list[Scalar | None] = [None] * node.tangent_dim
    for rotation in rotations:
        first = rotation.found.column
        row[first : first + 3] = rotation.row(slopes)
    return [
        total(
            slopes[node.name, place] * speed
            for place, speed in chart[column]
            if (node.name, place) in slopes
        )
        if entry is None
        else entry
        for column, entry in enumerate(row)
    ]


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
    """Find the slot of an entry; `slots` maps stored entries, with factors, to numbers."""
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
