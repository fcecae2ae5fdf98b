"""What a problem computes in an iteration, as graphs: cost, normal equations, step.

Input: the shape of a batch. Output: one graph for each part, whose READs and STOREs name arrays of
the thread and single entries:

    x, y      (storage_dim,) values, and those of the candidate
    gradient  (n,) J^T v
    matrix    (n * n,) C^T C by rows, its lower triangle
    influence (n,) what D remembers of diag(C^T C)
    moves     (n,) 1 for what moves, 0 for what is held
    tried     what came of the step: see `Tried`

The formulas are those of `equations`: `Evaluation` for residuals, `node_diagonal` for D. The damped
system (C^T C + damping D) step = -gradient is scaled to unit diagonal and factorised, L L^T.
"""

from collections.abc import Sequence
from enum import IntEnum

from caspar.batch.shape import BatchShape, ProblemFactor, ProblemNodes
from caspar.equations.evaluation import Evaluation, evaluate
from caspar.equations.node_blocks import ROUNDING, UNITS_APART, Free, node_diagonal
from caspar.equations.node_kernels import MEMORY
from caspar.frontend.factors.retraction import retracted
from caspar.frontend.factors.trace import Argument
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.scalar import Scalar, dot, total
from caspar.memory.kernel_builder import KernelBuilder

VALUES, CANDIDATE = "x", "y"
GRADIENT, MATRIX, INFLUENCE, FREE, TRIED = "gradient", "matrix", "influence", "moves", "tried"
COST = "cost"
COLUMN_OF_NODE = "node"
"""Arguments' own arrays are `constant_name`."""

_LEAST_PIVOT = 1e-15
"""Of a matrix scaled to unit diagonal: with less it is not positive definite to rounding."""


class Tried(IntEnum):
    """What a step shows, by its place in `tried`.

    COST is that of the candidate, DESCENT g . (C^T C + damping D)^-1 g, MODEL the decrease of the
    cost that the linear model predicts, STEP_SQUARE the square of the step, weighted by D. LEVELS
    is 1 if D is levelled where that would hold a component at every damping, LOST if squares of
    derivatives are zero or infinite in the floating type.
    """

    COST = 0
    DESCENT = 1
    MODEL = 2
    STEP_SQUARE = 3
    LEVELS = 4
    LOST = 5


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
    """What a constant argument of a factor, given by its number, is called."""
    return f"f{number}_{argument.name}"


def node_name(argument: Argument) -> str:
    """What the values of the node are called that an argument names."""
    return f"{argument.name}.{COLUMN_OF_NODE}"


def _evaluation(kernel: ProgramBuilder, number: int, one: ProblemFactor) -> Evaluation:
    def read(argument: Argument) -> list[Scalar]:
        name = constant_name(number, argument) if argument.node is None else node_name(argument)
        return kernel.entries(name, argument.storage_dim)

    return evaluate(kernel, one.factor, read, kernel.graph.dtype)


def score_graph(shape: BatchShape, number: int) -> Graph:
    """Of a factor, given by its number: what one instance adds to `cost`."""
    kernel = ProgramBuilder("score", shape.storage)
    kernel.put(COST, 0, _evaluation(kernel, number, shape.factors[number]).cost)
    return kernel.graph.build()


def linearize_graph(shape: BatchShape, number: int) -> Graph:
    """Of a factor, given by its number: what one instance adds to the normal equations.

    Stored are `<argument>.gradient`, entry i, and `<argument>.<argument>.matrix`, entry
    i * columns + j; of a node's own block the lower triangle.
    """
    factor = shape.factors[number].factor
    kernel = ProgramBuilder("linearize", shape.storage)
    evaluation = _evaluation(kernel, number, shape.factors[number])
    blocks = evaluation.jacobian(factor.nodes)
    pull: Sequence[Scalar] = evaluation.residual
    correction = evaluation.correction(evaluation.residual)
    entries = blocks
    if correction is not None:
        entries, pull = correction.selected(blocks), correction.pull
        blocks = correction.times_blocks(entries)
    nodes = factor.nodes
    for place, argument in enumerate(nodes):
        kernel.graph.origin = f"{factor.name}: gradient of {argument.name}"
        for i, column in enumerate(zip(*entries[argument.name], strict=True)):
            _add(kernel, gradient_name(argument), i, dot(column, pull))
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
    return kernel.graph.build()


