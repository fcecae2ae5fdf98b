"""Binding: the kernels of a plan to its memory.

What comes out are launches; `phases` puts them in the order of the iterations. Cost tier: once for
each plan; where a backend can bind launches again, a plan of the same kind takes their place for
some 0.2 ms. So bindings are late: they name what they need of the plan, and look it up then.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakSet, proxy

import numpy as np

from caspar.equations.parts import LIMITS, REDUCED, FactorPart, Layout, NodePart, SolverPart
from caspar.frontend.factors.trace import Argument
from caspar.frontend.names import ROUNDED_VALUE
from caspar.ir.dtype import CHUNK_BYTES, DType
from caspar.memory.access import TILES
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array, Binding, Late, Lates, at_present
from caspar.memory.kernel import Direction
from caspar.memory.tiling.tiles import TileIndex
from caspar.runtime.backend import LateNumbers, LateSequence, Launch, LaunchSequence
from caspar.solver.plan.arena import ArrayKey
from caspar.solver.plan.plan import SCALARS, FactorPlan, NodePlan, Plan
from caspar.solver.system.late_launches import Conversions, LateSum

NOTHING: Mapping[str, Binding] = {}

ELIMINATED_PARTS = (*REDUCED, NodePart.DIAGONAL, NodePart.PRECONDITIONER, NodePart.INNER)
"""Parts of the eliminated node that kernels of a factor may touch."""

LINEARIZED_ROLES = ("scale", "factorize")
"""Kernels of a node type that make D, of the values at which Jacobians are taken."""

REDUCED_ROLES = ("start", "begin_direct")
"""Kernels of a node type that take the gradient of the reduced system."""

NODE_TOTALS = (SolverPart.CURVATURES, SolverPart.DESCENTS, SolverPart.MODELS)
"""Sums over all items that kernels of node types add to."""


class Binder:
    """Binds kernels of a plan to its memory.

    Attributes:
        plan: Memory and structure. Another one of the same kind may take its place, see
            `bind_again`.
    """

    def __init__(self, plan: Plan) -> None:
        self._this: Binder = proxy(self)  # bindings are kept by what this keeps
        self.plan = plan
        self._backend = plan.library.backend
        self._library = plan.library
        self._sequences: WeakSet[LateSequence] = WeakSet()
        self.can_bind_again = plan.shard is None
        self._late = Lates()
        self._conversions = Conversions()
        self._scalars = {name: Binding(self._scalar(name), 1) for name in SCALARS}
        self._parts = {node.node.name: self._bind_parts(node) for node in plan.nodes}
        self._one_object: dict[int, TileIndex] = {}
        self._load_reductions()

    def _load_reductions(self) -> None:
        self._library.load_reductions(
            spec
            for factor in self.plan.factors
            for argument in factor.reduced
            for part in (*REDUCED, *factor.form.linearized(argument), NodePart.PRODUCT)
            for spec in self._sum(factor, argument, part).reductions
        )

    # -- late bindings -------------------------------------------------------------------------

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row. As long as it is used it is bound again with the others."""
        made = self._backend.sequence(launches)
        if isinstance(made, LateSequence):
            self._sequences.add(made)
        else:
            self.can_bind_again = False
        return made

    def bind_again(self) -> None:
        """Bind all launches of sequences to what `plan` is now."""
        self._one_object.clear()
        numbers: LateNumbers = {}
        for one in list(self._sequences):
            one.bind_again(numbers)

    def _of_plan(self, key: Hashable, now: Callable[[Plan], Any]) -> Late:
        this = self._this
        return self._late(key, lambda: now(this.plan))

    def _array(self, key: ArrayKey) -> Late:
        this = self._this
        return self._late(key, lambda: this.plan.memory[key], lambda: this.plan.address(key))

    def _scalar(self, name: str) -> Late:
        this = self._this
        first_byte = SCALARS.index(name) * DType.FLOAT64.itemsize
        return self._late(
            ("scalar", name),
            lambda: this.plan.scalar(name),
            lambda: this.plan.address(SolverPart.SCALARS) + first_byte,
        )

    def _num_nodes(self, name: str) -> Late:
        return self._of_plan(("nodes", name), lambda plan: plan.node_plans[name].count)

    def _num_items(self, factor: str) -> Late:
        return self._of_plan(("items", factor), lambda plan: plan.factor_plans[factor].count)

    def _fields(self, key: Hashable, now: Callable[[], Mapping[str, Any]]) -> dict[str, Late]:
        return {name: self._late((key, name), partial(_entry, now, name)) for name in now()}

    # -- memory --------------------------------------------------------------------------------

    def pack(self, key: ArrayKey, rows: Array) -> None:
        """Enqueue: (n, dim) rows to a blocked region of the arena."""
        self._convert(Direction.PACK, key, rows)

    def unpack(self, key: ArrayKey, rows: Array) -> None:
        """Enqueue: a blocked region of the arena to (n, dim) rows."""
        self._convert(Direction.UNPACK, key, rows)

    def _convert(self, direction: Direction, key: ArrayKey, rows: Array) -> None:
        self._conversions.run(self.plan, direction, key, rows, self._array(key))

    def clear(self, key: ArrayKey) -> Launch:
        """Zeros to a region."""
        return self._on_chunks("clear", target=self._array(key))

    def clear_array(self, array: Array | Late) -> Launch:
        """Zeros to float32 numbers in whole 16 bytes."""
        return self._on_chunks("clear", target=array)

    def clear_curvatures(self) -> Launch:
        """Zeros to what factors add to p.(A p)."""

        def slots(plan: Plan) -> Array:
            numbers = plan.memory[SolverPart.CURVATURES][: plan.num_factor_curvatures]
            return numbers.view(np.float32)

        return self._on_chunks("clear", target=self._of_plan("curvature slots", slots))

    def copy(self, target: ArrayKey, source: ArrayKey) -> Launch:
        """A region to another of the same make."""
        return self._on_chunks("copy", target=self._array(target), source=self._array(source))

    def _on_chunks(self, kernel: str, **arrays: Array | Late) -> Launch:
        """A kernel whose items are 16 bytes; regions end on more than that."""
        target = arrays["target"]
        num_items = Late(lambda: -(-int(at_present(target).nbytes) // CHUNK_BYTES))
        bindings = {name: Binding(array, num_items) for name, array in arrays.items()}
        return self._backend.bind(self._library.kernel(kernel), bindings, num_items)

    # -- scalars and sums ----------------------------------------------------------------------

    def _total(self, part: SolverPart, offset: Late | None = None) -> Binding:
        """Sums over all items; `offset`: where those of a kernel that adds to them begin."""
        fields = {} if offset is None else {"offset": offset}
        length = self._of_plan(("objects", part), lambda plan: plan.num_objects(part))
        return Binding(self._array(part), length, fields=fields)

    def _first_tile(self, factor: str) -> Late:
        key = ("first tile", factor)
        return self._of_plan(key, lambda plan: plan.factor_plans[factor].first_tile)

    def scalars(self) -> dict[str, Binding]:
        """The solver's scalars, by name."""
        return dict(self._scalars)

    def scalar_launch(self, name: str, more: Mapping[str, Binding] = NOTHING) -> Launch:
        """A kernel of one item; `more` is bound besides."""
        totals = {part.text: self._total(part) for part in (SolverPart.COSTS, *NODE_TOTALS)}
        bindings = {**self._scalars, **totals, **more}
        return self._backend.bind(self._library.kernel(name), bindings, 1)

    # -- node types ----------------------------------------------------------------------------

    def node_launch(
        self, plan: NodePlan, role: str, more: Mapping[str, Binding] = NOTHING
    ) -> Launch:
        """A kernel of a node type; `more` is bound besides."""
        name = plan.node.name
        bindings = {**self._scalars, **self._parts[name]}
        if role in LINEARIZED_ROLES and self.plan.goes_ahead and not plan.is_eliminated:
            influence = bindings[NodePart.CANDIDATE_INFLUENCE.text]
            bindings[NodePart.INFLUENCE.text] = influence
        # where nothing is eliminated the reduced system is the system
        bindings.setdefault(NodePart.REDUCED_BLOCK.text, bindings[NodePart.BLOCK.text])
        reduced_gradient = bindings.get(NodePart.REDUCED_GRADIENT.text)
        if role in ("activate", "round"):
            bindings[NodePart.NODES.text] = bindings[self.plan.linearized_state.text]
        if role in REDUCED_ROLES and reduced_gradient is not None:
            bindings[NodePart.GRADIENT.text] = reduced_gradient
        for part in NODE_TOTALS:
            bindings[part.addend] = self._total(part, self._first_of_nodes(part, name))
        bindings |= more
        kernel = self._library.kernel_of(name, role)
        return self._backend.bind(kernel, bindings, self._num_nodes(name))

    def _first_of_nodes(self, part: SolverPart, name: str) -> Late:
        """Find where the sums of a node type begin: those of factors come first."""

        def first(plan: Plan) -> int:
            before = plan.num_factor_curvatures if part is SolverPart.CURVATURES else 0
            return before + plan.node_plans[name].first_tile

        return self._of_plan(("first of nodes", part, name), first)

    def _bind_parts(self, plan: NodePlan) -> dict[str, Binding]:
        """All arrays of a node type, by what its kernels call them."""
        name, parts = plan.node.name, {}
        slots = self._of_plan(("slots", name), lambda now: now.node_plans[name].num_slots)
        for part in NodePart:
            key = plan.key(part)
            if key not in self.plan.memory:
                continue
            fields, length = {}, self._num_nodes(name)
            if part.layout is Layout.SLOTS:
                fields = {"slots": slots, "stride": length}
                length = self._of_plan(("rows", name, part), partial(_num_rows, name, part))
            parts[part.text] = Binding(self._array(key), length, fields=fields)
        return parts

    # -- factors -------------------------------------------------------------------------------

    def score(self, plan: FactorPlan, state: NodePart) -> Launch:
        """Residual and cost at NODES or CANDIDATE."""
        bindings = self._arguments(plan, state)
        first_tile = self._first_tile(plan.factor.name)
        bindings[SolverPart.COSTS.addend] = self._total(SolverPart.COSTS, first_tile)
        if plan.factor.loss is not None:
            beyond = self._total(SolverPart.BEYOND_SCALE, first_tile)
            bindings[SolverPart.BEYOND_SCALE.addend] = beyond
        return self._bind(plan, "score", bindings)

    def linearize(self, plan: FactorPlan, *, exact: bool) -> list[Launch]:
        """Gradients, and diagonal blocks or their diagonals."""
        role = self._library.exact_role(plan.factor.name, "linearize") if exact else "linearize"
        parts = [plan.form.linearized(argument) for argument in plan.reduced]
        all_parts = tuple(dict.fromkeys(chain.from_iterable(parts)))
        bindings = self._with_sums(plan, all_parts)
        launches = [self._bind(plan, role, bindings)]
        if role == "linearize" and plan.form.linearizes_rounded(self.plan.types):
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
            if self._library.has_kernel_of(plan.factor.name, role)
        ]
        launches = [self._bind(plan, role, bindings) for role in roles]
        added = filter(plan.form.has_block, plan.reduced)
        return [*launches, *self._reductions(plan, added, (NodePart.BLOCK,))]

    def reduce(self, plan: FactorPlan) -> list[Launch]:
        """Return the launches for what eliminated nodes leave of gradients and diagonal blocks."""
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

    def inner(self, plan: FactorPlan) -> Launch:
        """Steps of the eliminated nodes alone, from `candidate`."""
        eliminated, exchange = plan.form.eliminated_argument, self._exchange(plan.factor.name)
        bindings = {**self.scalars(), **self._arguments(plan, NodePart.CANDIDATE)}
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
        name = plan.factor.name
        kernel = self._library.kernel_of(name, role)
        if kernel.source.stretches and plan.order.node_tiles is not None:
            taken = self._stretches(name, role, self._backend.resident_blocks(kernel))
            bindings = {**bindings, TILES: taken}
        return self._backend.bind(kernel, bindings, self._num_items(name))

    def _stretches(self, factor: str, role: str, num_resident: int) -> Binding:
        """Node tiles of a kernel whose blocks take several of them."""
        this = self._this

        def num_blocks() -> int:
            return this.plan.factor_plans[factor].node_tiles.num_stretches(num_resident)

        def fields() -> Mapping[str, Any]:
            return this.plan.factor_plans[factor].node_tiles.stretch_fields(num_blocks())

        return Binding(
            self._of_tiles(factor, "tile_items"),
            self._late(("stretches", factor, role), num_blocks),
            fields=self._fields(("stretch", factor, role), fields),
        )

    def _of_tiles(self, factor: str, name: str) -> Late:
        return self._of_plan(
            ("node tiles", factor, name),
            lambda plan: getattr(plan.factor_plans[factor].node_tiles, name),
        )

    def _exchange(self, factor: str) -> Binding:
        return Binding(self._of_tiles(factor, "node_items"), 0, fields=self._node_fields(factor))

    def _node_fields(self, factor: str) -> dict[str, Late]:
        return self._fields(("node fields", factor), self._of_tiles(factor, "node_fields").now)

    def _arguments(self, plan: FactorPlan, state: NodePart) -> dict[str, Binding]:
        """Bindings of a factor's arguments and arrays, nodes taken from NODES or CANDIDATE."""
        bindings: dict[str, Binding] = {}
        for argument in plan.factor.inputs:
            if argument.node is None:
                bindings |= self._bind_constant(plan, argument)
                continue
            bindings[argument.value_name] = self._node_binding(plan, argument, state)
            if self.plan.rounds_values:
                rounded = self._node_binding(plan, argument, NodePart.ROUNDED)
                bindings[argument.part(ROUNDED_VALUE)] = rounded
        name = plan.factor.name
        for part in (FactorPart.RESIDUAL, FactorPart.JACOBIAN, FactorPart.CORRECTION):
            if plan.key(part) in self.plan.memory:
                bindings[part.text] = Binding(self._array(plan.key(part)), self._num_items(name))
        if plan.order.node_tiles is not None:
            bindings[TILES] = Binding(
                self._of_tiles(name, "tile_items"),
                self._of_tiles(name, "num_groups"),
                fields=self._fields(("tile fields", name), self._of_tiles(name, "fields").now),
            )
        return bindings

    def _bind_constant(self, plan: FactorPlan, argument: Argument) -> dict[str, Binding]:
        """Bind a constant's rows, exact and rounded, by the names in kernels."""
        key, rounded_key = (
            plan.key(part, argument) for part in (FactorPart.CONSTANT, FactorPart.ROUNDED_CONSTANT)
        )
        name, source = plan.factor.name, argument.source
        fields = {}
        if source in plan.order.constants:
            fields["index"] = self._of_plan(
                ("constant", name, source),
                lambda now: now.factor_plans[name].order.constants[source],
            )
        rows = self._of_plan(
            ("constant rows", name, source),
            lambda now: now.factor_plans[name].order.constant_rows[source],
        )
        value = Binding(self._array(key), rows, fields=fields)
        # a kernel that declares what it does not read gets any array of that type
        is_rounded = rounded_key in self.plan.memory
        unread = self._of_plan(
            ("unread", key), lambda now: now.memory[key].view(now.types.storage.value)
        )
        rounded = Binding(self._array(rounded_key) if is_rounded else unread, rows, fields=fields)
        return {argument.value_name: value, argument.part(ROUNDED_VALUE): rounded}

    def _with_sums(
        self, plan: FactorPlan, parts: Sequence[NodePart], *, reduced: bool = False
    ) -> dict[str, Binding]:
        """Bindings of everything a factor's kernel may touch, its sums going to some parts.

        Jacobians are of the linearised state, wherever they are. `reduced`: sums go to the parts of
        the reduced system.
        """
        bindings = {**self.scalars(), **self._arguments(plan, self.plan.linearized_state)}
        curvature = self._total(SolverPart.CURVATURES, self._first_tile(plan.factor.name))
        slots = {"slots": self._of_plan("slots", lambda now: now.num_factor_curvatures)}
        bindings[SolverPart.CURVATURES.addend] = curvature.with_fields(slots)
        for argument in plan.factor.nodes:
            if argument is plan.form.eliminated:
                self._bind_eliminated(plan, argument, bindings)
                continue
            for part in (NodePart.DIRECTION, NodePart.DIAGONAL):
                bindings[part.of(argument)] = self._node_binding(plan, argument, part)
            for part in parts:
                bindings[part.of(argument)] = self._bind_sum(plan, argument, part, reduced=reduced)
        return bindings

    def _bind_eliminated(
        self, plan: FactorPlan, argument: Argument, bindings: dict[str, Binding]
    ) -> None:
        placed = self._placed(plan)
        for part in (*ELIMINATED_PARTS, *self._masks(plan)):
            binding = self._node_binding(plan, argument, part)
            bindings[part.of(argument)] = binding.with_fields(placed)
        for exchanged in ("sum", "spread"):
            bindings[argument.part(exchanged)] = self._exchange(plan.factor.name)

    @staticmethod
    def _masks(plan: FactorPlan) -> tuple[NodePart, ...]:
        """Return the masks of the eliminated node, and its bounds, that a factor's kernels read."""
        masks = (NodePart.FREE,) if plan.form.masks_eliminated else ()
        return (*masks, *LIMITS) if plan.form.bounds_eliminated else masks

    def _placed(self, plan: FactorPlan) -> Mapping[str, Late]:
        """Return how kernels of a factor find the eliminated node's place in a tile."""
        name = plan.factor.name
        fields = self._node_fields(name)
        if plan.order.node_at is None:
            return fields
        key = ("node at", name)
        node_at = self._of_plan(key, lambda now: now.factor_plans[name].order.node_at)
        return {**fields, "node_at": node_at}

    def _node_binding(self, plan: FactorPlan, argument: Argument, part: NodePart) -> Binding:
        binding = self._parts[argument.node_type.name][part.text]
        if plan.order.nodes.get(argument.name) is None:
            return binding
        factor, name = plan.factor.name, argument.name
        index = self._of_plan(
            ("index", factor, name), lambda now: now.factor_plans[factor].order.nodes[name]
        )
        return binding.with_fields({"index": index})

    # -- sums over nodes -----------------------------------------------------------------------

    def _sum(self, plan: FactorPlan, argument: Argument, part: NodePart) -> SharedSum:
        node = argument.node_type
        return SharedSum(
            part.dim(node),
            part.dtype(self.plan.types),
            self.plan.node_plans[node.name].count,
            self._tiles(plan, argument, part),
            rows=part.layout is Layout.ROWS,
        )

    def _tiles(self, plan: FactorPlan, argument: Argument, part: NodePart) -> TileIndex | None:
        """Return the tiles of the partials; None: there are none."""
        if argument.name in plan.tiles or not plan.has_partials(argument):
            return plan.tiles.get(argument.name)
        num_sums, node_tiles = plan.num_tiles, plan.order.node_tiles
        if part is NodePart.PRODUCT and plan.form.is_fused and node_tiles is not None:
            product = self._library.kernel_of(plan.factor.name, "product")
            if product.source.stretches:
                # one for each stretch of a node that all share
                num_sums = node_tiles.num_stretches(self._backend.resident_blocks(product))
        if num_sums not in self._one_object:
            self._one_object[num_sums] = self._backend.single_object_tiles(num_sums)
        return self._one_object[num_sums]

    def _sum_of(self, plan: FactorPlan, argument: Argument, part: NodePart) -> LateSum:
        this = self._this
        factor, name = plan.factor.name, argument.name
        # products may have others than what is linearised
        key = (factor, name, part is NodePart.PRODUCT)

        def tiles(attribute: str) -> Late:
            return this._late((key, attribute), lambda: getattr(now(), attribute))

        def now() -> TileIndex | None:
            return this._tiles(this.plan.factor_plans[factor], argument, part)

        num_objects = self._num_nodes(argument.node_type.name)
        return self.late_sum(self._sum(plan, argument, part), tiles, num_objects)

    def late_sum(self, sum_: SharedSum, tiles: Callable[[str], Late], num_objects: Late) -> LateSum:
        """A sum through partials, whose launches are bound here."""
        return LateSum(self.bind, self._library.reduction, sum_, tiles, num_objects)

    def _bind_sum(
        self, plan: FactorPlan, argument: Argument, part: NodePart, *, reduced: bool
    ) -> Binding:
        if not plan.has_partials(argument):
            return self._node_binding(plan, argument, REDUCED[part] if reduced else part)
        partials = self._array(plan.key(part, argument))
        return self._sum_of(plan, argument, part).partials(partials)

    def _reductions(
        self,
        plan: FactorPlan,
        arguments: Iterable[Argument],
        parts: Sequence[NodePart],
        *,
        reduced: bool = False,
    ) -> list[Launch]:
        launches = []
        for argument in arguments:
            if argument is plan.form.eliminated or not plan.has_partials(argument):
                continue
            for part in parts:
                output = self._node_binding(plan, argument, REDUCED[part] if reduced else part)
                partials = self._array(plan.key(part, argument))
                launches.append(self._sum_of(plan, argument, part).reduction(output, partials))
        return launches

    def bind(
        self, kernel: str | Late, bindings: Mapping[str, Binding], count: int | Late
    ) -> Launch:
        """A kernel of the solver with bindings of the caller's own."""
        bound = kernel if isinstance(kernel, Late) else self._library.kernel(kernel)
        return self._backend.bind(bound, bindings, count)


def _num_rows(name: str, part: NodePart, plan: Plan) -> int:
    return plan.node_plans[name].num_rows(part)


def _entry(now: Callable[[], Mapping[str, Any]], name: str) -> Any:
    return now()[name]
