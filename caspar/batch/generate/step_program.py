"""The step of a problem as graphs: from its normal equations to a candidate, and what it promises.

Input: the shape of a batch. Output: graphs over the arrays of a thread, see `programs`. D is that
of `equations.node_blocks`, with memory; the damped system (C^T C + damping D) step = -gradient is
scaled to unit diagonal and factorised, L L^T; bounds are those of design record 0029.
"""

from collections.abc import Sequence

from caspar.batch.generate.policy_program import OPTIONS, Option
from caspar.batch.generate.programs import (
    CANDIDATE,
    FREE,
    GRADIENT,
    INFLUENCE,
    LOWER,
    MATRIX,
    SQUARES,
    TRIED,
    UPPER,
    VALUES,
    ProgramBuilder,
    Tried,
)
from caspar.batch.generate.shape import BatchShape, ProblemNodes
from caspar.equations import node_blocks
from caspar.equations.node_blocks import (
    ROUNDING,
    UNITS_APART,
    Free,
    activated,
    cholesky,
    clamped,
    clipped_step,
    damped_block,
    free_block,
    minus_products,
    node_diagonal,
    triangle,
)
from caspar.equations.node_kernels import MEMORY
from caspar.equations.parts import may_move
from caspar.frontend.factors.retraction import retracted
from caspar.ir.graph import Graph
from caspar.ir.scalar import Scalar, dot, total

NUM_INSIDE, KEPT_WAY = node_blocks.NUM_INSIDE, node_blocks.KEPT_WAY
"""The first accepted steps of a problem, and the share of the way to a bound that they keep."""

LEAST_PIVOT = 1e-15
"""Least pivot of a matrix scaled to unit diagonal that is positive definite to rounding."""

LEAST_KEPT_PIVOT = 1e-10
"""With less, a step has lost six digits: the problem is left to the kernel of QR decompositions,
unless that finds its matrix to be singular."""

DIAGONAL, SCALE, STEP, IS_DEFINITE = "diagonal", "scale", "step", "is_definite"
"""Arrays of a warp: D, the roots of its reciprocals, the solution, and whether there is one."""

DESCENT = "descent"
"""Beside a QR decomposition: gradient times step."""


def step_graph(shape: BatchShape) -> Graph:
    """Return the graph from the normal equations to the candidate and the promised decrease."""
    kernel = ProgramBuilder("step", shape.storage)
    free = free_unknowns(kernel, shape)
    slopes = _moving(kernel.entries(GRADIENT, shape.num_unknowns), free)
    remembered, diagonal = _levelled(kernel, shape, free)
    step, is_definite = _solved(kernel, shape, slopes, diagonal, free)
    _put_promised(kernel, shape, slopes, remembered, diagonal, step, is_definite, free)
    return kernel.graph.build()


def damp_graph(shape: BatchShape) -> Graph:
    """The first part of a step by a warp: D, and what the matrix is scaled by."""
    kernel = ProgramBuilder("damp", shape.storage)
    _, diagonal = _levelled(kernel, shape, free_unknowns(kernel, shape))
    for place, entry in enumerate(diagonal):
        kernel.put(DIAGONAL, place, entry)
        kernel.put(SCALE, place, entry.sqrt().reciprocal())
    return kernel.graph.build()


def promise_graph(shape: BatchShape) -> Graph:
    """The last part of a step by a warp: the candidate, and what its step promises."""
    kernel, size = ProgramBuilder("promise", shape.storage), shape.num_unknowns
    free = free_unknowns(kernel, shape)
    slopes = _moving(kernel.entries(GRADIENT, size), free)
    remembered, diagonal = (kernel.entries(name, size) for name in (INFLUENCE, DIAGONAL))
    step = kernel.entries(STEP, size)
    is_told = (0.5 < kernel.scalar(IS_DEFINITE)) | ~_is_finite(dot(slopes, slopes))
    _put_promised(kernel, shape, slopes, remembered, diagonal, step, is_told, free)
    return kernel.graph.build()


