"""Output of code generation: the text of a kernel, and the parameters that a launch passes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caspar.ir.dtype import DType
from caspar.memory.access import TILES, ArgSpec, Field

COUNT = "count"
"""Number of items."""

DATA = "data"
"""Address of the argument's array."""

LENGTH = "length"
"""Objects (or partials) in that array: the distance between chunks."""

FIRST = "first"
"""First object of a windowed argument."""


CPU_TILE_SIZE = 1024
"""Items of a tile on the processor: enough to amortise the call, few enough to balance small
problems."""

PLACE = Field("place", DType.INT64)
"""The place of each item, a field of TILES. On CUDA it is mostly half as wide: see the text."""

TILE_FIELDS = (
    PLACE,
    Field("items", DType.INT32),
    Field("group_start", DType.INT32),
    Field("num_long"),
    Field("num_long_tiles"),
)
"""Fields of the argument TILES: see `memory.tiling.node_tiles.NodeTiles.fields`."""

STRETCH_FIELDS = (Field("end"), Field("stretch"), Field("num_longer"))
"""More of them, for a kernel whose blocks may take several tiles one after the other: see
`memory.tiling.node_tiles.NodeTiles.stretch_fields`."""


@dataclass(frozen=True)
class Param:
    """One parameter of a generated kernel: a name above, or a field of the argument's access.

    `arg` is empty for the count; `dtype` is that of an array whose address is passed, which may be
    written; None for a 32-bit integer.
    """

    field: str
    arg: str = ""
    dtype: DType | None = None
    written: bool = False

    @property
    def name(self) -> str:
        """Name of the parameter in the source."""
        return f"{self.arg}_{self.field}" if self.arg else self.field

    @property
    def is_unsigned(self) -> bool:
        """Return whether the integer is unsigned; those that an access adds may be negative."""
        return self.field in (COUNT, LENGTH, FIRST)


_DECLARATION = re.compile(r"(?:const )?(\w+(?:<[\w, ]+>)?) (m\d+) = ")
_ADDRESS = re.compile(r"(const \w+\*) const (m\d+) = ")


@dataclass(frozen=True)
class Load:
    """Lines of a kernel that load part of an item's own object, or a thread's partials.

    The first one declares the variable `name` of the C type `vector`. `is_address`: it is no load
    yet, but the address of several. Without a name it is no load, but a store of what nothing else
    of the kernel is needed for.
    """

    arg: str
    vector: str
    name: str
    lines: tuple[str, ...]
    is_address: bool = False

    @classmethod
    def of(cls, arg: str, lines: Sequence[str]) -> "list[Load]":
        """Return the loads of the lines that declare what is loaded first, or its address.

        An address is by itself: it may be known long before.
        """
        address = _ADDRESS.match(lines[0])
        if address is not None:
            first = cls(arg, address[1], address[2], (lines[0],), is_address=True)
            return [first, *cls.of(arg, lines[1:])]
        declared = _DECLARATION.match(lines[0])
        assert declared is not None, lines[0]
        return [cls(arg, declared[1], declared[2], tuple(lines))]

    @property
    def is_value(self) -> bool:
        """Return whether it loads a value that the rest of the kernel uses."""
        return self.name != "" and not self.is_address

    def goes_early(self, untouched: Collection[str]) -> bool:
        """Return whether it goes ahead of a barrier, if nobody writes those arguments meanwhile."""
        return self.is_address or (self.is_value and self.arg in untouched)

    @property
    def assigned(self) -> tuple[str, ...]:
        """The lines for a variable that is declared already."""
        pattern = _ADDRESS if self.is_address else _DECLARATION
        return (pattern.sub(f"{self.name} = ", self.lines[0]), *self.lines[1:])


WARP = 32

ENOUGH_BLOCKS = 128
"""Blocks that few items are dealt to, as many as a device has multiprocessors, unless one block
takes them all: then a loop may do without a barrier of the grid. Of 1,723 cameras, a step of PCG
takes 2.8 us in 8 blocks and 2.1 in 54 (H200)."""


CLUSTERED_ITEMS = 384
"""Items up to which blocks are as few as a cluster can have (`codegen.cuda.loop.fuse`), where
one block does not take them all. 0.7 M observations of 330 cameras, us an iteration: 24.1
instead of 24.9 recomputed, 23.1 instead of 24.5 with float16, 29.0 instead of 30.1 stored. Where
there is no cluster they take as long as in more blocks: 0.23 M of 257 cameras, all in one kernel,
16.1 and 15.8, 14.8 and 14.7, 15.9 and 15.8, less than from run to run. 1,723 cameras take as long
in a cluster as in 54 blocks (H200)."""

CLUSTERED_BLOCKS = 6
"""Blocks that these are dealt to: what a loop clears meanwhile takes two more at most."""


