"""Binding: every kernel of a plan to its memory, in the order of the phases.

Once for each solve. What comes out is a handful of launch sequences that the iterations run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.frontend.trace import Argument
from caspar.memory.accessors.partials import object_fields, tile_fields
from caspar.memory.binding import Binding
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.layout import rows_are_blocked
from caspar.memory.reduce import ReduceSpec
from caspar.memory.tiles import Array
from caspar.runtime.backend import Launch, LaunchSequence
from caspar.solver.plan import SCALARS, FactorPlan, NodePlan, Plan

MANY_PARTIALS = 4
"""Partials an object has on average, from which on a warp sums them instead of a thread."""


@dataclass(frozen=True)
class Sequences:
    """Launches of each phase.

    Attributes:
        score: Cost of `nodes`.
        linearize: Jacobians, gradients and diagonal blocks at `nodes`.
        start: Factorise blocks with the current damping and start PCG.
        iterate: One PCG iteration.
        candidate: Retract by the step, cost of the candidate, collect what the host reads.
    """

    score: LaunchSequence
    linearize: LaunchSequence
    start: LaunchSequence
    iterate: LaunchSequence
    candidate: LaunchSequence


@dataclass(frozen=True)
class _Reduction:
    """Partials of a factor's argument that are summed into a node type's array."""

    plan: FactorPlan
    argument: Argument
    part: str
    accumulate: bool


def _index(index: Array | None) -> Mapping[str, Array]:
    return {} if index is None else {"index": index}


class Binder:
    """Binds kernels of a plan to its memory."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._backend = plan.library.backend
        self._memory = plan.memory
        plan.library.load_reductions(
            self._reduce_spec(use)
            for uses in (self._linearized(), self._multiplied())
            for use in uses
        )

    def bind_all(self) -> Sequences:
        """Bind every phase."""
        plan = self._plan
        sequence = self._backend.sequence
        collect = self._scalar_launch("collect", costs=self._sums("costs"), models=self._models())
        score = [self._score(factor, "nodes") for factor in plan.factors]
        rescore = [self._score(factor, "candidate") for factor in plan.factors]
        begin = self._scalar_launch("pcg_begin", descents=self._sums("descents"))
        return Sequences(
            score=sequence([*score, collect]),
            linearize=sequence(self._linearize()),
            start=sequence([*self._each_node("factorize"), *self._each_node("start"), begin]),
            iterate=sequence(self._iterate()),
            candidate=sequence([*self._each_node("retract"), *rescore, collect]),
        )

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

    # -- scalars and sums ----------------------------------------------------------------------

    def _sums(self, name: str) -> Binding:
        return Binding(self._memory[name], int(self._memory[name].shape[0]))

    def _models(self) -> Binding:
        return Binding(self._memory["models"], self._plan.num_node_tiles)

    def _scalars(self) -> dict[str, Binding]:
        return {name: Binding(self._plan.scalar(name), 1) for name in SCALARS}

    def _scalar_launch(self, name: str, **sums: Binding) -> Launch:
        bindings = self._scalars() | sums
        return self._backend.bind(self._plan.library.kernel(name), bindings, 1)

    # -- node types ----------------------------------------------------------------------------

    def _each_node(self, role: str) -> list[Launch]:
        return [self._node_launch(plan, role) for plan in self._plan.nodes]

    def _node_launch(self, plan: NodePlan, role: str) -> Launch:
        prefix = f"{plan.node.name}."
        bindings = self._scalars()
        for name, array in self._memory.items():
            if name.startswith(prefix):
                bindings[name.removeprefix(prefix)] = Binding(array, plan.count)
        num_tiles = self._plan.num_node_tiles
        first_curvature = self._plan.num_factor_tiles + plan.first_tile
        if role != "factorize":
            bindings["descent"] = Binding(
                self._memory["descents"], num_tiles, fields={"offset": plan.first_tile}
            )
        bindings["model"] = Binding(
            self._memory["models"], num_tiles, fields={"offset": plan.first_tile}
        )
        bindings["curvature"] = Binding(
            self._memory["curvatures"],
            self._plan.num_factor_tiles + num_tiles,
            fields={"offset": first_curvature},
        )
        kernel = self._plan.library.kernel(f"{plan.node.name}_{role}")
        return self._backend.bind(kernel, bindings, plan.count)

    # -- factors -------------------------------------------------------------------------------

    def _arguments(self, plan: FactorPlan, state: str) -> dict[str, Binding]:
        """Bindings of a factor's arguments, nodes taken from `nodes` or `candidate`."""
        bindings = {}
        for argument in plan.factor.arguments:
            if argument.node is None:
                constant = plan.arrays.constants[argument.source]
                data = self._memory[f"{plan.factor.name}.{argument.name}"]
                rows = int(constant.rows.shape[0])
                bindings[argument.name] = Binding(data, rows, fields=_index(constant.index))
            else:
                bindings[argument.name] = self._node_binding(plan, argument, state)
        return bindings

    def _node_binding(self, plan: FactorPlan, argument: Argument, name: str) -> Binding:
        assert argument.node is not None
        data = self._memory[f"{argument.node.name}.{name}"]
        count = self._plan.node_plans[argument.node.name].count
        return Binding(data, count, fields=_index(plan.arrays.nodes[argument.name]))

    def _factor_array(self, plan: FactorPlan, name: str) -> Binding:
        return Binding(self._memory[f"{plan.factor.name}.{name}"], plan.arrays.count)

    def _score(self, plan: FactorPlan, state: str) -> Launch:
        bindings = self._arguments(plan, state)
        bindings["residual"] = self._factor_array(plan, "residual")
        bindings["cost"] = Binding(
            self._memory["costs"],
            self._plan.num_factor_tiles,
            fields={"offset": plan.first_tile},
        )
        kernel = self._plan.library.kernel(f"{plan.factor.name}_score")
        return self._backend.bind(kernel, bindings, plan.arrays.count)

    def _partials(self, plan: FactorPlan, argument: Argument, name: str) -> Binding:
        data = self._memory[f"{plan.factor.name}.{argument.name}_{name}"]
        tiles = plan.tiles.get(argument.name)
        # a node that all factors share: one partial for each tile
        fields = {"offset": 0} if tiles is None else tile_fields(tiles)
        return Binding(data, plan.num_partials(argument), fields=fields)

    def _linearize(self) -> list[Launch]:
        launches = []
        for plan in self._plan.factors:
            name, count = plan.factor.name, plan.arrays.count
            bindings = self._arguments(plan, "nodes")
            bindings["residual"] = self._factor_array(plan, "residual")
            bindings["jacobian"] = self._factor_array(plan, "jacobian")
            for argument in plan.factor.nodes:
                for part in ("gradient", "block"):
                    bindings[f"{argument.name}_{part}"] = self._partials(plan, argument, part)
            kernel = self._plan.library.kernel(f"{name}_linearize")
            launches.append(self._backend.bind(kernel, bindings, count))
            launches += [self._reduce(use) for use in self._linearized() if use.plan is plan]
        return launches

    def _iterate(self) -> list[Launch]:
        launches = []
        num_curvatures = self._plan.num_factor_tiles + self._plan.num_node_tiles
        for plan in self._plan.factors:
            name, count = plan.factor.name, plan.arrays.count
            bindings = self._scalars()
            bindings["jacobian"] = self._factor_array(plan, "jacobian")
            bindings["curvature"] = Binding(
                self._memory["curvatures"], num_curvatures, fields={"offset": plan.first_tile}
            )
            for argument in plan.factor.nodes:
                direction = self._node_binding(plan, argument, "direction")
                bindings[f"{argument.name}_direction"] = direction
                bindings[f"{argument.name}_product"] = self._partials(plan, argument, "product")
            kernel = self._plan.library.kernel(f"{name}_product")
            launches.append(self._backend.bind(kernel, bindings, count))
            launches += [self._reduce(use) for use in self._multiplied() if use.plan is plan]
        launches.append(self._scalar_launch("pcg_alpha", curvatures=self._sums("curvatures")))
        launches += self._each_node("step")
        launches.append(self._scalar_launch("pcg_beta", descents=self._sums("descents")))
        launches += self._each_node("turn")
        return launches

    # -- reductions ----------------------------------------------------------------------------

    def _linearized(self) -> list[_Reduction]:
        """Gradients and blocks: the first factor to touch a node type writes, the others add."""
        uses = []
        written: set[str] = set()
        for plan in self._plan.factors:
            for argument in plan.factor.nodes:
                assert argument.node is not None
                accumulate = argument.node.name in written
                written.add(argument.node.name)
                uses += [
                    _Reduction(plan, argument, part, accumulate) for part in ("gradient", "block")
                ]
        return uses

    def _multiplied(self) -> list[_Reduction]:
        """Products: all add to the damping's part."""
        return [
            _Reduction(plan, argument, "product", True)
            for plan in self._plan.factors
            for argument in plan.factor.nodes
        ]

    def _reduce_spec(self, use: _Reduction) -> ReduceSpec:
        assert use.argument.node is not None
        dim = use.argument.node.tangent_dim
        if use.part == "block":
            dim = dim * (dim + 1) // 2
        count = self._plan.node_plans[use.argument.node.name].count
        lanes = 32 if use.plan.num_partials(use.argument) > MANY_PARTIALS * count else 1
        types = self._plan.types
        dtype = types.storage if use.part == "product" else types.sums
        return ReduceSpec(dim, dtype, lanes, use.accumulate)

    def _reduce(self, use: _Reduction) -> Launch:
        assert use.argument.node is not None
        partials = self._partials(use.plan, use.argument, use.part)
        tiles = use.plan.tiles.get(use.argument.name)
        if tiles is None:
            tiles = self._backend.single_object_tiles(use.plan.num_tiles)
        partials = partials.with_fields(object_fields(tiles))
        count = self._plan.node_plans[use.argument.node.name].count
        output = Binding(self._memory[f"{use.argument.node.name}.{use.part}"], count)
        kernel = self._plan.library.reduction(self._reduce_spec(use))
        return self._backend.bind(kernel, {"partials": partials, "output": output}, count)
