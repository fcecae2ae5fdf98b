"""Direct solvers that take over in the middle of a solve: see `linear.hand_over`.

Input: a system. Output: what a factorisation would take, and a way to make it; or a QR
decomposition. Once for a structure, when the usual solver is first seen to be slow or inexact.
"""

import math

from caspar.errors import BackendError, SizeError
from caspar.solver.linear.costs import factorizing_s, forming_s, setup_s
from caspar.solver.linear.explicit.choice import Method, replacing_method
from caspar.solver.linear.explicit.explicit import factorizing
from caspar.solver.linear.explicit.structure import num_fill_pairs
from caspar.solver.linear.hand_over import Replacement
from caspar.solver.linear.method import LinearSolver, LinearSystem


def factorization_for(system: LinearSystem) -> Replacement:
    """The factorisation that takes over where PCG proves to be slow."""
    plan = system.plan
    method = replacing_method(plan)
    pairs = 0 if method is Method.GRADIENTS else num_fill_pairs(plan)
    step_s = factorizing_s(plan) + forming_s(plan, pairs)

    return Replacement(
        step_s=math.inf if method is Method.GRADIENTS else step_s,
        setup_s=setup_s(plan, pairs),
        make=lambda: _made(system, method),
    )


def orthogonal_for(system: LinearSystem) -> LinearSolver | None:
    """The QR decomposition that takes over from a factorisation; None if memory lacks."""
    return _made(system, Method.ORTHOGONAL)


def _made(system: LinearSystem, method: Method) -> LinearSolver | None:
    try:
        return factorizing(system, method)
    except (BackendError, MemoryError, SizeError):
        system.plan.library.backend.trim()
        return None
