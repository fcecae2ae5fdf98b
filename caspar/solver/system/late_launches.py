"""Sums through partials and conversions of rows, whose arrays are looked up.

Which tiles a sum has depends on the structure, and rows of users are elsewhere in every solve. So
launches are kept, and told where what they need is. Cost tiers: as `launches`; conversions run once
for a solve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from caspar.ir.dtype import DType
from caspar.memory.accessors.sums.partials import SharedSum
from caspar.memory.array import Array, Binding, Late, address
from caspar.memory.kernel import ConvertSpec, Direction, ReduceSpec, num_lanes
from caspar.memory.layout import rows_are_blocked
from caspar.runtime.backend import Kernel, LateSequence, Launch
from caspar.solver.plan.arena import ArrayKey
from caspar.solver.plan.plan import Plan

TILE_FIELDS = ("slot", "position", "tile_start", "segment_end", "object_start", "object_partials")
"""Fields of a `TileIndex` that kernels need which sum through partials."""


class LateSum:
    """A sum over items that share an object, through partials."""

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
        """Return the binding that a kernel adds to."""
        # what each access to partials asks for; those of one object for all items have an offset
        fields = {name: self._tiles(name) for name in TILE_FIELDS}
        return Binding(memory, self._tiles("num_partials"), fields={**fields, "offset": 0})

    def reduction(self, output: Binding, memory: Late) -> Launch:
        """The launch that sums the partials."""
        bindings = {"partials": self.partials(memory), "output": output}
        return self._bind(Late(self._kernel), bindings, self._num_objects)

    def _kernel(self) -> Kernel:
        lanes = num_lanes(self._tiles("num_partials").now(), self._num_objects.now())
        if lanes not in self._kernels:
            one = self._sum
            spec = ReduceSpec(one.dim, one.dtype, lanes, one.rows)
            self._kernels[lanes] = self._find(spec)
        return self._kernels[lanes]


@cache
def _type_of(dtype: np.dtype[Any]) -> DType:
    """NumPy takes microseconds to make a name."""
    return DType(dtype.name)


class _Conversion(NamedTuple):
    """A launch that packs or unpacks rows wherever they are.

    Attributes:
        sequence: The launch alone, where it can be bound again for a region of another plan.
    """

    launch: Launch
    place: int
    run: Callable[[], None]
    region: Array
    sequence: LateSequence | None


class _Rows:
    now: Array = None


class Conversions:
    """The conversions of a plan, and of others of its kind that take its place."""

    def __init__(self) -> None:
        self._known: dict[tuple[Direction, ArrayKey], _Conversion] = {}
        self._rows = _Rows()

    def run(
        self, plan: Plan, direction: Direction, key: ArrayKey, rows: Array, array: Late
    ) -> None:
        """Enqueue one: (n, dim) rows, and an array of the arena, which is late, too."""
        region = plan.memory[key]
        if rows_are_blocked(int(rows.shape[1]), _type_of(region.dtype)):
            packs = direction is Direction.PACK
            target, source = (region, rows.reshape(-1)) if packs else (rows.reshape(-1), region)
            plan.library.backend.copy(target, source)
            return
        known = self._known.get((direction, key))
        if known is None or known.region is not region:
            self._rows.now = rows
            known = self._made(plan, direction, key, array, known)
            self._rows.now = None
        if known is not None:
            known.launch.set_address(known.place, address(rows))
            known.run()

    def _made(
        self,
        plan: Plan,
        direction: Direction,
        key: ArrayKey,
        array: Late,
        known: _Conversion | None,
    ) -> _Conversion | None:
        """Bind a launch to `_rows`, `known` again if it can be; None: it was run instead."""
        given, rows = self._rows, self._rows.now
        backend, region = plan.library.backend, plan.memory[key]
        if known is not None and known.sequence is not None:
            known.sequence.bind_again({})
            run = backend.runner([known.launch])
            made = self._known[direction, key] = known._replace(region=region, run=run)
            return made
        spec = ConvertSpec(direction, int(rows.shape[1]), _type_of(region.dtype))
        num_rows = Late(lambda: len(given.now))
        bindings = {
            "rows": Binding(Late(lambda: given.now), num_rows),
            "blocked": Binding(array, num_rows),
        }
        launch = backend.bind(plan.library.kernel(spec.name), bindings, num_rows)
        places = [place for place, one in enumerate(launch.values) if one is rows]
        if len(places) == 0:
            backend.runner([launch])()
            return None
        launch = launch.without([rows])
        sequence, run = backend.sequence([launch]), backend.runner([launch])
        late = sequence if isinstance(sequence, LateSequence) else None
        made = self._known[direction, key] = _Conversion(launch, places[0], run, region, late)
        return made
