"""What the arena of a plan has, and which of it shares bytes.

An iteration linearises, which reads residuals and makes sums and Jacobians; for each damping the
linear solver reads these and makes steps, a retraction makes candidates of the steps, and a score
makes residuals of the candidates. So residuals and what the linear solver makes share bytes. Where
Jacobians are large, so do Jacobians and what comes after the linear solver: a rejected step has
then overwritten them, and the system is linearised again. That costs a fraction of the linear
solve, and few steps are rejected.

Where the device goes ahead (`Plan.goes_ahead`), Jacobians are taken at candidates: these share
bytes with nothing then. The linear solve that begins ahead overwrites the candidate's residuals,
after the linearisation has read them.
"""

from collections.abc import Sequence

from caspar.equations.node_kernels import MODEL_DIM
from caspar.frontend.factors.block_parts import block_dim
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.memory.layout import array_scalars, object_scalars, row_scalars
from caspar.solver.limits import Limits
from caspar.solver.plan.arena import ArenaPlan, Entry
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.plan import SCALARS, FactorPlan, NodePlan, num_factor_curvatures

SCRATCH = "all scratch"
"""Name of everything but values, constants and partial sums: free while values are brought in."""

VECTORS = ("step", "residual", "direction", "product", "preconditioned")


def jacobians_are_shared(
    library: KernelLibrary, types: Types, factors: Sequence[FactorPlan], limits: Limits
) -> bool:
    """Whether a step that was tried has overwritten the Jacobians."""
    sizes = (_jacobian(library, types, plan) for plan in factors)
    return sum(size * dtype.itemsize for _, size, dtype in sizes) >= limits.large_jacobian_bytes


def reserve_regions(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[FactorPlan],
    nodes: Sequence[NodePlan],
    *,
    share_jacobians: bool,
) -> ArenaPlan:
    """Reserve everything that a solve writes.

    Args:
        library: Compiled kernels.
        types: Floating types.
        factors: In the order of the solver.
        nodes: Likewise.
        share_jacobians: Whether candidates are in the bytes of the Jacobians.
    """
    arena = ArenaPlan()
    _reserve_partials(arena, types, factors, nodes)
    _reserve_all(arena, _states(types, nodes, "nodes"))
    _reserve_all(arena, [entry for plan in factors for entry in _constants(types, plan)])
    first_byte = arena.num_bytes
    reduced = [plan for plan in nodes if not plan.is_eliminated]
    eliminated = [plan for plan in nodes if plan.is_eliminated]
    inner = _vectors(types, eliminated, ("inner",))
    made = _made(types, reduced, eliminated)
    candidates = _states(types, nodes, "candidate")
    residuals = [_residual(types, plan) for plan in factors]
    jacobians = [_jacobian(library, types, plan) for plan in factors]
    if share_jacobians:
        _reserve_sums(arena, types, reduced, eliminated, inner)
        arena.reserve_shared([jacobians, [*candidates, *residuals]])
        _reserve_all(arena, made)
    else:
        _reserve_sums(arena, types, reduced, eliminated, [])
        _reserve_all(arena, [*candidates, *jacobians])
        arena.reserve_shared([residuals, [*inner, *made]])
    _join(arena, types, factors, nodes)
    arena.reserve_shared(_partial_groups(factors, types))
    arena.reserve_over(SCRATCH, first_byte)
    return arena


def _reserve_all(arena: ArenaPlan, entries: Sequence[Entry]) -> None:
    arena.reserve_shared([list(entries)])


def _reserve_partials(
    arena: ArenaPlan, types: Types, factors: Sequence[FactorPlan], nodes: Sequence[NodePlan]
) -> None:
    """Scalars, and the partial sums of costs and dot products."""
    num_reduced_tiles = sum(plan.num_tiles for plan in nodes if not plan.is_eliminated)
    arena.reserve("scalars", len(SCALARS), DType.FLOAT64)
    arena.reserve("costs", sum(plan.num_tiles for plan in factors), types.sums)
    num_curvatures = num_factor_curvatures(factors) + num_reduced_tiles
    arena.reserve("curvatures", num_curvatures, types.sums)
    arena.reserve("descents", num_reduced_tiles, types.sums)
    arena.reserve("models", MODEL_DIM * sum(plan.num_tiles for plan in nodes), types.sums)


def _reserve_sums(
    arena: ArenaPlan,
    types: Types,
    reduced: Sequence[NodePlan],
    eliminated: Sequence[NodePlan],
    inner: list[Entry],
) -> None:
    """What a linearisation adds to; `inner` shares bytes with the blocks of eliminated nodes.

    One launch clears all of it, and one copies that of reduced types.
    """
    _reserve_all(arena, _factorized(types, (*eliminated, *reduced), "diagonal"))
    _reserve_all(arena, [_sum(types, plan, "gradient", "") for plan in eliminated])
    arena.reserve_shared([[_sum(types, plan, "block", "") for plan in eliminated], inner])
    _reserve_all(arena, _sums(types, reduced, ""))