@dataclass(frozen=True)
class KernelSource:
    """A generated kernel.

    Attributes:
        name: Name of the entry point.
        text: Complete source.
        params: What to pass, in order.
        block_sizes: CUDA: threads a block may have, the preferred number first; the text leaves
            it open as the macro `BLOCK_SIZE`. CPU: items of a tile, one number.
        threads_per_item: CUDA: threads that work on one item.
        items_per_thread: CUDA: items that one thread handles.
        num_layers: CUDA: blocks in y; each handles one chunk of an object.
        block_multiple: CUDA: in a loop, where all kernels have blocks of one size, one of a single
            block may have any size that is a multiple of this.
        num_registers: Peak register pressure predicted by the scheduler.
        tiled: A block (on the CPU a call) takes a group of node tiles; `tiles` must be bound.
        stretches: CUDA: a block may take several tiles one after the other.
        few_items: CUDA: the blocks of the grid share the items evenly; see `ENOUGH_BLOCKS`.
        loads: CUDA: what a thread loads first of partials that its block sums; where items are
            few, all loads of the item's own objects.
        early: CUDA: arguments that it may read before it waits for the launch ahead to end. All its
            blocks wait before they store anything: what is launched behind it relies on that. None:
            it does not wait, and may not begin before.
    """

    name: str
    text: str
    params: tuple[Param, ...]
    block_sizes: tuple[int, ...]
    threads_per_item: int = 1
    items_per_thread: int = 1
    num_layers: int = 1
    block_multiple: int = 32
    num_registers: int = 0
    tiled: bool = False
    few_items: bool = False
    stretches: bool = False
    loads: tuple[Load, ...] = ()
    early: tuple[str, ...] | None = None

    def num_blocks(self, count: int, block_size: int) -> int:
        """Blocks (on the CPU tiles) for `count` items."""
        if self.few_items and count > block_size:
            most = CLUSTERED_BLOCKS if count <= CLUSTERED_ITEMS else ENOUGH_BLOCKS
            share = WARP * -(-count // (WARP * most))
            return -(-count // min(share, block_size))
        return -(-count * self.threads_per_item // (block_size * self.items_per_thread))

    @property
    def block_size(self) -> int:
        """The preferred block size."""
        return self.block_sizes[0]


def kernel_params(
    args: Sequence[ArgSpec], *, tiled: bool = False, stretches: bool = False
) -> tuple[Param, ...]:
    """The parameters of a kernel: the count, then what each argument's access needs."""
    params = [Param(COUNT)]
    if stretches:
        params += [Param(field.name, TILES, field.dtype) for field in STRETCH_FIELDS]
    if tiled:
        params += [Param(field.name, TILES, field.dtype) for field in TILE_FIELDS]
    for arg in args:
        if arg.has_array:
            params += [
                Param(DATA, arg.name, arg.dtype.in_arrays, arg.is_written),
                Param(LENGTH, arg.name),
            ]
        if arg.windowed:
            params.append(Param(FIRST, arg.name))
        fields = dict.fromkeys(field for access in arg.accessors for field in access.fields(arg))
        params += [Param(field.name, arg.name, field.dtype, field.written) for field in fields]
    return tuple(params)


REDUCE_FIELDS = (Field("object_start", DType.INT32), Field("object_partials", DType.INT32))
"""Index of the partials that a reduction sums: the start of each object's run, and its entries."""


def reduce_params(partials: ArgSpec, output: ArgSpec) -> tuple[Param, ...]:
    """The parameters of a kernel that sums partials into an output."""
    count, *rest = kernel_params((partials, output))
    place = next(number for number, param in enumerate(rest) if param.arg == output.name)
    fields = [Param(field.name, partials.name, field.dtype) for field in REDUCE_FIELDS]
    return (count, *rest[:place], *fields, *rest[place:])


def source_to_json(source: KernelSource) -> dict[str, Any]:
    """A kernel as JSON holds it."""
    params = [
        [param.field, param.arg, None if param.dtype is None else param.dtype.value, param.written]
        for param in source.params
    ]
    loads = [list(vars(load).values()) for load in source.loads]
    return {**vars(source), "params": params, "loads": loads}


def source_from_json(data: Mapping[str, Any]) -> KernelSource:
    """The kernel that `source_to_json` was given; fails on data of something else."""
    params = tuple(
        Param(field, arg, None if dtype is None else DType(dtype), written)
        for field, arg, dtype, written in data["params"]
    )
    read = {
        "params": params,
        "block_sizes": tuple(data["block_sizes"]),
        "loads": tuple(
            Load(arg, vector, name, tuple(lines), is_address)
            for arg, vector, name, lines, is_address in data["loads"]
        ),
        "early": None if data["early"] is None else tuple(data["early"]),
    }
    return KernelSource(**{**data, **read})