def gradient_name(argument: Argument) -> str:
    """Where an instance's gradient by an argument goes."""
    return f"{argument.name}.{GRADIENT}"


def block_name(row: Argument, column: Argument) -> str:
    """Where an instance's block of two arguments goes."""
    return f"{row.name}.{column.name}.{MATRIX}"


def _add(kernel: ProgramBuilder, name: str, place: int, value: Scalar) -> None:
    if kernel.graph.literal(value.value) != 0.0:
        kernel.put(name, place, value)


def step_graph(shape: BatchShape) -> Graph:
    """From the normal equations to the candidate, and what its step promises."""
    kernel = ProgramBuilder("step", shape.storage)
    size = shape.num_unknowns
    damping = kernel.scalar("damping")
    kernel.graph.origin = "D"
    free = _free(kernel, shape)
    slopes = _moving(kernel.entries(GRADIENT, size), free)
    squares = [kernel.entry(MATRIX, i * size + i) for i in range(size)]
    remembered = [
        square.max(entry)
        for square, entry in zip(squares, kernel.entries(INFLUENCE, size), strict=True)
    ]
    for place, entry in enumerate(remembered):
        kernel.put(INFLUENCE, place, entry)
    diagonal: list[Scalar] = []
    for nodes in shape.nodes:
        for first in _firsts(nodes):
            own = slice(first, first + nodes.node.tangent_dim)
            held = None if free is None else free[own]
            diagonal += node_diagonal(
                kernel, nodes.node, remembered[own], damping, shape.storage, held
            )
    step, is_definite = _solved(kernel, shape, slopes, diagonal, free)
    kernel.graph.origin = "what the step promises"
    descent = dot(slopes, step)
    square = dot([d * x for d, x in zip(diagonal, step, strict=True)], step)
    # where rounding leaves no factor there is no step, and nothing is known of its size
    _put(kernel, Tried.DESCENT, is_definite.where(descent, 1.0))
    _put(kernel, Tried.MODEL, is_definite.where(0.5 * (descent + damping * square), 0.0))
    _put(kernel, Tried.STEP_SQUARE, is_definite.where(square, float("inf")))
    _put_signs(kernel, shape, slopes, remembered, free)
    for nodes in shape.nodes:
        kernel.graph.origin = f"step of {nodes.node.name}"
        for number, first in enumerate(_firsts(nodes)):
            place = nodes.storage_first + number * nodes.node.storage_dim
            values = kernel.entries(VALUES, nodes.node.storage_dim, place)
            own = slice(first, first + nodes.node.tangent_dim)
            by = [-is_definite.where(x, 0.0) for x in step[own]]
            moved = retracted(nodes.node, values, by, None if free is None else free[own])
            for at, value in enumerate(moved):
                kernel.put(CANDIDATE, place + at, value)
    return kernel.graph.build()


def fade_graph(shape: BatchShape) -> Graph:
    """After an accepted step: D forgets a part; squares that overflowed are forgotten at once."""
    kernel = ProgramBuilder("fade", shape.storage)
    for place, entry in enumerate(kernel.entries(INFLUENCE, shape.num_unknowns)):
        faded = MEMORY * entry
        kernel.put(INFLUENCE, place, (faded < float("inf")).where(faded, 0.0))
    return kernel.graph.build()


def _firsts(nodes: ProblemNodes) -> list[int]:
    """Where the tangent of each node begins."""
    dim = nodes.node.tangent_dim
    return [nodes.tangent_first + number * dim for number in range(nodes.count)]


def _free(kernel: ProgramBuilder, shape: BatchShape) -> Free:
    """For each unknown whether it moves."""
    if not shape.is_masked:
        return None
    return [0.5 < entry for entry in _free_numbers(kernel, shape)]


def _free_numbers(kernel: ProgramBuilder, shape: BatchShape) -> list[Scalar]:
    return [
        kernel.entry(FREE, nodes.tangent_first + place) if nodes.is_masked else kernel.one(1.0)
        for nodes in shape.nodes
        for place in range(nodes.tangent_size)
    ]


def _moving(entries: Sequence[Scalar], free: Free) -> list[Scalar]:
    """Entries, but zero for what is held."""
    if free is None:
        return list(entries)
    return [moves.where(entry, 0.0) for moves, entry in zip(free, entries, strict=True)]


