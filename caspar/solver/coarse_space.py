"""The coarse space of the two-level preconditioner: memory and launches.

Once for each structure. The order of a solve: `form`, `entries`, an inversion, `begin`, then
iterations. Cost of a solve: two passes over the observations, one over the pairs of clusters that
eliminated nodes are in, and the inversion of a matrix of 512 columns; of an iteration: four small
launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from caspar.frontend.coarse_kernels import LANES, CoarseForm, apply_name
from caspar.frontend.factor_builder import SharedSums
from caspar.ir.dtype import DType
from caspar.memory.accessors.partials import object_fields, tile_fields
from caspar.memory.binding import Binding
from caspar.memory.layout import array_scalars
from caspar.memory.reduce import ReduceSpec
from caspar.memory.tiles import Array, TileIndex
from caspar.runtime.backend import Launch
from caspar.solver.arena import ArenaPlan
from caspar.solver.coarse_structure import (
    CoarseEntries,
    CoarseStructure,
    coarse_entries,
    coarsened,
)
from caspar.solver.launches import MANY_PARTIALS, Binder
from caspar.solver.phases import Phases, flattened
from caspar.solver.plan import FactorPlan, Plan, item_tiles

SHIFT = {DType.FLOAT32: 1e-6, DType.FLOAT64: 1e-12}
"""Added to the diagonal of the coarse matrix, by the type of Jacobians: relative to that of
P^T (B + damping D) P, from which nearly as much is subtracted."""


@dataclass(frozen=True)
class _Sums:
    """What items add to.

    Attributes:
        name: Of the region of its partials.
        count: Number of objects.
        dim: Scalars of an object.
        dtype: Their type.
        tiles: Where sums are taken in partials: tiles of the objects' numbers.
    """

    name: str
    count: int
    dim: int
    dtype: DType
    tiles: TileIndex | None

    @property
    def partials(self) -> tuple[str, int, DType]:
        """A region for the partials."""
        assert self.tiles is not None
        return self.name, self.dim * self.tiles.num_partials, self.dtype


class CoarseSpace:
    """The coarse system.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: Clusters and what adds to what; the kernels for its `width` are loaded.
    """

    def __init__(self, plan: Plan, binder: Binder, structure: CoarseStructure) -> None:
        self._plan = plan
        self._binder = binder
        self._backend = plan.library.backend
        self._structure = structure
        self._form: CoarseForm = structure.form
        (self._node,) = plan.reduced
        storage = plan.types.storage
        self._numbers: CoarseEntries = coarse_entries(self._backend.xp, structure)
        tile_size = plan.library.tile_size
        tile_index = self._backend.tile_index
        num_clusters, group = structure.num_clusters, self._form.group
        is_ordered = self._form.sums is SharedSums.ORDERED
        self._restricted = _Sums(
            "restricted partials",
            num_clusters,
            self._form.num_columns,
            DType.FLOAT64,
            tile_index(structure.cluster, num_clusters, tile_size),
        )
        self._entry_sums = {
            factor.factor.name: self._entries_of(factor) for factor in coarsened(plan)
        }
        self._responses = {
            factor.factor.name: _Sums(
                f"{factor.factor.name} response",
                self._node.count,
                self._form.reduced.tangent_dim * self._form.num_fields,
                plan.types.sums,
                factor.tiles.get(factor.reduced[0].name),
            )
            for factor in coarsened(plan)
        }
        num_blocks, size = structure.num_blocks, group**2
        self._squares, self._fills = (
            _Sums(
                name,
                num_blocks,
                size,
                DType.FLOAT64,
                tile_index(number, num_blocks, tile_size) if is_ordered else None,
            )
            for name, number in (("squares", structure.diagonal), ("fills", structure.block))
        )
        arena = self._reserve()
        self._memory = arena.allocate(self._backend)
        self._backend.clear(self._memory["restricted"])
        self._memory["scale"][...] = 1.0
        self._memory["scale"][structure.size :] = 0.0
        shift = self._memory["shift"]
        shift[...] = 0.0
        shift[self._numbers.row == self._numbers.column] = SHIFT[storage]
        self.failed = self._memory["failed"]
        self.inverse = self._memory["inverse"].reshape(structure.size, structure.size)
        self.sums = self._memory["all sums"]
        self.num_bytes = arena.num_bytes + sum(
            int(array.nbytes)
            for part in (structure, self._numbers)
            for array in vars(part).values()
            if hasattr(array, "nbytes")
        )

    # -- memory --------------------------------------------------------------------------------

    def _entries_of(self, factor: FactorPlan) -> _Sums:
        structure, plan = self._structure, self._plan
        entry = structure.entry[factor.factor.name]
        size = plan.library.tile_size
        tiles = item_tiles(
            self._backend, entry, structure.num_entries, factor.order.node_tiles, size
        )
        dim = self._form.group * self._form.eliminated.tangent_dim
        name = f"{factor.factor.name} entries"
        return _Sums(name, structure.num_entries, dim, plan.types.storage, tiles)

    def _reserve(self) -> ArenaPlan:
        arena, form, structure = ArenaPlan(), self._form, self._structure
        storage, sums = self._plan.types.storage, self._plan.types.sums
        dim, count = form.reduced.tangent_dim, self._node.count
        size, num_groups = structure.size, form.num_groups
        arena.reserve("response", array_scalars(dim * form.num_fields, sums, count), sums)
        entry = array_scalars(
            form.group * form.eliminated.tangent_dim, storage, structure.num_entries
        )
        for number in range(num_groups):
            arena.reserve(f"entries{number}", entry, storage)
        arena.reserve("blocks", num_groups**2 * structure.block_scalars, DType.FLOAT64)
        arena.join("all sums", "response", "blocks")
        for number in range(num_groups):
            modes = array_scalars(form.group * dim, storage, count)
            arena.reserve(f"modes{number}", modes, storage)
        arena.reserve("scale", size + 1, DType.FLOAT64)
        arena.reserve("shift", int(self._numbers.row.shape[0]), DType.FLOAT64)
        arena.reserve("restricted", LANES * structure.width, DType.FLOAT64)
        arena.reserve("correction", size, DType.FLOAT64)
        arena.reserve("descents", self._num_descents, sums)
        arena.reserve("failed", 1, DType.FLOAT64)
        arena.reserve("inverse", size * size, DType.FLOAT64)
        arena.reserve("matrix", LANES * size * structure.width, DType.FLOAT64)
        arena.reserve(*self._restricted.partials)
        # used one after the other
        groups = [
            [
                (f"{name}{number}", scalars, dtype)
                for number in range(num_groups)
                for name, scalars, dtype in [target.partials]
            ]
            for target in self._entry_sums.values()
        ]
        for target in (self._squares, self._fills):
            if target.tiles is not None:
                groups.append([target.partials])
        groups += [
            [target.partials] for target in self._responses.values() if target.tiles is not None
        ]
        arena.reserve_shared(groups)
        return arena

    @property
    def _num_descents(self) -> int:
        """Partials of r.z: of block Jacobi by node tiles, of the coarse space by tiles of rows."""
        num_items = LANES * self._structure.size
        return self._plan.num_reduced_tiles - (-num_items // self._plan.library.tile_size)

    def _binding(self, name: str, count: int, **fields: Array | int) -> Binding:
        return Binding(self._memory[name], count, fields=fields)

    def _blocks(self, row: int, column: int) -> Binding:
        """The blocks of two groups."""
        structure = self._structure
        first = (row * self._form.num_groups + column) * structure.block_scalars
        return Binding(self._memory["blocks"][first:], structure.num_blocks)

    def _bind(self, kernel: str, bindings: Mapping[str, Binding], count: int) -> Launch:
        return self._backend.bind(self._plan.library.kernel(kernel), bindings, count)

    def _target(self, sums: _Sums, output: Binding, index: Array, part: str = "") -> Binding:
        """Where a launch adds to: the objects by their index, or partials."""
        if sums.tiles is None:
            return output.with_fields({"index": index})
        data = self._memory[f"{sums.name}{part}"]
        return Binding(data, sums.tiles.num_partials, fields=tile_fields(sums.tiles))

    def _reduction(
        self, sums: _Sums, output: Binding, part: str = "", *, accumulate: bool = True
    ) -> list[Launch]:
        """Sum the partials, where there are some."""
        if sums.tiles is None:
            return []
        library, tiles = self._plan.library, sums.tiles
        lanes = 32 if tiles.num_partials > MANY_PARTIALS * sums.count else 1
        spec = ReduceSpec(sums.dim, sums.dtype, lanes, accumulate)
        library.load_reductions([spec])
        data = self._memory[f"{sums.name}{part}"]
        partials = Binding(data, tiles.num_partials, fields=object_fields(tiles))
        bindings = {"partials": partials, "output": output}
        return [self._backend.bind(library.reduction(spec), bindings, sums.count)]

    # -- the matrix ----------------------------------------------------------------------------

    def form(self) -> list[Launch]:
        """Columns and blocks, into cleared `sums`."""
        launches: list[Launch] = []
        for factor in coarsened(self._plan):
            launches += self._respond(factor)
        launches.append(self._node_launch("modes"))
        groups = range(self._form.num_groups)
        pairs = [(row, column) for row in groups for column in groups]
        for row, column in pairs:
            launches += self._square(row, column)
        scale = {
            "blocks": self._binding("blocks", 1, index=self._numbers.diagonal),
            "scale": self._binding("scale", self._structure.size),
        }
        launches.append(self._bind("coarse_scale", scale, self._structure.size))
        for factor in coarsened(self._plan):
            launches += self._coarsen(factor)
        for row, column in pairs:
            launches += self._fill(row, column)
        return launches

    def _node_launch(self, role: str, more: Mapping[str, Binding] | None = None) -> Launch:
        """A kernel of the reduced type; its columns and sums are bound."""
        count = self._node.count
        bindings = {"response": self._binding("response", count)}
        for number in range(self._form.num_groups):
            bindings[f"modes{number}"] = self._binding(f"modes{number}", count)
        return self._binder.node_launch(self._node, role, {**bindings, **(more or {})})

    def _respond(self, factor: FactorPlan) -> list[Launch]:
        (argument,) = factor.reduced
        target = self._responses[factor.factor.name]
        output = self._binding("response", self._node.count)
        index = factor.order.nodes[argument.name]
        bindings = {f"{argument.name}_response": self._target(target, output, index)}
        launch = self._binder.pair(factor, "respond", bindings)
        return [launch, *self._reduction(target, output)]

    def _square(self, row: int, column: int) -> list[Launch]:
        structure, count = self._structure, self._node.count
        output = self._blocks(row, column)
        bindings = {
            "row_modes": self._binding(f"modes{row}", count, index=structure.order),
            "column_modes": self._binding(f"modes{column}", count),
            "coarse_block": self._target(self._squares, output, structure.diagonal),
        }
        launch = self._node_launch("square", bindings)
        return [launch, *self._reduction(self._squares, output)]

    def _coarsen(self, factor: FactorPlan) -> list[Launch]:
        (argument,) = factor.reduced
        target = self._entry_sums[factor.factor.name]
        entry = self._structure.entry[factor.factor.name]
        index = factor.order.nodes[argument.name]
        assert index is not None
        bindings: dict[str, Binding] = {}
        reductions: list[Launch] = []
        for number in range(self._form.num_groups):
            modes = self._binding(f"modes{number}", self._node.count, index=index)
            bindings[f"{argument.name}_modes{number}"] = modes
            output = self._binding(f"entries{number}", self._structure.num_entries)
            bindings[f"entries{number}"] = self._target(target, output, entry, str(number))
            reductions += self._reduction(target, output, str(number))
        return [self._binder.pair(factor, "coarsen", bindings), *reductions]

    def _fill(self, row: int, column: int) -> list[Launch]:
        structure = self._structure
        count = structure.num_entries
        output = self._blocks(row, column)
        bindings = {
            "row_entries": self._binding(f"entries{row}", count, index=structure.first),
            "column_entries": self._binding(f"entries{column}", count, index=structure.second),
            "coarse_block": self._target(self._fills, output, structure.block),
        }
        launch = self._bind("coarse_fill", bindings, int(structure.block.shape[0]))
        return [launch, *self._reduction(self._fills, output)]

    def entries(self, matrix: Array) -> Launch:
        """The lower triangle, scaled, to a cleared dense matrix."""
        size, numbers = self._structure.size, self._numbers
        place = numbers.row.astype("int64") * size + numbers.column
        count = int(place.shape[0])
        bindings = {
            "blocks": self._binding("blocks", 1, index=numbers.source),
            "row_scale": self._binding("scale", size, index=numbers.row),
            "column_scale": self._binding("scale", size, index=numbers.column),
            "shift": self._binding("shift", count),
            "matrix": Binding(matrix.reshape(-1), 1, fields={"index": place.astype("int32")}),
        }
        return self._bind("coarse_entries", bindings, count)

    # -- conjugate gradients -------------------------------------------------------------------

    def begin(self) -> list[Launch]:
        """After the inversion and `factorize`: first vectors and scalars."""
        size, numbers = self._structure.size, self._numbers
        count = int(numbers.inverse.shape[0])
        inverse = {
            "failed": self._binding("failed", 1),
            "inverse": self._binding("inverse", 1, index=numbers.inverse),
            "row_scale": self._binding("scale", size, index=numbers.inverse_row),
            "column_scale": self._binding("scale", size, index=numbers.inverse_column),
            "matrix": self._binding("matrix", count),
        }
        name = self._node.node.name
        return [
            self._bind("coarse_inverse", inverse, count),
            self._binder.scalar_launch("coarse_begin"),
            self._own_launch("start"),
            self._binder.copy(f"{name}.preconditioned", f"{name}.direction"),
            *flattened(self._correct()),
            self._own_scalars("pcg_begin"),
            self._prolong(),
            self._binder.clear(f"{name}.direction"),
            self._binder.node_launch(self._node, "turn"),
        ]

    def iteration(self, phases: Phases) -> list[list[Launch]]:
        """One iteration of conjugate gradients."""
        *products, _, _, turn = phases.iterate_gradients()
        return [
            *products,
            [self._own_launch("step")],
            *self._correct(),
            # what sets the flag stands last
            [self._prolong(), self._own_scalars("pcg_beta")],
            turn,
        ]

    def _correct(self) -> list[list[Launch]]:
        """y = A^-1 P^T r, and r.P y."""
        structure, size = self._structure, self._structure.size
        restricted = self._binding("restricted", structure.num_clusters)
        partials = self._target(self._restricted, restricted, structure.cluster)
        item = self._backend.xp.arange(LANES * size, dtype="int32")
        count = int(item.shape[0])
        apply = {
            **self._binder.scalars(),
            "matrix": self._binding("matrix", count),
            "restricted": self._binding("restricted", LANES, index=item % LANES),
            "restricted_row": self._binding("restricted", 1, index=item // LANES),
            "correction": self._binding("correction", size),
            "descent": self._descent(self._plan.num_reduced_tiles),
        }
        return [
            [self._node_launch("restrict", {"restricted": partials})],
            self._reduction(self._restricted, restricted, accumulate=False),
            [self._bind(apply_name(structure.width), apply, count)],
        ]

    def _prolong(self) -> Launch:
        structure = self._structure
        weights = self._binding("correction", structure.num_clusters, index=structure.cluster)
        return self._node_launch("prolong", {"correction": weights})

    def _descent(self, offset: int) -> Binding:
        return self._binding("descents", self._num_descents, offset=offset)

    def _own_launch(self, role: str) -> Launch:
        """A kernel of the reduced type whose part of r.z goes to the coarse space's sums."""
        return self._binder.node_launch(self._node, role, {"descent": self._descent(0)})

    def _own_scalars(self, name: str) -> Launch:
        return self._binder.scalar_launch(name, {"descents": self._descent(0)})
