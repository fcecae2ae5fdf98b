"""The two-level preconditioner: memory and launches of the coarse space, and PCG with it.

Once for each structure. The order of a solve: `form`, `entries`, an inversion, `begin`, then
iterations. Cost of a solve: three passes over the observations and one over the pairs of clusters
that eliminated nodes are in, and the inversion of a matrix of 512 columns; of an iteration: three
small launches.
"""

from dataclasses import dataclass

from caspar.frontend.coarse_kernels import LANES, CoarseForm
from caspar.frontend.factor_builder import SharedSums
from caspar.ir.dtype import DType
from caspar.memory.layout import array_scalars
from caspar.memory.tiles import TileIndex
from caspar.solver.arena import ArenaPlan
from caspar.solver.coarse_structure import (
    CoarseEntries,
    CoarseStructure,
    coarse_entries,
    coarsened,
)
from caspar.solver.launches import Binder
from caspar.solver.plan import FactorPlan, Plan, item_tiles

SHIFT = {DType.FLOAT32: 1e-7, DType.FLOAT64: 1e-12}
"""Added to the diagonal of the coarse matrix, by the type of Jacobians: relative to that of
P^T (B + damping D) P, from which nearly as much is subtracted."""


@dataclass(frozen=True)
class _Sums:
    """What items add to.

    Attributes:
        name: Its region of the arena.
        output: The objects; of a name with several arrays one of these.
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
        return f"{self.name} partials", self.dim * self.tiles.num_partials, self.dtype


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
        self._numbers: CoarseEntries = coarse_entries(self._backend.xp, structure, storage)
        tile_size = plan.library.tile_size
        tile_index = self._backend.tile_index
        num_clusters, group = structure.num_clusters, self._form.group
        is_ordered = self._form.sums is SharedSums.ORDERED
        self._restricted = _Sums(
            "restricted",
            num_clusters,
            self._form.num_columns,
            DType.FLOAT64,
            tile_index(structure.cluster, num_clusters, tile_size),
        )
        self._entry_sums = {
            factor.factor.name: self._entries_of(factor) for factor in coarsened(plan)
        }
        blocks = ("blocks", structure.num_blocks, group**2, DType.FLOAT64)
        self._squares, self._fills = (
            _Sums(
                *blocks, tile_index(number, structure.num_blocks, tile_size) if is_ordered else None
            )
            for number in (structure.diagonal, structure.block)
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
        return _Sums("entries", structure.num_entries, dim, plan.types.storage, tiles)

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
        arena.reserve("matrix", LANES * size * structure.width, storage)
        arena.reserve(*self._restricted.partials)
        # used one after the other
        groups = [
            [
                (f"{factor} {name}{number}", scalars, dtype)
                for number in range(num_groups)
                for name, scalars, dtype in [target.partials]
            ]
            for factor, target in self._entry_sums.items()
        ]
        for target in (self._squares, self._fills):
            if target.tiles is not None:
                groups.append([target.partials])
        groups += [
            [(f"{factor.factor.name} response partials", scalars, sums)]
            for factor in coarsened(self._plan)
            for argument in factor.reduced
            if factor.has_partials(argument)
            for scalars in [dim * form.num_fields * factor.num_partials(argument)]
        ]
        arena.reserve_shared(groups)
        return arena

    @property
    def _num_descents(self) -> int:
        """Partials of r.z: of block Jacobi by node tiles, of the coarse space by tiles of rows."""
        num_items = LANES * self._structure.size
        return self._plan.num_reduced_tiles - (-num_items // self._plan.library.tile_size)
