"""The system as a matrix: memory and launches that fill it, and take the solution out again.

Once for each structure. The order of a solve: `form`, `write_entries`, a factorisation, `finish`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from caspar.errors import OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array
from caspar.memory.binding import Binding
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
from caspar.solver.plan.arena import ArenaPlan
from caspar.solver.plan.array_key import Span
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

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: The blocks.

    Attributes:
        size: Rows and columns.
        rhs: (size,) float64.
        solution: (size,) float64, to be written between `write_entries` and `finish`.
        outcome: (2,) float64 that the factorisation writes.
        scale: (size,) float64, D^-1/2 of each unknown; or 1, where variables are scaled by it.
        num_bytes: Bytes of blocks and partials.
    """

    def __init__(self, plan: Plan, binder: Binder, structure: Structure) -> None:
        self._plan = plan
        self._binder = binder
        self._backend = plan.library.backend
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
        """How the blocks of a part's items are summed."""
        blocks, tiles = self._structure.blocks[part.types], None
        count, size = blocks.num_blocks, self._plan.library.tile_size
        if self._plan.is_ordered:
            if isinstance(part, FactorBlocks):
                tiles = part.plan.order.item_tiles(self._backend, part.number, count, size)
            else:
                tiles = self._backend.tile_index(part.number, count, size)
        return SharedSum(blocks.dim, DType.FLOAT64, count, tiles)

    def _merge_sum(self, types: MixedTypes, items: MergedItems) -> SharedSum:
        """How Z of items is summed."""
        eliminated, reduced = (self._plan.node_plans[name].node for name in types)
        tiles = None
        if self._plan.is_ordered:
            size = self._plan.library.tile_size
            tiles = self._backend.tile_index(items.number, items.count, size)
        dim = eliminated.tangent_dim * reduced.tangent_dim
        return SharedSum(dim, DType.FLOAT64, items.count, tiles)

    def _blocks(self, types: TypePair) -> Binding:
        blocks, first = self._structure.blocks[types], self._first[types]
        length = blocks.num_blocks
        return Binding(self._memory[_Vector.BLOCKS][first : first + length * blocks.dim], length)

    def _of_type(self, vector: _Vector, plan: NodePlan) -> Binding:
        """A node type's part of a vector of all unknowns."""
        first = self._structure.unknowns.nodes[plan.node.name].first
        size = plan.count * plan.node.tangent_dim
        return Binding(self._memory[vector][first : first + size], plan.count)

    # -- launches ------------------------------------------------------------------------------

    def form(self) -> list[Launch]:
        """From linearised sums and damping to the blocks and the right-hand side."""
        # of reduced types for D without zeros alone: their blocks come later
        launches = [self._binder.node_launch(plan, "factorize") for plan in self._plan.nodes]
        blocks = self._memory[_Vector.BLOCKS][: self._num_scalars]
        launches.append(self._binder.clear_array(blocks.view(np.float32)))
        if len(self._plan.eliminated) > 0:
            launches.append(self._binder.copy(Span.REDUCED_SUMS, Span.SUMS))
        for factor in self._plan.factors:
            if factor.form.eliminated is not None and len(factor.reduced) > 0:
                launches += self._mix(factor)
        for types, items in self._structure.merged.items():
            launches += self._merge(types, items)
        for plan in self._plan.reduced:
            own = {one.value: self._of_type(one, plan) for one in (_Vector.SCALE, _Vector.RHS)}
            own["pair_block"] = self._blocks((plan.node.name, plan.node.name))
            launches.append(self._binder.node_launch(plan, "begin_direct", own))
        for place, part in enumerate(self._parts):
            output = self._blocks(part.types).with_fields({"index": part.number})
            bound = self._sums[place].bind(output, self._memory[place])
            launches += [self._adding(part, bound.binding), *self._plan.library.finish(bound)]
        return launches

    def finish(self) -> list[Launch]:
        """From the solution to steps, and to what the host reads."""
        launches = []
        for plan in self._plan.reduced:
            vectors = (_Vector.SCALE, _Vector.RHS, _Vector.SOLUTION)
            own = {one.value: self._of_type(one, plan) for one in vectors}
            launches.append(self._binder.node_launch(plan, "end_direct", own))
        parts = {"failed": self.outcome[:1], "pivot": self.outcome[1:]}
        outcome = {name: Binding(array, 1) for name, array in parts.items()}
        return [*launches, self._binder.scalar_launch("direct_end", outcome)]

    def entries(self) -> Entries:
        """Entries of the lower triangle, made anew."""
        given, one = self._structure, self._num_scalars
        return matrix_entries(
            given.tools.xp, given.blocks, given.unknowns, self._first, one=one, dtype=np.int32
        )

    def write_entries(self, kernel: str, entries: Entries, matrix: Binding) -> Launch:
        """Entries from the blocks to a matrix."""
        blocks, scale = self._memory[_Vector.BLOCKS], self._memory[_Vector.SCALE]
        bindings = {
            "blocks": Binding(blocks, self._num_scalars + 1, fields={"index": entries.source}),
            "row_scale": Binding(scale, self.size, fields={"index": entries.rows}),
            "column_scale": Binding(scale, self.size, fields={"index": entries.columns}),
            "matrix": matrix,
        }
        count = int(entries.rows.shape[0])
        return self._backend.bind(self._plan.library.kernel(kernel), bindings, count)

    def _adding(self, part: FactorBlocks | FillBlocks, target: Binding) -> Launch:
        """The launch that adds a part's blocks to a target."""
        bindings = {"pair_block": target}
        if isinstance(part, FactorBlocks):
            if part.weights is not None:
                bindings["pair_order"] = Binding(part.weights.reshape(-1), part.plan.count)
            role = self._binder.exact_role(part.plan, part.pair.role)
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
        bindings["row_mixed"] = self._mixed(rows, part.first)
        bindings["column_mixed"] = self._mixed(columns, part.second)
        kernel = self._plan.library.kernel(given.name)
        return self._backend.bind(kernel, bindings, int(part.number.shape[0]))

    def _mixed(self, types: MixedTypes, items: Array) -> Binding:
        """Z of some items, or of their sums."""
        if types in self._merges:
            memory, count = self._memory[_Merged(types)], self._merges[types].num_objects
        else:
            memory, count = self._memory[types], self._structure.windows.counts[types]
        return Binding(memory, count, fields={"index": items})

    def _merge(self, types: MixedTypes, items: MergedItems) -> list[Launch]:
        """Sum Z of items that couple the same two nodes."""
        total, memory = self._merges[types], self._memory[_Merged(types)]
        output = Binding(memory, total.num_objects).with_fields({"index": items.number})
        bound = total.bind(output, self._memory[_Merged(types, are_partial=True)])
        count = self._structure.windows.counts[types]
        source = Binding(self._memory[types], count, fields={"index": items.items})
        kernel = self._plan.library.kernel(merge_name(*types))
        bindings = {"item_mixed": source, "merged": bound.binding}
        adding = self._backend.bind(kernel, bindings, int(items.number.shape[0]))
        clearing = self._binder.clear_array(memory.view(np.float32))
        return [clearing, adding, *self._plan.library.finish(bound)]

    def _mix(self, factor: FactorPlan) -> list[Launch]:
        eliminated = factor.form.eliminated_argument.node_type
        bindings = {}
        for argument in factor.reduced:
            types = (eliminated.name, argument.node_type.name)
            bindings[argument.part("mixed")] = Binding(
                self._memory[types],
                self._structure.windows.counts[types],
                self._structure.windows.first[factor.factor.name, argument.name],
                factor.count,
            )
        return self._binder.mix(factor, bindings)


def _placed(structure: Structure) -> tuple[dict[TypePair, int], int]:
    """The first scalar of each list of blocks, one behind the other, and scalars in all.

    Raises:
        OutOfMemoryError: More scalars than an int32 counts.
    """
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
