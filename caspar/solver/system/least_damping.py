"""Holds unknowns that have next to no influence, where they keep all others from moving.

D is relative: an unknown of which the residuals say next to nothing has next to no D, so steps
throw it far away at every damping. An example is the width of a peak beside all samples. One such
node among a thousand, and no step of all of them lowers the cost. Levenberg-Marquardt asks for this
if a solve would end without success, never before.

Input: a plan after a linear solve. Output: what D remembers. Cost: some passes over D.
"""

from caspar.equations.parts import NodePart
from caspar.memory.layout import chunk_views
from caspar.solver.plan.plan import Plan

SHARE = 1e-2
"""Of what is typical of a column of a node type, its median: D is at least as much."""


def raise_least_damping(plan: Plan) -> bool:
    """Let D remember more for nodes that have far less of it than others of their type.

    It fades as all that D remembers, see `node_kernels.MEMORY`.

    Args:
        plan: Its diagonals are D of a step with little damping at the current values.

    Returns:
        Whether there are such nodes.
    """
    xp = plan.library.backend.xp
    is_raised = False
    for node in plan.reduced:
        if node.count < 2:
            continue
        shape = node.count, node.node.tangent_dim, plan.types.storage
        diagonals, remembered = (
            chunk_views(plan.memory[node.key(part)], *shape)
            for part in (NodePart.DIAGONAL, NodePart.INFLUENCE)
        )
        for diagonal, earlier in zip(diagonals, remembered, strict=True):
            least = SHARE * xp.median(diagonal, axis=0)
            is_less = diagonal < least
            is_raised = is_raised or bool(is_less.any())
            earlier[...] = xp.where(is_less, least, earlier)
    return is_raised
