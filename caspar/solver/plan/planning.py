"""Plan the memory of a problem from its structure, and warn of nodes that no factor touches.

Once for each structure (counts and indices): order factors, build tiles, reserve and allocate the
arena. Values are brought in by every solve.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.equations.solver_form import SolverForm
from caspar.errors import warn_user
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.precision import Types
from caspar.memory.accessors.sums.slots import USUAL_SLOTS, num_object_slots
from caspar.memory.array import Array
from caspar.memory.tiling.node_tiles import NodeOrder
from caspar.memory.tiling.tiles import TileIndex
from caspar.runtime.backend import Backend
from caspar.solver.input.parted_array import placed
from caspar.solver.input.problem import Problem
from caspar.solver.limits import Limits
from caspar.solver.plan.factor_order import FactorOrder, order_factors
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan
from caspar.solver.plan.regions import allocate_cleared, jacobians_are_shared, reserve_regions
from caspar.solver.plan.shard import Shard


def warn_untouched(backend: Backend, problem: Problem, factors: Sequence[TracedFactor]) -> None:
    """Warn of nodes that no factor touches; indices may be anywhere, also in parts."""
    for name, count in problem.counts.items():
        flags = np.zeros(count, bool)
        for factor in factors:
            for argument in factor.nodes:
                if argument.node_type.name != name or problem.factors[factor.name].count == 0:
                    continue
                index = problem.factors[factor.name].nodes[argument.name]
                if index is None:
                    flags[:] = True
                    continue
                for part, device in placed(index, backend):
                    with device.scope():
                        flags |= _touched(device, part, count)
        if not flags.all():
            _warn(name, np.flatnonzero(~flags), count)


def _touched(backend: Backend, index: Array, count: int) -> NDArray[Any]:
    """(count,) booleans on the host: nodes that an index names."""
    is_host = isinstance(index, np.ndarray)
    found = (np if is_host else backend.xp).zeros(count, bool)
    found[index] = True
    return found if is_host else backend.to_host(found)


def _warn(name: str, untouched: NDArray[Any], count: int) -> None:
    warn_user(
        f"node type {name}: {untouched.shape[0]} of {count} instances are touched "
        f"by no factor, first {untouched[0]}; they are kept as they are"
    )


def plan_factors(
    library: KernelLibrary,
    form: SolverForm,
    factors: Sequence[TracedFactor],
    problem: Problem,
    limits: Limits,
    in_order: Collection[str] = (),
) -> list[FactorPlan]:
    """Put the instances of each factor into an order, and cut it into tiles; users' indices go."""
    backend, tile_size = library.backend, library.tile_size
    sizes = (tile_size, limits.max_narrow_partners)
    orders = order_factors(backend, factors, form.factors, problem, *sizes, in_order)
    plans: list[FactorPlan] = []
    first_tile = 0
    for factor in factors:
        order = orders[factor.name]
        tiles = {}
        if form.factors[factor.name].sums is SharedSums.ORDERED:
            tiles = _sum_tiles(library, factor, form.factors[factor.name], order, problem.counts)
        num_tiles = -(-order.num_slots // tile_size)
        plans.append(
            FactorPlan(factor, form.factors[factor.name], order, tiles, num_tiles, first_tile)
        )
        first_tile += num_tiles
    return plans


def make_plan(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[FactorPlan],
    nodes: Sequence[NodePlan],
    limits: Limits,
    shard: Shard | None = None,
) -> Plan:
    """Reserve and allocate."""
    backend = library.backend
    is_shared = jacobians_are_shared(library, types, factors, limits, shard)
    arena = reserve_regions(library, types, factors, nodes, shard, share_jacobians=is_shared)
    # what was taken so far and given back is not kept beside the arena
    backend.trim()
    outside = sum(plan.num_bytes for plan in factors) + sum(plan.num_bytes for plan in nodes)
    memory = allocate_cleared(arena, backend, nodes, outside, shard)
    return Plan(
        library,
        types,
        tuple(factors),
        tuple(nodes),
        memory,
        arena,
        arena.num_bytes + outside,
        is_shared,
        limits,
        shard,
    )


def plan_nodes(
    library: KernelLibrary,
    form: SolverForm,
    nodes: Sequence[NodeType],
    counts: Mapping[str, int],
    factors: Sequence[FactorPlan],
    limits: Limits,
    shard: Shard | None = None,
) -> list[NodePlan]:
    """Plan the node types, in the solver's order; partials of reduced types stand first."""
    plans: dict[str, NodePlan] = {}
    first_tile = 0
    for node in sorted(nodes, key=lambda node: node.name in form.eliminated):
        is_eliminated = node.name in form.eliminated
        num_tiles = library.num_node_tiles(node, counts[node.name])
        num_added = _num_added(factors, node)
        if shard is not None and any(plan.form.sums is SharedSums.ATOMIC for plan in factors):
            # arrays that devices add up are of one size
            num_added = shard.added.get(node.name, 0)
        num_slots = num_object_slots(num_added, counts[node.name], limits.items_of_slot)
        plans[node.name] = NodePlan(
            node,
            counts[node.name],
            is_eliminated,
            first_tile,
            num_tiles,
            num_slots,
            _order_of(factors, node),
            has_many_slots=num_slots > USUAL_SLOTS,
            is_masked=node.name in form.masked,
            is_bounded=node.name in form.bounded,
        )
        first_tile += num_tiles
    return [plans[node.name] for node in nodes]


def _order_of(factors: Sequence[FactorPlan], node: NodeType) -> NodeOrder | None:
    """Tiles of all factors have the nodes of a type in one order."""
    for plan in factors:
        if plan.form.eliminates(node.name):
            assert plan.order.node_tiles is not None
            return plan.order.node_tiles.node_order
    return None


def _num_added(factors: Sequence[FactorPlan], node: NodeType) -> int:
    """Items that add to the nodes of a type by atomics."""
    return sum(
        plan.count
        for plan in factors
        for argument in plan.reduced
        if argument.node == node
        and plan.form.sums is SharedSums.ATOMIC
        and not plan.has_partials(argument)
    )


def _sum_tiles(
    library: KernelLibrary,
    factor: TracedFactor,
    form: FactorForm,
    order: FactorOrder,
    counts: Mapping[str, int],
) -> dict[str, TileIndex]:
    """Return the tiles of the shared node arguments that are not eliminated, by name."""
    tiles = {}
    for argument in factor.nodes:
        index = order.index(argument.name)
        if index is None or argument is form.eliminated:
            continue
        num_nodes = counts[argument.node_type.name]
        tiles[argument.name] = order.item_tiles(
            library.backend, index, num_nodes, library.tile_size
        )
    return tiles
