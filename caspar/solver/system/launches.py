"""Binding: the kernels of a plan to its memory.

Once for each plan. What comes out are launches; `phases` puts them in the order of the iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from caspar.equations.factor_builder import ROW_PARTS
from caspar.equations.factor_kernels import exact_role
from caspar.frontend.factors.block_parts import block_dim
from caspar.frontend.factors.trace import Argument
from caspar.frontend.names import kernel_name
from caspar.ir.dtype import CHUNK_BYTES
from caspar.memory.access import TILES, BoundWrite
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.layout import rows_are_blocked
from caspar.memory.tiling.tiles import TileIndex
from caspar.runtime.backend import Launch
from caspar.solver.plan.plan import SCALARS, FactorPlan, NodePlan, Plan

NOTHING: Mapping[str, Binding] = {}

REDUCED_ROLES = ("start", "begin_direct")
"""Kernels of a node type that take the gradient of the reduced system."""

REDUCED_SUMS = ("gradient", "block")
"""Sums over factors that nodes have, of the system and of the reduced one alike."""


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
        plan.library.load_reductions(
            spec
            for factor in plan.factors
            for argument in factor.reduced
            for part in (*REDUCED_SUMS, *factor.form.linearized(argument), "product")
            for spec in self._sum(factor, argument, part).reductions
        )

    # -- memory --------------------------------------------------------------------------------

    def pack(self, name: str, rows: Array) -> None:
        """Enqueue: (n, dim) rows to a blocked region of the arena."""
        self._convert(Direction.PACK, name, rows)

    def unpack(self, name: str, rows: Array) -> None:
        """Enqueue: a blocked region of the arena to (n, dim) rows."""
        self._convert(Direction.UNPACK, name, rows)

    def _convert(self, direction: Direction, name: str, rows: Array) -> None:
        count, dim = (int(size) for size in rows.shape)
        region, storage = self._memory[name], self._plan.types.storage
        if rows_are_blocked(dim, storage):
            packs = direction is Direction.PACK
            target, source = (region, rows.reshape(-1)) if packs else (rows.reshape(-1), region)
            self._backend.copy(target, source)
            return
        kernel = self._plan.library.kernel(ConvertSpec(direction, dim, storage).name)
        bindings = {"rows": Binding(rows, count), "blocked": Binding(region, count)}
        self._backend.runner([self._backend.bind(kernel, bindings, count)])()

    def clear(self, name: str) -> Launch:
        """Zeros to a region."""
        return self._on_chunks("clear", target=self._memory[name])

    def clear_array(self, array: Array) -> Launch:
        """Zeros to float32 numbers in whole 16 bytes."""
        return self._on_chunks("clear", target=array)

    def clear_curvatures(self) -> Launch:
        """Zeros to what factors add to p.(A p)."""
        slots = self._memory["curvatures"][: self._plan.num_factor_curvatures]
        return self._on_chunks("clear", target=slots.view(np.float32))

    def copy(self, target: str, source: str) -> Launch:
        """A region to another of the same make."""
        return self._on_chunks("copy", target=self._memory[target], source=self._memory[source])

    def _on_chunks(self, kernel: str, **arrays: Array) -> Launch:
        """A kernel whose items are 16 bytes; regions end on more than that."""
        num_items = -(-int(arrays["target"].nbytes) // CHUNK_BYTES)
        bindings = {name: Binding(array, num_items) for name, array in arrays.items()}
        return self._backend.bind(self._plan.library.kernel(kernel), bindings, num_items)

    # -- scalars and sums ----------------------------------------------------------------------

    def _sums(self, name: str) -> Binding:
        return Binding(self._memory[name], int(self._memory[name].shape[0]))

    def scalars(self) -> dict[str, Binding]:
        """The solver's scalars, by name."""
        return dict(self._scalars)

    def scalar_launch(self, name: str, more: Mapping[str, Binding] = NOTHING) -> Launch:
        """A kernel of one item; `more` is bound besides."""
        sums = {name: self._sums(name) for name in ("costs", "curvatures", "descents")}
        models = Binding(self._memory["models"], self._plan.num_node_tiles)
        bindings = {**self.scalars(), **sums, "models": models, **more}
        return self._backend.bind(self._plan.library.kernel(name), bindings, 1)

    # -- node types ----------------------------------------------------------------------------

    def node_launch(
        self, plan: NodePlan, role: str, more: Mapping[str, Binding] = NOTHING
    ) -> Launch:
        """A kernel of a node type; `more` is bound besides."""
        bindings = {**self._scalars, **self._parts[plan.node.name]}
        # where nothing is eliminated the reduced system is the system
        bindings.setdefault("reduced_block", bindings["block"])
        if role in REDUCED_ROLES and "reduced_gradient" in bindings:
            bindings["gradient"] = bindings["reduced_gradient"]
        num_factors, num_reduced = self._plan.num_factor_curvatures, self._plan.num_reduced_tiles
        for name, array, first, length in (
            ("descent", "descents", 0, num_reduced),
            ("model", "models", 0, self._plan.num_node_tiles),
            ("curvature", "curvatures", num_factors, num_factors + num_reduced),
        ):
            offset = {"offset": first + plan.first_tile}
            bindings[name] = Binding(self._memory[array], length, fields=offset)
        bindings |= more
        kernel = self._plan.library.kernel(kernel_name(plan.node.name, role))
        return self._backend.bind(kernel, bindings, plan.count)

    def _bind_parts(self, plan: NodePlan) -> dict[str, Binding]:
        """All arrays of a node type."""
        prefix = f"{plan.node.name}."
        names = [name.removeprefix(prefix) for name in self._memory if name.startswith(prefix)]
        parts = {part: Binding(self._memory[prefix + part], plan.num_rows(part)) for part in names}
        if "product" in parts:
            slots = {"slots": plan.num_slots, "stride": plan.count}
            parts["product"] = parts["product"].with_fields(slots)
        return parts

    # -- factors -------------------------------------------------------------------------------

    def score(self, plan: FactorPlan, state: str) -> Launch:
        """Residual and cost at `nodes` or `candidate`."""
        bindings = self._arguments(plan, state)
        bindings["cost"] = self._tile_sums(plan, "costs")
        return self._bind(plan, "score", bindings)

    def linearize(self, plan: FactorPlan, *, exact: bool) -> list[Launch]:
        """Gradients, and diagonal blocks or their diagonals."""
        role = self.exact_role(plan, "linearize") if exact else "linearize"
        parts = [plan.form.linearized(argument) for argument in plan.reduced]
        all_parts = tuple(dict.fromkeys(chain.from_iterable(parts)))
        launches = [self._bind(plan, role, self._with_sums(plan, all_parts))]
        for argument, own in zip(plan.reduced, parts, strict=True):
            launches += self._reductions(plan, [argument], own)
        return launches

    def store(self, plan: FactorPlan) -> list[Launch]:
        """Scaled Jacobian and diagonal blocks, where Jacobians are stored."""
        bindings = self._with_sums(plan, ("block",))
        roles = [
            role
            for role in ("store", "square")
            if self._plan.library.has_kernel(kernel_name(plan.factor.name, role))
        ]
        launches = [self._bind(plan, role, bindings) for role in roles]
        added = filter(plan.form.has_block, plan.reduced)
        return [*launches, *self._reductions(plan, added, ("block",))]

    def reduce(self, plan: FactorPlan) -> list[Launch]:
        """What eliminated nodes leave of gradients and diagonal blocks."""
        bindings = self._with_sums(plan, REDUCED_SUMS, "reduced_")
        eliminated = plan.form.eliminated_argument
        # the eliminated node's gradient is read here
        gradient = self._node_binding(plan, eliminated, "gradient")
        bindings[eliminated.part("gradient")] = gradient
        launch = self._bind(plan, "reduce", bindings)
        return [launch, *self._reductions(plan, plan.reduced, REDUCED_SUMS, "reduced_")]

    def product(self, plan: FactorPlan, role: str) -> list[Launch]:
        """`product` or `scatter`: adds the system times `direction` to `product`."""
        launch = self._bind(plan, role, self._with_sums(plan, ("product",)))
        return [launch, *self._reductions(plan, plan.reduced, ("product",))]

    def gather(self, plan: FactorPlan, vector: str) -> Launch:
        """Adds to `inner` of the eliminated nodes, for `direction` or `step`."""
        bindings = self._with_sums(plan, ("inner",))
        for argument in plan.reduced:
            moved = self._node_binding(plan, argument, vector)
            bindings[argument.part("direction")] = moved
        return self._bind(plan, "gather", bindings)

    def exact_role(self, plan: FactorPlan, role: str) -> str:
        """A kernel with Jacobians in float64, if there is one, else the usual one."""
        exact = exact_role(role)
        has_one = self._plan.library.has_kernel(kernel_name(plan.factor.name, exact))
        return exact if has_one else role

    def inner(self, plan: FactorPlan) -> Launch:
        """Steps of the eliminated nodes alone, from `candidate`."""
        tiles, eliminated = plan.order.node_tiles, plan.form.eliminated_argument
        assert tiles is not None
        bindings = {**self.scalars(), **self._arguments(plan, "candidate")}
        exchange = Binding(tiles.node_items, 0, fields=tiles.node_fields)
        for number in range(plan.form.inner_iterations + 1):
            for part in ("sum", "spread"):
                bindings[eliminated.part(f"{part}{number + 1}")] = exchange
        return self._bind(plan, "inner", bindings)

    def pair(self, plan: FactorPlan, role: str, more: Mapping[str, Binding]) -> Launch:
        """A kernel that reads Jacobians and writes `more`."""
        return self._bind(plan, role, {**self._with_sums(plan, ()), **more})

    def mix(self, plan: FactorPlan, more: Mapping[str, Binding]) -> list[Launch]:
        """Reduced gradients; C^T C to the blocks; Z of each item to what `more` is bound to."""
        bindings = {**self._with_sums(plan, REDUCED_SUMS, "reduced_"), **more}
        launch = self._bind(plan, "mix", bindings)
        return [launch, *self._reductions(plan, plan.reduced, REDUCED_SUMS, "reduced_")]

    def _bind(self, plan: FactorPlan, role: str, bindings: Mapping[str, Binding]) -> Launch:
        kernel = self._plan.library.kernel(kernel_name(plan.factor.name, role))
        tiles = plan.order.node_tiles
        if kernel.source.stretches and tiles is not None:
            num_blocks = tiles.num_stretches(self._backend.resident_blocks(kernel))
            taken = Binding(tiles.tile_items, num_blocks, fields=tiles.stretch_fields(num_blocks))
            bindings = {**bindings, TILES: taken}
        return self._backend.bind(kernel, bindings, plan.count)

    def _arguments(self, plan: FactorPlan, state: str) -> dict[str, Binding]:
        """Bindings of a factor's arguments and arrays, nodes taken from `nodes` or `candidate`."""
        bindings = {}
        for argument in plan.factor.arguments:
            if argument.node is None:
                data = self._memory[f"{plan.factor.name}.{argument.value_name}"]
                index = plan.order.constants.get(argument.source)
                fields = {} if index is None else {"index": index}
                rows = plan.order.constant_rows[argument.source]
                bindings[argument.value_name] = Binding(data, rows, fields=fields)
            else:
                bindings[argument.value_name] = self._node_binding(plan, argument, state)
        for name in ("residual", "jacobian"):
            bindings[name] = Binding(self._memory[f"{plan.factor.name}.{name}"], plan.count)
        tiles = plan.order.node_tiles
        if tiles is not None:
            bindings[TILES] = Binding(tiles.tile_items, tiles.num_groups, fields=tiles.fields)
        return bindings

    def _with_sums(
        self, plan: FactorPlan, parts: Sequence[str], prefix: str = ""
    ) -> dict[str, Binding]:
        """Bindings of everything a factor's kernel may touch, its sums going to some parts.

        Jacobians are of the linearised state, wherever they are.
        """
        bindings = {**self.scalars(), **self._arguments(plan, self._plan.linearized_state)}
        slots = {"slots": self._plan.num_factor_curvatures}
        bindings["curvature"] = self._tile_sums(plan, "curvatures").with_fields(slots)
        for argument in plan.factor.nodes:
            if argument is plan.form.eliminated:
                self._bind_eliminated(plan, argument, bindings)
            else:
                direction = self._node_binding(plan, argument, "direction")
                bindings[argument.part("direction")] = direction
                diagonal = self._node_binding(plan, argument, "diagonal")
                bindings[argument.part("diagonal")] = diagonal
                for part in parts if "inner" not in parts else ():
                    bound = self._bind_sum(plan, argument, part, prefix)
                    bindings[argument.part(part)] = bound.binding
        return bindings

    def _bind_eliminated(
        self, plan: FactorPlan, argument: Argument, bindings: dict[str, Binding]
    ) -> None:
        tiles = plan.order.node_tiles
        assert tiles is not None
        placed = tiles.node_fields
        if plan.order.node_at is not None:
            placed = {**placed, "node_at": plan.order.node_at}
        for part in (*REDUCED_SUMS, "diagonal", "preconditioner", "inner"):
            binding = self._node_binding(plan, argument, part)
            bindings[argument.part(part)] = binding.with_fields(placed)
        for part in ("sum", "spread"):
            exchange = Binding(tiles.node_items, 0, fields=tiles.node_fields)
            bindings[argument.part(part)] = exchange

    def _tile_sums(self, plan: FactorPlan, name: str) -> Binding:
        """One number for each tile."""
        length = int(self._memory[name].shape[0])
        return Binding(self._memory[name], length, fields={"offset": plan.first_tile})

    def _node_binding(self, plan: FactorPlan, argument: Argument, name: str) -> Binding:
        part = self._parts[argument.node_type.name][name]
        index = plan.order.nodes.get(argument.name)
        return part if index is None else part.with_fields({"index": index})

    # -- sums over nodes -----------------------------------------------------------------------

    def _sum(self, plan: FactorPlan, argument: Argument, part: str) -> SharedSum:
        """How a factor's items are summed to a part of an argument's nodes."""
        node, types = argument.node_type, self._plan.types
        return SharedSum(
            block_dim(node) if part == "block" else node.tangent_dim,
            types.storage if part in ("product", "diagonal") else types.sums,
            self._plan.node_plans[node.name].count,
            self._tiles(plan, argument, part),
            rows=part in ROW_PARTS,
        )

    def _tiles(self, plan: FactorPlan, argument: Argument, part: str) -> TileIndex | None:
        """Those of the partials; None: there are none."""
        if argument.name in plan.tiles or not plan.has_partials(argument):
            return plan.tiles.get(argument.name)
        num_sums, node_tiles = plan.num_tiles, plan.order.node_tiles
        if part == "product" and plan.form.is_fused and node_tiles is not None:
            product = self._plan.library.kernel(kernel_name(plan.factor.name, "product"))
            if product.source.stretches:
                # one for each stretch of a node that all share
                num_sums = node_tiles.num_stretches(self._backend.resident_blocks(product))
        if num_sums not in self._one_object:
            self._one_object[num_sums] = self._backend.single_object_tiles(num_sums)
        return self._one_object[num_sums]

    def _bind_sum(self, plan: FactorPlan, argument: Argument, part: str, prefix: str) -> BoundWrite:
        output = self._node_binding(plan, argument, f"{prefix}{part}")
        partials = self._memory.get(f"{plan.factor.name}.{argument.part(part)}")
        return self._sum(plan, argument, part).bind(output, partials)

    def _reductions(
        self,
        plan: FactorPlan,
        arguments: Iterable[Argument],
        parts: Sequence[str],
        prefix: str = "",
    ) -> list[Launch]:
        return [
            launch
            for argument in arguments
            if argument is not plan.form.eliminated
            for part in parts
            for launch in self._plan.library.finish(self._bind_sum(plan, argument, part, prefix))
        ]
