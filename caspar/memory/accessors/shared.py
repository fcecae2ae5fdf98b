"""Items that share objects with others of their tile: `index[i]`, any number of times."""

from dataclasses import dataclass
from typing import ClassVar

from caspar.memory.access import (
    ArgSpec,
    BoundWrite,
    Finish,
    Kit,
    Options,
    WriteAccessor,
)
from caspar.memory.accessors.indexed import ReadIndexed
from caspar.memory.accessors.partials import AddSharedPartials, object_fields, tile_fields
from caspar.memory.binding import Binding
from caspar.memory.reduce import ReduceSpec

MANY_PARTIALS = 4
"""Partials an object has on average, from which on a warp sums them instead of a thread."""


@dataclass(frozen=True)
class ReadShared(ReadIndexed):
    """Item `i` reads object `index[i]`, which other items of its tile read too."""


@dataclass(frozen=True)
class AddSharedSum(AddSharedPartials):
    """To object `index[i]` the value of item `i` is added, for all items that name it."""

    adds: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("index",)

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each index."""
        return int(options["index"].shape[0])

    def in_kernel(self, options: Options, backend: str, deterministic: bool) -> WriteAccessor:
        """Partials of tiles."""
        return AddSharedPartials()

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """Room for the partials; a kernel that sums each object's."""
        num_objects = output.num_objects
        tiles = kit.tiles(options, num_objects)
        scratch = kit.allocate(arg.dim * tiles.num_partials, arg.dtype)
        partials = Binding(scratch, tiles.num_partials, fields=tile_fields(tiles))
        lanes = 32 if tiles.num_partials > MANY_PARTIALS * num_objects else 1
        spec = ReduceSpec(arg.dim, arg.dtype, lanes, accumulate=True)
        bindings = {"partials": partials.with_fields(object_fields(tiles)), "output": output}
        return BoundWrite(partials, (Finish(spec, bindings, num_objects),))
