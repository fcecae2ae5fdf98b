"""Kernels of a factor, and of its node types, for gradients through a solve.

An instance costs c = w / 2 rho(|r|^2), and g = J^T v with v = w rho' r is its gradient by the
tangents of its nodes. At a minimum x of all costs the sum G of the gradients is 0, so that a change
of the data by d_theta moves x in its tangent by -H^-1 (dG / d_theta) d_theta, with H the
derivative of G. For a loss function L(x) that gives dL / d_theta = -(dG / d_theta)^T z with
H z = dL / dx (implicit function theorem). `hessian_kernel` writes what an instance adds to H,
`adjoint_kernel` what it adds to (dG / d_theta)^T z, the derivative of z . g with z held.

Newton's method on constraints c = 0 needs g and H of factors, by `newton_kernel`, and of
constraints c, its Jacobian and the second derivative of l^T c, by `constraint_kernel`.

Kernels of a node type take derivatives by its storage to its tangent and back, or move it. With
C = d storage / d tangent, a derivative c by the storage is C^T c by the tangent. The other way
there are many: `push_kernel` takes the shortest, C (C^T C)^-1 t, which is tangential. Columns of C
are orthogonal for all types that SymForce has.
"""

from collections.abc import Sequence

from caspar.equations.evaluation import Evaluation
from caspar.equations.factor_builder import FactorBuilder, FactorForm, SharedSums
from caspar.equations.parts import FactorPart, SolverPart
from caspar.frontend.factors.jacobian import Blocks, chart_columns, tangent_jacobians
from caspar.frontend.factors.retraction import retracted
from caspar.frontend.factors.trace import WEIGHT, Argument, TracedFactor
from caspar.frontend.names import kernel_name
from caspar.frontend.precision import TYPES
from caspar.frontend.symbolic.derive import gradient
from caspar.frontend.symbolic.epsilon import SYMBOL, value
from caspar.frontend.symbolic.lower import Lowering
from caspar.ir.dtype import DType
from caspar.ir.graph import Call, TableEntry
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel import KernelBuilder, KernelSpec
from caspar.memory.patterns import ReadSequential, WriteSequential
from caspar.options import Precision

FLOAT = DType.FLOAT64
TYPES64 = TYPES[Precision.FLOAT64]

HESSIAN = "hessian"
"""Output of `hessian_kernel`, `newton_kernel` and `constraint_kernel`."""

GRADIENT = "gradient"
"""Output of `newton_kernel`: the derivative of the cost by the tangents of the nodes."""

MULTIPLIER = "multiplier"
"""Input of `constraint_kernel`: l."""

ADJOINT = "adjoint"
"""Part of an argument's node: z."""

PULL = "pull"
"""Part of an argument: the derivative of z . g by it."""

PLACES = "places"
"""Part of an argument that holds tables: where the numbers are that an instance loads."""


def hessian_dim(factor: TracedFactor) -> int:
    """Scalars of an instance's part of H: its lower triangle."""
    size = tangent_size(factor)
    return size * (size + 1) // 2


def tangent_size(factor: TracedFactor) -> int:
    """Components of the tangents of an instance's nodes."""
    return sum(node.tangent_dim for node in factor.nodes)


def hessian_kernel(factor: TracedFactor, *, is_exact: bool) -> KernelSpec:
    """Writes `hessian`, the lower triangle of the second derivative of the cost, row by row.

    Rows and columns are those of the tangents of the nodes, one argument after the other. Items are
    instances in the order in which they were given; those of weight 0 write zeros. If it is not
    exact, it is without second derivatives of the residual and the loss: w rho' J^T J.
    """
    kernel = _builder(factor, "hessian_exact" if is_exact else "hessian_gauss_newton")
    evaluation = kernel.evaluate(FLOAT)
    jacobian = evaluation.jacobian(factor.nodes)
    if is_exact:
        entries = _exact(kernel, evaluation, _gradients(evaluation, jacobian))
    else:
        columns = _columns(factor, jacobian)
        slope = _slope(evaluation)
        entries = [
            _times(slope, dot(columns[row], columns[column]))
            for row in range(len(columns))
            for column in range(row + 1)
        ]
    entries = _counted(evaluation, entries)
    kernel.write(HESSIAN, entries, FLOAT, WriteSequential(rows=True))
    return kernel.build()


