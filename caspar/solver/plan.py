"""From a checked problem to memory: what the launches will be bound to.

Once for each solve: sort factors, build tiles, reserve and allocate the arena.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caspar.frontend.node_kernels import MODEL_DIM
from caspar.frontend.precision import Types
from caspar.frontend.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.ir.dtype import DType
from caspar.memory.layout import array_scalars
from caspar.memory.tiles import Array, TileIndex
from caspar.runtime.backend import Backend
from caspar.solver.arena import ArenaPlan
from caspar.solver.kernel_library import KernelLibrary
from caspar.solver.problem import ConstantArray, FactorArrays, Problem

SCALARS = (
    # written by the host
    "damping",
    "linear_tolerance",
    "min_linear_iterations",
    "max_linear_iterations",
    # written by kernels
    "done",
    "alpha",
    "beta",
    "descent",
    "first_descent",
    "linear_iterations",
    "cost",
    "step_gradient",
    "step_residual",
    "step_damping",
    "step_norm",
)
"""The solver's scalars: one float64 array on the device, read by the host in one go."""

NUM_HOST_SCALARS = 4


MANY_PARTIALS_PER_INSTANCE = 0.5
"""Partials of all node arguments for each instance, from which on another order is tried."""


@dataclass(frozen=True)
class FactorPlan:
    """Where a factor's arrays are.

    Attributes:
        factor: The factor.
        arrays: Its indices and constants, in the order of the tiles.
        tiles: Tiles of each shared node argument, by name.
        num_tiles: Tiles of the factor.
        first_tile: First place of its partials in the solver-wide sums.
    """

    factor: TracedFactor
    arrays: FactorArrays
    tiles: Mapping[str, TileIndex]
    num_tiles: int
    first_tile: int

    @property
    def tile_bytes(self) -> int:
        """Bytes of the tiles of all node arguments."""
        return sum(tiles.num_bytes for tiles in self.tiles.values())

    def num_partials(self, argument: Argument) -> int:
        """Partial sums a shared (or unique) node argument has."""
        tiles = self.tiles.get(argument.name)
        return self.num_tiles if tiles is None else tiles.num_partials


@dataclass(frozen=True)
class NodePlan:
    """Where a node type's arrays are.

    Attributes:
        node: The type.
        count: Instances.
        first_tile: First place of its partials in the sums over node types.
    """

    node: NodeType
    count: int
    first_tile: int


@dataclass(frozen=True)
class Plan:
    """Memory and structure of a solve.

    Attributes:
        library: Compiled kernels.
        types: Floating types.
        factors: In the order of the solver.
        nodes: In the order of the solver.
        memory: Views of the arena, by name.
        num_bytes: Size of the arena and of the tiles.
        num_factor_tiles: Tiles of all factors.
        num_node_tiles: Tiles of all node types.
    """

    library: KernelLibrary
    types: Types
    factors: tuple[FactorPlan, ...]
    nodes: tuple[NodePlan, ...]
    memory: Mapping[str, Array]
    num_bytes: int
    num_factor_tiles: int
    num_node_tiles: int

    @cached_property
    def node_plans(self) -> dict[str, NodePlan]:
        """By the node type's name."""
        return {plan.node.name: plan for plan in self.nodes}

    def scalar(self, name: str) -> Array:
        """One of `SCALARS`, as a (1,) view."""
        place = SCALARS.index(name)
        return self.memory["scalars"][place : place + 1]


