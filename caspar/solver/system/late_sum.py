"""A sum over items that share an object, through partials, whose tiles are looked up.

Input: how it is taken, and where its tiles are found. Output: what a kernel that sums is bound to,
and the launch that sums its partials. Cost tier: as `launches`.
"""

from collections.abc import Callable, Mapping

from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.binding import Binding, Late
from caspar.memory.reduce import ReduceSpec, num_lanes
from caspar.runtime.backend import Kernel, Launch

TILE_FIELDS = (
    "slot",
    "position",
    "tile_start",
    "segment_end",
    "object_start",
    "object_partials",
)
"""What kernels that sum through partials need of a `TileIndex`."""


class LateSum:
    """A sum over items that share an object, through partials.

    Args:
        bind: Binds a kernel to arguments for a number of items.
        reduction: Finds the kernel that sums partials.
        sum_: What is summed, at present; its tiles and its number of objects may be others later.
        tiles: Its tiles, by an attribute's name; that is looked up.
        num_objects: Its objects.
    """

    def __init__(
        self,
        bind: Callable[[Late, Mapping[str, Binding], Late], Launch],
        reduction: Callable[[ReduceSpec], Kernel],
        sum_: SharedSum,
        tiles: Callable[[str], Late],
        num_objects: Late,
    ) -> None:
        self._bind = bind
        self._find = reduction
        self._sum = sum_
        self._tiles = tiles
        self._num_objects = num_objects
        self._kernels: dict[int, Kernel] = {}

    def partials(self, memory: Late) -> Binding:
        """What a kernel adds to."""
        # what each access to partials asks for; those of one object for all items have an offset
        fields = {name: self._tiles(name) for name in TILE_FIELDS}
        return Binding(memory, self._tiles("num_partials"), fields={**fields, "offset": 0})

    def reduction(self, output: Binding, memory: Late) -> Launch:
        """The launch that sums the partials."""
        bindings = {"partials": self.partials(memory), "output": output}
        return self._bind(Late(self._kernel), bindings, self._num_objects)

    def _kernel(self) -> Kernel:
        """Which one suits depends on the number of partials."""
        lanes = num_lanes(self._tiles("num_partials").now(), self._num_objects.now())
        if lanes not in self._kernels:
            one = self._sum
            spec = ReduceSpec(one.dim, one.dtype, lanes, one.rows)
            self._kernels[lanes] = self._find(spec)
        return self._kernels[lanes]