def _join(
    arena: ArenaPlan, types: Types, factors: Sequence[FactorPlan], nodes: Sequence[NodePlan]
) -> None:
    """Name what one launch clears or copies."""
    # one copy accepts a step, all node types or none
    for state in ("nodes", "candidate"):
        arena.join(
            f"all {state}", f"{nodes[0].node.name}.{state}", f"{nodes[-1].node.name}.{state}"
        )
    reduced = [plan.node.name for plan in nodes if not plan.is_eliminated]
    eliminated = [plan.node.name for plan in nodes if plan.is_eliminated]
    is_scaled = any(plan.form.jacobian.is_stored for plan in factors)
    if is_scaled:
        start = f"{(*eliminated, *reduced)[0]}.diagonal"
    else:
        start = f"{reduced[0]}.{'diagonal' if len(eliminated) > 0 else 'gradient'}"
    arena.join("all sums", start, f"{reduced[-1]}.block")
    if len(eliminated) > 0:
        for prefix in ("", "reduced_"):
            first, last = f"{reduced[0]}.{prefix}gradient", f"{reduced[-1]}.{prefix}block"
            arena.join(f"{prefix}sums", first, last)
        arena.join("all inner", f"{eliminated[0]}.inner", f"{eliminated[-1]}.inner")


# -- entries ---------------------------------------------------------------------------------------


def _states(types: Types, nodes: Sequence[NodePlan], state: str) -> list[Entry]:
    return [
        (
            f"{plan.node.name}.{state}",
            array_scalars(plan.node.storage_dim, types.storage, plan.count),
            types.storage,
        )
        for plan in nodes
    ]


def _made(types: Types, reduced: Sequence[NodePlan], eliminated: Sequence[NodePlan]) -> list[Entry]:
    """What a linear solver makes, but for `inner`."""
    sums = _sums(types, reduced, "reduced_") if len(eliminated) > 0 else []
    factors = _factorized(types, (*eliminated, *reduced), "preconditioner")
    return [*sums, *factors, *_vectors(types, reduced, VECTORS)]


def _sums(types: Types, nodes: Sequence[NodePlan], prefix: str) -> list[Entry]:
    return [_sum(types, plan, part, prefix) for plan in nodes for part in ("gradient", "block")]


def _sum(types: Types, plan: NodePlan, part: str, prefix: str) -> Entry:
    dim = plan.node.tangent_dim
    scalars = dim if part == "gradient" else block_dim(plan.node)
    of_object = object_scalars if plan.is_eliminated else row_scalars
    size = of_object(scalars, types.sums) * plan.count
    return f"{plan.node.name}.{prefix}{part}", size, types.sums


def _factorized(types: Types, nodes: Sequence[NodePlan], part: str) -> list[Entry]:
    entries = []
    for plan in nodes:
        dim = plan.node.tangent_dim
        scalars = dim if part == "diagonal" else block_dim(plan.node)
        size = array_scalars(scalars, types.storage, plan.count)
        entries.append((f"{plan.node.name}.{part}", size, types.storage))
    return entries


def _vectors(types: Types, nodes: Sequence[NodePlan], parts: Sequence[str]) -> list[Entry]:
    return [
        (
            f"{plan.node.name}.{part}",
            array_scalars(plan.node.tangent_dim, types.storage, plan.num_rows(part)),
            types.storage,
        )
        for plan in nodes
        for part in parts
    ]


def _jacobian(library: KernelLibrary, types: Types, plan: FactorPlan) -> Entry:
    stored = plan.form.jacobian.dtype(types)
    dim = library.jacobian_dims[plan.factor.name]
    size = array_scalars(dim, stored, plan.count)
    return f"{plan.factor.name}.jacobian", size, stored.in_arrays


def _residual(types: Types, plan: FactorPlan) -> Entry:
    size = array_scalars(len(plan.factor.residual), types.storage, plan.count)
    return f"{plan.factor.name}.residual", size, types.storage


def _constants(types: Types, plan: FactorPlan) -> list[Entry]:
    entries = []
    for argument in plan.factor.arguments:
        rows = plan.order.constant_rows.get(argument.source)
        if rows is not None:
            size = array_scalars(argument.storage_dim, types.storage, rows)
            entries.append((f"{plan.factor.name}.{argument.value_name}", size, types.storage))
    return entries


def _partial_groups(factors: Sequence[FactorPlan], types: Types) -> list[list[Entry]]:
    """Partial sums that are never in use at the same time.

    Those of a launch of a factor are summed before the next launch begins; products of all factors
    run together.
    """
    groups, products = [], []
    for plan in factors:
        groups += _linearized_groups(plan, types)
        products += _partials(plan, "product", types)
    return [*groups, products]


def _linearized_groups(plan: FactorPlan, types: Types) -> list[list[Entry]]:
    """Of a linearisation, and of what comes after it: `store`, `reduce`.

    Gradients stand first in both, so that they are the same regions.
    """
    gradients = _partials(plan, "gradient", types)
    diagonals = _partials(plan, "diagonal", types)
    blocks = _partials(plan, "block", types)
    linearized = {part for argument in plan.reduced for part in plan.form.linearized(argument)}
    if linearized >= {"diagonal", "block"}:
        return [[*gradients, *diagonals, *blocks]]
    return [[*gradients, *diagonals], [*gradients, *blocks]]


def _partials(plan: FactorPlan, part: str, types: Types) -> list[Entry]:
    """Partial sums of a part, one array for each argument that has it."""
    entries = []
    for argument in plan.factor.nodes:
        is_made = part != "diagonal" or part in plan.form.linearized(argument)
        if is_made and plan.has_partials(argument):
            dim = argument.tangent_dim
            scalars = block_dim(argument.node_type) if part == "block" else dim
            dtype = types.storage if part in ("diagonal", "product") else types.sums
            name = f"{plan.factor.name}.{argument.part(part)}"
            entries.append((name, scalars * plan.num_partials(argument), dtype))
    return entries
