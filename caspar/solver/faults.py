"""Which factors make a cost or a derivative that is not finite, and which of their instances.

Input: a plan, the residuals or gradients that were just evaluated. Output: words for users, and
what is too small for the floating type. Cost: some passes over the arrays, of a solve that failed
or is likely to; `lost_squares` copies a few kilobytes to the host.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from caspar.frontend.node_blocks import ABSENT
from caspar.ir.dtype import DType
from caspar.memory.layout import chunk_widths, padded_width
from caspar.memory.tiles import Array
from caspar.solver.phases import Phases
from caspar.solver.plan import FactorPlan, NodePlan, Plan
from caspar.solver.quantities import count_text

LOOKED_AT = 1000
"""Nodes of a type of which the derivatives are looked at."""


def faulty_costs(plan: Plan) -> tuple[str, ...]:
    """Factors whose cost is not finite, after their residuals have been evaluated."""
    costs = plan.library.backend.to_host(plan.memory["costs"])
    return tuple(
        _described(plan, one)
        for one in plan.factors
        if not np.isfinite(costs[one.first_tile : one.first_tile + one.num_tiles]).all()
    )


def _described(plan: Plan, factor: FactorPlan) -> str:
    """Name of a factor, how many of its residuals are not finite, and the first."""
    backend, storage = plan.library.backend, plan.types.storage
    residuals = plan.memory[f"{factor.factor.name}.residual"]
    dim = len(factor.factor.residual)
    is_faulty = _not_finite(backend.xp, residuals, factor.count, dim, storage)
    slots = np.flatnonzero(backend.to_host(is_faulty))
    if factor.order.node_tiles is not None:
        slots = slots[~_holes(plan, factor)[slots]]
    if factor.order.order is not None:
        slots = backend.to_host(factor.order.order)[slots]
    if len(slots) == 0:
        # in the type of the sums alone
        return factor.factor.name
    return f"{factor.factor.name} ({count_text(len(slots), 'instance')}, first {slots.min():,})"


def largest_residual(plan: Plan) -> float:
    """The largest magnitude of a residual, after they have been evaluated."""
    backend, largest = plan.library.backend, 0.0
    for factor in plan.factors:
        residuals = plan.memory[f"{factor.factor.name}.residual"]
        dim = len(factor.factor.residual)
        for chunk, width in _chunks(residuals, factor.count, dim, plan.types.storage):
            sizes = backend.to_host(abs(chunk[:, :width]).max(axis=1))
            if factor.order.node_tiles is not None:
                sizes = sizes[~_holes(plan, factor)]
            largest = max(largest, float(sizes.max(initial=0.0)))
    return largest


def lost_squares(plan: Plan) -> dict[str, bool]:
    """Node types whose derivatives have squares that are zero or infinite in the floating type.

    Of the last linearisation. Some nodes of each type are looked at: it comes from the unit.

    Returns:
        By the type's name, whether nothing can be said of its values: a square is infinite, or that
        of a scalar is zero in all nodes, not only in some, such as points that run to infinity.
    """
    found = {}
    for node in plan.nodes:
        name = node.node.name
        squares, slopes = first_derivatives(plan, node)
        is_zero = (slopes != 0.0) & ((squares == ABSENT) | (squares == 0.0))
        is_infinite = squares == np.inf
        if is_zero.any() or is_infinite.any():
            found[name] = bool(is_infinite.any() or is_zero.all(axis=0).any())
    return found


def first_derivatives(plan: Plan, node: NodePlan) -> tuple[Array, Array]:
    """D and gradient of the first `LOOKED_AT` nodes of a type, (n, tangent_dim) each."""
    name, count, dim = node.node.name, node.count, node.node.tangent_dim
    diagonal, gradient = plan.memory[f"{name}.diagonal"], plan.memory[f"{name}.gradient"]
    slopes = _chunks(gradient, count, dim, plan.types.sums)
    if not node.is_eliminated:
        slopes = iter([(gradient.reshape(count, -1), dim)])
    to_host = plan.library.backend.to_host
    squares, first_slopes = (
        np.concatenate([to_host(chunk[:LOOKED_AT])[:, :width] for chunk, width in chunks], 1)
        for chunks in (_chunks(diagonal, count, dim, plan.types.storage), slopes)
    )
    return squares, first_slopes


def _not_finite(xp: Any, data: Array, count: int, dim: int, dtype: DType) -> Array:
    """(count,) objects of a blocked array of which a scalar is not finite."""
    found = xp.zeros(count, dtype=bool)
    for chunk, width in _chunks(data, count, dim, dtype):
        found |= ~xp.isfinite(chunk[:, :width]).all(axis=1)
    return found


def _chunks(data: Array, count: int, dim: int, dtype: DType) -> Iterator[tuple[Array, int]]:
    """Contiguous (count, padded width) views of a blocked array, and the scalars in use of each."""
    first = 0
    for width in chunk_widths(dim, dtype):
        padded = padded_width(width)
        yield data[first : first + padded * count].reshape(count, padded), width
        first += padded * count


def _holes(plan: Plan, factor: FactorPlan) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(num_slots,) places that no instance is at."""
    tiles = factor.order.node_tiles
    assert tiles is not None
    items = plan.library.backend.to_host(tiles.tile_items)
    return (np.arange(plan.library.tile_size) >= items[:, None]).reshape(-1)


def faulty_derivatives(plan: Plan, phases: Phases) -> tuple[str, ...]:
    """Factors of which a gradient is not finite, where residuals are of the linearised values.

    What was linearised is lost.
    """
    backend = plan.library.backend
    found = []
    for factor in plan.factors:
        names = {one.node_type.name for one in factor.factor.nodes}
        gradients = [plan.memory[f"{name}.gradient"] for name in names]
        for gradient in gradients:
            gradient[...] = 0.0
        backend.sequence(phases.gradients(factor)).run()
        if not all(backend.xp.isfinite(gradient).all() for gradient in gradients):
            found.append(factor.factor.name)
    return tuple(found)
