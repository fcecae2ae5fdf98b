"""Whether a part of a tangent has units so far apart that D must not level its entries.

D levels the entries of a part, which is taken for a place or a rotation (`node_blocks`). If it is
an amplitude of 1e-30 and a rate of 1, levelling holds the rate at every damping, and the solve
would end with success where the rate started. A place shows itself: which of its entries are small
differs from node to node.

Input: D and gradient of a first linearisation. Output: whether to go on without levelling. Cost:
once per solve, a few kilobytes are copied to the host; one or two linearisations more if a part
looks like it.
"""

import numpy as np

from caspar.frontend.node_blocks import ABSENT, LEVELLING_DAMPING
from caspar.ir.dtype import DType
from caspar.solver.faults import first_derivatives
from caspar.solver.plan import Plan

UNITS_APART = {DType.FLOAT32: 1e-14, DType.FLOAT64: 1e-26}
"""Share of a part's largest entry of diag(J^T J), by the type of the values. Entries above it are
moved by steps of little damping although D is levelled."""

_ROUNDING = 1e-5
"""Of a levelled entry, which may be float32."""


def levelled_share(damping: float) -> float:
    """Share of the part's largest entry that levelled ones have at most."""
    return (1.0 + _ROUNDING) * damping / (damping + LEVELLING_DAMPING)


def units_are_apart(plan: Plan, share: float) -> bool:
    """Whether some entry of a part of D is at most this share of the largest in all nodes.

    If it is zero in all of them, and its gradient too, no factor touches it: that says nothing.
    """
    for node in plan.nodes:
        parts = node.node.tangent_parts
        if len(parts) == 0 or node.count == 0:
            continue
        squares, slopes = first_derivatives(plan, node)
        squares = np.where(squares == ABSENT, 0.0, squares)
        for part in parts:
            own = squares[:, list(part)]
            largest = own.max(axis=1, keepdims=True)
            is_small = (own <= share * largest).all(axis=0)
            is_touched = ((own > 0.0) | (slopes[:, list(part)] != 0.0)).any(axis=0)
            if (is_small & is_touched).any():
                return True
    return False
