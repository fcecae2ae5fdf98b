"""Partial sums: one for each tile, or one for each object of each tile, in a fixed order.

A second kernel sums the partials, again in a fixed order: the result has the same bits in every
run. The solver's kernels use these patterns by name; the patterns of `memory.accessors.sums.sums`
and `.shared` put both halves together.
"""

from dataclasses import dataclass
from typing import ClassVar

from caspar.ir.dtype import DType
from caspar.memory.access import (
    AnyObjects,
    ArgSpec,
    BoundWrite,
    Field,
    Finish,
    Kit,
    Options,
    ReadAccessor,
    WriteAccessor,
)
from caspar.memory.accessors.block_functions import ADD_SEGMENTS, BLOCK_SUM, SUM_PARTIALS
from caspar.memory.accessors.blocked import cpu_index, cuda_base
from caspar.memory.accessors.scope import SCALAR_TYPE, CpuScope, CudaScope, cuda_array
from caspar.memory.accessors.sums.shared_atomics import AddAtomically
from caspar.memory.array import Array, Binding
from caspar.memory.kernel import ReduceSpec, num_lanes
from caspar.memory.layout import PARTIAL_CHUNK
from caspar.memory.tiling.tiles import TileIndex

STAGE_PADDING = 8
"""Extra columns of the staging array: keeps its 4 rows in different banks."""


def room_for_warps(scope: CudaScope) -> None:
    """Two arrays in turn for the sums of a block's warps, of a chunk each."""
    scope.shared("sums", "double sums[2][4][32]")


@dataclass(frozen=True)
class ReadPartials(ReadAccessor, AnyObjects):
    """The sum of all partials of an array; for kernels of one item.

    One block of `min_block_size` threads sums them on CUDA.
    """

    cuda_functions: ClassVar[str] = BLOCK_SUM + SUM_PARTIALS
    holds_partials: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True

    @property
    def min_block_size(self) -> int:
        """All that a block can have: one block reads the whole array."""
        return 1024

    @property
    def block_multiple(self) -> int:
        """Whole warps."""
        return 32

    def value_dtype(self, arg: ArgSpec) -> DType:
        """Sums are taken in float64."""
        return DType.FLOAT64

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Room for the sums of the warps."""
        room_for_warps(scope)

    def cuda_read(self, scope: CudaScope, arg: ArgSpec, chunk: int) -> list[str]:
        """A sum over the block; the first line loads."""
        width = arg.chunk_widths[chunk]
        first, total = scope.temporary(), scope.temporary()
        partials = f"{cuda_base(arg, chunk)}, {arg.name}_length"
        sizes = f"<{width}, BLOCK_SIZE>"
        scope.emit(
            f"const OwnPartials<{width}, {SCALAR_TYPE[arg.dtype]}> {first} = "
            f"own_partials{sizes}({partials});",
            f"double {total}[{width}];",
            f"sum_partials{sizes}({first}, {partials}, {total}, {scope.alternate('sums')});",
        )
        return [f"{total}[{lane}]" for lane in range(width)]

    def cpu_read(self, scope: CpuScope, arg: ArgSpec, chunk: int) -> list[str]:
        """A sum in order."""
        width = arg.chunk_widths[chunk]
        start = f"{chunk * arg.chunk_length} * {arg.name}_length"
        return [
            f"sum_partials({arg.name}_data, {start} + {lane}, {width}, {arg.name}_length)"
            for lane in range(width)
        ]


MAX_SLOTS = 1024
"""Places that the sums of all tiles are spread over, where they are added by atomics. One is added
to the same 32 bytes every 4.5 ns: 64 places cost 45 us of 243 for 5 M factors (H200)."""

MIN_SLOTS = 64

TILES_OF_SLOT = 8


def num_slots(num_tiles: int) -> int:
    """A power of two that suits a number of tiles: few slots are quicker to sum."""
    slots = MIN_SLOTS
    while slots < MAX_SLOTS and slots * TILES_OF_SLOT < num_tiles:
        slots *= 2
    return slots


@dataclass(frozen=True)
class AddSumSlots(AddAtomically):
    """One scalar summed over all items: each warp adds its sum to one of `slots` places.

    Without a barrier, and few places are left to sum. The bits differ from run to run. A warp adds
    once, after all its tiles: a product of 29 M observations takes 793 us instead of 865, with
    float16 Jacobians 700 instead of 720 (H200, stretches of 8). Until then a lane adds in the
    computing type; over the tiles of a long node float32 loses 1e-7 of 400, 1.4e-6 of 4,000.
    """

    holds_partials: ClassVar[bool] = True

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Return how many there are, a power of two."""
        return (Field("slots"),)

    def num_objects(self, count: int, options: Options) -> int:
        """Return the number of slots."""
        return MIN_SLOTS

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """A sum over the tiles, one over the warp, an atomic addition."""
        (value,) = values
        total, scalar = f"{arg.name}_total", SCALAR_TYPE[scope.dtype]
        zero = scope.literal(0.0, scope.dtype)
        warp = "blockIdx.x * (BLOCK_SIZE / 32) + (threadIdx.x >> 5)"
        place = f"(({warp}) & u32({arg.name}_slots - 1))"
        scope.before_tiles(f"{scalar} {total} = {zero};")
        scope.emit(f"{total} += active ? {value} : {zero};")
        scope.after_tiles(
            f"for (int step = 16; step > 0; step >>= 1) {total} += "
            f"__shfl_down_sync(0xffffffffu, {total}, step);",
            "if ((threadIdx.x & 31u) == 0u)",
            f"  atomicAdd({arg.name}_data + {place}, {SCALAR_TYPE[arg.dtype]}({total}));",
        )


