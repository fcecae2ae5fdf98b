"""Plain steps of Levenberg-Marquardt on CUDA: the decision is one more launch of a step.

A graph repeats the launches until the decision sets a flag. The host writes numbers, launches the
graph and reads numbers and records, once for a run of steps.

Cost tier: making the graph, once for a plan; a run is in the inner loop.
"""

from collections.abc import Callable, Sequence
from typing import Any

import cupy

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.backend import (
    COUNT,
    MOST_STEPS,
    ROW,
    STOP,
    LaunchSequence,
    Loop,
    PlainDecision,
)
from caspar.runtime.cuda.compile.kernel import CudaKernel
from caspar.runtime.cuda.launch.launch import CudaLaunch
from caspar.runtime.cuda.launch.scalars import CudaScalars
from caspar.runtime.cuda.loop.repeat import graph_loop
from caspar.runtime.parameters import entry_addresses, parameter_table

_ALL_MEMORY, _BYTES = 0, 8
"""The array of which entries of D have places: float64 numbers from address 0 on."""


class CudaPlainSteps:
    """A decision behind the launches of a step, see `Backend.plain_steps`."""

    def __init__(
        self,
        stream: Any,
        kernel: Callable[[], CudaKernel],
        decision: PlainDecision,
        step: Sequence[CudaLaunch],
        accept: LaunchSequence,
    ) -> None:
        self._stream, self._kernel = stream, kernel
        self._step, self._accept = step, accept
        self._num_numbers = decision.num_numbers
        self._numbers = cupy.zeros(decision.num_numbers + ROW * MOST_STEPS)
        self._on_host = CudaScalars(stream, self._numbers)
        self._scalars: Sequence[Array] = ()
        self._diagonals: Sequence[Array] = ()
        self._loop: Loop | None = None

    def bind_again(self, scalars: Sequence[Array], diagonals: Sequence[Array]) -> bool:
        """See `PlainSteps`: the graph is made when it runs."""
        self._scalars, self._diagonals, self._loop = scalars, diagonals, None
        return True

    def __call__(
        self, numbers: Sequence[float], max_steps: int
    ) -> tuple[list[float], list[list[float]]] | None:
        """Take steps; None where CUDA makes no such graph."""
        if self._loop is None:
            launches = [*self._step, self._decide()]
            flag = self._numbers[STOP : STOP + 1]
            try:
                self._loop = graph_loop(self._stream, launches, flag, sizes=(1,))
            except BackendError:  # the host finds the same bits, later
                return None
        self._on_host.write(numbers)
        self._loop.run(min(max_steps, MOST_STEPS))
        self._on_host.fetch()
        found = self._on_host.read()
        if found[STOP] == 0.0:
            self._accept.run()
        first = self._num_numbers
        places = range(first, first + ROW * int(found[COUNT]), ROW)
        return found[:first], [found[place : place + ROW] for place in places]

    def _decide(self) -> CudaLaunch:
        rows = self._numbers[self._num_numbers :]
        places = cupy.asarray(entry_addresses(self._diagonals) // _BYTES)
        values = (self._numbers, rows, _ALL_MEMORY, places, int(places.size), *self._scalars)
        return CudaLaunch(self._kernel(), parameter_table(values), 1, values)
