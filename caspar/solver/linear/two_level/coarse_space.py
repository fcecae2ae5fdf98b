"""The coarse space of the two-level preconditioner: memory and launches.

Once for each structure. The order of a solve: `form`, `entries`, an inversion, `begin`, then
iterations. Cost of a solve: two passes over the observations, one over the pairs of clusters that
eliminated nodes are in, and the inversion of a matrix of 512 columns; of an iteration: four small
launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from caspar.equations.factor_builder import SharedSums
from caspar.ir.dtype import DType
from caspar.memory.access import BoundWrite
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.layout import array_scalars
from caspar.runtime.backend import Launch
from caspar.solver.linear.two_level.coarse_form import CoarseForm, is_coarsened
from caspar.solver.linear.two_level.coarse_kernels import LANES
from caspar.solver.linear.two_level.coarse_structure import (
    CoarseEntries,
    CoarseStructure,
    coarse_entries,
    coarsened,
)
from caspar.solver.plan.arena import ArenaPlan, Entry
from caspar.solver.plan.plan import FactorPlan, Plan
from caspar.solver.system.launches import Binder

SHIFT = {
    (DType.FLOAT32, True): 1e-6,
    (DType.FLOAT32, False): 1e-5,
    (DType.FLOAT64, True): 1e-12,
    (DType.FLOAT64, False): 1e-12,
}
"""Added to the diagonal of the coarse matrix, relative to P^T (B + damping D) P, from which nearly
as much is subtracted; by the type of Jacobians, and whether they are stored. Below it the products
of PCG are noise, and directions that the coarse space makes much of have no curvature: with 1e-6
and recomputed ones, linear solves of Ladybug-49 ended after 1 to 7 iterations, 13,346 after 12 LM
iterations instead of 13,344.4. Malaga-170 takes 236, 342 and 418 PCG iterations with 1e-6, 1e-5 and
1e-4, and about 1,300 with block Jacobi."""


@dataclass(frozen=True)
class _Sums:
    """What items add to.

    Attributes:
        name: Of the regions of its partials.
        sum: How items are summed.
    """

    name: str
    sum: SharedSum

    def partials(self, part: str = "") -> Entry[str]:
        """A region for the partials."""
        return f"{self.name}{part}", self.sum.num_scalars, self.sum.dtype


class CoarseSpace:
    """The coarse system.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: Clusters and what adds to what; the kernels for its `width` are loaded.

    Attributes:
        structure: The same.
        numbers: Where numbers of the matrix come from and go to.
        restricted: How P^T r is summed.
        sums: To be cleared before `form`.
        inverse: (size, size) float64, to be written between `entries` and PCG.
        outcome: (2,) float64 that the inversion writes.
        num_bytes: Bytes of all arrays.
    """

    def __init__(self, plan: Plan, binder: Binder, structure: CoarseStructure) -> None:
        self._plan = plan
        self._binder = binder
        self._backend = plan.library.backend
        self.structure = structure
        self._form: CoarseForm = structure.form
        (self._node,) = plan.reduced
        storage = plan.types.storage
        self.numbers: CoarseEntries = coarse_entries(self._backend.xp, structure)
        tile_size = plan.library.tile_size
        tile_index = self._backend.tile_index
        num_clusters = structure.num_clusters
        clusters = tile_index(structure.cluster, num_clusters, tile_size)
        dim = self._form.num_columns
        restricted = SharedSum(dim, DType.FLOAT64, num_clusters, clusters, accumulate=False)
        self.restricted = _Sums("restricted partials", restricted)
        self._entry_sums = {
            factor.factor.name: self._entries_of(factor) for factor in coarsened(plan)
        }
        self._node_sums = self._sums_of_nodes()
        self._squares, self._fills = self._sums_of_blocks()
        arena = self._reserve()
        self._memory = arena.allocate(self._backend)
        self._backend.clear(self._memory["restricted"])
        scale, shift = self._memory["scale"], self._memory["shift"]
        is_unknown = np.arange(scale.shape[0]) < structure.size
        self._backend.write(scale, is_unknown.astype(scale.dtype))
        row, column = map(self._backend.to_host, (self.numbers.row, self.numbers.column))
        shifts = np.where(row == column, SHIFT[storage, plan.is_scaled], 0.0)
        self._backend.write(shift, shifts.astype(shift.dtype))
        self.outcome = self._memory["outcome"]
        self.inverse = self._memory["inverse"].reshape(structure.size, structure.size)
        self.sums = self._memory["all sums"]
        own = [self.restricted, *self._entry_sums.values(), self._squares, self._fills]
        self.num_bytes = arena.num_bytes + structure.num_bytes + self.numbers.num_bytes
        tiles = [one.sum.tiles for one in own]
        self.num_bytes += sum(one.num_bytes for one in tiles if one is not None)

    # -- memory --------------------------------------------------------------------------------

    def _sums_of_nodes(self) -> dict[str, dict[str, _Sums]]:
        """By factor and part: what its items add to reduced nodes."""
        dim = self._form.reduced.tangent_dim
        scalars = {"response": dim * self._form.num_fields, "square": dim * (dim + 1) // 2}
        return {
            factor.factor.name: {
                part: _Sums(
                    f"{factor.factor.name} {part}",
                    SharedSum(
                        scalars[part],
                        DType.FLOAT64,
                        self._node.count,
                        factor.tiles.get(factor.reduced[0].name),
                    ),
                )
                for part in scalars
                if part == "square" or is_coarsened(factor.factor, factor.form)
            }
            for factor in self._plan.factors
            if len(factor.reduced) > 0
        }

    def _sums_of_blocks(self) -> tuple[_Sums, _Sums]:
        """What reduced nodes, and pairs of entries, add to blocks."""
        is_ordered = self._form.sums is SharedSums.ORDERED
        tile_size, tile_index = self._plan.library.tile_size, self._backend.tile_index
        num_blocks, size = self.structure.num_blocks, self._form.group**2

        def blocks(name: str, number: Array) -> _Sums:
            tiles = tile_index(number, num_blocks, tile_size) if is_ordered else None
            return _Sums(name, SharedSum(size, DType.FLOAT64, num_blocks, tiles))

        return blocks("squares", self.structure.diagonal), blocks("fills", self.structure.block)

    def _entries_of(self, factor: FactorPlan) -> _Sums:
        structure, plan = self.structure, self._plan
        entry = structure.entry[factor.factor.name]
        size = plan.library.tile_size
        tiles = factor.order.item_tiles(self._backend, entry, structure.num_entries, size)
        dim = self._form.group * self._form.eliminated.tangent_dim
        name = f"{factor.factor.name} entries"
        return _Sums(name, SharedSum(dim, plan.types.storage, structure.num_entries, tiles))

    def _reserve(self) -> ArenaPlan[str]:
        arena: ArenaPlan[str] = ArenaPlan()
        form, structure = self._form, self.structure
        storage, sums = self._plan.types.storage, self._plan.types.sums
        dim, count = form.reduced.tangent_dim, self._node.count
        size, num_groups = structure.size, form.num_groups
        for name, scalars in (
            ("response", dim * form.num_fields),
            ("square", dim * (dim + 1) // 2),
        ):
            arena.reserve(name, array_scalars(scalars, DType.FLOAT64, count), DType.FLOAT64)
        entry = array_scalars(
            form.group * form.eliminated.tangent_dim, storage, structure.num_entries
        )
        for number in range(num_groups):
            arena.reserve(f"entries{number}", entry, storage)
        arena.reserve("blocks", num_groups**2 * structure.block_scalars, DType.FLOAT64)
        arena.join("all sums", ["response", "blocks"])
        for number in range(num_groups):
            modes = array_scalars(form.group * dim, storage, count)
            arena.reserve(f"modes{number}", modes, storage)
        rows = array_scalars(form.num_columns, storage, dim * count)
        arena.reserve("rows", rows, storage)
        arena.reserve("scale", size + 1, DType.FLOAT64)
        arena.reserve("shift", int(self.numbers.row.shape[0]), DType.FLOAT64)
        arena.reserve("restricted", LANES * structure.width, DType.FLOAT64)
        arena.reserve("correction", size, DType.FLOAT64)
        arena.reserve("descents", self.num_descents, sums)
        arena.reserve("outcome", 2, DType.FLOAT64)
        arena.reserve("inverse", size * size, DType.FLOAT64)
        arena.reserve("matrix", LANES * size * structure.width, DType.FLOAT64)
        arena.reserve(*self.restricted.partials())
        # used one after the other
        groups = [
            [target.partials(str(number)) for number in range(num_groups)]
            for target in self._entry_sums.values()
        ]
        groups += [[target.partials()] for target in (self._squares, self._fills)]
        groups += [
            [target.partials() for target in parts.values()] for parts in self._node_sums.values()
        ]
        arena.reserve_shared(groups)
        return arena

    @property
    def num_descents(self) -> int:
        """Partials of r.z: of block Jacobi by node tiles, of the coarse space by tiles of rows."""
        num_items = LANES * self.structure.size
        return self._plan.num_reduced_tiles - (-num_items // self._plan.library.tile_size)

    def binding(self, name: str, count: int, **fields: Array | int) -> Binding:
        """A region as that many objects."""
        return Binding(self._memory[name], count, fields=fields)

    def _blocks(self, row: int, column: int) -> Binding:
        """The blocks of two groups."""
        structure = self.structure
        first = (row * self._form.num_groups + column) * structure.block_scalars
        return Binding(self._memory["blocks"][first:], structure.num_blocks)

    def bind(self, kernel: str, bindings: Mapping[str, Binding], count: int) -> Launch:
        """A kernel of the library."""
        return self._backend.bind(self._plan.library.kernel(kernel), bindings, count)

    def bind_sum(
        self, sums: _Sums, output: Binding, index: Array | None, part: str = ""
    ) -> BoundWrite:
        """Where a launch adds to, and what completes it; `index` is of the objects, or None."""
        output = output if index is None else output.with_fields({"index": index})
        return sums.sum.bind(output, self._memory[f"{sums.name}{part}"])

    # -- the matrix ----------------------------------------------------------------------------

    def form(self) -> list[Launch]:
        """Columns and blocks, into cleared `sums`."""
        launches: list[Launch] = []
        for factor in self._plan.factors:
            if factor.factor.name in self._node_sums:
                launches += self._respond(factor)
        launches.append(self.node_launch("modes"))
        groups = range(self._form.num_groups)
        pairs = [(row, column) for row in groups for column in groups]
        for row, column in pairs:
            launches += self._square(row, column)
        scale = {
            "blocks": self.binding("blocks", 1, index=self.numbers.diagonal),
            "scale": self.binding("scale", self.structure.size),
        }
        launches.append(self.bind("coarse_scale", scale, self.structure.size))
        for factor in coarsened(self._plan):
            launches += self._coarsen(factor)
        for row, column in pairs:
            launches += self._fill(row, column)
        return launches

    def node_launch(self, role: str, more: Mapping[str, Binding] | None = None) -> Launch:
        """A kernel of the reduced type; its columns and sums are bound."""
        count = self._node.count
        bindings = {name: self.binding(name, count) for name in ("response", "square")}
        for number in range(self._form.num_groups):
            bindings[f"modes{number}"] = self.binding(f"modes{number}", count)
        dim = self._form.reduced.tangent_dim
        for number in range(dim):
            rows = Binding(self._memory["rows"], dim * count, number * count, count)
            bindings[f"rows{number}"] = rows
        return self._binder.node_launch(self._node, role, {**bindings, **(more or {})})

    def _respond(self, factor: FactorPlan) -> list[Launch]:
        (argument,) = factor.reduced
        # None where items' places have the node: the kernel needs no index
        index = factor.order.nodes.get(argument.name)
        bindings: dict[str, Binding] = {}
        reductions: list[Launch] = []
        for part, target in self._node_sums[factor.factor.name].items():
            output = self.binding(part, self._node.count)
            bound = self.bind_sum(target, output, index)
            bindings[argument.part(part)] = bound.binding
            reductions += self._plan.library.finish(bound)
        return [self._binder.pair(factor, "respond", bindings), *reductions]

    def _square(self, row: int, column: int) -> list[Launch]:
        structure, count = self.structure, self._node.count
        bound = self.bind_sum(self._squares, self._blocks(row, column), structure.diagonal)
        bindings = {
            "row_modes": self.binding(f"modes{row}", count, index=structure.order),
            "column_modes": self.binding(f"modes{column}", count),
            "coarse_block": bound.binding,
        }
        launch = self.node_launch("square", bindings)
        return [launch, *self._plan.library.finish(bound)]

    def _coarsen(self, factor: FactorPlan) -> list[Launch]:
        (argument,) = factor.reduced
        target = self._entry_sums[factor.factor.name]
        entry = self.structure.entry[factor.factor.name]
        bindings: dict[str, Binding] = {}
        reductions: list[Launch] = []
        for number in range(self._form.num_groups):
            modes = self.binding(f"modes{number}", self._node.count)
            bindings[argument.part(f"modes{number}")] = modes
            output = self.binding(f"entries{number}", self.structure.num_entries)
            bound = self.bind_sum(target, output, entry, str(number))
            bindings[f"entries{number}"] = bound.binding
            reductions += self._plan.library.finish(bound)
        return [self._binder.pair(factor, "coarsen", bindings), *reductions]

    def _fill(self, row: int, column: int) -> list[Launch]:
        structure = self.structure
        count = structure.num_entries
        bound = self.bind_sum(self._fills, self._blocks(row, column), structure.block)
        bindings = {
            "row_entries": self.binding(f"entries{row}", count, index=structure.first),
            "column_entries": self.binding(f"entries{column}", count, index=structure.second),
            "coarse_block": bound.binding,
        }
        launch = self.bind("coarse_fill", bindings, int(structure.block.shape[0]))
        return [launch, *self._plan.library.finish(bound)]

    def entries(self, matrix: Array) -> Launch:
        """The lower triangle, scaled, to a cleared dense matrix."""
        size, numbers = self.structure.size, self.numbers
        count = int(numbers.place.shape[0])
        bindings = {
            "blocks": self.binding("blocks", 1, index=numbers.source),
            "row_scale": self.binding("scale", size, index=numbers.row),
            "column_scale": self.binding("scale", size, index=numbers.column),
            "shift": self.binding("shift", count),
            "matrix": Binding(matrix.reshape(-1), 1, fields={"index": numbers.place}),
        }
        return self.bind("coarse_entries", bindings, count)
