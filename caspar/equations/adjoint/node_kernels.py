"""Kernels of a node type that take derivatives by its storage to its tangent and back, or move it.

With C = d storage / d tangent, a derivative c by the storage is C^T c by the tangent. The other way
there are many: `push_kernel` takes the shortest, C (C^T C)^-1 t, which is tangential. Columns of C
are orthogonal for all types that SymForce has.
"""

from caspar.equations.adjoint.kernels import FLOAT
from caspar.frontend.factors.jacobian import chart_columns
from caspar.frontend.factors.retraction import retracted
from caspar.frontend.factors.trace import Argument
from caspar.frontend.names import kernel_name
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.scalar import Scalar, total
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import ReadSequential, WriteSequential

VALUE, INPUT, OUTPUT = "value", "input", "output"
"""Arguments of both kernels: values of the nodes, what is taken, and where to."""

Columns = list[list[tuple[int, Scalar]]]


def is_own_tangent(argument: Argument) -> bool:
    """Return whether C is the identity: steps are added to the storage, number by number."""
    chart = argument.storage_by_tangent
    rows, columns = chart.shape
    return rows == columns and all(
        chart[row, column] == (1 if row == column else 0)
        for row in range(rows)
        for column in range(columns)
    )


def pull_kernel(argument: Argument) -> KernelSpec:
    """Writes `output`, (tangent_dim,), from `input`, a derivative by the storage: C^T c."""
    kernel, columns = _with_chart(argument, "pull")
    given = kernel.read(INPUT, argument.storage_dim, FLOAT, ReadSequential())
    pulled = [total([speed * given[place] for place, speed in column]) for column in columns]
    kernel.write(OUTPUT, pulled, FLOAT, WriteSequential(rows=True))
    return kernel.build()


def push_kernel(argument: Argument) -> KernelSpec:
    """Writes `output`, (storage_dim,), from `input`, a derivative by the tangent."""
    kernel, columns = _with_chart(argument, "push")
    given = kernel.read(INPUT, argument.tangent_dim, FLOAT, ReadSequential())
    zero = Scalar(kernel.graph, kernel.graph.const(0.0))
    pushed = [zero] * argument.storage_dim
    for column, entry in zip(columns, given, strict=True):
        length = total([speed * speed for _, speed in column])
        for place, speed in column:
            pushed[place] = pushed[place] + speed * entry / length
    kernel.write(OUTPUT, pushed, FLOAT, WriteSequential(rows=True))
    return kernel.build()


def move_kernel(argument: Argument) -> KernelSpec:
    """Writes `output`, (storage_dim,): the value after the step `input`, (tangent_dim,)."""
    kernel = KernelBuilder(kernel_name(argument.node_type.name, "move"), FLOAT)
    storage = kernel.read(VALUE, argument.storage_dim, FLOAT, ReadSequential())
    step = kernel.read(INPUT, argument.tangent_dim, FLOAT, ReadSequential())
    moved = retracted(argument.node_type, storage, step)
    kernel.write(OUTPUT, moved, FLOAT, WriteSequential(rows=True))
    return kernel.build()


def _with_chart(argument: Argument, role: str) -> tuple[KernelBuilder, Columns]:
    """A kernel that has read the value of its node, and the columns of C."""
    node = argument.node_type
    kernel = KernelBuilder(kernel_name(node.name, role), FLOAT)
    read = kernel.read(VALUE, argument.storage_dim, FLOAT, ReadSequential())
    symbols = {str(SYMBOL): kernel.graph.const(value(FLOAT))}
    for symbol, scalar in zip(argument.symbols, read, strict=True):
        symbols[str(symbol)] = scalar.value
    lowering = Lowering(kernel.graph, symbols, f"node type {node.name}")
    return kernel, chart_columns(kernel, argument, lowering)
