"""From the structure of a problem to memory.

Once for each structure (counts and indices): order factors, build tiles, reserve and allocate the
arena. Values are brought in by every solve.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from caspar.frontend.factor_builder import FactorForm, SharedSums
from caspar.frontend.node_kernels import MODEL_DIM
from caspar.frontend.precision import Types
from caspar.frontend.solver_form import SolverForm
from caspar.frontend.trace import NodeType, TracedFactor
from caspar.ir.dtype import DType
from caspar.memory.layout import array_scalars
from caspar.runtime.backend import Backend
from caspar.solver.arena import ArenaPlan
from caspar.solver.factor_order import order_factor
from caspar.solver.kernel_library import KernelLibrary
from caspar.solver.plan import (
    SCALARS,
    FactorPlan,
    NodePlan,
    Plan,
    item_tiles,
    num_factor_curvatures,
)
from caspar.solver.problem import Problem


def make_plan(
    library: KernelLibrary,
    types: Types,
    form: SolverForm,
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    problem: Problem,
) -> Plan:
    """Sort, cut into tiles, reserve and allocate.

    Raises:
        OutOfMemoryError: Names needed and available bytes.
    """
    backend = library.backend
    counts = {node.name: int(problem.values[node.name].shape[0]) for node in nodes}
    factor_plans = []
    num_factor_tiles = 0
    for factor in factors:
        made = _plan_factor(
            library, factor, form.factors[factor.name], problem, counts, num_factor_tiles
        )
        factor_plans.append(made)
        num_factor_tiles += made.num_tiles
    node_plans = _plan_nodes(nodes, counts, form, library.tile_size)
    arena = _reserve(library, types, factor_plans, node_plans)
    memory = arena.allocate(backend)
    backend.clear(memory["scalars"])
    # `collect` sums the model's partials with the initial cost, before any retraction; not every
    # factor has a part in the curvature
    backend.clear(memory["models"])
    backend.clear(memory["curvatures"])
    _warn_untouched(backend, factor_plans, node_plans)
    return Plan(
        library,
        types,
        tuple(factor_plans),
        tuple(node_plans),
        memory,
        arena,
        arena.num_bytes + sum(plan.num_bytes for plan in factor_plans),
    )


def _plan_nodes(
    nodes: Sequence[NodeType], counts: Mapping[str, int], form: SolverForm, tile_size: int
) -> list[NodePlan]:
    """In the order of the solver; the partials of reduced types stand first."""
    plans: dict[str, NodePlan] = {}
    first_tile = 0
    for node in sorted(nodes, key=lambda node: node.name in form.eliminated):
        is_eliminated = node.name in form.eliminated
        num_tiles = -(-counts[node.name] // tile_size)
        plans[node.name] = NodePlan(node, counts[node.name], is_eliminated, first_tile, num_tiles)
        first_tile += num_tiles
    return [plans[node.name] for node in nodes]


def _plan_factor(
    library: KernelLibrary,
    factor: TracedFactor,
    form: FactorForm,
    problem: Problem,
    counts: Mapping[str, int],
    first_tile: int,
) -> FactorPlan:
    backend, tile_size = library.backend, library.tile_size
    order = order_factor(backend, factor, form, problem.factors[factor.name], counts, tile_size)
    tiles = {}
    if form.sums is SharedSums.ORDERED:
        for argument in factor.nodes:
            index = order.nodes[argument.name]
            if index is None or argument is form.eliminated:
                continue
            assert argument.node is not None
            num_nodes = counts[argument.node.name]
            tiles[argument.name] = item_tiles(
                backend, index, num_nodes, order.node_tiles, tile_size
            )
    num_tiles = -(-order.num_slots // tile_size)
    return FactorPlan(factor, form, order, tiles, num_tiles, first_tile)


def _warn_untouched(
    backend: Backend, factors: Sequence[FactorPlan], nodes: Sequence[NodePlan]
) -> None:
    xp = backend.xp
    touched = {plan.node.name: xp.zeros(plan.count, dtype=bool) for plan in nodes}
    for plan in factors:
        for argument in plan.factor.nodes:
            assert argument.node is not None
            index = plan.order.nodes[argument.name]
            touched[argument.node.name][slice(None) if index is None else index] = True
    for name, flags in touched.items():
        if bool(flags.all()):
            continue
        untouched = np.flatnonzero(~backend.to_host(flags))
        warnings.warn(
            f"node type {name}: {untouched.shape[0]} of {flags.shape[0]} instances are touched "
            f"by no factor, first {untouched[0]}; they are kept as they are",
            stacklevel=7,  # the line that calls `solve`
        )


def _reserve(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[FactorPlan],
    nodes: Sequence[NodePlan],
) -> ArenaPlan:
    arena = ArenaPlan()
    num_factor_tiles = sum(plan.num_tiles for plan in factors)
    num_reduced_tiles = sum(plan.num_tiles for plan in nodes if not plan.is_eliminated)
    arena.reserve("scalars", len(SCALARS), DType.FLOAT64)
    arena.reserve("costs", num_factor_tiles, types.sums)
    num_curvatures = num_factor_curvatures(factors) + num_reduced_tiles
    arena.reserve("curvatures", num_curvatures, types.sums)
    arena.reserve("descents", num_reduced_tiles, types.sums)
    arena.reserve("models", MODEL_DIM * sum(plan.num_tiles for plan in nodes), types.sums)
    for state in ("nodes", "candidate"):
        for plan in nodes:
            scalars = array_scalars(plan.node.storage_dim, types.storage, plan.count)
            arena.reserve(f"{plan.node.name}.{state}", scalars, types.storage)
        # one copy accepts a step, all node types or none
        first, last = nodes[0].node.name, nodes[-1].node.name
        arena.join(f"all {state}", f"{first}.{state}", f"{last}.{state}")
    reduced = [plan for plan in nodes if not plan.is_eliminated]
    eliminated = [plan for plan in nodes if plan.is_eliminated]
    # cleared by one launch, and those of reduced types copied by one
    _reserve_factorized(arena, types, (*eliminated, *reduced), "diagonal")
    _reserve_sums(arena, types, eliminated, "")
    _reserve_sums(arena, types, reduced, "")
    first, last = (*eliminated, *reduced)[0].node.name, reduced[-1].node.name
    is_scaled = any(plan.form.jacobian.is_stored for plan in factors)
    start = f"{first}.diagonal" if is_scaled else f"{first}.gradient"
    arena.join("all sums", start, f"{last}.block")
    if len(eliminated) > 0:
        _reserve_sums(arena, types, reduced, "reduced_")
        for prefix in ("", "reduced_"):
            first = reduced[0].node.name
            arena.join(f"{prefix}sums", f"{first}.{prefix}gradient", f"{last}.{prefix}block")
        for plan in eliminated:
            _reserve_node(arena, types, plan, ("inner",))
        first, last = eliminated[0].node.name, eliminated[-1].node.name
        arena.join("all inner", f"{first}.inner", f"{last}.inner")
    _reserve_factorized(arena, types, nodes, "preconditioner")
    for plan in reduced:
        names = ("step", "residual", "direction", "product", "preconditioned")
        _reserve_node(arena, types, plan, names)
    for factor in factors:
        _reserve_factor(arena, types, factor, library.jacobian_dims[factor.factor.name])
    arena.reserve_shared(_partial_groups(factors, types))
    return arena


def _reserve_sums(arena: ArenaPlan, types: Types, nodes: Sequence[NodePlan], prefix: str) -> None:
    for plan in nodes:
        dim = plan.node.tangent_dim
        for part, scalars in (("gradient", dim), ("block", dim * (dim + 1) // 2)):
            size = array_scalars(scalars, types.sums, plan.count)
            arena.reserve(f"{plan.node.name}.{prefix}{part}", size, types.sums)


def _reserve_factorized(
    arena: ArenaPlan, types: Types, nodes: Sequence[NodePlan], part: str
) -> None:
    for plan in nodes:
        dim = plan.node.tangent_dim
        scalars = dim if part == "diagonal" else dim * (dim + 1) // 2
        size = array_scalars(scalars, types.storage, plan.count)
        arena.reserve(f"{plan.node.name}.{part}", size, types.storage)


def _reserve_node(arena: ArenaPlan, types: Types, plan: NodePlan, parts: Sequence[str]) -> None:
    size = array_scalars(plan.node.tangent_dim, types.storage, plan.count)
    for part in parts:
        arena.reserve(f"{plan.node.name}.{part}", size, types.storage)


def _reserve_factor(arena: ArenaPlan, types: Types, plan: FactorPlan, jacobian_dim: int) -> None:
    name, count = plan.factor.name, plan.count
    stored = plan.form.jacobian.dtype(types)
    jacobian = array_scalars(jacobian_dim, stored, count)
    arena.reserve(f"{name}.jacobian", jacobian, stored.in_arrays)
    residual = array_scalars(len(plan.factor.residual), types.storage, count)
    arena.reserve(f"{name}.residual", residual, types.storage)
    for argument in plan.factor.arguments:
        rows = plan.order.constant_rows.get(argument.source)
        if rows is not None:
            scalars = array_scalars(argument.storage_dim, types.storage, rows)
            arena.reserve(f"{name}.{argument.name}", scalars, types.storage)


def _partial_groups(
    factors: Sequence[FactorPlan], types: Types
) -> list[list[tuple[str, int, DType]]]:
    """Partial sums that are never in use at the same time.

    Those of a factor's linearisation (and reduction) are summed before the next factor's begin;
    products of all factors run together.
    """
    linearize, product = [], []
    for plan in factors:
        own = []
        for argument in plan.factor.nodes:
            if not plan.has_partials(argument):
                continue
            assert argument.node is not None
            name = f"{plan.factor.name}.{argument.name}"
            dim = argument.node.tangent_dim
            partials = plan.num_partials(argument)
            own.append((f"{name}_gradient", dim * partials, types.sums))
            if plan.form.jacobian.is_stored:
                own.append((f"{name}_diagonal", dim * partials, types.storage))
            own.append((f"{name}_block", dim * (dim + 1) // 2 * partials, types.sums))
            product.append((f"{name}_product", dim * partials, types.storage))
        linearize.append(own)
    return [*linearize, product]
