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
from caspar.memory.accessors.sums.partials import AddSharedPartials, object_fields, tile_fields
from caspar.memory.accessors.sums.shared_atomics import (
    AddSharedPeers,
    AddSharedRuns,
    bind_peers,
    bind_runs,
)
from caspar.memory.binding import Binding
from caspar.memory.reduce import ReduceSpec, num_lanes


@dataclass(frozen=True)
class ReadShared(ReadIndexed):
    """Item `i` reads object `index[i]`, which other items of its tile read too.

    By itself the same text as `ReadIndexed`: staging in shared memory, as in the paper, was slower
    than the caches are (docs/design/0010). Where the kernel also adds to the objects, its threads
    follow the order of their index, and these reads are sorted too.
    """


@dataclass(frozen=True)
class AddSharedSum(AddSharedPartials):
    """To object `index[i]` the value of item `i` is added, for all items that name it."""

    adds: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("index",)

    def num_items(self, length: int | None, options: Options) -> int | None:
        """One for each index."""
        return int(options["index"].shape[0])

    def in_kernel(self, options: Options, backend: str, deterministic: bool) -> WriteAccessor:
        """Atomics, or partials of tiles where the order of sums must not change."""
        if deterministic or backend == "cpu":
            return AddSharedPartials()
        return AddSharedRuns() if "prepared" in options else AddSharedPeers()

    def bind(self, arg: ArgSpec, output: Binding, options: Options, kit: Kit) -> BoundWrite:
        """As the kernel's access needs."""
        if arg.write == AddSharedRuns():
            return bind_runs(output, options, kit)
        if arg.write == AddSharedPeers():
            return bind_peers(output, options)
        return self._bind_partials(arg, output, options, kit)

    def _bind_partials(
        self, arg: ArgSpec, output: Binding, options: Options, kit: Kit
    ) -> BoundWrite:
        """Room for the partials; a kernel that sums each object's."""
        num_objects = output.num_objects
        tiles = kit.tiles(options, num_objects)
        scratch = kit.allocate(arg.dim * tiles.num_partials, arg.dtype)
        partials = Binding(scratch, tiles.num_partials, fields=tile_fields(tiles))
        lanes = num_lanes(tiles.num_partials, num_objects)
        spec = ReduceSpec(arg.dim, arg.dtype, lanes, accumulate=True)
        bindings = {"partials": partials.with_fields(object_fields(tiles)), "output": output}
        return BoundWrite(partials, (Finish(spec, bindings, num_objects),))
