"""Lay out the arena of a plan: its arrays, and those that share bytes.

An iteration linearises, which reads residuals and makes sums and Jacobians; for each damping the
linear solver reads these and makes steps, a retraction makes candidates of the steps, and a score
makes residuals of the candidates. So residuals and what the linear solver makes share bytes. Where
Jacobians are large, so do Jacobians and what comes after the linear solver: a rejected step has
then overwritten them, and the system is linearised again. That costs a fraction of the linear
solve, and few steps are rejected.

Where the device goes ahead (`Plan.goes_ahead`), Jacobians are taken at candidates: these share
bytes with nothing then. The linear solve that begins ahead overwrites the candidate's residuals,
after the linearisation has read them.

Also here: the one allocation of a plan. Its size is known before, and stated if it does not fit.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from caspar.equations.evaluation import correction_dim
from caspar.equations.parts import FactorPart, Lifetime, NodePart, SolverPart, value_dtype
from caspar.errors import OutOfMemoryError
from caspar.frontend.factors.trace import Argument
from caspar.frontend.precision import Types
from caspar.ir.dtype import DType
from caspar.memory.layout import array_scalars, object_scalars
from caspar.runtime.backend import Backend
from caspar.solver.limits import Limits
from caspar.solver.plan.arena import ArenaPlan, ArenaViews, ArrayKey, Span
from caspar.solver.plan.kernel_library import KernelLibrary
from caspar.solver.plan.plan import FactorPlan, NodePlan, num_objects
from caspar.solver.plan.shard import Shard
from caspar.solver.result.quantities import bytes_text

MORE_DEVICES = (2, 4, 8)

MOST_DEVICES = 1024
"""Beyond which nobody looks."""

UNEVEN = 1.05
"""Times its even share that a device may have: nodes are not split, tiles have holes."""


@dataclass(frozen=True)
class Demand:
    """The memory that a plan, or the part of one device, needs.

    Attributes:
        on_all_bytes: Bytes that each of several devices needs for nodes that remain.
    """

    arena_bytes: int
    on_all_bytes: int
    outside_bytes: int
    num_parts: int

    def of_each(self, devices: int) -> int:
        """Bytes of the arena that each of several devices needs, if all have as much."""
        divided = (self.arena_bytes - self.on_all_bytes) * self.num_parts
        return self.on_all_bytes + divided // devices

    def num_devices(self, free_bytes: int) -> int | None:
        """On how many devices with as much memory the problem fits; None: on none."""
        capacity = free_bytes + self.outside_bytes
        for devices in range(self.num_parts + 1, MOST_DEVICES + 1):
            outside = self.outside_bytes * self.num_parts // devices
            if (self.of_each(devices) + outside) * UNEVEN <= capacity:
                return devices
        return None


def demand_of(
    arena: ArenaPlan[ArrayKey], nodes: Sequence[NodePlan], outside_bytes: int, shard: Shard | None
) -> Demand:
    """Return the memory that a plan needs."""
    remaining = {plan.node.name for plan in nodes if not plan.is_eliminated}
    sizes = {key.text: region.num_bytes for key, region in arena.regions.items()}
    on_all = sum(
        size for name, size in sizes.items() if "." in name and name.partition(".")[0] in remaining
    )
    num_parts = 1 if shard is None else shard.size
    return Demand(arena.num_bytes, min(on_all, arena.num_bytes), outside_bytes, num_parts)


def allocated(
    arena: ArenaPlan[ArrayKey], backend: Backend, demand: Callable[[], Demand]
) -> ArenaViews[ArrayKey]:
    """The arrays of an arena; `demand` is asked for if it does not fit.

    Raises:
        OutOfMemoryError: It does not fit. Nothing was allocated, if the device says what it has
            left. Names needed and free bytes, and on how many devices the problem fits.
    """
    free = backend.free_bytes
    if free is not None and arena.num_bytes > free:
        raise _does_not_fit(
            f"the plan needs {arena.num_bytes:,} bytes of memory, and {backend.device} has "
            f"{free:,}, so nothing was allocated.",
            backend,
            demand(),
            free,
        )
    try:
        return arena.allocate(backend)
    except OutOfMemoryError as error:
        raise _does_not_fit(str(error), backend, demand(), free) from error


def _does_not_fit(why: str, backend: Backend, demand: Demand, free: int | None) -> OutOfMemoryError:
    number = None if free is None else demand.num_devices(free)
    error = OutOfMemoryError(
        f"{why} {_needed_by_devices(demand)} {_fitting(demand, free, number, backend)} Or use "
        "fewer factors, jacobian='recompute', or precision='float32'."
    )
    error.needed_bytes, error.free_bytes, error.num_devices = demand.arena_bytes, free, number
    return error


def _needed_by_devices(demand: Demand) -> str:
    """Say what several devices would need each: nodes that remain, and a share of the rest."""
    each = ", ".join(
        f"{bytes_text(demand.of_each(number))} on each of {number}"
        for number in MORE_DEVICES
        if number > demand.num_parts
    )
    parts = "" if demand.num_parts == 1 else f" of this device, one of {demand.num_parts},"
    taken = f"The plan's arrays{parts} take {bytes_text(demand.arena_bytes)}"
    return f"{taken}; shared by devices=... or by ranks about {each}." if each else f"{taken}."


def _fitting(demand: Demand, free: int | None, number: int | None, backend: Backend) -> str:
    if free is None:
        return ""
    if number is None:
        return (
            f"More devices do not help: nodes that remain take {bytes_text(demand.on_all_bytes)} "
            "on each."
        )
    if backend.traits.members_share_memory:
        return f"It fits on {number} machines with as much memory."
    return f"It fits on {number} such devices with as much memory left."


@dataclass(frozen=True)
class _Sizes:
    """The parts of a plan, by name, from which array sizes follow."""

    factors: Mapping[str, FactorPlan]
    nodes: Mapping[str, NodePlan]
    shard: Shard | None

    def num_objects(self, part: SolverPart) -> int:
        """See `plan.num_objects`."""
        owners = tuple(self.factors.values()), tuple(self.nodes.values())
        return num_objects(part, *owners, self.shard)


Size = Callable[[_Sizes], int]
"""Scalars of an array."""

Entries = list[tuple[ArrayKey, Size, DType]]
"""Regions to be reserved."""

_LAYOUTS: WeakKeyDictionary[KernelLibrary, dict[Hashable, "_Regions"]] = WeakKeyDictionary()
"""Layouts by kind of plan: plans of one kind differ in sizes alone."""


def jacobians_are_shared(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[FactorPlan],
    limits: Limits,
    shard: Shard | None = None,
) -> bool:
    """Return whether a step that was tried has overwritten the Jacobians."""
    if shard is not None:
        # as on the device that has the most: all devices linearise together
        stored, dims = factors[0].form.jacobian.dtype(types), library.jacobian_dims
        scalars = sum(array_scalars(dims[name], stored, most) for name, most in shard.most.items())
        return scalars * stored.in_arrays.itemsize >= limits.large_jacobian_bytes
    sizes = (_jacobian(library, types, plan) for plan in factors)
    return sum(size * dtype.itemsize for size, dtype in sizes) >= limits.large_jacobian_bytes


def reserve_regions(
    library: KernelLibrary,
    types: Types,
    factors: Sequence[FactorPlan],
    nodes: Sequence[NodePlan],
    shard: Shard | None = None,
    *,
    share_jacobians: bool,
) -> ArenaPlan[ArrayKey]:
    """Reserve everything that a solve writes."""
    kinds = tuple(one.kind for one in factors), tuple(one.kind for one in nodes)
    key, known = (share_jacobians, *kinds), _LAYOUTS.setdefault(library, {})
    if key not in known:
        known[key] = _Regions(library, types, factors, nodes, share_jacobians=share_jacobians)
    sizes = _Sizes(
        {one.factor.name: one for one in factors}, {one.node.name: one for one in nodes}, shard
    )
    return known[key].reserved(sizes)


def allocate_cleared(
    arena: ArenaPlan[ArrayKey],
    backend: Backend,
    nodes: Sequence[NodePlan],
    outside_bytes: int,
    shard: Shard | None,
) -> ArenaViews[ArrayKey]:
    """The arrays of an arena; those that nothing may write before they are summed are zero."""
    memory = allocated(arena, backend, lambda: demand_of(arena, nodes, outside_bytes, shard))
    # `collect` sums the model's partials with the initial cost, before any retraction; not every
    # factor has a part in the curvature
    for part in (SolverPart.SCALARS, SolverPart.MODELS, SolverPart.CURVATURES):
        backend.clear(memory[part])
    return memory


class _Regions:
    """The arrays of `equations.parts` that a problem has, by lifetime."""

    def __init__(
        self,
        library: KernelLibrary,
        types: Types,
        factors: Sequence[FactorPlan],
        nodes: Sequence[NodePlan],
        *,
        share_jacobians: bool,
    ) -> None:
        # what is kept for other plans must not keep the library
        self._jacobian_dims = library.jacobian_dims
        self._rounded = {
            plan.factor.name: plan.rounded_constants(types, library) for plan in factors
        }
        self._types = types
        self._factors = factors
        self._nodes = nodes
        self._reduced = [plan for plan in nodes if not plan.is_eliminated]
        self._eliminated = [plan for plan in nodes if plan.is_eliminated]
        # types that remain, where others do not
        self._with_others = self._reduced if len(self._eliminated) > 0 else []
        recomputes = any(not plan.form.jacobian.is_stored for plan in factors)
        self._rounds_values = types.rounds_values and recomputes
        self._steps: list[Callable[[ArenaPlan[ArrayKey], _Sizes], None]] = []
        self._reserve(share_jacobians=share_jacobians)
        # plans have arrays
        self._factors, self._nodes = (), ()
        self._reduced, self._eliminated, self._with_others = [], [], []

    def reserved(self, sizes: _Sizes) -> ArenaPlan[ArrayKey]:
        """The regions of one plan."""
        arena: ArenaPlan[ArrayKey] = ArenaPlan()
        for step in self._steps:
            step(arena, sizes)
        return arena

    def _reserve(self, *, share_jacobians: bool) -> None:
        reduced, eliminated = self._reduced, self._eliminated
        for part in SolverPart:
            self._steps.append(partial(_reserve_part, part, part.dtype(self._types)))
        self._reserve_all(self._of_nodes(Lifetime.VALUES, self._nodes))
        self._reserve_all(self._of_nodes(Lifetime.MASKS, self._nodes))
        self._reserve_all(self._of_nodes(Lifetime.LIMITS, self._nodes))
        self._reserve_all(self._of_factors(Lifetime.VALUES))
        self._steps.append(lambda arena, _: arena.begin(Span.SCRATCH))
        self._reserve_all(self._of_nodes(Lifetime.ROUNDED, self._nodes))
        self._reserve_all(self._of_factors(Lifetime.CORRECTIONS))
        inner = self._of_nodes(Lifetime.INNER, eliminated)
        made = [
            *self._of_nodes(Lifetime.REDUCED_SUMS, self._with_others),
            *self._of_nodes(Lifetime.PRECONDITIONERS, (*eliminated, *reduced)),
            *self._of_nodes(Lifetime.VECTORS, reduced),
        ]
        candidates = self._of_nodes(Lifetime.CANDIDATES, self._nodes)
        residuals = self._of_factors(Lifetime.RESIDUALS)
        jacobians = self._of_factors(Lifetime.JACOBIANS)
        if share_jacobians:
            self._reserve_sums(inner)
            self._reserve_shared([jacobians, [*candidates, *residuals]])
            self._reserve_all(made)
        else:
            self._reserve_sums([])
            self._reserve_all([*candidates, *jacobians])
            self._reserve_shared([residuals, [*inner, *made]])
        self._join()
        self._reserve_shared(self._partial_groups())
        self._steps.append(lambda arena, _: arena.end(Span.SCRATCH))

    def _reserve_all(self, entries: Entries) -> None:
        self._reserve_shared([entries])

    def _reserve_shared(self, groups: list[Entries]) -> None:
        self._steps.append(
            lambda arena, sizes: arena.reserve_shared(
                [[(key, size(sizes), dtype) for key, size, dtype in group] for group in groups]
            )
        )

    def _reserve_sums(self, inner: Entries) -> None:
        """Reserve the sums of a linearisation; `inner` shares bytes with eliminated blocks.

        One launch clears all of them, and one copies those of reduced types.
        """
        reduced, eliminated = self._reduced, self._eliminated
        self._reserve_all(self._of_nodes(Lifetime.SCALES, (*eliminated, *reduced)))
        sums = self._of_nodes(Lifetime.SUMS, eliminated)
        keys = [plan.key(NodePart.BLOCK) for plan in eliminated]
        blocks = [entry for entry in sums if entry[0] in keys]
        self._reserve_all([entry for entry in sums if entry[0] not in keys])
        self._reserve_shared([blocks, inner])
        self._reserve_all(self._of_nodes(Lifetime.SUMS, reduced))

    def _join(self) -> None:
        """Name what one launch clears or copies."""
        nodes, eliminated, with_others = self._nodes, self._eliminated, self._with_others
        is_scaled = any(plan.form.jacobian.is_stored for plan in self._factors)
        # where D is of blocks it is no sum
        scales = self._of_nodes(Lifetime.SCALES, nodes if is_scaled else with_others)
        spans = {
            Span.ALL_NODES: self._of_nodes(Lifetime.VALUES, nodes),
            Span.ALL_CANDIDATES: self._of_nodes(Lifetime.CANDIDATES, nodes),
            Span.ALL_SUMS: [*scales, *self._of_nodes(Lifetime.SUMS, nodes)],
            Span.SUMS: self._of_nodes(Lifetime.SUMS, with_others),
            Span.REDUCED_SUMS: self._of_nodes(Lifetime.REDUCED_SUMS, with_others),
            Span.ALL_INNER: self._of_nodes(Lifetime.INNER, eliminated),
        }
        for span, entries in spans.items():
            if len(entries) > 0:
                keys = [key for key, _, _ in entries]
                self._steps.append(partial(_join, span, keys))

    # -- entries -----------------------------------------------------------------------------------

    def _of_nodes(self, lifetime: Lifetime, nodes: Sequence[NodePlan]) -> Entries:
        parts = [part for part in NodePart if part.lifetime is lifetime]
        return [
            self._entry(plan, part)
            for plan in nodes
            for part in parts
            if part.exists(
                eliminated=plan.is_eliminated,
                masked=plan.is_masked,
                bounded=plan.is_bounded,
                rounded=self._rounds_values,
            )
        ]

    def _entry(self, plan: NodePlan, part: NodePart) -> tuple[ArrayKey, Size, DType]:
        types, name = self._types, plan.node.name
        scalars = part.object_scalars(plan.node, types, eliminated=plan.is_eliminated)
        return (
            plan.key(part),
            lambda sizes: scalars * sizes.nodes[name].num_rows(part),
            part.dtype(types),
        )

    def _of_factors(self, lifetime: Lifetime) -> Entries:
        return [
            entry
            for plan in self._factors
            for part in FactorPart
            if part.lifetime is lifetime
            for entry in self._factor_entries(plan, part)
        ]

    def _factor_entries(self, plan: FactorPlan, part: FactorPart) -> Entries:
        types, name = self._types, plan.factor.name
        match part:
            case FactorPart.CONSTANT:
                return [
                    self._constant(plan, part, argument, value_dtype(argument, types))
                    for argument in plan.constants
                ]
            case FactorPart.ROUNDED_CONSTANT:
                rounded = self._rounded[name]
                return [self._constant(plan, part, one, types.storage) for one in rounded]
            case FactorPart.RESIDUAL:
                return [self._by_item(plan, part, len(plan.factor.residual), types.storage)]
            case FactorPart.CORRECTION:
                dim = correction_dim(plan.factor)
                return [self._by_item(plan, part, dim, types.storage)] if dim > 0 else []
            case FactorPart.JACOBIAN:
                stored = plan.form.jacobian.dtype(types)
                return [self._by_item(plan, part, self._jacobian_dims[name], stored)]

    @staticmethod
    def _by_item(
        plan: FactorPlan, part: FactorPart, dim: int, dtype: DType
    ) -> tuple[ArrayKey, Size, DType]:
        name, scalars = plan.factor.name, object_scalars(dim, dtype)
        return plan.key(part), lambda now: scalars * now.factors[name].count, dtype.in_arrays

    @staticmethod
    def _constant(
        plan: FactorPlan, part: FactorPart, argument: Argument, dtype: DType
    ) -> tuple[ArrayKey, Size, DType]:
        name, source = plan.factor.name, argument.source
        scalars = object_scalars(argument.storage_dim, dtype)
        return (
            plan.key(part, argument),
            lambda now: scalars * now.factors[name].order.constant_rows[source],
            dtype.in_arrays,
        )

    def _partial_groups(self) -> list[Entries]:
        """Partial sums that are never in use at the same time.

        Those of a launch of a factor are summed before the next launch begins; products of all
        factors run together.
        """
        groups, products = [], []
        for plan in self._factors:
            groups += self._linearized_groups(plan)
            products += self._partials(plan, NodePart.PRODUCT)
        return [*groups, products]

    def _linearized_groups(self, plan: FactorPlan) -> list[Entries]:
        """Return the arrays of a linearisation, and of what comes after it: `store`, `reduce`.

        Gradients stand first in both, so that they are the same regions.
        """
        gradients = self._partials(plan, NodePart.GRADIENT)
        diagonals = self._partials(plan, NodePart.DIAGONAL)
        blocks = self._partials(plan, NodePart.BLOCK)
        linearized = {part for argument in plan.reduced for part in plan.form.linearized(argument)}
        if linearized >= {NodePart.DIAGONAL, NodePart.BLOCK}:
            return [[*gradients, *diagonals, *blocks]]
        return [[*gradients, *diagonals], [*gradients, *blocks]]

    def _partials(self, plan: FactorPlan, part: NodePart) -> Entries:
        """Partial sums of a part, one array for each argument that has it."""
        name = plan.factor.name
        return [
            (
                plan.key(part, argument),
                partial(_num_partials, name, argument, part.dim(argument.node_type)),
                part.dtype(self._types),
            )
            for argument in _summed(plan, part)
            if plan.has_partials(argument)
        ]


def _num_partials(factor: str, argument: Argument, dim: int, sizes: _Sizes) -> int:
    return dim * sizes.factors[factor].num_partials(argument)


def _reserve_part(
    part: SolverPart, dtype: DType, arena: ArenaPlan[ArrayKey], sizes: _Sizes
) -> None:
    size = part.dim * sizes.num_objects(part)
    if size > 0:
        arena.reserve(part, size, dtype)


def _join(span: Span, keys: Sequence[ArrayKey], arena: ArenaPlan[ArrayKey], _: _Sizes) -> None:
    arena.join(span, keys)


def _summed(plan: FactorPlan, part: NodePart) -> Iterable[Argument]:
    """The node arguments to whose nodes a factor adds a part."""
    if part is not NodePart.DIAGONAL:
        return plan.factor.nodes
    return (node for node in plan.factor.nodes if part in plan.form.linearized(node))


def _jacobian(library: KernelLibrary, types: Types, plan: FactorPlan) -> tuple[int, DType]:
    stored = plan.form.jacobian.dtype(types)
    dim = library.jacobian_dims[plan.factor.name]
    return array_scalars(dim, stored, plan.count), stored.in_arrays