def _levelled(
    kernel: ProgramBuilder, shape: BatchShape, free: Free
) -> tuple[list[Scalar], list[Scalar]]:
    """The squares of derivatives with what is remembered of them, and D."""
    size = shape.num_unknowns
    damping = kernel.scalar("damping")
    kernel.graph.origin = "D"
    if shape.is_orthogonal:
        squares = kernel.entries(SQUARES, size)
    else:
        squares = [kernel.entry(MATRIX, i * shape.row_length + i) for i in range(size)]
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
            moving = _may_move(kernel, nodes, first, free)
            diagonal += node_diagonal(
                kernel, nodes.node, remembered[own], damping, shape.storage, moving
            )
    return remembered, diagonal


def _put_promised(
    kernel: ProgramBuilder,
    shape: BatchShape,
    slopes: Sequence[Scalar],
    remembered: Sequence[Scalar],
    diagonal: Sequence[Scalar],
    step: Sequence[Scalar],
    is_definite: Scalar,
    free: Free,
) -> None:
    """The candidate, and what the step to it promises."""
    damping = kernel.scalar("damping")
    kernel.graph.origin = "what the step promises"
    descent = kernel.scalar(DESCENT) if shape.is_orthogonal else dot(slopes, step)
    step = _clipped(kernel, shape, step) if shape.is_bounded else step
    square = dot([d * x for d, x in zip(diagonal, step, strict=True)], step)
    along = descent
    if shape.is_bounded:
        # the linear solve held numbers that go to a bound, and their slope counts
        along = dot(kernel.entries(GRADIENT, shape.num_unknowns), step)
    # where rounding leaves no factor there is no step, and nothing is known of its size
    _put(kernel, Tried.DESCENT, is_definite.where(descent, 1.0))
    _put(kernel, Tried.MODEL, is_definite.where(0.5 * (along + damping * square), 0.0))
    _put(kernel, Tried.STEP_SQUARE, is_definite.where(square, float("inf")))
    _put_signs(kernel, shape, slopes, remembered, free)
    by = [-is_definite.where(x, 0.0) for x in step]
    for nodes in shape.nodes:
        _put_moved(kernel, nodes, by, free)


def _put_moved(
    kernel: ProgramBuilder, nodes: ProblemNodes, step: Sequence[Scalar], free: Free
) -> None:
    """The candidate's nodes of a type."""
    node = nodes.node
    kernel.graph.origin = f"step of {node.name}"
    for first, place in _places(nodes):
        values = kernel.entries(VALUES, node.storage_dim, place)
        own = slice(first, first + node.tangent_dim)
        moved = retracted(node, values, step[own], _may_move(kernel, nodes, first, free))
        if nodes.is_bounded:
            limits = _limits(kernel, nodes, first)
            moved = clamped(limits, node, values, moved, kernel.graph.dtype)
        for at, value in enumerate(moved):
            kernel.put(CANDIDATE, place + at, value)


def _clipped(kernel: ProgramBuilder, shape: BatchShape, step: Sequence[Scalar]) -> list[Scalar]:
    """The step -x that ends at bounds, with its sign back; holds what it would push out of them."""
    kernel.graph.origin = "bounds"
    clipped = list(step)
    for nodes in shape.nodes:
        for first, place in _places(nodes) if nodes.is_bounded else ():
            own = slice(first, first + nodes.node.tangent_dim)
            values = kernel.entries(VALUES, nodes.node.storage_dim, place)
            found, held = clipped_step(
                _limits(kernel, nodes, first),
                nodes.node,
                values,
                [-x for x in step[own]],
                kernel.scalar("shortening"),
                kernel.entries(FREE, nodes.node.tangent_dim, first),
            )
            clipped[own] = [-x for x in found]
            for component, entry in enumerate(held):
                kernel.put(FREE, first + component, entry)
    return clipped