@dataclass(frozen=True)
class AddSumPartials(WriteAccessor, AnyObjects):
    """Summed over the items of a tile: one partial for each tile.

    `offset` is the partial of tile 0: kernels may share an array.
    """

    cuda_functions: ClassVar[str] = BLOCK_SUM
    holds_partials: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """The partial of tile 0."""
        return (Field("offset"),)

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Room for the sums of the warps."""
        room_for_warps(scope)

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """A sum over the block."""
        found, summed = _block_sum(scope, values), scope.temporary()
        scope.emit(f"const double {summed} = {found};", _store_sum(arg, chunk, "tile", summed))

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """A total for each column."""
        zero = scope.number(0.0, arg.dtype)
        scope.before(*(f"{arg.name}_total{column} = {zero}" for column in range(arg.dim)))

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Add to the totals."""
        for lane, value in enumerate(values):
            column = chunk * arg.chunk_length + lane
            scope.emit(f"{arg.name}_total{column} += {scope.cast(value, scope.dtype, arg.dtype)}")

    def cpu_after(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Store the totals."""
        for column in range(arg.dim):
            chunk, lane = divmod(column, arg.chunk_length)
            place = cpu_index(arg, chunk, f"({arg.name}_offset + tile)")
            scope.after(f"{arg.name}_data[{place} + {lane}] = {arg.name}_total{column}")


@dataclass(frozen=True)
class AddStretchPartials(AddSumPartials):
    """The same where blocks take several tiles: on CUDA one partial for each block."""

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """A sum over the block's items, and over its tiles."""
        total = f"{arg.name}_total{chunk}"
        scope.before_tiles(f"double {total} = 0.0;")
        scope.emit(f"{total} += {_block_sum(scope, values)};")
        scope.after_tiles(_store_sum(arg, chunk, "blockIdx.x", total))


def _block_sum(scope: CudaScope, values: list[str]) -> str:
    """The sums over the block: each of the first threads gets one."""
    stage, zero = scope.alternate("sums"), scope.literal(0.0, scope.dtype)
    items = [f"active ? {value} : {zero}" for value in values]
    total = cuda_array(scope, scope.dtype, items, const=True)
    return f"block_sum<BLOCK_SIZE>({total}, {stage})"


def _store_sum(arg: ArgSpec, chunk: int, partial: str, value: str) -> str:
    width = arg.chunk_widths[chunk]
    return (
        f"if (threadIdx.x < {width}u) ({cuda_base(arg, chunk)})"
        f"[{width}ull * ({arg.name}_offset + {partial}) + threadIdx.x] = {value};"
    )


@dataclass(frozen=True)
class AddSharedPartials(WriteAccessor, AnyObjects):
    """Summed over the items of a tile that share an index: a partial for each of its indices.

    The fields are arrays of `memory.tiling.tiles.TileIndex`.
    """

    cuda_functions: ClassVar[str] = ADD_SEGMENTS
    holds_partials: ClassVar[bool] = True
    cooperates: ClassVar[bool] = True
    tile_sizes: ClassVar[tuple[int, ...]] = (256, 128, 512)

    def fields(self, arg: ArgSpec) -> tuple[Field, ...]:
        """Places of the items in the tile, and where the tile's partials begin and end."""
        return (
            Field("slot", DType.UINT16),
            Field("position", DType.UINT16),
            Field("tile_start", DType.INT32),
            Field("segment_end", DType.UINT16),
        )

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Room for the partials; a kernel that sums each object's."""
        tiles = kit.tiles(options, output.num_objects)
        total = SharedSum(arg.dim, arg.dtype, output.num_objects, tiles)
        return total.bind(output, kit.allocate(total.num_scalars, arg.dtype))

    def cuda_before(self, scope: CudaScope, arg: ArgSpec) -> None:
        """Two staging arrays."""
        scalar = SCALAR_TYPE[scope.dtype]
        scope.shared("stage", f"{scalar} stage[2][4][BLOCK_SIZE + {STAGE_PADDING}]")

    def cuda_write(self, scope: CudaScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Stage the values sorted by index, then sum each index's."""
        # two staging arrays in turn: one barrier a chunk is enough
        stage = scope.alternate("stage")
        staged = " ".join(
            f"{stage}[{row}][{arg.name}_position[item]] = {value};"
            for row, value in enumerate(values)
        )
        scope.emit(
            f"if (active) {{ {staged} }}",
            "__syncthreads();",
            f"add_segments<{len(values)}>({cuda_base(arg, chunk)}, {stage}, "
            f"{arg.name}_tile_start[tile], {arg.name}_tile_start[tile + 1], "
            f"{arg.name}_segment_end);",
        )

    def cpu_before(self, scope: CpuScope, arg: ArgSpec) -> None:
        """Clear the tile's partials."""
        first, last = f"{arg.name}_begin", f"{arg.name}_end"
        scope.before(
            f"{first} = {arg.name}_tile_start[tile]", f"{last} = {arg.name}_tile_start[tile + 1]"
        )
        data, length = f"{arg.name}_data", f"{arg.name}_length"
        full, rest = divmod(arg.dim, PARTIAL_CHUNK)
        if full > 0:
            begin, end = (f"{PARTIAL_CHUNK} * (chunk * {length} + {at})" for at in (first, last))
            scope.before(
                f"for chunk in range({full}):",
                f"    for scalar in range({begin}, {end}):",
                f"        {data}[scalar] = 0.0",
            )
        if rest > 0:
            start = f"{PARTIAL_CHUNK * full} * {length}"
            scope.before(
                f"for scalar in range({start} + {rest} * {first}, {start} + {rest} * {last}):",
                f"    {data}[scalar] = 0.0",
            )

    def cpu_write(self, scope: CpuScope, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        """Add to the partial of the item's index."""
        place = scope.temporary()
        partial = f"({arg.name}_begin + {arg.name}_slot[item])"
        scope.emit(f"{place} = {cpu_index(arg, chunk, partial)}")
        for lane, value in enumerate(values):
            scalar = scope.cast(value, scope.dtype, arg.dtype)
            scope.emit(f"{arg.name}_data[{place} + {lane}] += {scalar}")


def tile_fields(tiles: TileIndex) -> dict[str, Array | int]:
    """The fields of an `AddSharedPartials`."""
    return {
        "slot": tiles.slot,
        "position": tiles.position,
        "tile_start": tiles.tile_start,
        "segment_end": tiles.segment_end,
    }


def object_fields(tiles: TileIndex) -> dict[str, Array | int]:
    """Return the fields that a reduction needs besides its partials."""
    return {"object_start": tiles.object_start, "object_partials": tiles.object_partials}


@dataclass(frozen=True)
class SharedSum:
    """A sum over the items that share an object, on the host.

    Without tiles, which are of the items, by object, a kernel adds to the objects by atomics. With
    them it writes partials, which a second kernel sums: the order does not change. `rows`: an
    object's scalars stand together, see `layout.row_scalars`.
    """

    dim: int
    dtype: DType
    num_objects: int
    tiles: TileIndex | None
    rows: bool = False

    @property
    def num_scalars(self) -> int:
        """Scalars of the partials."""
        return 0 if self.tiles is None else self.dim * self.tiles.num_partials

    @property
    def reductions(self) -> tuple[ReduceSpec, ...]:
        """The kernel that sums the partials, where there are some."""
        if self.tiles is None:
            return ()
        lanes = num_lanes(self.tiles.num_partials, self.num_objects)
        return (ReduceSpec(self.dim, self.dtype, lanes, self.rows),)

    def bind(self, output: Binding, partials: Array | None = None) -> BoundWrite:
        """Bind the argument of a kernel that sums, and what completes it.

        `output` has, without tiles, the fields that the kernel's access needs; `partials` is
        (num_scalars,) scratch memory, where there are tiles.
        """
        tiles = self.tiles
        if tiles is None:
            return BoundWrite(output)
        assert partials is not None
        # what each access to partials asks for; those of one object for all items have an offset
        fields = {**tile_fields(tiles), **object_fields(tiles), "offset": 0}
        binding = Binding(partials, tiles.num_partials, fields=fields)
        bindings = {"partials": binding, "output": output}
        finish = (Finish(spec, bindings, self.num_objects) for spec in self.reductions)
        return BoundWrite(binding, tuple(finish))
