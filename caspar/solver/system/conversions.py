"""Rows of users to blocked arrays of the arena, and back.

Rows are elsewhere in every solve. So a launch is kept for each array, and told where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from caspar.ir.dtype import DType
from caspar.memory.array import Array, address
from caspar.memory.binding import Binding, Late
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.layout import rows_are_blocked
from caspar.runtime.backend import LateSequence, Launch
from caspar.solver.plan.array_key import ArrayKey

if TYPE_CHECKING:
    from caspar.solver.system.launches import Binder


@cache
def _type_of(dtype: np.dtype[Any]) -> DType:
    """NumPy takes microseconds to make a name."""
    return DType(dtype.name)


class _Conversion(NamedTuple):
    """A launch that packs or unpacks rows wherever they are.

    Attributes:
        launch: The launch.
        place: The parameter that is the address of the rows.
        run: Runs it.
        region: Of the arena.
        sequence: The launch alone, where it can be bound again for a region of another plan.
    """

    launch: Launch
    place: int
    run: Callable[[], None]
    region: Array
    sequence: LateSequence | None


class Conversions:
    """The conversions of a binder's plan."""

    def __init__(self, binder: Binder) -> None:
        self._binder = binder
        self._known: dict[tuple[Direction, ArrayKey], _Conversion] = {}
        self._rows: Array = None

    def run(self, direction: Direction, key: ArrayKey, rows: Array) -> None:
        """Enqueue one: (n, dim) rows, and an array of the arena."""
        plan = self._binder.plan
        region = plan.memory[key]
        if rows_are_blocked(int(rows.shape[1]), _type_of(region.dtype)):
            packs = direction is Direction.PACK
            target, source = (region, rows.reshape(-1)) if packs else (rows.reshape(-1), region)
            plan.library.backend.copy(target, source)
            return
        known = self._known.get((direction, key))
        if known is None or known.region is not region:
            self._rows = rows
            known = self._made(direction, key, known)
            self._rows = None
        if known is not None:
            known.launch.set_address(known.place, address(rows))
            known.run()

    def _made(
        self, direction: Direction, key: ArrayKey, known: _Conversion | None
    ) -> _Conversion | None:
        """For `_rows`, by the known launch if that can be bound again; None: it was run."""
        rows, plan = self._rows, self._binder.plan
        backend, region = plan.library.backend, plan.memory[key]
        if known is not None and known.sequence is not None:
            known.sequence.bind_again({})
            made = self._known[direction, key] = known._replace(region=region)
            return made
        spec = ConvertSpec(direction, int(rows.shape[1]), _type_of(region.dtype))
        num_rows = Late(lambda: len(self._rows))
        bindings = {
            "rows": Binding(Late(lambda: self._rows), num_rows),
            "blocked": Binding(self._binder.array(key), num_rows),
        }
        launch = self._binder.bind(spec.name, bindings, num_rows)
        places = [place for place, one in enumerate(launch.values) if one is rows]
        if len(places) == 0:
            backend.runner([launch])()
            return None
        launch = launch.without([rows])
        sequence = backend.sequence([launch]) if self._binder.can_bind_again else None
        late = sequence if isinstance(sequence, LateSequence) else None
        run = backend.runner([launch]) if late is None else late.run
        made = self._known[direction, key] = _Conversion(launch, places[0], run, region, late)
        return made
