"""Values that the cost does not hold: numbers that ran away, and nodes that move together.

Input: a system whose nodes have the values at the end of a solve, and where these began; on several
devices each has the system of its part, and all ask at the same time. Output: sentences for users,
the same on all. Cost tier: once for a solve; some reductions over the values, and evaluations of
the cost where something is suspected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.frontend.symbolic.field_types import storage_fields, storage_positions
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.layout import chunk_views, padded_chunks
from caspar.runtime.group.member import Communicator
from caspar.solver.plan.plan import NodePlan, Plan


class Values(Protocol):
    """A system with values, of a problem or of one device's part; candidates are overwritten."""

    plan: Plan
    starts: Mapping[str, Array]
    communicator: Communicator

    def candidate_cost(self) -> float:
        """The cost of the candidates of all devices, which all ask for it at the same time."""


Largest = Mapping[str, NDArray[np.float64]]
"""Largest magnitude of each number of the storage in any node, by node type."""

GROWTH = 1e6
"""Times the largest start value of its kind that a number has to reach to be looked at. It also has
to exceed all start values of its node type: some numbers start at next to nothing."""

NO_INFLUENCE = 1e-6
"""Share of the cost by which it may change when such a number is doubled or halved."""

SAMPLED_STARTS = 4096
"""Start values of a node type by which numbers are suspected first."""

NEXT_TO_ZERO = 1e-30
"""Stands for a number that is 0 in all start values of a sample."""

MOST_NAMED = 3
"""Numbers that are looked at and named."""

SHIFT = 10.0
"""How far all nodes are moved together, in units of the largest coordinate."""

SAME_COST, SAME_BESIDE_START = 1e-6, 1e-12
"""Shares of the cost and of the first one: changes up to their sum are those of roundings."""

SAME_BESIDE_APART = 1e-24
"""The same, of the cost if nodes were moved apart: it is the square of some roundings. Costs of
exact data are no more than that."""


APART_DRAW = 13
"""Draw of the directions in which nodes are moved apart."""


@dataclass(frozen=True)
class Suspect:
    """The largest number of a kind.

    Attributes:
        number: The node, in the order of the whole problem's arrays.
    """

    node: str
    is_everywhere: bool
    chunk: int
    column: int
    row: int
    number: int
    place: str
    start: float
    value: float
    growth: float
    device: int

    @property
    def text(self) -> str:
        """It, for users."""
        moved = f"went from {self.start:.6g} to {self.value:.6g}"
        return f"{self.node} {self.number}, {self.place}, {moved}"


def remarks_on_free_values(system: Values, cost: float, first_cost: float) -> tuple[str, ...]:
    """Sentences on both."""
    found = (_on_runaways(system, cost), _on_common_motion(system, cost, first_cost))
    return tuple(remark for remark in found if remark != "")


def _on_runaways(system: Values, cost: float) -> str:
    """Name numbers that became huge and that the cost no longer depends on."""
    gather = system.communicator.gather
    found: list[Suspect] = []
    # some start values suspect more than all do, and reading all of a large problem takes long
    for most_rows in (SAMPLED_STARTS, None):
        largest = _joined(gather(_largest_starts(system, most_rows)))
        found = [
            one
            for device, suspects in enumerate(gather(_suspects_of(system, largest)))
            for one in suspects
            # what all devices have, the first one tells
            if device == 0 or not one.is_everywhere
        ]
        if len(found) == 0:
            return ""
    found.sort(key=lambda one: -one.growth)
    named = [one for one in found[:MOST_NAMED] if _has_no_influence(system, one, cost)]
    if len(named) == 0:
        return ""
    return (
        f"{'; '.join(one.text for one in named)}: so large that the cost hardly depends on it. The "
        "cost may have no minimum there, only one at infinity. Start nearer to a solution, or keep "
        "such numbers in reach by bounds=, fixed= or a prior."
    )


