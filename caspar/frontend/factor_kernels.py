"""The kernels of a factor: score, linearise, multiply by J^T J.

Of the Jacobian only the entries that vary are stored, each once: literal entries are written into
the product kernel, repeated ones and negatives of each other share a slot.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from caspar.frontend.derive import gradient
from caspar.frontend.epsilon import SYMBOL, value
from caspar.frontend.lower import Lowering
from caspar.frontend.precision import Types
from caspar.frontend.trace import Argument, ArgumentKind, TracedFactor
from caspar.ir.ops import Op
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.access import WriteAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import (
    AddSharedPartials,
    AddSumPartials,
    ReadIndexed,
    ReadSequential,
    ReadUnique,
    WriteSequential,
)

_READ = {
    ArgumentKind.NODE_SHARED: ReadIndexed(),
    ArgumentKind.NODE_PAIR: ReadIndexed(),
    ArgumentKind.NODE_UNIQUE: ReadUnique(),
    ArgumentKind.CONST_SEQUENTIAL: ReadSequential(),
    ArgumentKind.CONST_INDEXED: ReadIndexed(),
    ArgumentKind.CONST_UNIQUE: ReadUnique(),
}


FACTOR_ROLES = ("score", "linearize", "product")
"""Ends of the names of a factor's kernels."""


@dataclass(frozen=True)
class FactorKernels:
    """The kernels of one factor.

    Attributes:
        score: `residual`, and half the sum of its squares: `cost`.
        linearize: From `residual`, at the values it was scored at: the Jacobian, and for each
            node argument its gradient and diagonal block.
        product: J^T (J p) for each node argument, and |J p|^2: argument `curvature`.
        jacobian_dim: Stored Jacobian entries.
    """

    score: KernelSpec
    linearize: KernelSpec
    product: KernelSpec
    jacobian_dim: int


def factor_kernels(factor: TracedFactor, types: Types) -> FactorKernels:
    """Derive a factor and write its kernels."""
    linearize, jacobian = _linearize(factor, types)
    return FactorKernels(
        score=_score(factor, types),
        linearize=linearize,
        product=_product(factor, types, jacobian),
        jacobian_dim=jacobian.num_stored,
    )


def lower_residual(
    kernel: KernelBuilder, factor: TracedFactor, types: Types
) -> tuple[list[Scalar], Lowering, dict[str, list[Scalar]]]:
    """Read the arguments and lower the residual: rows, the lowering, storage by argument."""
    symbols = {str(SYMBOL): kernel.graph.const(value(kernel.graph.dtype))}
    storage = {}
    for argument in factor.arguments:
        read = kernel.read(argument.name, argument.storage_dim, types.storage, _READ[argument.kind])
        storage[argument.name] = read
        for symbol, scalar in zip(argument.symbols, read, strict=True):
            symbols[str(symbol)] = scalar.value
    where = f"factor {factor.name} ({factor.location})"
    kernel.graph.origin = f"{factor.name}: residual"
    lowering = Lowering(kernel.graph, symbols, where, factor.lines)
    rows = [Scalar(kernel.graph, lowering.lower(row)) for row in factor.residual]
    return rows, lowering, storage


def _score(factor: TracedFactor, types: Types) -> KernelSpec:
    kernel = KernelBuilder(f"{factor.name}_score", types.sums)
    rows, _, _ = lower_residual(kernel, factor, types)
    kernel.write("residual", rows, types.storage, WriteSequential())
    kernel.graph.origin = f"{factor.name}: cost"
    kernel.write("cost", [dot(rows, rows) * 0.5], types.sums, AddSumPartials())
    return kernel.build()


@dataclass(frozen=True)
class _Slot:
    """A stored entry, or its negative."""

    number: int
    negated: bool


@dataclass(frozen=True)
class JacobianSlots:
    """Where each entry is: in a slot among the stored ones, or a literal.

    Attributes:
        entries: For each node argument's name, rows x tangent_dim.
        num_stored: Number of slots.
    """

    entries: dict[str, list[list[_Slot | float]]]
    num_stored: int


