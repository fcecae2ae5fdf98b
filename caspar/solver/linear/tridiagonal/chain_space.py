"""The chains of a node type as a preconditioner: memory and launches.

Once for each structure. The order of a linear solve: `factorize` behind `Phases.reduce`, `start`,
and then in every application `forward` from the first level on, `solve`, `backward` from the last
level on. Cost of `factorize`: six launches for each node of a segment and each level; of an
application: a launch for each level and direction. Memory: five blocks for each node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caspar.equations.factor_builder import SharedSums
from caspar.equations.linear.chain_factorization import padded_rows
from caspar.equations.linear.chain_kernels import RUN
from caspar.frontend.names import kernel_name
from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import object_fields, tile_fields
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.layout import array_scalars
from caspar.memory.reduce import ReduceSpec, num_lanes
from caspar.memory.tiling.tiles import TileIndex
from caspar.runtime.backend import Launch
from caspar.solver.linear.tridiagonal.chain_structure import ChainLevel, ChainStructure, FactorLinks
from caspar.solver.plan.arena import ArenaPlan
from caspar.solver.plan.plan import Plan, item_tiles
from caspar.solver.system.launches import Binder


@dataclass(frozen=True)
class _Level:
    """A level with its indices on the device.

    Attributes:
        level: The level.
        separator: (num_segments,) int32 slots.
        following: (num_segments,) int32 slots.
        segment: (dim * num_segments,) int32 segment of each column of a matrix.
        columns: Of the separators, of each of the `RUN` others and of what follows: columns of
            their matrices in arrays of sums.
        multipliers: Of the `RUN` others: columns in arrays of multipliers.
        scratch: (dim * num_segments,) int32 columns of the segments' own matrices.
    """

    level: ChainLevel
    separator: Array
    following: Array
    segment: Array
    columns: tuple[Array, ...]
    multipliers: tuple[Array, ...]
    scratch: Array


class ChainSpace:
    """Memory and launches of one node type.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: The chains.

    Attributes:
        num_levels: Levels of the elimination.
        num_bytes: Bytes of all arrays.
    """

    def __init__(self, plan: Plan, binder: Binder, structure: ChainStructure) -> None:
        self._plan = plan
        self._binder = binder
        self._backend = plan.library.backend
        self._order = structure.order
        self._node = structure.node
        self._dim = structure.node.node.tangent_dim
        self._links = structure.links
        self.num_levels = len(self._order.levels)
        self._slot = self._upload(self._order.slot)
        self._front_slot = self._upload(self._order.front_slot)
        self._front = self._backend.xp.maximum(
            self._backend.xp.arange(self._node.count, dtype="int32") - 1, 0
        ).astype("int32")
        self._levels = [self._placed(level) for level in self._order.levels]
        self._tiles = [self._link_tiles(links) for links in self._links]
        arena = self._reserve()
        self._memory = arena.allocate(self._backend)
        for name in ("all links", "all matrices", "all vectors"):
            self._backend.clear(self._memory[name])
        self._set_unit_pivots()
        self.num_bytes = arena.num_bytes + sum(int(array.nbytes) for array in self._index_arrays())
        self.num_bytes += sum(tiles.num_bytes for tiles in self._tiles if tiles is not None)

    # -- memory --------------------------------------------------------------------------------

    def _upload(self, index: Array) -> Array:
        return self._backend.xp.asarray(index)

    def _columns(self, slots: Array, dtype: DType, length: int) -> Array:
        """Columns of blocked matrices of an array of some length as objects of that array."""
        xp = self._backend.xp
        stride = padded_rows(self._dim, dtype) // dtype.chunk_length * length
        numbers = stride * xp.arange(self._dim)[:, None] + slots
        return numbers.reshape(-1).astype("int32")

    def _placed(self, level: ChainLevel) -> _Level:
        xp, types, num_slots = self._backend.xp, self._plan.types, self._order.num_slots
        own = xp.arange(level.num_segments)
        separator, following = self._upload(level.separator), self._upload(level.following)
        others = [level.first_slot + number * level.num_segments + own for number in range(RUN)]
        return _Level(
            level,
            separator,
            following,
            xp.tile(own, self._dim).astype("int32"),
            tuple(
                self._columns(slots, types.sums, num_slots)
                for slots in (separator, *others, following)
            ),
            tuple(self._columns(slots, types.storage, num_slots) for slots in others),
            self._columns(own, types.sums, level.num_segments),
        )

    def _index_arrays(self) -> list[Array]:
        arrays = [self._slot, self._front_slot, self._front]
        for placed in self._levels:
            arrays += [placed.separator, placed.following, placed.segment, placed.scratch]
            arrays += [*placed.columns, *placed.multipliers]
        arrays += [array for links in self._links for array in (links.number, links.weights)]
        return arrays

    def _link_tiles(self, links: FactorLinks) -> TileIndex | None:
        """Tiles of the links, where their sums are ordered."""
        if links.plan.form.sums is not SharedSums.ORDERED:
            return None
        size = self._plan.library.tile_size
        return item_tiles(self._backend, links.number, self._node.count, None, size)

    def _reserve(self) -> ArenaPlan:
        arena, dim, num_slots = ArenaPlan(), self._dim, self._order.num_slots
        storage, sums = self._plan.types.storage, self._plan.types.sums
        triangle = dim * (dim + 1) // 2
        links = array_scalars(dim * dim, DType.FLOAT64, self._node.count)
        arena.reserve("links", links, DType.FLOAT64)
        arena.join("all links", "links", "links")
        matrix = dim * padded_rows(dim, sums) * num_slots
        for name in ("pivot", "front", "back"):
            arena.reserve(name, matrix, sums)
        arena.reserve("root", array_scalars(triangle, storage, num_slots), storage)
        matrix = dim * padded_rows(dim, storage) * num_slots
        for name in ("multiplier_front", "multiplier_back"):
            arena.reserve(name, matrix, storage)
        arena.join("all matrices", "pivot", "multiplier_back")
        for name in ("residual", "carried", "solved"):
            arena.reserve(name, array_scalars(dim, storage, num_slots), storage)
        arena.join("all vectors", "residual", "solved")
        # needed one after the other: partial sums of links, and what a segment makes
        most = max(self._order.num_roots, *(one.num_segments for one in self._order.levels))
        half = dim * padded_rows(dim, sums) * most
        made = [
            ("new_root", array_scalars(triangle, sums, most), sums),
            ("half_front", half, sums),
            ("half_back", half, sums),
        ]
        partials = [
            [(f"partials{number}", dim * dim * tiles.num_partials, DType.FLOAT64)]
            for number, tiles in enumerate(self._tiles)
            if tiles is not None
        ]
        arena.reserve_shared([made, *partials])
        return arena

    def _set_unit_pivots(self) -> None:
        """Of holes and ends: all others are written by every `factorize`."""
        sums = self._plan.types.sums
        width, size = sums.chunk_length, padded_rows(self._dim, sums)
        chunks = self._memory["pivot"].reshape(self._dim * size // width, -1, width)
        for row in range(self._dim):
            chunks[(row * size + row) // width, :, row % width] = 1.0

    # -- launches ------------------------------------------------------------------------------

    def _slots(self, name: str, index: Array) -> Binding:
        """An array by slots."""
        return Binding(self._memory[name], self._order.num_slots, fields={"index": index})

    def _window(self, name: str, first: int, count: int) -> Binding:
        return Binding(self._memory[name], self._order.num_slots, first, count)

    def node_launch(self, role: str) -> Launch:
        """A kernel with an item for each node."""
        memory, name, count = self._plan.memory, self._node.node.name, self._node.count
        gradient = memory.get(f"{name}.reduced_gradient", memory[f"{name}.gradient"])
        more = {
            f"chain_{part}": self._slots(part, self._slot)
            for part in ("pivot", "front", "root", "residual", "carried", "solved")
        }
        more["chain_back"] = self._slots("back", self._front_slot)
        more["links"] = Binding(self._memory["links"], count)
        diagonal = memory[f"{name}.diagonal"]
        more["front_diagonal"] = Binding(diagonal, count, fields={"index": self._front})
        if role == "chain_start":
            more["gradient"] = Binding(gradient, count)
        return self._binder.node_launch(self._node, role, more)

    def _bind(self, role: str, bindings: Mapping[str, Binding], count: int) -> Launch:
        kernel = self._plan.library.kernel(kernel_name(self._node.node.name, f"chain_{role}"))
        return self._backend.bind(kernel, {**self._binder.scalars(), **bindings}, count)

    def factorize(self) -> list[Launch]:
        """Links, pivots, and their elimination."""
        launches = [self._binder.clear_array(self._memory["all links"])]
        for number, links in enumerate(self._links):
            launches += self._sum_links(links, self._tiles[number], f"partials{number}")
        launches += [self.node_launch("chain_fill"), self.node_launch("chain_join")]
        for placed in self._levels:
            for number in range(RUN):
                launches += self._eliminate(placed, number)
        order = self._order
        return [*launches, self._factorize(order.first_root, order.num_roots)]

    def _sum_links(
        self, links: FactorLinks, tiles: TileIndex | None, partials: str
    ) -> list[Launch]:
        """What a factor adds to links."""
        count, library = self._node.count, self._plan.library
        output = Binding(self._memory["links"], count)
        bindings = {
            "pair_order": Binding(links.weights.reshape(-1), links.plan.count),
            "pair_block": output.with_fields({"index": links.number}),
        }
        if tiles is None:
            return [self._binder.pair(links.plan, links.pair.role, bindings)]
        target = Binding(self._memory[partials], tiles.num_partials, fields=tile_fields(tiles))
        bindings["pair_block"] = target
        lanes = num_lanes(tiles.num_partials, count)
        spec = ReduceSpec(self._dim**2, DType.FLOAT64, lanes, accumulate=True)
        library.load_reductions([spec])
        summed = {"partials": target.with_fields(object_fields(tiles)), "output": output}
        return [
            self._binder.pair(links.plan, links.pair.role, bindings),
            self._backend.bind(library.reduction(spec), summed, count),
        ]

    def _factorize(self, first: int, count: int) -> Launch:
        bindings = {
            "own_pivot": self._window("pivot", first, count),
            "own_root": self._window("root", first, count),
            "root": Binding(self._memory["new_root"], count),
        }
        return self._bind("factorize", bindings, count)

    def _eliminate(self, placed: _Level, number: int) -> list[Launch]:
        """One node of each segment."""
        level = placed.level
        count = level.num_segments
        columns = {"index": placed.columns[1 + number]}
        multipliers = {"index": placed.multipliers[number]}
        segments, scratch = {"index": placed.segment}, {"index": placed.scratch}
        half = {side: Binding(self._memory[f"half_{side}"], count) for side in ("front", "back")}
        bindings = {"root": Binding(self._memory["new_root"], count, fields=segments)}
        for side in ("front", "back"):
            bindings[f"own_{side}"] = self._slots(side, columns["index"])
            bindings[f"half_{side}"] = half[side].with_fields(scratch)
            bindings[f"multiplier_{side}"] = self._slots(f"multiplier_{side}", multipliers["index"])
        front, back = placed.columns[0], placed.columns[2 + number]
        bindings["front_link"] = self._slots("back", front)
        bindings["back_link"] = self._slots("front", back)
        launches = [
            self._factorize(level.first_slot + number * count, count),
            self._bind("columns", bindings, self._dim * count),
        ]
        # the separator behind a segment is the one in front of the next: one after the other
        for own, column, block in (
            ("front", "front", self._slots("pivot", front)),
            ("front", "back", self._slots("back", front)),
            ("back", "back", self._slots("pivot", back)),
            ("back", "front", self._slots("front", back)),
        ):
            bindings = {
                "own": half[own].with_fields(segments),
                "column": half[column].with_fields(scratch),
                "block": block,
            }
            launches.append(self._bind("update", bindings, self._dim * count))
        return launches

    def clear(self) -> Launch:
        """Vectors: what is not finite must not stay in holes."""
        return self._binder.clear_array(self._memory["all vectors"])

    def forward(self, level: int) -> Launch:
        """L^-1 r of a level."""
        placed = self._levels[level]
        bindings = {
            **self._segment_bindings(placed, ("residual", "carried")),
            "separator": self._slots("residual", placed.separator),
            "following": self._slots("carried", placed.following),
        }
        return self._bind("forward", bindings, placed.level.num_segments)

    def backward(self, level: int) -> Launch:
        """L^-T of a level."""
        placed = self._levels[level]
        bindings = {
            **self._segment_bindings(placed, ("solved",)),
            "separator": self._slots("solved", placed.separator),
            "following": self._slots("solved", placed.following),
        }
        return self._bind("backward", bindings, placed.level.num_segments)

    def _segment_bindings(self, placed: _Level, vectors: Sequence[str]) -> dict[str, Binding]:
        """Multipliers and vectors of the nodes of a segment that are eliminated."""
        level = placed.level
        arrays = {name: name for name in vectors}
        arrays |= {side: f"multiplier_{side}" for side in ("front", "back")}
        return {
            f"{name}{number}": self._window(
                array, level.first_slot + number * level.num_segments, level.num_segments
            )
            for name, array in arrays.items()
            for number in range(RUN)
        }