def _on_common_motion(system: Values, cost: float, first_cost: float) -> str:
    """A sentence if all positions can be moved by one vector and the cost stays.

    Poses count, and nodes that are vectors of two or three. What holds them is not looked for in
    float32, whose roundings change the cost too.
    """
    gather = system.communicator.gather
    if not any(gather(_is_chained_exactly(system))):
        return ""
    for dim in (3, 2):
        found = gather(_movable(system, dim))
        names = found[0][0]
        if len(names) == 0:
            continue
        largest = max(own for _, own in found)
        together, apart = (
            _cost_of_shifted(system, dim, largest, together=one) for one in (True, False)
        )
        least = SAME_COST * cost + SAME_BESIDE_START * first_cost + SAME_BESIDE_APART * apart
        if abs(together - cost) <= least:
            return (
                f"All {' and '.join(names)} can be moved together without changing the cost: "
                "nothing says where they are as a whole, so the result is near the start only by "
                "chance. Hold one of them by fixed=, or add a prior."
            )
    return ""


def _joined(found: Sequence[Largest]) -> Largest:
    joined: dict[str, NDArray[np.float64]] = {}
    for one in found:
        for name, largest in one.items():
            joined[name] = np.maximum(joined.get(name, largest), largest)
    return joined


def _has_no_influence(system: Values, suspect: Suspect, cost: float) -> bool:
    for factor in (0.5, 2.0):
        changed = _cost_of_changed(system, suspect, factor)
        if not abs(changed - cost) <= NO_INFLUENCE * cost:
            return False
    return True


# -- what each device finds ------------------------------------------------------------------------