def _linearize(factor: TracedFactor, types: Types) -> tuple[KernelSpec, JacobianSlots]:
    kernel = KernelBuilder(f"{factor.name}_linearize", types.storage)
    rows, lowering, storage = lower_residual(kernel, factor, types)
    blocks = tangent_jacobians(kernel, factor.nodes, rows, lowering, storage)
    jacobian = store_jacobian(kernel, blocks, types)
    # Evaluated by the score kernel, in the type of the sums: with residuals evaluated in float32
    # the gradient is off by enough to stop Ladybug-49 at 13344.77 instead of 13344.24.
    residual = kernel.read("residual", len(rows), types.storage, ReadSequential())
    for argument in factor.nodes:
        write_normal_equations(kernel, argument, residual, blocks[argument.name], types)
    return kernel.build(), jacobian


def tangent_jacobians(
    kernel: KernelBuilder,
    nodes: Sequence[Argument],
    rows: Sequence[Scalar],
    lowering: Lowering,
    storage: dict[str, list[Scalar]],
) -> dict[str, list[list[Scalar]]]:
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


def store_jacobian(
    kernel: KernelBuilder, blocks: dict[str, list[list[Scalar]]], types: Types
) -> JacobianSlots:
    """Write the entries that vary, each once."""
    kernel.graph.origin = "Jacobian"
    slots: dict[int, int] = {}
    entries = {
        name: [[_slot(kernel, slots, entry) for entry in row] for row in block]
        for name, block in blocks.items()
    }
    stored = [Scalar(kernel.graph, value) for value in slots]
    kernel.write("jacobian", stored, types.storage, WriteSequential())
    return JacobianSlots(entries, len(slots))


def _slot(kernel: KernelBuilder, slots: dict[int, int], entry: Scalar) -> _Slot | float:
    """Where an entry is to be found; `slots` maps what is stored to its number."""
    literal = kernel.graph.literal(entry.value)
    if literal is not None:
        return literal
    # the builder's negation of a negation is the value itself
    negative = kernel.graph.producer_of(entry.value).op is Op.NEG
    magnitude = kernel.graph.neg(entry.value) if negative else entry.value
    return _Slot(slots.setdefault(magnitude, len(slots)), negative)


def write_normal_equations(
    kernel: KernelBuilder,
    argument: Argument,
    residual: Sequence[Scalar],
    block: list[list[Scalar]],
    types: Types,
) -> None:
    """Gradient J^T r and the lower triangle of J^T J, row by row, of one argument."""
    kernel.graph.origin = f"gradient and diagonal block of {argument.name}"
    columns = list(zip(*block, strict=True))
    write = _add(argument)
    slope = [dot(column, residual) for column in columns]
    square = [dot(columns[i], columns[j]) for i in range(len(columns)) for j in range(i + 1)]
    kernel.write(f"{argument.name}_gradient", slope, types.sums, write)
    kernel.write(f"{argument.name}_block", square, types.sums, write)


def _add(argument: Argument) -> WriteAccessor:
    return AddSumPartials() if argument.kind is ArgumentKind.NODE_UNIQUE else AddSharedPartials()


def _product(factor: TracedFactor, types: Types, jacobian: JacobianSlots) -> KernelSpec:
    kernel = KernelBuilder(f"{factor.name}_product", types.storage)
    kernel.guard("done")
    stored: list[Scalar] = []
    if jacobian.num_stored > 0:
        stored = kernel.read("jacobian", jacobian.num_stored, types.storage, ReadSequential())

    def entry(where: _Slot | float) -> Scalar:
        if isinstance(where, float):
            return Scalar(kernel.graph, kernel.graph.const(where))
        return -stored[where.number] if where.negated else stored[where.number]

    blocks = {
        name: [[entry(where) for where in row] for row in rows]
        for name, rows in jacobian.entries.items()
    }
    num_rows = len(factor.residual)
    kernel.graph.origin = "J p"
    terms: list[list[Scalar]] = [[] for _ in range(num_rows)]
    for argument in factor.nodes:
        assert argument.node is not None
        name = f"{argument.name}_direction"
        dim = argument.node.tangent_dim
        direction = kernel.read(name, dim, types.storage, _READ[argument.kind])
        for row in range(num_rows):
            terms[row].append(dot(blocks[argument.name][row], direction))
    moved = [total(row) for row in terms]
    for argument in factor.nodes:
        kernel.graph.origin = f"J^T (J p) by {argument.name}"
        columns = zip(*blocks[argument.name], strict=True)
        product = [dot(column, moved) for column in columns]
        kernel.write(f"{argument.name}_product", product, types.storage, _add(argument))
    kernel.graph.origin = "|J p|^2"
    kernel.write("curvature", [dot(moved, moved)], types.sums, AddSumPartials())
    return kernel.build()