def make_plan(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    problem: Problem,
) -> Plan:
    """Sort, cut into tiles, reserve and allocate.

    Raises:
        OutOfMemoryError: Names needed and available bytes.
    """
    backend = library.backend
    factor_plans = []
    num_factor_tiles = 0
    for factor in factors:
        tile_size = library.tile_size(factor.name)
        made = _plan_factor(backend, factor, problem, tile_size, num_factor_tiles)
        factor_plans.append(made)
        num_factor_tiles += made.num_tiles
    node_plans = []
    num_node_tiles = 0
    for node in nodes:
        count = int(problem.values[node.name].shape[0])
        node_plans.append(NodePlan(node, count, num_node_tiles))
        num_node_tiles += -(-count // library.tile_size(node.name))
    arena = _reserve(library, types, factor_plans, node_plans, num_factor_tiles, num_node_tiles)
    memory = arena.allocate(backend)
    backend.clear(memory["scalars"])
    # `collect` sums the model's partials with the initial cost, before any retraction
    backend.clear(memory["models"])
    _warn_untouched(backend, factor_plans, node_plans)
    return Plan(
        library,
        types,
        tuple(factor_plans),
        tuple(node_plans),
        memory,
        arena.num_bytes + sum(plan.tile_bytes for plan in factor_plans),
        num_factor_tiles,
        num_node_tiles,
    )


def _plan_factor(
    backend: Backend, factor: TracedFactor, problem: Problem, tile_size: int, first_tile: int
) -> FactorPlan:
    """Put the instances in an order that gives few partials: as given, or sorted for locality."""
    arrays = problem.factors[factor.name]
    num_tiles = -(-arrays.count // tile_size)
    tiles = _build_tiles(backend, factor, problem, arrays, tile_size)
    if _num_partials(tiles) > MANY_PARTIALS_PER_INSTANCE * arrays.count:
        sorted_arrays = _sorted_for_locality(backend, factor, problem, tiles)
        sorted_tiles = _build_tiles(backend, factor, problem, sorted_arrays, tile_size)
        if _num_partials(sorted_tiles) < _num_partials(tiles):
            arrays, tiles = sorted_arrays, sorted_tiles
    return FactorPlan(factor, arrays, tiles, num_tiles, first_tile)


def _num_partials(tiles: Mapping[str, TileIndex]) -> int:
    return sum(one.num_partials for one in tiles.values())


def _build_tiles(
    backend: Backend,
    factor: TracedFactor,
    problem: Problem,
    arrays: FactorArrays,
    tile_size: int,
) -> dict[str, TileIndex]:
    tiles = {}
    for argument in factor.nodes:
        index = arrays.nodes[argument.name]
        if index is not None:
            num_nodes = _num_nodes(problem, argument)
            tiles[argument.name] = backend.tile_index(index, num_nodes, tile_size)
    return tiles


def _num_nodes(problem: Problem, argument: Argument) -> int:
    assert argument.node is not None
    return int(problem.values[argument.node.name].shape[0])


def _sorted_for_locality(
    backend: Backend, factor: TracedFactor, problem: Problem, tiles: Mapping[str, TileIndex]
) -> FactorArrays:
    """The instances of one node together, and nodes with the same partners next to each other.

    The node argument with the most nodes is kept together; its partner is the one that has the
    most partials as the instances are given.
    """
    arrays = problem.factors[factor.name]
    shared = [argument for argument in factor.nodes if argument.name in tiles]
    main = max(shared, key=lambda argument: _num_nodes(problem, argument))
    others = [argument for argument in shared if argument is not main]
    partner = max(others, key=lambda argument: tiles[argument.name].num_partials, default=None)
    order = backend.locality_order(
        arrays.nodes[main.name],
        None if partner is None else arrays.nodes[partner.name],
        _num_nodes(problem, main),
    )
    xp = backend.xp
    nodes = {
        name: None if index is None else xp.take(index, order)
        for name, index in arrays.nodes.items()
    }
    constants = {}
    for argument in factor.arguments:
        constant = arrays.constants.get(argument.source)
        if constant is None:
            continue
        if argument.kind is ArgumentKind.CONST_SEQUENTIAL:
            constant = ConstantArray(xp.take(constant.rows, order, axis=0), None)
        elif constant.index is not None:
            constant = ConstantArray(constant.rows, xp.take(constant.index, order))
        constants[argument.source] = constant
    return FactorArrays(arrays.count, nodes, constants)


def _warn_untouched(
    backend: Backend, factors: Sequence[FactorPlan], nodes: Sequence[NodePlan]
) -> None:
    touched = {plan.node.name: np.zeros(plan.count, dtype=bool) for plan in nodes}
    for plan in factors:
        for argument in plan.factor.nodes:
            assert argument.node is not None
            tiles = plan.tiles.get(argument.name)
            if tiles is None:
                touched[argument.node.name][...] = True
            else:
                start = backend.to_host(tiles.object_start)
                touched[argument.node.name] |= start[1:] > start[:-1]
    for name, flags in touched.items():
        untouched = np.flatnonzero(~flags)
        if untouched.shape[0] > 0:
            warnings.warn(
                f"node type {name}: {untouched.shape[0]} of {flags.shape[0]} instances are touched "
                f"by no factor, first {untouched[0]}; they are kept as they are",
                stacklevel=4,
            )


def _reserve(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[FactorPlan],
    nodes: Sequence[NodePlan],
    num_factor_tiles: int,
    num_node_tiles: int,
) -> ArenaPlan:
    arena = ArenaPlan()
    arena.reserve("scalars", len(SCALARS), DType.FLOAT64)
    arena.reserve("costs", num_factor_tiles, types.sums)
    arena.reserve("curvatures", num_factor_tiles + num_node_tiles, types.sums)
    arena.reserve("descents", num_node_tiles, types.sums)
    arena.reserve("models", MODEL_DIM * num_node_tiles, types.sums)
    for state in ("nodes", "candidate"):
        for plan in nodes:
            scalars = array_scalars(plan.node.storage_dim, types.storage, plan.count)
            arena.reserve(f"{plan.node.name}.{state}", scalars, types.storage)
        # one copy accepts a step, all node types or none
        first, last = nodes[0].node.name, nodes[-1].node.name
        arena.join(f"all {state}", f"{first}.{state}", f"{last}.{state}")
    for plan in nodes:
        _reserve_node(arena, types, plan)
    for factor in factors:
        _reserve_factor(arena, types, factor, library.jacobian_dims[factor.factor.name])
    arena.reserve_shared([group for plan in factors for group in _partial_groups(plan, types)])
    return arena


def _reserve_node(arena: ArenaPlan, types: Types, plan: NodePlan) -> None:
    node, count = plan.node, plan.count
    dim = node.tangent_dim
    triangle = dim * (dim + 1) // 2
    sizes = {
        "gradient": (dim, types.sums),
        "block": (triangle, types.sums),
        "diagonal": (dim, types.storage),
        "preconditioner": (triangle, types.storage),
        **{
            name: (dim, types.storage)
            for name in ("step", "residual", "direction", "product", "preconditioned")
        },
    }
    for name, (scalars, dtype) in sizes.items():
        arena.reserve(f"{node.name}.{name}", array_scalars(scalars, dtype, count), dtype)


def _reserve_factor(arena: ArenaPlan, types: Types, plan: FactorPlan, jacobian_dim: int) -> None:
    name, count = plan.factor.name, plan.arrays.count
    jacobian = array_scalars(jacobian_dim, types.storage, count)
    arena.reserve(f"{name}.jacobian", jacobian, types.storage)
    residual = array_scalars(len(plan.factor.residual), types.storage, count)
    arena.reserve(f"{name}.residual", residual, types.storage)
    for argument in plan.factor.arguments:
        constant = plan.arrays.constants.get(argument.source)
        if constant is not None:
            rows = int(constant.rows.shape[0])
            scalars = array_scalars(argument.storage_dim, types.storage, rows)
            arena.reserve(f"{name}.{argument.name}", scalars, types.storage)


def _partial_groups(plan: FactorPlan, types: Types) -> list[list[tuple[str, int, DType]]]:
    """Partial sums of linearisation and product: used and summed before the next launch."""
    linearize, product = [], []
    for argument in plan.factor.nodes:
        assert argument.node is not None
        name = f"{plan.factor.name}.{argument.name}"
        dim = argument.node.tangent_dim
        partials = plan.num_partials(argument)
        linearize.append((f"{name}_gradient", dim * partials, types.sums))
        linearize.append((f"{name}_block", dim * (dim + 1) // 2 * partials, types.sums))
        product.append((f"{name}_product", dim * partials, types.storage))
    return [linearize, product]
