"""Problems that consist of many unconnected parts, which would better be solved apart.

Input: the factors and node types of a solve, and its arrays. Output: a remark, or nothing. Once for
a structure: microseconds where counts tell; where they do not, some passes over the indices, if
they are on the host and not too many.
"""

import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.solver.input.problem import Problem

MIN_PARTS = 10
"""Fewer are not worth a remark."""

MAX_PART = 24
"""Unknowns of a part on average, up to which `BatchSolver` takes it."""

MAX_INSTANCES = 200_000
"""Instances of a factor up to which its indices are looked at."""

Indices = NDArray[np.int64]


class RemarksOnParts:
    """The output of `remarks_on_parts`, kept for the structure of the last solve."""

    def __init__(self) -> None:
        self._known: tuple[weakref.ref[object], tuple[str, ...]] | None = None

    def of(
        self,
        plan: object,
        factors: Sequence[TracedFactor],
        nodes: Sequence[NodeType],
        problem: Problem,
    ) -> tuple[str, ...]:
        """The remarks; another `plan` stands for other counts or indices."""
        known = self._known
        if known is None or known[0]() is not plan:
            known = weakref.ref(plan), remarks_on_parts(factors, nodes, problem)
            self._known = known
        return known[1]


def remarks_on_parts(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], problem: Problem
) -> tuple[str, ...]:
    """A sentence, if a problem has many small parts that share no unknown."""
    number = _num_small_parts(factors, nodes, problem)
    if number is None:
        return ()
    return (
        f"This problem consists of {number:,} parts that share no unknown, but one damping and one "
        "stopping rule: a part that is harder than the others may not end at its minimum. Use "
        "caspar.BatchSolver, which solves each part by itself and gives each its own status.",
    )


def _num_small_parts(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], problem: Problem
) -> int | None:
    """Return how many parts there are, if there are many small ones; None: not so, or not known."""
    counts = problem.counts
    unknowns = sum(counts[node.name] * node.tangent_dim for node in nodes)
    wanted = max(MIN_PARTS, -(-unknowns // MAX_PART))
    # each part has an instance, and with it a node of each of its types
    most = sum(
        min(counts[argument.node_type.name] for argument in factor.nodes) for factor in factors
    )
    if most < wanted:
        return None
    numbered = _numbered(factors, nodes, problem)
    total = sum(counts[node.name] for node in nodes)
    if numbered is None:
        # without a factor that couples nodes, each of them is a part
        is_coupled = any(len(factor.nodes) > 1 for factor in factors)
        return None if is_coupled or total < wanted else total
    is_touched = np.zeros(total, dtype=bool)
    for instance in numbered:
        for index in instance:
            is_touched[index] = True
    pairs = [(first, other) for first, *others in numbered for other in others]
    ends = [np.concatenate(column) for column in zip(*pairs, strict=True)]
    first, other = ends if len(ends) > 0 else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    # the first node of a part has no neighbour before it, and the last one none behind it
    is_apart = first != other
    for inner in (np.maximum, np.minimum):
        may_end = is_touched.copy()
        may_end[inner(first, other)[is_apart]] = False
        if np.count_nonzero(may_end) < wanted:
            return None
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first), dtype=np.int8), (first, other)), shape=(total, total))
    _, part = connected_components(graph, directed=False)
    number = len(np.unique(part[is_touched]))
    return number if number >= wanted else None


def _numbered(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], problem: Problem
) -> list[list[Indices]] | None:
    """Return, by factor, the nodes of its arguments, numbered through all types; None: unknown."""
    firsts: dict[str, int] = {}
    for node in nodes:
        firsts[node.name] = sum(problem.counts[name] for name in firsts)
    found = []
    for factor in factors:
        arrays = problem.factors[factor.name]
        if arrays.count > MAX_INSTANCES:
            return None
        numbers = []
        for argument in factor.nodes:
            index = arrays.nodes[argument.name]
            if index is None:  # the one that there is
                index = np.zeros(arrays.count, dtype=np.int64)
            elif not isinstance(index, np.ndarray):
                return None
            numbers.append(index.astype(np.int64) + firsts[argument.node_type.name])
        found.append(numbers)
    return found
