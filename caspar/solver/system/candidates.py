"""Candidates that are the nodes, changed a little, so that a check can ask for their cost.

Input: a plan whose nodes have values. Output: its candidates. Cost: a pass over the nodes.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import NodePart
from caspar.memory.layout import chunk_views, padded_chunks
from caspar.solver.plan.plan import NodePlan, Plan


def copy_nodes(plan: Plan) -> None:
    """Make the candidates of all node types what the nodes are."""
    for node in plan.nodes:
        pair = (plan.memory[node.key(part)] for part in (NodePart.CANDIDATE, NodePart.NODES))
        plan.library.backend.copy(*pair)


def write_moved_nodes(
    plan: Plan, node: NodePlan, added: Sequence[float], draw: int | None = None
) -> None:
    """Write candidates of a type that are its nodes, moved.

    Args:
        plan: Memory and structure.
        node: The type.
        added: (storage_dim,) what is added to each number of a node.
        draw: As of `caspar.runtime.backend.Memory.move`.
    """
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
