"""Build the graphs for an instance of a factor: its cost and its normal equations.

Input: the shape of a batch. Output: one graph for each part, whose READs and STOREs name arrays of
the thread and single entries:

    x, y      (storage_dim,) values, and those of the candidate
    gradient  (n,) J^T v
    matrix    (n * n,) C^T C by rows, its lower triangle
    influence (n,) what D remembers of diag(C^T C)
    moves     (n,) 1 for what moves, 0 for what is held, by the user or at a bound, or a code of
              `NodePart.FREE`
    lower, upper  (n,) bounds; the lower one is above the upper one where nothing moves
    tried     results of the step: see `Tried`
    rows      for each instance that a warp works on: rows of C, then what the gradient gains; for
              a QR decomposition rows of C with the residual behind each
    squares   (n,) diag(C^T C), beside a QR decomposition

The formulas are those of `equations.evaluation`; the step is in `step_program`.
"""

from collections.abc import Sequence
from enum import IntEnum

from caspar.batch.generate.shape import BatchShape, ProblemFactor
from caspar.equations.evaluation import Evaluation, evaluate
from caspar.frontend.factors.jacobian import Blocks
from caspar.frontend.factors.trace import Argument, TracedFactor
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.scalar import Scalar, dot
from caspar.memory.kernel import KernelBuilder

VALUES, CANDIDATE = "x", "y"
GRADIENT, MATRIX, INFLUENCE, FREE, TRIED = "gradient", "matrix", "influence", "moves", "tried"
LOWER, UPPER = "lower", "upper"
COST, ROWS, SQUARES = "cost", "rows", "squares"
WIDE = DType.FLOAT64
"""Type of costs and of what the policy decides by."""

COLUMN_OF_NODE = "node"
"""Arguments' own arrays are `constant_name`."""


class Tried(IntEnum):
    """Places of the results of a step in `tried`.

    COST is that of the candidate, DESCENT g . (C^T C + damping D)^-1 g, MODEL the decrease of the
    cost that the linear model predicts, STEP_SQUARE the square of the step, weighted by D. LEVELS
    is 1 if D is levelled where that would hold a component at every damping, LOST if squares of
    derivatives are zero or infinite in the floating type, IDLE if derivatives and gradient are zero
    by all that moves; it is only there with a loss.
    """

    COST = 0
    DESCENT = 1
    MODEL = 2
    STEP_SQUARE = 3
    LEVELS = 4
    LOST = 5
    IDLE = 6


class ProgramBuilder(KernelBuilder):
    """Grows a graph whose reads and writes name an array and an entry."""

    def entry(self, array: str, place: int) -> Scalar:
        """One entry of an array."""
        return Scalar(self.graph, self.graph.read(array, place, 1)[0])

    def entries(self, array: str, size: int, first: int = 0) -> list[Scalar]:
        """Entries that follow each other."""
        return [self.entry(array, first + place) for place in range(size)]

    def scalar(self, name: str) -> Scalar:
        """A number of the thread."""
        return self.entry(name, 0)

    def put(self, array: str, place: int, value: Scalar) -> None:
        """Store an entry, or add to it, as the writer of the text decides."""
        self.graph.store(array, place, [value.value])

    def one(self, number: float) -> Scalar:
        """A literal."""
        return Scalar(self.graph, self.graph.const(number))


def constant_name(number: int, argument: Argument) -> str:
    """Return the name of a constant argument of a factor, given by its number."""
    return f"f{number}_{argument.name}"


def node_name(argument: Argument) -> str:
    """Return the name of the values of an argument's node."""
    return f"{argument.name}.{COLUMN_OF_NODE}"


def _evaluation(kernel: ProgramBuilder, number: int, one: ProblemFactor) -> Evaluation:
    def read(argument: Argument) -> list[Scalar]:
        name = constant_name(number, argument) if argument.node is None else node_name(argument)
        return kernel.entries(name, argument.storage_dim)

    return evaluate(kernel, one.factor, read, kernel.graph.dtype)


def score_graph(shape: BatchShape, number: int) -> Graph:
    """Return the graph that adds an instance of a factor, given by its number, to `cost`."""
    kernel = ProgramBuilder("score", shape.storage)
    kernel.put(COST, 0, _evaluation(kernel, number, shape.factors[number]).cost)
    return kernel.graph.build()


def linearize_graph(shape: BatchShape, number: int) -> Graph:
    """Return the graph that adds an instance of a factor to the normal equations.

    Stored are `<argument>.gradient`, entry i, and `<argument>.<argument>.matrix`, entry
    i * columns + j; of a node's own block the lower triangle.
    """
    factor = shape.factors[number].factor
    kernel = ProgramBuilder("linearize", shape.storage)
    entries, pull, blocks = _linearization(_evaluation(kernel, number, shape.factors[number]))
    for argument in factor.nodes:
        kernel.graph.origin = f"{factor.name}: gradient of {argument.name}"
        for i, column in enumerate(zip(*entries[argument.name], strict=True)):
            _add(kernel, gradient_name(argument), i, dot(column, pull))
    _add_blocks(kernel, factor, blocks)
    return kernel.graph.build()