def activate_graph(shape: BatchShape) -> Graph:
    """Return the graph that marks what moves at new values, by gradient and bounds."""
    kernel = ProgramBuilder("activate", shape.storage)
    kernel.graph.origin = "bounds"
    for nodes in shape.nodes:
        for first, place in _places(nodes) if nodes.is_bounded else ():
            values = kernel.entries(VALUES, nodes.node.storage_dim, place)
            slopes = kernel.entries(GRADIENT, nodes.node.tangent_dim, first)
            limits = _limits(kernel, nodes, first)
            own = range(first, first + nodes.node.tangent_dim)
            squares = [kernel.entry(MATRIX, i * shape.row_length + i) for i in own]
            entries = activated(limits, nodes.node, values, slopes, squares)
            for place, entry in zip(own, entries, strict=True):
                kernel.put(FREE, place, entry)
    return kernel.graph.build()


def _limits(kernel: ProgramBuilder, nodes: ProblemNodes, first: int) -> list[list[Scalar]]:
    """Lower and upper bounds of a node whose tangent begins there."""
    return [kernel.entries(name, nodes.node.tangent_dim, first) for name in (LOWER, UPPER)]


def fade_graph(shape: BatchShape) -> Graph:
    """After an accepted step: D forgets a part; squares that overflowed are forgotten at once."""
    kernel = ProgramBuilder("fade", shape.storage)
    for place, entry in enumerate(kernel.entries(INFLUENCE, shape.num_unknowns)):
        faded = MEMORY * entry
        kernel.put(INFLUENCE, place, (faded < float("inf")).where(faded, 0.0))
    return kernel.graph.build()


def _places(nodes: ProblemNodes) -> list[tuple[int, int]]:
    """Return where tangent and storage of each node begin."""
    return [
        (first, nodes.storage_first + number * nodes.node.storage_dim)
        for number, first in enumerate(_firsts(nodes))
    ]


def _firsts(nodes: ProblemNodes) -> list[int]:
    """Return where the tangent of each node begins."""
    dim = nodes.node.tangent_dim
    return [nodes.tangent_first + number * dim for number in range(nodes.count)]


def _may_move(kernel: ProgramBuilder, nodes: ProblemNodes, first: int, free: Free) -> Free:
    """Tell which components of a node the step moves: see `NodeBuilder.read_moving`."""
    dim = nodes.node.tangent_dim
    if nodes.is_bounded:
        return may_move(kernel.entries(FREE, dim, first))
    return None if free is None else free[first : first + dim]


def free_unknowns(kernel: ProgramBuilder, shape: BatchShape) -> Free:
    """Tell which unknowns move; None: all."""
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
    matrix = {(i, j): kernel.entry(MATRIX, i * size + j) for i, j in triangle(size)}
    damped = free_block(damped_block(matrix, scale, damped_one), free)
    kernel.graph.origin = "Cholesky"
    least = kernel.one(LEAST_PIVOT)
    if shape.hands_over:
        least = kernel.entry(OPTIONS, Option.LEAST_PIVOT)
    lower, reciprocal, is_definite = cholesky(damped, size, least)
    kernel.graph.origin = "substitution"
    inner: list[Scalar] = []
    for i in range(size):
        pairs = [(lower[i, k], inner[k]) for k in range(i)]
        inner.append(minus_products(slopes[i] * scale[i], pairs) * reciprocal[i])
    step: dict[int, Scalar] = {}
    for i in reversed(range(size)):
        pairs = [(lower[k, i], step[k]) for k in range(i + 1, size)]
        step[i] = minus_products(inner[i], pairs) * reciprocal[i]
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
    """LEVELS and LOST, as `solver.lm.derivative_sizes` tells them of many nodes; IDLE.

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
    if shape.has_loss:
        largest = total([*moving, *(slope * slope for slope in slopes)])
        _put(kernel, Tried.IDLE, (largest <= 0.0).where(1.0, 0.0))
