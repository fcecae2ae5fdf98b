"""Values that are moved by a rounding each: how much a cost changes by them is no progress.

Cost: some passes over the nodes of a type.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import numpy as np

from caspar.equations.parts import FactorPart, NodePart
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views, padded_chunks
from caspar.solver.plan.plan import NodePlan, Plan
from caspar.solver.system.phases import Phases
from caspar.solver.system.scores import typical_costs

DRAWS = range(13, 21)
"""Bits that draw roundings: one draw may change a cost by a tenth of what others do."""

_GOLDEN = 2654435761
"""2**32 over the golden ratio: bits of multiples look random (Knuth, volume 3, 6.4)."""

_LAST_THIRD = 2.0**-30
"""Relative to the largest start value of a column: more than the last third of the digits."""

COLLAPSED = 2.0**-29
"""Of the largest start value of a column: below it, the start says nothing of how exact the column
has to be. An amplitude that falls by ten digits in each step, because an exponential beside it is
far too large, would pass for a solution of zero."""

MOST_CONSTANTS = 1 << 20
"""Scalars of constants that are moved: 8 MB are kept meanwhile."""

AT_ONCE = 1 << 22
"""Scalars: some 20 bytes are needed for each."""


def last_third(starts: Array, largest: Sequence[float]) -> list[float]:
    """What the last third of the digits of the largest start value of each column tell.

    Of a column that has collapsed, those of the largest value that it has now.

    Args:
        starts: (n, storage_dim) start values.
        largest: (storage_dim,) largest magnitudes now.
    """
    if starts.size == 0:
        return [0.0] * len(largest)
    first: list[float] = abs(starts).max(axis=0).tolist()
    pairs = zip(first, largest, strict=True)
    return [_LAST_THIRD * (now if now < COLLAPSED * start else start) for start, now in pairs]


def write_rounded(
    xp: ModuleType,
    nodes: Array,
    candidate: Array,
    draw: int,
    sizes: Sequence[float],
    at_once: int = AT_ONCE,
) -> None:
    """Candidates that are the nodes, moved by a rounding and a size, but for zeros.

    In pieces: there is little memory.

    Args:
        xp: NumPy or CuPy.
        nodes: (n, width) scalars.
        candidate: (n, width) scalars, written.
        draw: Of `DRAWS`: whether each is moved up or down.
        sizes: What each column is moved by beside the rounding: (width,).
        at_once: Scalars of a piece.
    """
    width = int(nodes.shape[1])
    added = xp.asarray(np.array(sizes, dtype=nodes.dtype.name))
    num_rows = max(1, at_once // width)
    for start in range(0, nodes.shape[0], num_rows):
        piece = nodes[start : start + num_rows]
        first, count = start * width, int(piece.shape[0]) * width
        number = xp.arange(first, first + count, dtype=np.uint32).reshape(piece.shape)
        ups = ((number * np.uint32(_GOLDEN)) >> np.uint32(draw)) % 2 == 1
        ends = xp.where(ups, piece.dtype.type(np.inf), piece.dtype.type(-np.inf))
        # padding may hold any bits, such as a signalling NaN
        with np.errstate(invalid="ignore", over="ignore"):
            moved = xp.nextafter(piece, ends) + xp.copysign(added, ends)
            moved = xp.where(piece == 0.0, piece, moved)
        candidate[start : start + num_rows] = moved


def moved_scores(
    plan: Plan, phases: Phases, sizes: Mapping[str, Sequence[float]] | None = None
) -> Iterator[None]:
    """Score values that are moved by a rounding each, and by sizes; several draws.

    Constants of float64 are moved by a rounding too, unless they are many: residuals that are
    differences of large numbers, such as ranges to satellites, are no more exact than these. What
    was linearised is lost, and so are the residuals of the values themselves.

    Args:
        plan: Memory and structure.
        phases: Its launches.
        sizes: Of the columns of node types, by the type's name. None: 0.
    """
    backend = plan.library.backend
    score = backend.sequence(phases.score(NodePart.CANDIDATE))
    constants = [(array, array.copy()) for array in _moved_constants(plan)]
    try:
        for draw in DRAWS:
            for array, given in constants:
                write_rounded(backend.xp, given[:, None], array[:, None], draw, [0.0])
            _write_moved_nodes(plan, draw, sizes)
            score.run()
            yield
    finally:
        for array, given in constants:
            array[...] = given


def _moved_constants(plan: Plan) -> list[Array]:
    """Flat views of constant arguments, if all of them are few."""
    keys = [
        factor.key(FactorPart.CONSTANT, argument)
        for factor in plan.factors
        for argument in factor.factor.inputs
        if argument.node is None
    ]
    arrays = [plan.memory[key].reshape(-1) for key in keys if key in plan.memory]
    arrays = [array for array in arrays if array.dtype == plan.types.values.value]
    return arrays if sum(int(array.size) for array in arrays) <= MOST_CONSTANTS else []


def _write_moved_nodes(plan: Plan, draw: int, sizes: Mapping[str, Sequence[float]] | None) -> None:
    """Candidates that are the nodes, moved."""
    xp, dtype = plan.library.backend.xp, plan.types.values
    for node in plan.nodes:
        dim = node.node.storage_dim
        nodes, candidates = (
            padded_chunks(plan.memory[node.key(part)], node.count, dim, dtype)
            for part in (NodePart.NODES, NodePart.CANDIDATE)
        )
        # the last chunk may be padded by one
        columns = [*([0.0] * dim if sizes is None else sizes[node.node.name]), 0.0, 0.0]
        for chunk, candidate in zip(nodes, candidates, strict=True):
            width = int(chunk.shape[1])
            write_rounded(xp, chunk, candidate, draw, columns[:width])
            columns = columns[width:]


def typical_change(plan: Plan, phases: Phases, starts: Mapping[str, Array]) -> float:
    """How much typical residuals change if values are moved by the last third of their digits.

    That is of the largest start value of their column.

    Args:
        plan: Memory and structure; its values were just scored.
        phases: Its launches.
        starts: Start values, by node type.

    Returns:
        Of the typical squared residual of each factor the greatest change of several draws,
        relative to it; of these the least.
    """
    before = typical_costs(plan)
    most = dict.fromkeys(before, 0.0)
    sizes = {
        node.node.name: last_third(starts[node.node.name], _largest(plan, node))
        for node in plan.nodes
    }
    for _ in moved_scores(plan, phases, sizes):
        for name, after in typical_costs(plan).items():
            most[name] = max(most[name], abs(after - before[name]))
    changes = [change / before[name] for name, change in most.items() if before[name] > 0.0]
    return min(changes, default=math.inf)


def _largest(plan: Plan, node: NodePlan) -> list[float]:
    """(storage_dim,) largest magnitudes of the current values of a type; 0 if it has no nodes."""
    backend, dim = plan.library.backend, node.node.storage_dim
    if node.count == 0:
        return [0.0] * dim
    chunks = chunk_views(plan.memory[node.key(NodePart.NODES)], node.count, dim, plan.types.values)
    return [float(one) for chunk in chunks for one in backend.to_host(abs(chunk).max(axis=0))]