def _solved(
    kernel: ProgramBuilder,
    shape: BatchShape,
    slopes: Sequence[Scalar],
    diagonal: Sequence[Scalar],
    free: Free,
) -> tuple[list[Scalar], Scalar]:
    """(C^T C + damping D)^-1 g, and whether the matrix is positive definite."""
    size = shape.num_unknowns
    kernel.graph.origin = "damped matrix"
    scale = [entry.sqrt().reciprocal() for entry in diagonal]
    damped_one = kernel.scalar("damping") + size * ROUNDING[shape.storage]
    lower: dict[tuple[int, int], Scalar] = {}
    for i in range(size):
        for j in range(i + 1):
            entry = kernel.entry(MATRIX, i * size + j) * scale[i] * scale[j]
            if i == j:
                entry = entry + damped_one
            if free is not None:
                entry = free[i].where(entry, 1.0) if i == j else (free[i] & free[j]).where(entry, 0)
            lower[i, j] = entry
    kernel.graph.origin = "Cholesky"
    is_definite: Scalar | None = None
    reciprocal: list[Scalar] = []
    for j in range(size):
        pivot = _minus(lower[j, j], [(lower[j, k], lower[j, k]) for k in range(j)])
        large = pivot > _LEAST_PIVOT
        is_definite = large if is_definite is None else is_definite & large
        reciprocal.append(pivot.max(_LEAST_PIVOT).sqrt().reciprocal())
        for i in range(j + 1, size):
            pairs = [(lower[i, k], lower[j, k]) for k in range(j)]
            lower[i, j] = _minus(lower[i, j], pairs) * reciprocal[j]
    assert is_definite is not None
    kernel.graph.origin = "substitution"
    inner: list[Scalar] = []
    for i in range(size):
        pairs = [(lower[i, k], inner[k]) for k in range(i)]
        inner.append(_minus(slopes[i] * scale[i], pairs) * reciprocal[i])
    step: dict[int, Scalar] = {}
    for i in reversed(range(size)):
        pairs = [(lower[k, i], step[k]) for k in range(i + 1, size)]
        step[i] = _minus(inner[i], pairs) * reciprocal[i]
    # a gradient that is not finite, but no failed pivot, is told by what the step promises
    is_told = is_definite | ~_is_finite(dot(slopes, slopes))
    return [step[i] * scale[i] for i in range(size)], is_told


def _is_finite(number: Scalar) -> Scalar:
    return number < float("inf")


def _put(kernel: ProgramBuilder, place: Tried, value: Scalar) -> None:
    kernel.put(TRIED, int(place), value)


def _put_signs(
    kernel: ProgramBuilder,
    shape: BatchShape,
    slopes: Sequence[Scalar],
    squares: Sequence[Scalar],
    free: Free,
) -> None:
    """LEVELS and LOST, as `solver.iterate.derivative_sizes` tells them of many nodes.

    Units are apart if the same component is small in all nodes of a type.
    """
    kernel.graph.origin = "units"
    moving = _moving(squares, free)
    levels = lost = kernel.one(0.0) > 1.0
    for slope, square in zip(slopes, moving, strict=True):
        is_zero = ~(0.0 < square) & ((0.0 < slope) | (slope < 0.0))
        lost = lost | is_zero | ~_is_finite(square)
    for nodes in shape.nodes:
        firsts = _firsts(nodes)
        for part in nodes.node.tangent_parts:
            if len(part) == 1:
                continue
            for place in part:
                holds: Scalar | None = None
                is_touched = kernel.one(0.0) > 1.0
                for first in firsts:
                    largest = moving[first + part.start]
                    for other in part[1:]:
                        largest = largest.max(moving[first + other])
                    square, slope = moving[first + place], slopes[first + place]
                    small = ~(UNITS_APART[shape.storage] * largest < square)
                    holds = small if holds is None else holds & small
                    is_touched = is_touched | (0.0 < slope) | (slope < 0.0)
                assert holds is not None
                levels = levels | (holds & is_touched)
    _put(kernel, Tried.LEVELS, levels.where(1.0, 0.0))
    _put(kernel, Tried.LOST, lost.where(1.0, 0.0))


def _minus(first: Scalar, pairs: Sequence[tuple[Scalar, Scalar]]) -> Scalar:
    return total([first, *(-(a * b) for a, b in pairs)])


WIDE = DType.FLOAT64
"""Type of costs and of what the policy decides by."""
