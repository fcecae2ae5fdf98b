"""Read a score from the device, by factor: costs, residuals, counts of outliers.

Input: a plan whose values were just scored. Output: numbers and arrays on the host, once a solve
or when users ask.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.parts import FactorPart, SolverPart
from caspar.memory.layout import chunk_views
from caspar.solver.plan.plan import FactorPlan, Plan


def factor_costs(plan: Plan) -> dict[str, float]:
    """The cost of each factor, summed in float64, by name."""
    return _sums(plan, SolverPart.COSTS)


def num_beyond_scale(plan: Plan) -> dict[str, int]:
    """Return, by factor with a loss, the number of residuals that are longer than its scale."""
    with_loss = [factor.factor.name for factor in plan.factors if factor.factor.loss is not None]
    if len(with_loss) == 0:
        return {}
    found = _sums(plan, SolverPart.BEYOND_SCALE)
    return {name: round(found[name]) for name in with_loss}


def _sums(plan: Plan, part: SolverPart) -> dict[str, float]:
    partials = plan.library.backend.to_host(plan.memory[part]).astype(np.float64)
    return {
        one.factor.name: float(partials[one.first_tile : one.first_tile + one.num_tiles].sum())
        for one in plan.factors
    }


def residual_rows(plan: Plan, factor: FactorPlan) -> NDArray[np.float64]:
    """(instances, rows) residuals of a factor, in the order in which they were given."""
    backend, storage = plan.library.backend, plan.types.storage
    data = backend.to_host(plan.memory[factor.key(FactorPart.RESIDUAL)])
    chunks = chunk_views(data, factor.count, len(factor.factor.residual), storage)
    rows = np.concatenate(chunks, axis=1)
    order = factor.order.order
    if order is None:
        return rows.astype(np.float64)
    instance = backend.to_host(order)
    if factor.order.node_tiles is not None:
        is_used = ~hole_places(plan, factor)
        rows, instance = rows[is_used], instance[is_used]
    # holes are left out before numbers are converted: nothing has written to them
    given = np.empty(rows.shape, np.float64)
    given[instance] = rows
    return given


MANY_SLOTS = 1 << 16
"""Instances of a factor from which on its typical cost is that of a tile, not of an instance."""


def typical_costs(plan: Plan) -> dict[str, float]:
    """Return, by factor, the median of its instances' squared residuals, or of its tiles' costs.

    A few huge residuals do not change it.
    """
    costs = plan.library.backend.to_host(plan.memory[SolverPart.COSTS]).astype(np.float64)
    typical = {}
    for one in plan.factors:
        if one.count >= MANY_SLOTS:
            parts = costs[one.first_tile : one.first_tile + one.num_tiles]
        else:
            parts = (residual_rows(plan, one) ** 2).sum(axis=1)
        typical[one.factor.name] = float(np.median(parts))
    return typical


def hole_places(plan: Plan, factor: FactorPlan) -> NDArray[Any]:
    """(num_slots,) booleans: places of node tiles that no instance is at."""
    tiles = factor.order.node_tiles
    assert tiles is not None
    items = plan.library.backend.to_host(tiles.tile_items)
    return (np.arange(plan.library.tile_size) >= items[:, None]).reshape(-1)
