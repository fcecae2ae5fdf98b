"""Values that the cost does not hold: numbers that ran away, and nodes that move together.

Input: a plan whose nodes have the values at the end of a solve, where these began, and what scores
the candidate. Output: sentences for users. Cost tier: once for a solve; some reductions over the
values, and evaluations of the cost where something is suspected.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.frontend.symbolic.field_types import storage_fields, storage_positions
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views
from caspar.solver.plan.plan import NodePlan, Plan

Score = Callable[[], float]
"""The cost of the candidate."""

GROWTH = 1e6
"""Times the largest start value of its kind that a number has to reach to be looked at. It also has
to exceed all start values of its node type: some numbers start at next to nothing."""

NO_INFLUENCE = 1e-6
"""Of the cost: how much it may change when such a number is doubled or halved."""

MOST_NAMED = 3
"""Numbers that are looked at and named."""

SHIFT = 10.0
"""How far all nodes are moved together, in units of the largest coordinate."""

SAME_COST, SAME_BESIDE_START = 1e-6, 1e-12
"""Of the cost, and of the first one: changes up to their sum are those of roundings."""


@dataclass(frozen=True)
class _Suspect:
    """The largest number of a kind.

    Attributes:
        plan: Its node type.
        chunk: Chunk of the blocked array.
        column: Within the chunk.
        entry: Within the storage of a node.
        row: The node, in the plan's order.
        value: The number.
        growth: Over the largest start value of its kind.
    """

    plan: NodePlan
    chunk: int
    column: int
    entry: int
    row: int
    value: float
    growth: float


def remarks_on_free_values(
    plan: Plan, starts: Mapping[str, Array], cost: float, first_cost: float, score: Score
) -> tuple[str, ...]:
    """Sentences on both.

    Args:
        plan: Its nodes have the values. Candidates are overwritten.
        starts: By node type, (n, storage_dim) start values, on host or device.
        cost: Of the values.
        first_cost: Of the start values.
        score: See `Score`.
    """
    found = (
        _on_runaways(plan, starts, cost, score),
        _on_common_motion(plan, cost, first_cost, score),
    )
    return tuple(remark for remark in found if remark != "")


def _on_runaways(plan: Plan, starts: Mapping[str, Array], cost: float, score: Score) -> str:
    """Name numbers that became huge and that the cost no longer depends on."""
    suspects = [one for node in plan.nodes for one in _suspects(plan, node, starts)]
    suspects.sort(key=lambda one: -one.growth)
    named = [one for one in suspects[:MOST_NAMED] if _has_no_influence(plan, one, cost, score)]
    if len(named) == 0:
        return ""
    listed = "; ".join(_text(plan, one, starts) for one in named)
    return (
        f"{listed}: so large that the cost hardly depends on it. The cost may have no minimum "
        "there, only one at infinity. Start nearer to a solution, or keep such numbers in reach by "
        "bounds=, fixed= or a prior."
    )


def _on_common_motion(plan: Plan, cost: float, first_cost: float, score: Score) -> str:
    """A sentence if all positions can be moved by one vector and the cost stays.

    Poses count, and nodes that are vectors of two or three. What holds them is not looked for in
    float32, whose roundings change the cost too.
    """
    if NodePart.NODES.dtype(plan.types) is not DType.FLOAT64 or not plan.is_chained:
        return ""
    for dim in (3, 2):
        places = {n.node.name: storage_positions(n.node.python_type, dim) for n in plan.nodes}
        moved = [node for node in plan.nodes if len(places[node.node.name]) > 0]
        if len(moved) == 0 or any(node.is_masked for node in moved):
            continue
        _copy_nodes(plan)
        _shift(plan, moved, places, dim)
        changed = abs(score() - cost)
        if changed <= SAME_COST * cost + SAME_BESIDE_START * first_cost:
            names = " and ".join(node.node.name for node in moved)
            return (
                f"All {names} can be moved together without changing the cost: nothing says where "
                "they are as a whole, so the result is near the start only by chance. Hold one of "
                "them by fixed=, or add a prior."
            )
    return ""


def _suspects(plan: Plan, node: NodePlan, starts: Mapping[str, Array]) -> list[_Suspect]:
    start = starts.get(node.node.name)
    if start is None or node.count == 0:
        return []
    to_host, xp = plan.library.backend.to_host, plan.library.backend.xp
    first = np.asarray(to_host(abs(start).max(axis=0)), np.float64)
    chunks = _chunks(plan, node, NodePart.NODES)
    most = to_host(xp.concatenate([abs(chunk).max(axis=0) for chunk in chunks]))
    found = []
    ends = np.cumsum([0, *(int(chunk.shape[1]) for chunk in chunks)])
    for number, (begin, end) in enumerate(pairwise(ends.tolist())):
        for entry in range(begin, end):
            least = max(GROWTH * first[entry], first.max())
            if first[entry] == 0.0 or not least < most[entry] < np.inf:
                continue
            column = chunks[number][:, entry - begin]
            row = int(abs(column).argmax())
            value = float(column[row])
            growth = float(most[entry] / first[entry])
            found.append(_Suspect(node, number, entry - begin, entry, row, value, growth))
    return found


def _has_no_influence(plan: Plan, suspect: _Suspect, cost: float, score: Score) -> bool:
    for factor in (0.5, 2.0):
        _copy_nodes(plan)
        chunk = _chunks(plan, suspect.plan, NodePart.CANDIDATE)[suspect.chunk]
        chunk[suspect.row, suspect.column] *= factor
        if not abs(score() - cost) <= NO_INFLUENCE * cost:
            return False
    return True


def _text(plan: Plan, suspect: _Suspect, starts: Mapping[str, Array]) -> str:
    node = suspect.plan
    order = None if node.order is None else node.order.node
    number = suspect.row
    if order is not None:
        number = int(plan.library.backend.to_host(order[suspect.row]))
    start = float(starts[node.node.name][number, suspect.entry])
    place = f"entry {suspect.entry}"
    for field, entries in storage_fields(node.node.python_type).items():
        if suspect.entry in entries:
            one = f"[{suspect.entry - entries.start}]" if len(entries) > 1 else ""
            place = f"{field}{one}"
    return f"{node.node.name} {number}, {place}, went from {start:.6g} to {suspect.value:.6g}"


def _shift(plan: Plan, moved: list[NodePlan], places: Mapping[str, list[range]], dim: int) -> None:
    """Move the candidate's positions by one vector, far beyond the largest of them."""
    backend = plan.library.backend
    columns = [
        (_column(plan, node, entry), axis)
        for node in moved
        for place in places[node.node.name]
        for axis, entry in enumerate(place)
    ]
    largest = float(backend.to_host(backend.xp.stack([abs(one).max() for one, _ in columns]).max()))
    direction: NDArray[np.float64] = np.array([1.0, -0.7, 0.4])[:dim]
    step = SHIFT * (largest if largest > 0.0 else 1.0) * direction
    for column, axis in columns:
        column += float(step[axis])


def _column(plan: Plan, node: NodePlan, entry: int) -> Array:
    """A view of one entry of all candidates of a type."""
    for chunk in _chunks(plan, node, NodePart.CANDIDATE):
        width = int(chunk.shape[1])
        if entry < width:
            return chunk[:, entry]
        entry -= width
    raise AssertionError("an entry beyond the storage")


def _copy_nodes(plan: Plan) -> None:
    for node in plan.nodes:
        plan.memory[node.key(NodePart.CANDIDATE)][...] = plan.memory[node.key(NodePart.NODES)]


def _chunks(plan: Plan, node: NodePlan, part: NodePart) -> list[Array]:
    data = plan.memory[node.key(part)]
    return chunk_views(data, node.count, node.node.storage_dim, part.dtype(plan.types))