def _linearization(evaluation: Evaluation) -> tuple[Blocks, Sequence[Scalar], Blocks]:
    """J and v, whose product is the gradient, and C."""
    blocks = evaluation.jacobian(evaluation.factor.nodes)
    correction = evaluation.correction(evaluation.residual)
    if correction is None:
        return blocks, evaluation.residual, blocks
    entries = correction.selected(blocks)
    return entries, correction.pull, correction.times_blocks(entries)


def rows_graph(shape: BatchShape, number: int) -> Graph:
    """Return the graph of what a warp multiplies and what the gradient gains, for one factor.

    Stored is `rows`, entry r * columns + c: the rows of C, with the columns of all node arguments
    side by side, and in the row after them the instance's part of the gradient.
    """
    factor = shape.factors[number].factor
    kernel = ProgramBuilder("rows", shape.storage)
    entries, pull, blocks = _linearization(_evaluation(kernel, number, shape.factors[number]))
    _put_rows(kernel, factor, blocks)
    first = len(factor.residual) * num_columns(factor)
    for argument in factor.nodes:
        kernel.graph.origin = f"{factor.name}: gradient of {argument.name}"
        for column in zip(*entries[argument.name], strict=True):
            kernel.put(ROWS, first, dot(column, pull))
            first += 1
    return kernel.graph.build()


def orthogonal_rows_graph(shape: BatchShape, number: int) -> Graph:
    """Return the graph of the rows [C | u] of an instance of one factor, C^T u its gradient."""
    factor = shape.factors[number].factor
    kernel = ProgramBuilder("rows", shape.storage)
    evaluation = _evaluation(kernel, number, shape.factors[number])
    blocks, residual = evaluation.jacobian(factor.nodes), evaluation.residual
    correction = evaluation.correction(residual)
    if correction is not None:
        blocks = correction.times_blocks(correction.selected(blocks))
        residual = correction.corrected_residual()
    _put_rows(kernel, factor, blocks, residual)
    return kernel.graph.build()


def weighted_rows_graph(shape: BatchShape, number: int) -> Graph:
    """The same with u = 0, and without the curvature of the loss: for covariances."""
    factor = shape.factors[number].factor
    kernel = ProgramBuilder("weighted_rows", shape.storage)
    blocks = _weighted(_evaluation(kernel, number, shape.factors[number]))
    _put_rows(kernel, factor, blocks, [kernel.one(0.0)] * len(factor.residual))
    return kernel.graph.build()


def num_columns(factor: TracedFactor) -> int:
    """Columns of all its node arguments."""
    return sum(argument.tangent_dim for argument in factor.nodes)


def _put_rows(
    kernel: ProgramBuilder, factor: TracedFactor, blocks: Blocks, residual: Sequence[Scalar] = ()
) -> None:
    columns, first = num_columns(factor) + (len(residual) > 0), 0
    for argument in factor.nodes:
        kernel.graph.origin = f"{factor.name}: rows of {argument.name}"
        for r, row in enumerate(blocks[argument.name]):
            for c, entry in enumerate(row):
                kernel.put(ROWS, r * columns + first + c, entry)
        first += argument.tangent_dim
    for r, entry in enumerate(residual):
        kernel.put(ROWS, r * columns + first, entry)


def normal_graph(shape: BatchShape, number: int) -> Graph:
    """Return `linearize_graph` without the gradient and without the curvature of the loss."""
    factor = shape.factors[number].factor
    kernel = ProgramBuilder("normal", shape.storage)
    _add_blocks(kernel, factor, _weighted(_evaluation(kernel, number, shape.factors[number])))
    return kernel.graph.build()


def _weighted(evaluation: Evaluation) -> Blocks:
    """The Jacobian times the root of the weight."""
    root, blocks = evaluation.root_of_weight(), evaluation.jacobian(evaluation.factor.nodes)
    if root is None:
        return blocks
    counts = 0.0 < root
    return {
        name: [[counts.where(root * entry, 0.0) for entry in row] for row in rows]
        for name, rows in blocks.items()
    }


def _add_blocks(kernel: ProgramBuilder, factor: TracedFactor, blocks: Blocks) -> None:
    """The products of columns of a Jacobian."""
    nodes = factor.nodes
    for place, argument in enumerate(nodes):
        kernel.graph.origin = f"{factor.name}: block of {argument.name}"
        columns = list(zip(*blocks[argument.name], strict=True))
        for i, left in enumerate(columns):
            for j in range(i + 1):
                where = i * len(columns) + j
                _add(kernel, block_name(argument, argument), where, dot(left, columns[j]))
        for other in nodes[:place]:
            kernel.graph.origin = f"{factor.name}: block of {argument.name} and {other.name}"
            others = list(zip(*blocks[other.name], strict=True))
            for i, left in enumerate(columns):
                for j, right in enumerate(others):
                    where = i * len(others) + j
                    _add(kernel, block_name(argument, other), where, dot(left, right))


def gradient_name(argument: Argument) -> str:
    """Return the name of an instance's gradient by an argument."""
    return f"{argument.name}.{GRADIENT}"


def block_name(row: Argument, column: Argument) -> str:
    """Return the name of an instance's block of two arguments."""
    return f"{row.name}.{column.name}.{MATRIX}"


def _add(kernel: ProgramBuilder, name: str, place: int, value: Scalar) -> None:
    if kernel.graph.literal(value.value) != 0.0:
        kernel.put(name, place, value)