def _largest_starts(system: Values, most_rows: int | None) -> Largest:
    """Return the largest numbers of a system's start values.

    `most_rows`: Of each node type, evenly spaced; what is 0 in all of them counts as next to 0.
    None: all rows.
    """
    starts = {
        node.node.name: system.starts[node.node.name]
        for node in system.plan.nodes
        if node.count > 0 and node.node.name in system.starts
    }
    least = 0.0
    if most_rows is not None:
        least = NEXT_TO_ZERO
        starts = {name: rows[:: -(-len(rows) // most_rows)] for name, rows in starts.items()}
    found = system.plan.library.backend.largest(list(starts.values()))
    return {name: np.maximum(one, least) for name, one in zip(starts, found, strict=True)}


def _suspects_of(system: Values, largest: Largest) -> list[Suspect]:
    """Numbers of a system's nodes that are far larger than any was in the beginning."""
    plan = system.plan
    nodes = [node for node in plan.nodes if node.count > 0 and node.node.name in largest]
    found = zip(nodes, _largest(plan, nodes), strict=True)
    return [one for node, most in found for one in _suspects(system, node, largest, most)]


def _cost_of_changed(system: Values, suspect: Suspect, factor: float) -> float:
    """The cost if a number were so many times what it is."""
    plan = system.plan
    copy_nodes(plan)
    device = 0 if plan.shard is None else plan.shard.rank
    if suspect.is_everywhere or suspect.device == device:
        node = plan.node_plans[suspect.node]
        chunk = _chunks(plan, node, NodePart.CANDIDATE)[suspect.chunk]
        place = chunk[suspect.row : suspect.row + 1, suspect.column : suspect.column + 1]
        changed = np.full((1, 1), factor * suspect.value, dtype=chunk.dtype)
        plan.library.backend.write(place, changed)
    return system.candidate_cost()


def _is_chained_exactly(system: Values) -> bool:
    """Return whether a factor couples nodes of a type that remains, with float64 values."""
    plan = system.plan
    return NodePart.NODES.dtype(plan.types) is DType.FLOAT64 and plan.is_chained


def _movable(system: Values, dim: int) -> tuple[list[str], float]:
    """Names of the node types that have positions, if nothing of them is held, and the largest."""
    plan = system.plan
    moved = _with_positions(plan, dim)
    if any(node.is_masked for node in moved):
        return [], 0.0
    # a device may have no node of an eliminated type
    most = [
        float(_largest(plan, [node])[0][entry])
        for node in moved
        if node.count > 0
        for place in storage_positions(node.node.python_type, dim)
        for entry in place
    ]
    return [node.node.name for node in moved], float(np.max(most, initial=0.0))


def _cost_of_shifted(system: Values, dim: int, largest: float, *, together: bool) -> float:
    """The cost if all positions were moved far beyond the largest of them.

    Together by one vector, or each of their numbers up or down.
    """
    plan = system.plan
    copy_nodes(plan)
    direction: NDArray[np.float64] = np.array([1.0, -0.7, 0.4])[:dim]
    step = SHIFT * (largest if largest > 0.0 else 1.0) * direction
    for node in _with_positions(plan, dim):
        added = np.zeros(node.node.storage_dim)
        for place in storage_positions(node.node.python_type, dim):
            added[list(place)] = step
        write_moved_nodes(plan, node, added.tolist(), None if together else APART_DRAW)
    return system.candidate_cost()


def _suspects(
    system: Values, node: NodePlan, largest: Largest, most: NDArray[np.float64]
) -> list[Suspect]:
    plan, name = system.plan, node.node.name
    to_host, first = plan.library.backend.to_host, largest[name]
    chunks = _chunks(plan, node, NodePart.NODES)
    found: list[Suspect] = []
    grown = (np.maximum(GROWTH * first, first.max()) < most) & (most < np.inf) & (first != 0.0)
    if not grown.any():
        return found
    ends = np.cumsum([0, *(int(chunk.shape[1]) for chunk in chunks)])
    for chunk, (begin, end) in enumerate(pairwise(ends.tolist())):
        for entry in range(begin, end):
            if not grown[entry]:
                continue
            column = to_host(chunks[chunk])[:, entry - begin]
            row = int(np.abs(column).argmax())
            number = row if node.order is None else int(to_host(node.order.node[row]))
            found.append(
                Suspect(
                    name,
                    not node.is_eliminated,
                    chunk,
                    entry - begin,
                    row,
                    number if plan.shard is None else plan.shard.node_number(name, number),
                    _place(node, entry),
                    float(system.starts[name][number, entry]),
                    float(column[row]),
                    float(most[entry] / first[entry]),
                    0 if plan.shard is None else plan.shard.rank,
                )
            )
    return found


def _place(node: NodePlan, entry: int) -> str:
    for field, entries in storage_fields(node.node.python_type).items():
        if entry in entries:
            one = f"[{entry - entries.start}]" if len(entries) > 1 else ""
            return f"{field}{one}"
    return f"entry {entry}"


def _with_positions(plan: Plan, dim: int) -> list[NodePlan]:
    return [n for n in plan.nodes if len(storage_positions(n.node.python_type, dim)) > 0]


def _largest(plan: Plan, nodes: Sequence[NodePlan]) -> list[NDArray[np.float64]]:
    """(storage_dim,) largest magnitudes of each type's nodes, of which there are some."""
    chunks = [_chunks(plan, node, NodePart.NODES) for node in nodes]
    found = iter(plan.library.backend.largest([one for some in chunks for one in some]))
    return [np.concatenate([next(found) for _ in some]) for some in chunks]


def _chunks(plan: Plan, node: NodePlan, part: NodePart) -> list[Array]:
    data = plan.memory[node.key(part)]
    return chunk_views(data, node.count, node.node.storage_dim, part.dtype(plan.types))


def copy_nodes(plan: Plan) -> None:
    """Make the candidates of all node types what the nodes are."""
    for node in plan.nodes:
        pair = (plan.memory[node.key(part)] for part in (NodePart.CANDIDATE, NodePart.NODES))
        plan.library.backend.copy(*pair)


def write_moved_nodes(
    plan: Plan, node: NodePlan, added: Sequence[float], draw: int | None = None
) -> None:
    """Write candidates of a type that are its nodes, with (storage_dim,) numbers added."""
    backend, dim = plan.library.backend, node.node.storage_dim
    nodes, candidates = (
        padded_chunks(plan.memory[node.key(part)], node.count, dim, plan.types.values)
        for part in (NodePart.NODES, NodePart.CANDIDATE)
    )
    # the last chunk may be padded
    columns = [*added, 0.0, 0.0]
    for chunk, candidate in zip(nodes, candidates, strict=True):
        width = int(chunk.shape[1])
        backend.move(candidate, chunk, columns[:width], draw)
        columns = columns[width:]


def write_added(plan: Plan, added: Mapping[str, NDArray[np.float64]]) -> None:
    """Make the candidates what the nodes are, and add (n, storage_dim) to those of some types."""
    copy_nodes(plan)
    backend = plan.library.backend
    for name, numbers in added.items():
        node, first = plan.node_plans[name], 0
        data = plan.memory[node.key(NodePart.CANDIDATE)]
        for chunk in chunk_views(data, node.count, node.node.storage_dim, plan.types.values):
            width = int(chunk.shape[1])
            moved = backend.to_host(chunk) + numbers[:, first : first + width]
            backend.write(chunk, moved.astype(chunk.dtype))
            first += width