def newton_kernel(factor: TracedFactor) -> KernelSpec:
    """Writes an instance's cost, its `gradient` by the tangents of its nodes, and its `hessian`.

    See `hessian_kernel`; the second derivative is exact.
    """
    kernel = _builder(factor, "newton")
    evaluation = kernel.evaluate(FLOAT)
    gradients = _gradients(evaluation, evaluation.jacobian(factor.nodes))
    entries = _counted(evaluation, _exact(kernel, evaluation, gradients))
    kernel.write(SolverPart.COSTS.addend, [evaluation.cost], FLOAT, WriteSequential(rows=True))
    counted = _counted(evaluation, gradients)
    kernel.write(GRADIENT, counted, FLOAT, WriteSequential(rows=True))
    kernel.write(HESSIAN, entries, FLOAT, WriteSequential(rows=True))
    return kernel.build()


def constraint_kernel(factor: TracedFactor, *, is_curved: bool) -> KernelSpec:
    """Writes c of an instance of a constraint, and its Jacobians.

    Writes the residual, which is c, and `<argument>__jacobian` of each node argument, row by row.
    If it is curved, it also reads `multiplier`, l, and writes `hessian`, the second derivative of
    l^T c: see `hessian_kernel`.
    """
    kernel = _builder(factor, "curved" if is_curved else "constraint")
    evaluation = kernel.evaluate(FLOAT)
    jacobian, rows = evaluation.jacobian(factor.nodes), WriteSequential(rows=True)
    kernel.write(FactorPart.RESIDUAL.text, evaluation.residual, FLOAT, rows)
    for node in factor.nodes:
        own = [entry for row in jacobian[node.name] for entry in row]
        kernel.write(node.part(FactorPart.JACOBIAN.text), own, FLOAT, rows)
    if is_curved:
        multiplier = kernel.read(MULTIPLIER, len(evaluation.residual), FLOAT, ReadSequential())
        gradients = [dot(column, multiplier) for column in _columns(factor, jacobian)]
        kernel.write(HESSIAN, _exact(kernel, evaluation, gradients), FLOAT, rows)
    return kernel.build()


def adjoint_kernel(factor: TracedFactor) -> KernelSpec:
    """Writes for everything that an instance reads the derivative of z . g by it.

    Reads z for each node argument, `<argument>__adjoint`. Writes `<argument>__pull`: of constants,
    weights and parameters of losses the derivatives by their scalars, of nodes those by the
    tangent, which are the instance's part of H z; of tables those by the numbers of `table_loads`,
    whose places are `<argument>__places`, along each axis. Those of instances of weight 0 are
    zeros, but for the derivative by the weight itself.
    """
    kernel = _builder(factor, "adjoint")
    evaluation = kernel.evaluate(FLOAT)
    loads = _loads(kernel, factor)
    jacobian = evaluation.jacobian(factor.nodes)
    moved: list[list[Scalar]] = [[] for _ in evaluation.residual]
    for node in factor.nodes:
        adjoint = kernel.read_array(node, ADJOINT, node.tangent_dim, FLOAT)
        for row, entries in zip(moved, jacobian[node.name], strict=True):
            row.append(dot(entries, adjoint))
    slope = _slope(evaluation)
    product = _times(slope, dot([total(row) for row in moved], evaluation.residual))
    kernel.graph.origin = f"{factor.name}: adjoint"
    constants = [one for one in factor.inputs if one.node is None and one.table is None]
    read = [scalar.value for one in constants for scalar in evaluation.storage[one.name]]
    slopes = iter(gradient(kernel.graph, product.value, read))
    for one in constants:
        own = [Scalar(kernel.graph, next(slopes)) for _ in evaluation.storage[one.name]]
        _write(kernel, one, own if one.source == WEIGHT else _counted(evaluation, own))
    for one in factor.tables:
        calls = loads.get(one.name, [])
        by_numbers = gradient(kernel.graph, product.value, [call.outputs[0] for call in calls])
        own = [Scalar(kernel.graph, slope) for slope in by_numbers]
        places = [Scalar(kernel.graph, place) for call in calls for place in call.operands]
        if len(calls) > 0:
            _write(kernel, one, _counted(evaluation, own))
            kernel.write(one.part(PLACES), places, FLOAT, WriteSequential(rows=True))
    by_node = tangent_jacobians(
        kernel, factor.nodes, [product], evaluation.lowering, evaluation.storage, ()
    )
    for node in factor.nodes:
        _write(kernel, node, _counted(evaluation, by_node[node.name][0]))
    return kernel.build()


