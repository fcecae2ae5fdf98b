"""Values that are moved by a rounding each: how much a cost changes by them is no progress.

Cost: some passes over the nodes of a type.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from caspar.equations.parts import FactorPart, NodePart
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views
from caspar.solver.lm.faults import typical_costs
from caspar.solver.plan.plan import Plan
from caspar.solver.system.free_values import write_moved_nodes
from caspar.solver.system.phases import Phases

DRAWS = range(13, 21)
"""Bits that draw roundings: one draw may change a cost by a tenth of what others do."""

_LAST_THIRD = 2.0**-30
"""Relative to the largest start value of a column: more than the last third of the digits."""

COLLAPSED = 2.0**-29
"""Share of the largest start value of a column: below it, the start does not tell how exact the
column has to be. An amplitude that falls by ten digits in each step, because an exponential
beside it is far too large, would pass for a solution of zero."""

MOST_CONSTANTS = 1 << 20
"""Scalars of constants that are moved: 8 MB are kept meanwhile."""


def last_third(starts: Sequence[float], largest: Sequence[float]) -> list[float]:
    """Return what the last third of the digits of each column's largest start value tell.

    Of a column that has collapsed, those of the largest value that it has now. All (storage_dim,).
    """
    pairs = zip(starts, largest, strict=True)
    return [_LAST_THIRD * (now if now < COLLAPSED * start else start) for start, now in pairs]


def moved_scores(
    plan: Plan, phases: Phases, sizes: Mapping[str, Sequence[float]] | None = None
) -> Iterator[None]:
    """Score values that are moved by a rounding each, and by sizes; several draws.

    Constants of float64 are moved by a rounding too, unless they are many: residuals that are
    differences of large numbers, such as ranges to satellites, are no more exact than these. Tables
    stay as they are: a moved size would be another layout. What was linearised is lost, and so are
    the residuals of the values themselves.

    `sizes`: Of the columns of node types, by the type's name. None: 0.
    """
    backend = plan.library.backend
    score = backend.sequence(phases.score(NodePart.CANDIDATE))
    constants = [(array, array.copy()) for array in _moved_constants(plan)]
    try:
        for draw in DRAWS:
            for array, given in constants:
                backend.move(array[:, None], given[:, None], [0.0], draw)
            for node in plan.nodes:
                dim = node.node.storage_dim
                added = [0.0] * dim if sizes is None else sizes[node.node.name]
                write_moved_nodes(plan, node, added, draw)
            score.run()
            yield
    finally:
        for array, given in constants:
            backend.copy(array, given)


def _moved_constants(plan: Plan) -> list[Array]:
    """Flat views of constant arguments without tables, if all of them are few."""
    keys = [
        factor.key(FactorPart.CONSTANT, argument)
        for factor in plan.factors
        for argument in factor.factor.inputs
        if argument.node is None and argument.table is None
    ]
    arrays = [plan.memory[key].reshape(-1) for key in keys if key in plan.memory]
    arrays = [array for array in arrays if array.dtype == plan.types.values.value]
    return arrays if sum(int(array.size) for array in arrays) <= MOST_CONSTANTS else []


def typical_change(plan: Plan, phases: Phases, starts: Mapping[str, Array]) -> float:
    """Return the change of typical residuals if values move by the last third of their digits.

    That is of the largest start value of their column; values were just scored. The change of a
    factor is the greatest of several draws, relative to its typical squared residual; that of the
    plan is the least of all factors.
    """
    before = typical_costs(plan)
    most = dict.fromkeys(before, 0.0)
    largest = plan.library.backend.largest
    sizes = {}
    for node in plan.nodes:
        nodes = plan.memory[node.key(NodePart.NODES)]
        chunks = chunk_views(nodes, node.count, node.node.storage_dim, plan.types.values)
        (first,) = largest([starts[node.node.name]])
        sizes[node.node.name] = last_third(first.tolist(), np.concatenate(largest(chunks)).tolist())
    for _ in moved_scores(plan, phases, sizes):
        for name, after in typical_costs(plan).items():
            most[name] = max(most[name], abs(after - before[name]))
    changes = [change / before[name] for name, change in most.items() if before[name] > 0.0]
    return min(changes, default=math.inf)
