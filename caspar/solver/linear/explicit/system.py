"""The system as a matrix: memory and launches that fill it, and take the solution out again.

Once for each structure. The order of a solve: `form`, `write_entries`, a factorisation, `finish`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caspar.equations.factor_builder import SharedSums
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import object_fields, tile_fields
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.layout import array_scalars
from caspar.memory.reduce import ReduceSpec, num_lanes
from caspar.memory.tiling.tiles import TileIndex
from caspar.runtime.backend import Launch
from caspar.solver.linear.explicit.explicit_kernels import fill_name
from caspar.solver.linear.explicit.matrix import (
    BlockMemory,
    Entries,
    Equations,
    matrix_entries,
    number_unknowns,
    place_blocks,
)
from caspar.solver.linear.explicit.structure import (
    BlockList,
    FactorBlocks,
    FillBlocks,
    Structure,
    TypePair,
)
from caspar.solver.plan.arena import ArenaPlan
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan, item_tiles
from caspar.solver.system.launches import Binder


@dataclass(frozen=True)
class _Target:
    """Blocks that a launch adds to.

    Attributes:
        blocks: The blocks.
        number: Block of each item.
        tiles: Where sums are ordered: tiles of `number`, and the name of the partials.
    """

    blocks: BlockList
    number: Array
    tiles: tuple[TileIndex, str] | None


class ExplicitSystem:
    """The matrix and its right-hand side.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: The blocks.

    Attributes:
        size: Rows and columns.
        rhs: (size,) float64.
        solution: (size,) float64, to be written between `write_entries` and `finish`.
        failed: (1,) float64 that the factorisation writes.
        num_bytes: Bytes of blocks and partials.
    """

    def __init__(self, plan: Plan, binder: Binder, structure: Structure) -> None:
        self._plan = plan
        self._binder = binder
        self._backend = plan.library.backend
        self._structure = structure
        self._equations: Equations = number_unknowns(plan.reduced)
        self._places: BlockMemory = place_blocks(structure)
        self._factor_targets = [
            self._factor_target(part, f"factor{place}")
            for place, part in enumerate(structure.factors)
        ]
        self._fill_targets = [
            self._fill_target(part, f"fill{place}") for place, part in enumerate(structure.fills)
        ]
        arena = self._reserve()
        self._memory = arena.allocate(self._backend)
        self._memory["scale"][...] = 1.0
        self._memory["rhs"][...] = 0.0
        self._memory["blocks"][self._places.one :] = 1.0
        self.size = self._equations.size
        self.rhs = self._memory["rhs"]
        self.solution = self._memory["solution"]
        self.failed = self._memory["failed"]
        self.num_bytes = arena.num_bytes + structure.num_bytes
        for target in (*self._factor_targets, *self._fill_targets):
            self.num_bytes += 0 if target.tiles is None else target.tiles[0].num_bytes

    # -- memory --------------------------------------------------------------------------------

    def _reserve(self) -> ArenaPlan:
        arena = ArenaPlan()
        arena.reserve("blocks", self._places.size + 1, DType.FLOAT64)
        for name in ("scale", "rhs", "solution"):
            arena.reserve(name, self._equations.size, DType.FLOAT64)
        arena.reserve("failed", 1, DType.FLOAT64)
        storage = self._plan.types.storage
        for (eliminated, reduced), count in self._structure.windows.counts.items():
            dim = self._dim(eliminated) * self._dim(reduced)
            arena.reserve(f"{eliminated} {reduced}", array_scalars(dim, storage, count), storage)
        groups = [
            [(target.tiles[1], target.blocks.dim * target.tiles[0].num_partials, DType.FLOAT64)]
            for target in (*self._factor_targets, *self._fill_targets)
            if target.tiles is not None
        ]
        arena.reserve_shared(groups)
        return arena

    def _dim(self, name: str) -> int:
        return self._plan.node_plans[name].node.tangent_dim

    @property
    def _is_ordered(self) -> bool:
        """Whether sums over items are taken in order, into partials first."""
        return self._plan.factors[0].form.sums is SharedSums.ORDERED

    def _factor_target(self, part: FactorBlocks, name: str) -> _Target:
        blocks, order = self._structure.blocks[part.types], part.plan.order
        tiles = None
        if self._is_ordered:
            size = self._plan.library.tile_size
            made = item_tiles(self._backend, part.number, blocks.num_blocks, order.node_tiles, size)
            tiles = (made, name)
        return _Target(blocks, part.number, tiles)

    def _fill_target(self, part: FillBlocks, name: str) -> _Target:
        blocks = self._structure.blocks[part.types]
        tiles = None
        if self._is_ordered:
            size = self._plan.library.tile_size
            tiles = (self._backend.tile_index(part.number, blocks.num_blocks, size), name)
        return _Target(blocks, part.number, tiles)

    def _blocks(self, types: TypePair) -> Binding:
        blocks, first = self._structure.blocks[types], self._places.first[types]
        length = blocks.num_blocks
        return Binding(self._memory["blocks"][first : first + length * blocks.dim], length)

    def _types(self, blocks: BlockList) -> TypePair:
        return blocks.row.node.name, blocks.column.node.name

    def _vector(self, name: str, plan: NodePlan) -> Binding:
        """A node type's part of a vector of all unknowns."""
        first = self._equations.first[plan.node.name]
        size = plan.count * plan.node.tangent_dim
        return Binding(self._memory[name][first : first + size], plan.count)

    # -- launches ------------------------------------------------------------------------------

    def form(self) -> list[Launch]:
        """From linearised sums and damping to the blocks and the right-hand side."""
        # of reduced types for D without zeros alone: their blocks come later
        launches = [self._binder.node_launch(plan, "factorize") for plan in self._plan.nodes]
        blocks = self._memory["blocks"][: self._places.size]
        launches.append(self._binder.clear_array(blocks.view(np.float32)))
        if len(self._plan.eliminated) > 0:
            launches.append(self._binder.copy("reduced_sums", "sums"))
        for factor in self._plan.factors:
            if factor.form.eliminated is not None and len(factor.reduced) > 0:
                launches += self._mix(factor)
        for plan in self._plan.reduced:
            own = {name: self._vector(name, plan) for name in ("scale", "rhs")}
            own["pair_block"] = self._blocks((plan.node.name, plan.node.name))
            launches.append(self._binder.node_launch(plan, "begin_direct", own))
        for part, target in zip(self._structure.factors, self._factor_targets, strict=True):
            launches += self._factor_launches(part, target)
        for fill, target in zip(self._structure.fills, self._fill_targets, strict=True):
            launches += self._fill_launches(fill, target)
        return launches

    def finish(self) -> list[Launch]:
        """From the solution to steps, and to what the host reads."""
        launches = []
        for plan in self._plan.reduced:
            own = {name: self._vector(name, plan) for name in ("scale", "rhs", "solution")}
            launches.append(self._binder.node_launch(plan, "end_direct", own))
        failed = {"failed": Binding(self.failed, 1)}
        return [*launches, self._binder.scalar_launch("direct_end", failed)]

    def entries(self) -> Entries:
        """Entries of the lower triangle, made anew."""
        return matrix_entries(self._backend.xp, self._structure, self._equations, self._places)

    def write_entries(self, kernel: str, entries: Entries, matrix: Binding) -> Launch:
        """Entries from the blocks to a matrix."""
        blocks, scale = self._memory["blocks"], self._memory["scale"]
        bindings = {
            "blocks": Binding(blocks, self._places.size + 1, fields={"index": entries.source}),
            "row_scale": Binding(scale, self.size, fields={"index": entries.rows}),
            "column_scale": Binding(scale, self.size, fields={"index": entries.columns}),
            "matrix": matrix,
        }
        count = int(entries.rows.shape[0])
        return self._backend.bind(self._plan.library.kernel(kernel), bindings, count)

    def _factor_launches(self, part: FactorBlocks, target: _Target) -> list[Launch]:
        bindings = {"pair_block": self._sums(target)}
        if part.weights is not None:
            bindings["pair_order"] = Binding(part.weights.reshape(-1), part.plan.count)
        role = self._binder.exact_role(part.plan, part.pair.role)
        launch = self._binder.pair(part.plan, role, bindings)
        return [launch, *self._reductions(target)]

    def _mix(self, factor: FactorPlan) -> list[Launch]:
        eliminated = factor.form.eliminated_argument.node_type
        bindings = {}
        for argument in factor.reduced:
            array = (eliminated.name, argument.node_type.name)
            bindings[argument.part("mixed")] = Binding(
                self._memory[" ".join(array)],
                self._structure.windows.counts[array],
                self._structure.windows.first[factor.factor.name, argument.name],
                factor.count,
            )
        return self._binder.mix(factor, bindings)

    def _fill_launches(self, part: FillBlocks, target: _Target) -> list[Launch]:
        bindings = {"pair_block": self._sums(target)}
        ends = (
            ("row_mixed", part.types[0], part.first),
            ("column_mixed", part.types[1], part.second),
        )
        for name, reduced, items in ends:
            array = (part.eliminated, reduced)
            length = self._structure.windows.counts[array]
            fields = {"index": items}
            bindings[name] = Binding(self._memory[" ".join(array)], length, fields=fields)
        kernel = self._plan.library.kernel(fill_name(part.eliminated, *part.types))
        launch = self._backend.bind(kernel, bindings, int(part.number.shape[0]))
        return [launch, *self._reductions(target)]

    def _sums(self, target: _Target) -> Binding:
        """Where a launch's blocks go: to their places, or into partials."""
        if target.tiles is None:
            return self._blocks(self._types(target.blocks)).with_fields({"index": target.number})
        tiles, name = target.tiles
        return Binding(self._memory[name], tiles.num_partials, fields=tile_fields(tiles))

    def _reductions(self, target: _Target) -> list[Launch]:
        if target.tiles is None:
            return []
        tiles, name = target.tiles
        blocks, library = target.blocks, self._plan.library
        lanes = num_lanes(tiles.num_partials, blocks.num_blocks)
        spec = ReduceSpec(blocks.dim, DType.FLOAT64, lanes, accumulate=True)
        library.load_reductions([spec])
        partials = Binding(self._memory[name], tiles.num_partials, fields=object_fields(tiles))
        bindings: Mapping[str, Binding] = {
            "partials": partials,
            "output": self._blocks(self._types(blocks)),
        }
        return [self._backend.bind(library.reduction(spec), bindings, blocks.num_blocks)]