def table_loads(factor: TracedFactor) -> dict[str, list[TableEntry]]:
    """Return the numbers that an instance loads from tables, by the argument's name.

    In the order in which `adjoint_kernel` writes derivatives by them.
    """
    if len(factor.tables) == 0:
        return {}
    kernel = _builder(factor, "adjoint")
    kernel.evaluate(FLOAT)
    return {
        name: [call.data for call in calls if isinstance(call.data, TableEntry)]
        for name, calls in _loads(kernel, factor).items()
    }


def load_dims(table: Argument, num_loads: int) -> dict[str, int]:
    """Scalars of the outputs of `adjoint_kernel` for an argument that holds tables."""
    assert table.table is not None
    return {table.part(PULL): num_loads, table.part(PLACES): num_loads * table.table.dims}


def _loads(kernel: FactorBuilder, factor: TracedFactor) -> dict[str, list[Call]]:
    found = {one.name: kernel.graph.gathers(one.value_name) for one in factor.tables}
    return {name: calls for name, calls in found.items() if len(calls) > 0}


def _builder(factor: TracedFactor, role: str) -> FactorBuilder:
    return FactorBuilder(factor, role, FactorForm(SharedSums.ATOMIC), FLOAT, TYPES64)


def _write(kernel: FactorBuilder, argument: Argument, values: Sequence[Scalar]) -> None:
    kernel.write(argument.part(PULL), values, FLOAT, WriteSequential(rows=True))


def _slope(evaluation: Evaluation) -> Scalar | None:
    slope = evaluation.slope_of_loss
    if not evaluation.factor.is_weighted:
        return slope
    return evaluation.weight if slope is None else evaluation.weight * slope


def _times(factor: Scalar | None, value: Scalar) -> Scalar:
    return value if factor is None else factor * value


def _counted(evaluation: Evaluation, values: Sequence[Scalar]) -> list[Scalar]:
    """Zeros for instances that weigh nothing: theirs may be infinite or NaN."""
    if not evaluation.factor.is_weighted:
        return list(values)
    counts = 0.0 < evaluation.weight
    return [counts.where(value, 0.0) for value in values]


def _columns(factor: TracedFactor, blocks: Blocks) -> list[list[Scalar]]:
    return [
        list(column) for node in factor.nodes for column in zip(*blocks[node.name], strict=True)
    ]


def _gradients(evaluation: Evaluation, jacobian: Blocks) -> list[Scalar]:
    slope = _slope(evaluation)
    pull = [_times(slope, row) for row in evaluation.residual]
    return [dot(column, pull) for column in _columns(evaluation.factor, jacobian)]


def _exact(
    kernel: FactorBuilder, evaluation: Evaluation, gradients: Sequence[Scalar]
) -> list[Scalar]:
    """The lower triangle of the derivative of g by the tangents.

    Frames of one node need not commute, of which only the symmetric part counts: where all
    gradients sum up to 0 so do the others.
    """
    factor = evaluation.factor
    by_node = tangent_jacobians(
        kernel, factor.nodes, gradients, evaluation.lowering, evaluation.storage, ()
    )
    rows = [
        [entry for node in factor.nodes for entry in by_node[node.name][number]]
        for number in range(len(gradients))
    ]
    owner = [node.name for node in factor.nodes for _ in range(node.tangent_dim)]
    kernel.graph.origin = f"{factor.name}: second derivative"
    return [
        (rows[row][column] + rows[column][row]) * 0.5
        if row != column and owner[row] == owner[column]
        else rows[row][column]
        for row in range(len(rows))
        for column in range(row + 1)
    ]


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
