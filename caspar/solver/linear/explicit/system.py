"""The system as a matrix: memory and launches that fill it, and take the solution out again.

Once for each structure. The order of a solve: `form`, `write_entries`, a factorisation, `finish`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import cast
from weakref import proxy

import numpy as np

from caspar.errors import OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array, Binding, Late, Lates
from caspar.memory.layout import array_scalars
from caspar.runtime.backend import Launch
from caspar.solver.linear.explicit.explicit_kernels import FillTypes, merge_name
from caspar.solver.linear.explicit.structure import (
    FactorBlocks,
    FillBlocks,
    MergedItems,
    MixedTypes,
    Structure,
)
from caspar.solver.normal.blocks import Entries, TypePair, matrix_entries
from caspar.solver.plan.arena import ArenaPlan, Span
from caspar.solver.plan.plan import FactorPlan, NodePlan, Plan
from caspar.solver.system.launches import Binder

ALIGNMENT = 32
"""Scalars between the first ones of two arrays of blocks."""


class _Vector(Enum):
    """Numbers of the system as a whole."""

    BLOCKS = "blocks"
    SCALE = "scale"
    RHS = "rhs"
    SOLUTION = "solution"
    OUTCOME = "outcome"


@dataclass(frozen=True)
class _Merged:
    """Sums of Z, or their partial sums, of an eliminated and a reduced type."""

    types: MixedTypes
    are_partial: bool = False


_Key = _Vector | MixedTypes | _Merged | int
"""An array: of Z by eliminated and reduced type; of partial sums by the place of what adds them."""


class ExplicitSystem:
    """The matrix and its right-hand side.

    Attributes:
        rhs: (size,) float64.
        solution: (size,) float64, to be written between `write_entries` and `finish`.
        outcome: (2,) float64 that the factorisation writes.
        scale: (size,) float64, D^-1/2 of each unknown; or 1, where variables are scaled by it.
    """

    def __init__(self, plan: Plan, binder: Binder, structure: Structure) -> None:
        self._this: ExplicitSystem = proxy(self)  # a solver keeps its bindings
        self._binder = binder
        self._backend = plan.library.backend
        self._late = Lates()
        self.renew(plan, structure)

    def renew(self, plan: Plan, structure: Structure) -> None:
        """Take the place of an earlier plan and structure of the same kind, but for launches."""
        self._plan = plan
        self._structure = structure
        self._first, self._num_scalars = _placed(structure)
        # what adds to the blocks, and how items are summed
        self._parts: Sequence[FactorBlocks | FillBlocks] = (*structure.factors, *structure.fills)
        self._sums = [self._sum(part) for part in self._parts]
        self._merges = {
            types: self._merge_sum(types, one) for types, one in structure.merged.items()
        }
        arena = self._reserve()
        self._memory = arena.allocate(self._backend)
        self._backend.clear(self._memory[_Vector.RHS])
        for ones in (
            self._memory[_Vector.SCALE],
            self._memory[_Vector.BLOCKS][self._num_scalars :],
        ):
            self._backend.write(ones, np.ones(ones.shape, ones.dtype))
        self.size = structure.unknowns.size
        self.rhs = self._memory[_Vector.RHS]
        self.solution = self._memory[_Vector.SOLUTION]
        self.outcome = self._memory[_Vector.OUTCOME]
        self.scale = self._memory[_Vector.SCALE]
        self.num_bytes = arena.num_bytes + structure.num_bytes
        sums = [*self._sums, *self._merges.values()]
        self.num_bytes += sum(one.tiles.num_bytes for one in sums if one.tiles is not None)

    # -- memory --------------------------------------------------------------------------------

    def _reserve(self) -> ArenaPlan[_Key]:
        arena: ArenaPlan[_Key] = ArenaPlan()
        arena.reserve(_Vector.BLOCKS, self._num_scalars + 1, DType.FLOAT64)
        for vector in (_Vector.SCALE, _Vector.RHS, _Vector.SOLUTION):
            arena.reserve(vector, self._structure.unknowns.size, DType.FLOAT64)
        arena.reserve(_Vector.OUTCOME, 2, DType.FLOAT64)
        storage = self._plan.types.storage
        for types, count in self._structure.windows.counts.items():
            eliminated, reduced = (self._plan.node_plans[name].node for name in types)
            dim = eliminated.tangent_dim * reduced.tangent_dim
            arena.reserve(types, array_scalars(dim, storage, count), storage)
        for types, total in self._merges.items():
            scalars = array_scalars(total.dim, DType.FLOAT64, total.num_objects)
            arena.reserve(_Merged(types), scalars, DType.FLOAT64)
            arena.reserve(_Merged(types, are_partial=True), total.num_scalars, DType.FLOAT64)
        arena.reserve_shared(
            [[(place, one.num_scalars, one.dtype)] for place, one in enumerate(self._sums)]
        )
        return arena

    def _sum(self, part: FactorBlocks | FillBlocks) -> SharedSum:
        """Return how the blocks of a part's items are summed."""
        blocks, tiles = self._structure.blocks[part.types], None
        count, size = blocks.num_blocks, self._plan.library.tile_size
        if self._plan.is_ordered:
            if isinstance(part, FactorBlocks):
                tiles = part.plan.order.item_tiles(self._backend, part.number, count, size)
            else:
                tiles = self._backend.tile_index(part.number, count, size)
        return SharedSum(blocks.dim, DType.FLOAT64, count, tiles)

    def _merge_sum(self, types: MixedTypes, items: MergedItems) -> SharedSum:
        """Return how Z of items is summed."""
        eliminated, reduced = (self._plan.node_plans[name].node for name in types)
        tiles = None
        if self._plan.is_ordered:
            size = self._plan.library.tile_size
            tiles = self._backend.tile_index(items.number, items.count, size)
        dim = eliminated.tangent_dim * reduced.tangent_dim
        return SharedSum(dim, DType.FLOAT64, items.count, tiles)

    def _array(self, key: _Key) -> Late:
        this = self._this
        return self._late(key, lambda: this._memory[key])

    def _blocks(self, types: TypePair) -> Binding:
        this = self._this

        def scalars() -> Array:
            blocks, first = this._structure.blocks[types], this._first[types]
            return this._memory[_Vector.BLOCKS][first : first + blocks.num_blocks * blocks.dim]

        length = self._late(("num blocks", types), lambda: this._structure.blocks[types].num_blocks)
        return Binding(self._late(("blocks", types), scalars), length)

    def _of_type(self, vector: _Vector, plan: NodePlan) -> Binding:
        """A node type's part of a vector of all unknowns."""
        this = self._this
        name, dim = plan.node.name, plan.node.tangent_dim

        def scalars() -> Array:
            first = this._structure.unknowns.nodes[name].first
            return this._memory[vector][first : first + this._plan.node_plans[name].count * dim]

        length = self._late(("count", name), lambda: this._plan.node_plans[name].count)
        return Binding(self._late((vector, name), scalars), length)

    def _num_mixed(self, types: MixedTypes) -> Late:
        this = self._this
        return self._late(("mixed", types), lambda: this._structure.windows.counts[types])

    # -- launches ------------------------------------------------------------------------------

    def form(self) -> list[Launch]:
        """Return the launches that make the blocks and the right-hand side."""
        this = self._this
        # of reduced types for D without zeros alone: their blocks come later
        launches = [self._binder.node_launch(plan, "factorize") for plan in self._plan.nodes]
        blocks = Late(lambda: this._memory[_Vector.BLOCKS][: this._num_scalars].view(np.float32))
        launches.append(self._binder.clear_array(blocks))
        if len(self._plan.eliminated) > 0:
            launches.append(self._binder.copy(Span.REDUCED_SUMS, Span.SUMS))
        for factor in self._plan.factors:
            if factor.form.eliminated is not None and len(factor.reduced) > 0:
                launches += self._mix(factor)
        for types in self._structure.merged:
            launches += self._merge(types)
        for plan in self._plan.reduced:
            own = {one.value: self._of_type(one, plan) for one in (_Vector.SCALE, _Vector.RHS)}
            own["pair_block"] = self._blocks((plan.node.name, plan.node.name))
            launches.append(self._binder.node_launch(plan, "begin_direct", own))
        for place, part in enumerate(self._parts):
            number = self._late(
                ("number", place), partial(ExplicitSystem._number, self._this, place)
            )
            output = self._blocks(part.types).with_fields({"index": number})
            if self._sums[place].tiles is None:
                launches.append(self._adding(place, output))
                continue
            tiles, count = self._tiles_of(
                place, partial(ExplicitSystem._sums_at, self._this, place)
            )
            total = self._binder.late_sum(self._sums[place], tiles, count)
            partials = self._array(place)
            launches.append(self._adding(place, total.partials(partials)))
            launches.append(total.reduction(output, partials))
        return launches

    def _tiles_of(
        self, key: Hashable, now: Callable[[], SharedSum]
    ) -> tuple[Callable[[str], Late], Late]:
        """Return late lookups of attributes of a sum's tiles, and of its number of objects."""
        this = self._this

        def tiles(attribute: str) -> Late:
            return this._late((key, attribute), lambda: getattr(now().tiles, attribute))

        return tiles, self._late((key, "objects"), lambda: now().num_objects)

    def _number(self, place: int) -> Array:
        return self._parts[place].number

    def _sums_at(self, place: int) -> SharedSum:
        return self._sums[place]

    def finish(self) -> list[Launch]:
        """Return the launches that make steps, and scalars for the host."""
        this = self._this
        launches = []
        for plan in self._plan.reduced:
            vectors = (_Vector.SCALE, _Vector.RHS, _Vector.SOLUTION)
            own = {one.value: self._of_type(one, plan) for one in vectors}
            launches.append(self._binder.node_launch(plan, "end_direct", own))
        outcome = {
            "failed": Binding(Late(lambda: this.outcome[:1]), 1),
            "pivot": Binding(Late(lambda: this.outcome[1:]), 1),
        }
        return [*launches, self._binder.scalar_launch("direct_end", outcome)]

    def entries(self) -> Entries:
        """Entries of the lower triangle, made anew."""
        given, one = self._structure, self._num_scalars
        return matrix_entries(
            given.tools.xp, given.blocks, given.unknowns, self._first, one=one, dtype=np.int32
        )

    def write_entries(self, kernel: str, entries: Callable[[], Entries], matrix: Binding) -> Launch:
        """Entries from the blocks to a matrix."""
        this = self._this
        blocks, scale = self._array(_Vector.BLOCKS), self._array(_Vector.SCALE)
        num_scalars, size = Late(lambda: this._num_scalars + 1), Late(lambda: this.size)
        source = Late(lambda: entries().source)
        rows, columns = Late(lambda: entries().rows), Late(lambda: entries().columns)
        bindings = {
            "blocks": Binding(blocks, num_scalars, fields={"index": source}),
            "row_scale": Binding(scale, size, fields={"index": rows}),
            "column_scale": Binding(scale, size, fields={"index": columns}),
            "matrix": matrix,
        }
        return self._binder.bind(kernel, bindings, Late(lambda: int(entries().rows.shape[0])))

    def _adding(self, place: int, target: Binding) -> Launch:
        """The launch that adds a part's blocks to a target."""
        this = self._this
        part, bindings = self._parts[place], {"pair_block": target}
        if isinstance(part, FactorBlocks):
            if part.weights is not None:
                weights = Late(lambda: cast(FactorBlocks, this._parts[place]).weights)
                count = Late(lambda: cast(FactorBlocks, this._parts[place]).plan.count)
                bindings["pair_order"] = Binding(weights, count)
            role = self._plan.library.exact_role(part.plan.factor.name, part.pair.role)
            return self._binder.pair(part.plan, role, bindings)
        rows, columns = ((part.eliminated, name) for name in part.types)
        eliminated, row, column = (
            self._plan.node_plans[name].node for name in (part.eliminated, *part.types)
        )
        given = FillTypes(
            eliminated,
            row,
            column,
            sums_rows=rows in self._merges,
            sums_columns=columns in self._merges,
        )
        first = Late(lambda: cast(FillBlocks, this._parts[place]).first)
        second = Late(lambda: cast(FillBlocks, this._parts[place]).second)
        bindings["row_mixed"] = self._mixed(rows, first)
        bindings["column_mixed"] = self._mixed(columns, second)
        count = Late(lambda: int(this._number(place).shape[0]))
        return self._binder.bind(given.name, bindings, count)

    def _mixed(self, types: MixedTypes, items: Late) -> Binding:
        """Z of some items, or of their sums."""
        if types not in self._merges:
            return Binding(self._array(types), self._num_mixed(types), fields={"index": items})
        memory = self._array(_Merged(types))
        return Binding(memory, self._num_merged(types), fields={"index": items})

    def _num_merged(self, types: MixedTypes) -> Late:
        this = self._this
        return self._late(("merged", types), lambda: this._merges[types].num_objects)

    def _merge(self, types: MixedTypes) -> list[Launch]:
        """Sum Z of items that couple the same two nodes."""
        this = self._this

        def items() -> MergedItems:
            return this._structure.merged[types]

        number, places = Late(lambda: items().number), Late(lambda: items().items)
        memory = self._array(_Merged(types))
        output = Binding(memory, self._num_merged(types), fields={"index": number})
        source = Binding(self._array(types), self._num_mixed(types), fields={"index": places})
        cleared = Late(lambda: this._memory[_Merged(types)].view(np.float32))
        launches = [self._binder.clear_array(cleared)]
        merged, is_summed = output, self._merges[types].tiles is not None
        tiles, num_sums = self._tiles_of(("merge", types), lambda: this._merges[types])
        total = self._binder.late_sum(self._merges[types], tiles, num_sums)
        partials = self._array(_Merged(types, are_partial=True))
        if is_summed:
            merged = total.partials(partials)
        count = Late(lambda: int(items().number.shape[0]))
        bindings = {"item_mixed": source, "merged": merged}
        launches.append(self._binder.bind(merge_name(*types), bindings, count))
        return [*launches, total.reduction(output, partials)] if is_summed else launches

    def _mix(self, factor: FactorPlan) -> list[Launch]:
        this = self._this
        eliminated, name = factor.form.eliminated_argument.node_type, factor.factor.name
        count = Late(lambda: this._plan.factor_plans[name].count)
        bindings = {}
        for argument in factor.reduced:
            types = (eliminated.name, argument.node_type.name)
            place = (name, argument.name)
            bindings[argument.part("mixed")] = Binding(
                self._array(types),
                self._num_mixed(types),
                self._late(
                    ("window", place), partial(ExplicitSystem._first_of_window, self._this, place)
                ),
                count,
            )
        return self._binder.mix(factor, bindings)

    def _first_of_window(self, place: tuple[str, str]) -> int:
        return self._structure.windows.first[place]


def _placed(structure: Structure) -> tuple[dict[TypePair, int], int]:
    """The first scalar of each list of blocks, one behind the other, and scalars in all."""
    first, size = {}, 0
    for types, blocks in structure.blocks.items():
        first[types] = size
        size += -(-blocks.num_blocks * blocks.dim // ALIGNMENT) * ALIGNMENT
    if size >= np.iinfo(np.int32).max:
        raise OutOfMemoryError(
            f"the blocks of the system have {size:,} scalars; at most "
            f"{np.iinfo(np.int32).max:,} are allowed: use linear_solver='schur_pcg' or 'pcg'"
        )
    return first, size
