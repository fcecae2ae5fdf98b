"""The factorisation that takes over from conjugate gradients in the middle of a solve.

Input: a system that PCG solves. Output: what a factorisation would take, and a way to make it. Once
for a structure, when PCG is first seen to be slow.
"""

import math

from caspar.errors import BackendError, SizeError
from caspar.solver.linear.costs import factorizing_s, forming_s, setup_s
from caspar.solver.linear.explicit.choice import Method, replacing_method
from caspar.solver.linear.explicit.coupled_items import num_fill_pairs
from caspar.solver.linear.explicit.explicit import factorizing
from caspar.solver.linear.hand_over import Replacement
from caspar.solver.linear.method import LinearSolver, LinearSystem


def factorization_for(system: LinearSystem) -> Replacement:
    """The factorisation that takes over where PCG proves to be slow."""
    plan = system.plan
    method = replacing_method(plan)
    pairs = 0 if method is Method.GRADIENTS else num_fill_pairs(plan)
    step_s = factorizing_s(plan) + forming_s(plan, pairs)

    def make() -> LinearSolver | None:
        try:
            return factorizing(system, method)
        except (BackendError, MemoryError, SizeError):
            plan.library.backend.trim()
            return None

    return Replacement(
        step_s=math.inf if method is Method.GRADIENTS else step_s,
        setup_s=setup_s(plan, pairs),
        make=make,
    )
