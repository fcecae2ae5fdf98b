"""The structure of a problem, and where its arrays are: what the launches will be bound to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caspar.equations.factor_builder import FactorForm, SharedSums
from caspar.equations.parts import FactorPart, Layout, NodePart, SolverPart, value_dtype
from caspar.equations.solver_form import couples_one_type
from caspar.frontend.factors.trace import Argument, ArgumentKind, NodeType, TracedFactor
from caspar.frontend.precision import Types
from caspar.memory.accessors.sums.partials import MAX_SLOTS, num_slots
from caspar.memory.array import Array, address
from caspar.memory.tiling.node_tiles import NodeOrder, NodeTiles
from caspar.memory.tiling.tiles import TileIndex
from caspar.solver.limits import Limits
from caspar.solver.plan.arena import ArenaPlan, ArrayKey, OwnedPart, Scratch, Span
from caspar.solver.plan.factor_order import FactorOrder
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.shard import Shard

SCALARS = (
    # written by the host
    "damping",
    "levelling",
    "shortening",
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
    "eliminated_descent",
    "least_pivot",
)
"""The solver's scalars: one float64 array on the device, read by the host in one go."""


@dataclass(frozen=True)
class FactorPlan:
    """The layout of a factor's arrays.

    Attributes:
        tiles: Tiles of each shared node argument whose sums are ordered, by name.
    """

    factor: TracedFactor
    form: FactorForm
    order: FactorOrder
    tiles: Mapping[str, TileIndex]
    num_tiles: int
    first_tile: int

    @property
    def count(self) -> int:
        """Slots: instances, and holes of node tiles."""
        return self.order.num_slots

    @property
    def kind(self) -> tuple[object, ...]:
        """See `Plan.kind`."""
        order, form = self.order, id(self.form)
        indexed = tuple(name for name, index in order.nodes.items() if index is not None)
        flags = order.node_tiles is None, order.node_at is None
        return form, indexed, tuple(order.constants), tuple(self.tiles), flags

    def key(self, part: NodePart | FactorPart, argument: Argument | None = None) -> OwnedPart:
        """Return the key of its arrays: constants and partial sums with the argument."""
        return OwnedPart(part, self.factor.name, "" if argument is None else argument.name)

    @property
    def node_tiles(self) -> NodeTiles:
        """Return the node tiles of a factor that has an eliminated node."""
        assert self.order.node_tiles is not None
        return self.order.node_tiles

    @property
    def constants(self) -> tuple[Argument, ...]:
        """The inputs that have rows of their own."""
        rows = self.order.constant_rows
        return tuple(one for one in self.factor.inputs if one.source in rows)

    def rounded_constants(self, types: Types, library: KernelLibrary) -> tuple[Argument, ...]:
        """The constants that kernels read rounded, and that have another type themselves."""
        if not self.form.linearizes_rounded(types):
            return ()
        read = library.rounded[self.factor.name]
        return tuple(
            one
            for one in self.constants
            if value_dtype(one, types) is not types.storage and one.name in read
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of indices and tiles."""
        return self.order.num_bytes + sum(tiles.num_bytes for tiles in self.tiles.values())

    @property
    def reduced(self) -> tuple[Argument, ...]:
        """The node arguments that are not eliminated."""
        return tuple(node for node in self.factor.nodes if node is not self.form.eliminated)

    def has_partials(self, argument: Argument) -> bool:
        """Return whether sums over an argument go through partials."""
        return argument.name in self.tiles or argument.kind is ArgumentKind.NODE_UNIQUE

    def num_partials(self, argument: Argument) -> int:
        """Partial sums a node argument has, where it has any."""
        tiles = self.tiles.get(argument.name)
        return self.num_tiles if tiles is None else tiles.num_partials


@dataclass(frozen=True)
class NodePlan:
    """The layout of a node type's arrays.

    Attributes:
        first_tile: First place of its partials in the sums over node types.
        num_slots: Copies of each instance in `product`; see `accessors.slots`.
        order: Order of all its arrays, if it is eliminated; None: as it was given.
        has_many_slots: Whether its step kernel is the one for many slots.
    """

    node: NodeType
    count: int
    is_eliminated: bool
    first_tile: int
    num_tiles: int
    num_slots: int
    order: NodeOrder | None
    has_many_slots: bool = False
    is_masked: bool = False
    is_bounded: bool = False

    @property
    def kind(self) -> tuple[object, ...]:
        """See `Plan.kind`."""
        flags = self.is_eliminated, self.has_many_slots, self.is_masked, self.is_bounded
        return self.node.name, flags, self.order is None

    def key(self, part: NodePart) -> OwnedPart:
        """Return the key of its arrays."""
        return OwnedPart(part, self.node.name)

    @property
    def num_bytes(self) -> int:
        """Bytes of the order."""
        return 0 if self.order is None else self.order.num_bytes

    def num_rows(self, part: NodePart) -> int:
        """Objects that an array of a part has."""
        return self.count * self.num_slots if part.layout is Layout.SLOTS else self.count


@dataclass(frozen=True)
class Plan:
    """Memory and structure of a solve.

    Attributes:
        jacobians_are_shared: Whether candidates are in the bytes of the Jacobians, which have to be
            made again after a rejected step.
        shard: What it knows of the whole problem, if it is a part of one; else None.
    """

    library: KernelLibrary
    types: Types
    factors: tuple[FactorPlan, ...]
    nodes: tuple[NodePlan, ...]
    memory: Mapping[ArrayKey, Array]
    arena: ArenaPlan[ArrayKey]
    num_bytes: int
    jacobians_are_shared: bool
    limits: Limits
    shard: Shard | None = None

    @property
    def num_factor_curvatures(self) -> int:
        """Sums that factors have in the curvature."""
        return num_factor_curvatures(self.factors, self.shard)

    def num_objects(self, part: SolverPart) -> int:
        """Objects of an array that a solve has once."""
        return num_objects(part, self.factors, self.nodes, self.shard)

    @property
    def num_reduced_tiles(self) -> int:
        """Tiles of the reduced node types, which stand first."""
        return sum(plan.num_tiles for plan in self.reduced)

    @cached_property
    def node_plans(self) -> dict[str, NodePlan]:
        """Plans of node types, by name."""
        return {plan.node.name: plan for plan in self.nodes}

    @cached_property
    def factor_plans(self) -> dict[str, FactorPlan]:
        """Plans of factors, by name."""
        return {plan.factor.name: plan for plan in self.factors}

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of plans whose launches are the same but for numbers and addresses."""
        flags = self.goes_ahead, self.jacobians_are_shared
        owners = (*(one.kind for one in self.factors), *(one.kind for one in self.nodes))
        return id(self.library), flags, owners

    @property
    def reduced(self) -> tuple[NodePlan, ...]:
        """Node types whose steps the linear solver finds."""
        return tuple(plan for plan in self.nodes if not plan.is_eliminated)

    @cached_property
    def is_chained(self) -> bool:
        """Return whether a factor couples two nodes of a type that remains; ties do not count."""
        return any(couples_one_type(one.reduced) for one in self.factors if not one.factor.is_tie)

    @property
    def is_scaled(self) -> bool:
        """Return whether linear systems are solved in scaled variables."""
        return any(plan.form.jacobian.is_stored for plan in self.factors)

    @property
    def rounds_values(self) -> bool:
        """Return whether kernels recompute Jacobians from values rounded to the storage type."""
        return self.types.rounds_values and any(
            not plan.form.jacobian.is_stored for plan in self.factors
        )

    @property
    def linearization_needs_damping(self) -> bool:
        """Return whether a linearisation depends on the damping of the next or earlier steps."""
        has_loss = any(plan.factor.loss is not None for plan in self.factors)
        return self.is_scaled or has_loss or any(node.is_bounded for node in self.nodes)

    @cached_property
    def goes_ahead(self) -> bool:
        """Return whether a candidate is linearised before the host decides on accepting it.

        Not with bounds: the free components at the candidate would overwrite those at the nodes.
        Nor on several devices, which would wait for each other in vain.
        """
        if self.shard is not None or any(node.is_bounded for node in self.nodes):
            return False
        num_factors = sum(plan.count for plan in self.factors)
        is_small = num_factors <= self.limits.max_factors_ahead and not self.jacobians_are_shared
        return self.library.backend.traits.launches_are_asynchronous and is_small

    @property
    def linearized_state(self) -> NodePart:
        """NODES or CANDIDATE: where Jacobians are taken.

        Until a step is retracted the candidate is the same as the nodes: it was accepted, or has
        become them again.
        """
        return NodePart.CANDIDATE if self.goes_ahead else NodePart.NODES

    @property
    def is_ordered(self) -> bool:
        """Return whether sums over factors are partials, not slots that atomics add to."""
        return all(plan.form.sums is SharedSums.ORDERED for plan in self.factors)

    @property
    def eliminated(self) -> tuple[NodePlan, ...]:
        """Node types whose steps follow from the others'."""
        return tuple(plan for plan in self.nodes if plan.is_eliminated)

    def address(self, key: ArrayKey) -> int:
        """Return the address of an array."""
        return self._first_address + self.arena.regions[key].first_byte

    @cached_property
    def _first_address(self) -> int:
        first = self.arena.regions[SolverPart.SCALARS].first_byte
        return address(self.memory[SolverPart.SCALARS]) - first

    def scratch(self) -> Scratch:
        """Memory that is free while values are brought in or out."""
        return Scratch(self.library.backend, self.memory[Span.SCRATCH])

    def no_scratch(self) -> Scratch:
        """Return a scratch for the iterations, which allocates every array."""
        backend = self.library.backend
        return Scratch(backend, backend.xp.empty(0, dtype=np.uint8))

    def scalar(self, name: str) -> Array:
        """One of `SCALARS`, as a (1,) view."""
        place = SCALARS.index(name)
        return self.memory[SolverPart.SCALARS][place : place + 1]


def num_factor_curvatures(factors: Sequence[FactorPlan], shard: Shard | None) -> int:
    """One for each tile where sums are ordered, else slots: as many on all devices."""
    if any(plan.form.sums is SharedSums.ATOMIC for plan in factors):
        if shard is not None:
            return MAX_SLOTS
        return num_slots(sum(plan.num_tiles for plan in factors))
    return sum(plan.num_tiles for plan in factors)


def num_objects(
    part: SolverPart, factors: Sequence[FactorPlan], nodes: Sequence[NodePlan], shard: Shard | None
) -> int:
    """Objects of an array that a solve has once: numbers, or partial sums."""
    num_reduced_tiles = sum(plan.num_tiles for plan in nodes if not plan.is_eliminated)
    match part:
        case SolverPart.SCALARS:
            return len(SCALARS)
        case SolverPart.COSTS:
            return sum(plan.num_tiles for plan in factors)
        case SolverPart.BEYOND_SCALE:
            has_loss = any(plan.factor.loss is not None for plan in factors)
            return sum(plan.num_tiles for plan in factors) if has_loss else 0
        case SolverPart.CURVATURES:
            return num_factor_curvatures(factors, shard) + num_reduced_tiles
        case SolverPart.DESCENTS:
            return num_reduced_tiles
        case SolverPart.MODELS:
            return sum(plan.num_tiles for plan in nodes)
