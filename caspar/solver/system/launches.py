"""Binding: the kernels of a plan to its memory.

Once for each plan. What comes out are launches; `phases` puts them in the order of the iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from caspar.equations.factor_kernels import exact_role
from caspar.equations.parts import LIMITS, REDUCED, FactorPart, Layout, NodePart, SolverPart
from caspar.frontend.factors.trace import Argument
from caspar.frontend.names import ROUNDED_VALUE
from caspar.ir.dtype import CHUNK_BYTES, DType
from caspar.memory.access import TILES, BoundWrite
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array, address
from caspar.memory.binding import Binding
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.layout import rows_are_blocked
from caspar.memory.tiling.tiles import TileIndex
from caspar.runtime.backend import Launch
from caspar.solver.plan.array_key import ArrayKey
from caspar.solver.plan.plan import SCALARS, FactorPlan, NodePlan, Plan

NOTHING: Mapping[str, Binding] = {}

ELIMINATED_PARTS = (*REDUCED, NodePart.DIAGONAL, NodePart.PRECONDITIONER, NodePart.INNER)
"""What kernels of a factor may touch of the node that is eliminated."""

LINEARIZED_ROLES = ("scale", "factorize")
"""Kernels of a node type that make D, of the values at which Jacobians are taken."""

REDUCED_ROLES = ("start", "begin_direct")
"""Kernels of a node type that take the gradient of the reduced system."""

NODE_TOTALS = (SolverPart.CURVATURES, SolverPart.DESCENTS, SolverPart.MODELS)
"""Sums over all items that kernels of node types add to."""


@cache
def _type_of(dtype: np.dtype[Any]) -> DType:
    """NumPy takes microseconds to make a name."""
    return DType(dtype.name)


class _Conversion(NamedTuple):
    """A launch that packs or unpacks rows wherever they are.

    Attributes:
        launch: The launch.
        place: The parameter that is the address of the rows.
        run: Runs it.
        region: Of the arena.
    """

    launch: Launch
    place: int
    run: Callable[[], None]
    region: Array


class Binder:
    """Binds kernels of a plan to its memory."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._backend = plan.library.backend
        self._memory = plan.memory
        # each is asked for dozens of times, and a view of a device's array takes microseconds
        self._scalars = {name: Binding(plan.scalar(name), 1) for name in SCALARS}
        self._parts = {node.node.name: self._bind_parts(node) for node in plan.nodes}
        self._one_object: dict[int, TileIndex] = {}
        self._conversions: dict[tuple[Direction, ArrayKey, int], _Conversion] = {}
        plan.library.load_reductions(
            spec
            for factor in plan.factors
            for argument in factor.reduced
            for part in (*REDUCED, *factor.form.linearized(argument), NodePart.PRODUCT)
            for spec in self._sum(factor, argument, part).reductions
        )

    # -- memory --------------------------------------------------------------------------------

    def pack(self, key: ArrayKey, rows: Array) -> None:
        """Enqueue: (n, dim) rows to a blocked region of the arena."""
        self._convert(Direction.PACK, key, rows)

    def unpack(self, key: ArrayKey, rows: Array) -> None:
        """Enqueue: a blocked region of the arena to (n, dim) rows."""
        self._convert(Direction.UNPACK, key, rows)

    def _convert(self, direction: Direction, key: ArrayKey, rows: Array) -> None:
        count, dim = (int(size) for size in rows.shape)
        region = self._memory[key]
        dtype = _type_of(region.dtype)
        if rows_are_blocked(dim, dtype):
            packs = direction is Direction.PACK
            target, source = (region, rows.reshape(-1)) if packs else (rows.reshape(-1), region)
            self._backend.copy(target, source)
            return
        made = self._conversions.get((direction, key, count))
        if made is None or made.region is not region:
            kernel = self._plan.library.kernel(ConvertSpec(direction, dim, dtype).name)
            bindings = {"rows": Binding(rows, count), "blocked": Binding(region, count)}
            launch = self._backend.bind(kernel, bindings, count)
            places = [place for place, one in enumerate(launch.values) if one is rows]
            if len(places) == 0:
                self._backend.runner([launch])()
                return
            launch = launch.without([rows])
            made = _Conversion(launch, places[0], self._backend.runner([launch]), region)
            self._conversions[direction, key, count] = made
        made.launch.set_address(made.place, address(rows))
        made.run()

    def clear(self, key: ArrayKey) -> Launch:
        """Zeros to a region."""
        return self._on_chunks("clear", target=self._memory[key])

    def clear_array(self, array: Array) -> Launch:
        """Zeros to float32 numbers in whole 16 bytes."""
        return self._on_chunks("clear", target=array)

    def clear_curvatures(self) -> Launch:
        """Zeros to what factors add to p.(A p)."""
        slots = self._memory[SolverPart.CURVATURES][: self._plan.num_factor_curvatures]
        return self._on_chunks("clear", target=slots.view(np.float32))

    def copy(self, target: ArrayKey, source: ArrayKey) -> Launch:
        """A region to another of the same make."""
        return self._on_chunks("copy", target=self._memory[target], source=self._memory[source])

    def _on_chunks(self, kernel: str, **arrays: Array) -> Launch:
        """A kernel whose items are 16 bytes; regions end on more than that."""
        num_items = -(-int(arrays["target"].nbytes) // CHUNK_BYTES)
        bindings = {name: Binding(array, num_items) for name, array in arrays.items()}
        return self._backend.bind(self._plan.library.kernel(kernel), bindings, num_items)

    # -- scalars and sums ----------------------------------------------------------------------

    def _total(self, part: SolverPart, offset: int | None = None) -> Binding:
        """Sums over all items; `offset`: where those of a kernel that adds to them begin."""
        fields = {} if offset is None else {"offset": offset}
        return Binding(self._memory[part], self._plan.num_objects(part), fields=fields)

    def scalars(self) -> dict[str, Binding]:
        """The solver's scalars, by name."""
        return dict(self._scalars)

    def scalar_launch(self, name: str, more: Mapping[str, Binding] = NOTHING) -> Launch:
        """A kernel of one item; `more` is bound besides."""
        totals = {part.text: self._total(part) for part in (SolverPart.COSTS, *NODE_TOTALS)}
        bindings = {**self._scalars, **totals, **more}
        return self._backend.bind(self._plan.library.kernel(name), bindings, 1)

    # -- node types ----------------------------------------------------------------------------

    def node_launch(
        self, plan: NodePlan, role: str, more: Mapping[str, Binding] = NOTHING
    ) -> Launch:
        """A kernel of a node type; `more` is bound besides."""
        bindings = {**self._scalars, **self._parts[plan.node.name]}
        if role in LINEARIZED_ROLES and self._plan.goes_ahead and not plan.is_eliminated:
            influence = bindings[NodePart.CANDIDATE_INFLUENCE.text]
            bindings[NodePart.INFLUENCE.text] = influence
        # where nothing is eliminated the reduced system is the system
        bindings.setdefault(NodePart.REDUCED_BLOCK.text, bindings[NodePart.BLOCK.text])
        reduced_gradient = bindings.get(NodePart.REDUCED_GRADIENT.text)
        if role in ("activate", "round"):
            bindings[NodePart.NODES.text] = bindings[self._plan.linearized_state.text]
        if role in REDUCED_ROLES and reduced_gradient is not None:
            bindings[NodePart.GRADIENT.text] = reduced_gradient
        # those of factors stand first
        num_factors = self._plan.num_factor_curvatures
        for part in NODE_TOTALS:
            first = num_factors if part is SolverPart.CURVATURES else 0
            bindings[part.addend] = self._total(part, first + plan.first_tile)
        bindings |= more
        kernel = self._plan.library.kernel_of(plan.node.name, role)
        return self._backend.bind(kernel, bindings, plan.count)

    def _bind_parts(self, plan: NodePlan) -> dict[str, Binding]:
        """All arrays of a node type, by what its kernels call them."""
        parts = {}
        for part in NodePart:
            data = self._memory.get(plan.key(part))
            if data is not None:
                has_slots = part.layout is Layout.SLOTS
                slots = {"slots": plan.num_slots, "stride": plan.count} if has_slots else {}
                parts[part.text] = Binding(data, plan.num_rows(part), fields=slots)
        return parts

    # -- factors -------------------------------------------------------------------------------

    def score(self, plan: FactorPlan, state: NodePart) -> Launch:
        """Residual and cost at NODES or CANDIDATE."""
        bindings = self._arguments(plan, state)
        bindings[SolverPart.COSTS.addend] = self._total(SolverPart.COSTS, plan.first_tile)
        if plan.factor.loss is not None:
            beyond = self._total(SolverPart.BEYOND_SCALE, plan.first_tile)
            bindings[SolverPart.BEYOND_SCALE.addend] = beyond
        return self._bind(plan, "score", bindings)

    def linearize(self, plan: FactorPlan, *, exact: bool) -> list[Launch]:
        """Gradients, and diagonal blocks or their diagonals."""
        role = self.exact_role(plan, "linearize") if exact else "linearize"
        parts = [plan.form.linearized(argument) for argument in plan.reduced]
        all_parts = tuple(dict.fromkeys(chain.from_iterable(parts)))
        bindings = self._with_sums(plan, all_parts)
        launches = [self._bind(plan, role, bindings)]
        if role == "linearize" and plan.form.linearizes_rounded(self._plan.types):
            launches.append(self._bind(plan, "gradient", bindings))
        for argument, own in zip(plan.reduced, parts, strict=True):
            launches += self._reductions(plan, [argument], own)
        return launches

    def store(self, plan: FactorPlan) -> list[Launch]:
        """Scaled Jacobian and diagonal blocks, where Jacobians are stored."""
        bindings = self._with_sums(plan, (NodePart.BLOCK,))
        roles = [
            role
            for role in ("store", "square")
            if self._plan.library.has_kernel_of(plan.factor.name, role)
        ]
        launches = [self._bind(plan, role, bindings) for role in roles]
        added = filter(plan.form.has_block, plan.reduced)
        return [*launches, *self._reductions(plan, added, (NodePart.BLOCK,))]

    def reduce(self, plan: FactorPlan) -> list[Launch]:
        """What eliminated nodes leave of gradients and diagonal blocks."""
        bindings = self._with_sums(plan, (*REDUCED,), reduced=True)
        eliminated = plan.form.eliminated_argument
        # the eliminated node's gradient is read here
        gradient = self._node_binding(plan, eliminated, NodePart.GRADIENT)
        bindings[NodePart.GRADIENT.of(eliminated)] = gradient
        launch = self._bind(plan, "reduce", bindings)
        return [launch, *self._reductions(plan, plan.reduced, (*REDUCED,), reduced=True)]

    def product(self, plan: FactorPlan, role: str) -> list[Launch]:
        """`product` or `scatter`: adds the system times `direction` to `product`."""
        launch = self._bind(plan, role, self._with_sums(plan, (NodePart.PRODUCT,)))
        return [launch, *self._reductions(plan, plan.reduced, (NodePart.PRODUCT,))]

    def gather(self, plan: FactorPlan, vector: NodePart) -> Launch:
        """Adds to `inner` of the eliminated nodes, for DIRECTION or STEP."""
        bindings = self._with_sums(plan, ())
        for argument in plan.reduced:
            bindings[NodePart.DIRECTION.of(argument)] = self._node_binding(plan, argument, vector)
        return self._bind(plan, "gather", bindings)

    def exact_role(self, plan: FactorPlan, role: str) -> str:
        """A kernel with Jacobians in float64, if there is one, else the usual one."""
        exact = exact_role(role)
        has_one = self._plan.library.has_kernel_of(plan.factor.name, exact)
        return exact if has_one else role

    def inner(self, plan: FactorPlan) -> Launch:
        """Steps of the eliminated nodes alone, from `candidate`."""
        tiles, eliminated = plan.order.node_tiles, plan.form.eliminated_argument
        assert tiles is not None
        bindings = {**self.scalars(), **self._arguments(plan, NodePart.CANDIDATE)}
        exchange = Binding(tiles.node_items, 0, fields=tiles.node_fields)
        for part in self._masks(plan):
            binding = self._node_binding(plan, eliminated, part)
            bindings[part.of(eliminated)] = binding.with_fields(self._placed(plan))
        for number in range(plan.form.inner_iterations + 1):
            for name in ("sum", "spread"):
                bindings[eliminated.part(f"{name}{number + 1}")] = exchange
        return self._bind(plan, "inner", bindings)

    def pair(self, plan: FactorPlan, role: str, more: Mapping[str, Binding]) -> Launch:
        """A kernel that reads Jacobians and writes `more`."""
        return self._bind(plan, role, {**self._with_sums(plan, ()), **more})

    def mix(self, plan: FactorPlan, more: Mapping[str, Binding]) -> list[Launch]:
        """Reduced gradients; C^T C to the blocks; Z of each item to what `more` is bound to."""
        bindings = {**self._with_sums(plan, (*REDUCED,), reduced=True), **more}
        launch = self._bind(plan, "mix", bindings)
        return [launch, *self._reductions(plan, plan.reduced, (*REDUCED,), reduced=True)]

    def _bind(self, plan: FactorPlan, role: str, bindings: Mapping[str, Binding]) -> Launch:
        kernel = self._plan.library.kernel_of(plan.factor.name, role)
        tiles = plan.order.node_tiles
        if kernel.source.stretches and tiles is not None:
            num_blocks = tiles.num_stretches(self._backend.resident_blocks(kernel))
            taken = Binding(tiles.tile_items, num_blocks, fields=tiles.stretch_fields(num_blocks))
            bindings = {**bindings, TILES: taken}
        return self._backend.bind(kernel, bindings, plan.count)

    def _arguments(self, plan: FactorPlan, state: NodePart) -> dict[str, Binding]:
        """Bindings of a factor's arguments and arrays, nodes taken from NODES or CANDIDATE."""
        bindings: dict[str, Binding] = {}
        for argument in plan.factor.inputs:
            if argument.node is None:
                bindings |= self._bind_constant(plan, argument)
                continue
            bindings[argument.value_name] = self._node_binding(plan, argument, state)
            if self._plan.rounds_values:
                rounded = self._node_binding(plan, argument, NodePart.ROUNDED)
                bindings[argument.part(ROUNDED_VALUE)] = rounded
        for part in (FactorPart.RESIDUAL, FactorPart.JACOBIAN, FactorPart.CORRECTION):
            data = self._memory.get(plan.key(part))
            if data is not None:
                bindings[part.text] = Binding(data, plan.count)
        tiles = plan.order.node_tiles
        if tiles is not None:
            bindings[TILES] = Binding(tiles.tile_items, tiles.num_groups, fields=tiles.fields)
        return bindings

    def _bind_constant(self, plan: FactorPlan, argument: Argument) -> dict[str, Binding]:
        """Its rows, and the same rounded, by what kernels call them."""
        key, rounded_key = (
            plan.key(part, argument) for part in (FactorPart.CONSTANT, FactorPart.ROUNDED_CONSTANT)
        )
        index = plan.order.constants.get(argument.source)
        fields = {} if index is None else {"index": index}
        rows = plan.order.constant_rows[argument.source]
        value = Binding(self._memory[key], rows, fields=fields)
        # a kernel that declares what it does not read gets any array of that type
        unread = value.data.view(self._plan.types.storage.value)
        rounded = Binding(self._memory.get(rounded_key, unread), rows, fields=fields)
        return {argument.value_name: value, argument.part(ROUNDED_VALUE): rounded}

    def _with_sums(
        self, plan: FactorPlan, parts: Sequence[NodePart], *, reduced: bool = False
    ) -> dict[str, Binding]:
        """Bindings of everything a factor's kernel may touch, its sums going to some parts.

        Jacobians are of the linearised state, wherever they are. `reduced`: sums go to the parts of
        the reduced system.
        """
        bindings = {**self.scalars(), **self._arguments(plan, self._plan.linearized_state)}
        curvature = self._total(SolverPart.CURVATURES, plan.first_tile)
        slots = {"slots": self._plan.num_factor_curvatures}
        bindings[SolverPart.CURVATURES.addend] = curvature.with_fields(slots)
        for argument in plan.factor.nodes:
            if argument is plan.form.eliminated:
                self._bind_eliminated(plan, argument, bindings)
                continue
            for part in (NodePart.DIRECTION, NodePart.DIAGONAL):
                bindings[part.of(argument)] = self._node_binding(plan, argument, part)
            for part in parts:
                bound = self._bind_sum(plan, argument, part, reduced=reduced)
                bindings[part.of(argument)] = bound.binding
        return bindings

    def _bind_eliminated(
        self, plan: FactorPlan, argument: Argument, bindings: dict[str, Binding]
    ) -> None:
        tiles = plan.order.node_tiles
        assert tiles is not None
        placed = self._placed(plan)
        for part in (*ELIMINATED_PARTS, *self._masks(plan)):
            binding = self._node_binding(plan, argument, part)
            bindings[part.of(argument)] = binding.with_fields(placed)
        for exchanged in ("sum", "spread"):
            exchange = Binding(tiles.node_items, 0, fields=tiles.node_fields)
            bindings[argument.part(exchanged)] = exchange

    @staticmethod
    def _masks(plan: FactorPlan) -> tuple[NodePart, ...]:
        """What kernels of a factor read of what is held of the eliminated node, and its bounds."""
        masks = (NodePart.FREE,) if plan.form.masks_eliminated else ()
        return (*masks, *LIMITS) if plan.form.bounds_eliminated else masks

    @staticmethod
    def _placed(plan: FactorPlan) -> Mapping[str, Array]:
        """How kernels of a factor find the eliminated node's place in a tile."""
        tiles = plan.order.node_tiles
        assert tiles is not None
        if plan.order.node_at is None:
            return tiles.node_fields
        return {**tiles.node_fields, "node_at": plan.order.node_at}

    def _node_binding(self, plan: FactorPlan, argument: Argument, part: NodePart) -> Binding:
        binding = self._parts[argument.node_type.name][part.text]
        index = plan.order.nodes.get(argument.name)
        return binding if index is None else binding.with_fields({"index": index})

    # -- sums over nodes -----------------------------------------------------------------------

    def _sum(self, plan: FactorPlan, argument: Argument, part: NodePart) -> SharedSum:
        """How a factor's items are summed to a part of an argument's nodes."""
        node = argument.node_type
        return SharedSum(
            part.dim(node),
            part.dtype(self._plan.types),
            self._plan.node_plans[node.name].count,
            self._tiles(plan, argument, part),
            rows=part.layout is Layout.ROWS,
        )

    def _tiles(self, plan: FactorPlan, argument: Argument, part: NodePart) -> TileIndex | None:
        """Those of the partials; None: there are none."""
        if argument.name in plan.tiles or not plan.has_partials(argument):
            return plan.tiles.get(argument.name)
        num_sums, node_tiles = plan.num_tiles, plan.order.node_tiles
        if part is NodePart.PRODUCT and plan.form.is_fused and node_tiles is not None:
            product = self._plan.library.kernel_of(plan.factor.name, "product")
            if product.source.stretches:
                # one for each stretch of a node that all share
                num_sums = node_tiles.num_stretches(self._backend.resident_blocks(product))
        if num_sums not in self._one_object:
            self._one_object[num_sums] = self._backend.single_object_tiles(num_sums)
        return self._one_object[num_sums]

    def _bind_sum(
        self, plan: FactorPlan, argument: Argument, part: NodePart, *, reduced: bool
    ) -> BoundWrite:
        output = self._node_binding(plan, argument, REDUCED[part] if reduced else part)
        partials = self._memory.get(plan.key(part, argument))
        return self._sum(plan, argument, part).bind(output, partials)

    def _reductions(
        self,
        plan: FactorPlan,
        arguments: Iterable[Argument],
        parts: Sequence[NodePart],
        *,
        reduced: bool = False,
    ) -> list[Launch]:
        return [
            launch
            for argument in arguments
            if argument is not plan.form.eliminated
            for part in parts
            for launch in self._plan.library.finish(
                self._bind_sum(plan, argument, part, reduced=reduced)
            )
        ]
