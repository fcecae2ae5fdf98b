"""Columns of the inverse by preconditioned conjugate gradients; the system is never formed.

Only diagonal blocks, blocks between nodes that one factor touches, and the couplings of eliminated
nodes are in memory. Cost tier: some hundred products for each column.
"""

from collections.abc import Callable
from types import ModuleType

import numpy as np

from caspar.errors import CasparError
from caspar.memory.array import Array
from caspar.solver.covariance.inverses.null_space import SHIFT, null_space, pinned_unknowns
from caspar.solver.covariance.inverses.reduced_inverse import FloatArray, ReducedInverse
from caspar.solver.covariance.normal_matrix import NormalMatrix
from caspar.solver.covariance.sums import add_rows

MAX_ITERATIONS = 20_000

TOLERANCE = 1e-12
"""Residual of a column, relative to its right-hand side, at which iterations end."""

USABLE = 1e-8
"""The same, if rounding ends the iterations before TOLERANCE."""

Operator = Callable[[Array], Array]


def iterative_inverse(normal: NormalMatrix) -> ReducedInverse:
    """Find the free directions, and solve for columns when they are asked for."""
    backend, size = normal.backend, normal.layout.size
    apply, precondition = _operators(normal)

    def on_host(operator: Operator, *, is_strict: bool) -> Callable[[FloatArray], FloatArray]:
        def solve(rhs: FloatArray) -> FloatArray:
            solution, residual = _conjugate_gradients(
                backend.xp, operator, precondition, backend.upload(rhs)
            )
            worst = float(residual.max())
            if is_strict and not worst <= USABLE:
                raise CasparError(
                    f"covariance: conjugate gradients left {worst:.1e} of a column after "
                    f"{MAX_ITERATIONS:,} iterations. The system of {size:,} unknowns is too large "
                    "to be factorised, and too badly conditioned for them; hold more of it, for "
                    "example by priors, or split the problem"
                )
            return np.asarray(backend.to_host(solution))

        return solve

    free = null_space(
        lambda vectors: np.asarray(backend.to_host(apply(backend.upload(vectors)))),
        # of a direction that is free the length does not matter
        on_host(lambda vectors: apply(vectors) + SHIFT * vectors, is_strict=False),
        size,
    )
    pinned = np.zeros((size, 1))
    pinned[pinned_unknowns(free)] = 1.0
    held = backend.upload(pinned)
    solve = on_host(lambda vectors: apply(vectors) + held * vectors, is_strict=True)
    return ReducedInverse("conjugate gradients", free, solve, None)


def _operators(normal: NormalMatrix) -> tuple[Operator, Operator]:
    """The reduced system times (size, k), and its diagonal blocks' inverse."""
    backend, num, width = normal.backend, normal.layout.num_objects, normal.layout.width
    xp = backend.xp
    pattern = normal.pattern(eliminates=False)
    blocks = normal.blocks(pattern, eliminates=False)
    first, second = map(backend.upload, pattern.pairs(backend))
    is_off = xp.flatnonzero(first != second)
    own = blocks[xp.flatnonzero(first == second)]
    eliminations = list(normal.eliminations.values())
    for elimination in eliminations:
        z = elimination.blocks
        add_rows(xp, own, elimination.object, -(z.transpose(0, 2, 1) @ z))
    inverses = xp.linalg.inv(own + SHIFT * xp.eye(width))

    def apply(vectors: Array) -> Array:
        parts = vectors.reshape(num, width, -1)
        result = xp.zeros_like(parts)
        add_rows(xp, result, first, blocks @ parts[second])
        off = blocks[is_off].transpose(0, 2, 1) @ parts[first[is_off]]
        add_rows(xp, result, second[is_off], off)
        for elimination in eliminations:
            z, count = elimination.blocks, len(elimination.roots)
            moved = xp.zeros((count, int(z.shape[1]), int(parts.shape[2])))
            add_rows(xp, moved, elimination.node, z @ parts[elimination.object])
            taken = z.transpose(0, 2, 1) @ moved[elimination.node]
            add_rows(xp, result, elimination.object, -taken)
        return result.reshape(vectors.shape)

    def precondition(vectors: Array) -> Array:
        return (inverses @ vectors.reshape(num, width, -1)).reshape(vectors.shape)

    return apply, precondition


def _conjugate_gradients(
    xp: ModuleType, apply: Operator, precondition: Operator, rhs: Array
) -> tuple[Array, Array]:
    """Solve for all columns, each with its own alpha and beta: solution, relative residuals."""
    solution, residual = xp.zeros_like(rhs), rhs.copy()
    z = precondition(residual)
    direction = z
    descent = (residual * z).sum(axis=0)
    sizes = xp.sqrt((rhs**2).sum(axis=0))
    sizes = sizes + (sizes == 0.0)
    for _ in range(MAX_ITERATIONS):
        is_open = xp.sqrt((residual**2).sum(axis=0)) > TOLERANCE * sizes
        product = apply(direction)
        curvature = (direction * product).sum(axis=0)
        # rounding may leave a curvature that is not positive
        is_open &= curvature > 0.0
        if not bool(is_open.any()):
            break
        alpha = is_open * descent / xp.where(is_open, curvature, 1.0)
        solution += alpha * direction
        residual = residual - alpha * product
        z = precondition(residual)
        after = (residual * z).sum(axis=0)
        direction = z + is_open * after / xp.where(descent > 0.0, descent, 1.0) * direction
        descent = after
    return solution, xp.sqrt((residual**2).sum(axis=0)) / sizes
