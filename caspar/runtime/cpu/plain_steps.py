"""Plain steps of Levenberg-Marquardt: accepted ones about which there is nothing else to say.

Most steps of a small fit are plain, and Python takes longer to decide about one than the processor
does for it. Here the decision is one more launch behind those of the step. So a run of steps is a
list of launches that the driver repeats until the decision sets a flag: at the first step that is
not plain, before anything is decided about it.
"""

from collections.abc import Sequence

import numpy as np

from caspar.codegen.source import KernelSource
from caspar.memory.array import Array, address
from caspar.runtime.backend import PlainDecision
from caspar.runtime.cpu.compile import function_address
from caspar.runtime.cpu.launch import CpuFunction, CpuLaunch, CpuSequence

MOST_TILES = 200
"""Tiles of all launches of a step, at most. With more, the host's part in a step is small, and
users want to see the progress."""

MOST_STEPS = 64
"""Steps of a run at most: between two of them Ctrl-C is noticed."""

ROW = 3
"""Numbers that are recorded of a step."""

STOP, COUNT = 0, 1
"""Numbers that the decision sets: whether it took no step, and how many it took before."""


class CpuPlainSteps:
    """A decision behind the launches of a step, see `Backend.plain_steps`."""

    def __init__(
        self, decision: PlainDecision, step: Sequence[CpuLaunch], accept: CpuSequence
    ) -> None:
        self._step, self._accept = step, accept
        self._numbers, self._rows = np.zeros(decision.num_numbers), np.zeros((MOST_STEPS, ROW))
        source = KernelSource("decide", decision.text, (), (1,))
        table = np.zeros(4 + decision.num_scalars, dtype=np.int64)
        self._decision = CpuLaunch(CpuFunction(function_address(source)), table, 1, ())
        self._first = CpuSequence([*step, self._decision])
        self._further = CpuSequence([*accept.launches, *step, self._decision])
        self._kept: tuple[object, ...] = ()

    def bind_again(self, scalars: Sequence[Array], diagonals: Sequence[Array]) -> bool:
        """See `PlainSteps`."""
        if sum(launch.num_blocks for launch in self._step) > MOST_TILES:
            return False
        places = np.concatenate([np.zeros(0, dtype=np.int64), *map(_addresses, diagonals)])
        arrays = (self._numbers, self._rows, places)
        self._decision.table[:] = [*map(address, arrays), len(places), *map(address, scalars)]
        self._kept = (places, *scalars, *diagonals)
        for sequence in (self._first, self._further):
            sequence.write()
        return True

    def __call__(
        self, numbers: Sequence[float], max_steps: int
    ) -> tuple[list[float], list[list[float]]]:
        """Take steps."""
        self._numbers[:] = numbers
        self._first.run()
        self._further.run_until(self._numbers[STOP:], min(max_steps, MOST_STEPS) - 1)
        found: list[float] = self._numbers.tolist()
        if found[STOP] == 0.0:
            self._accept.run()
        return found, self._rows[: int(found[COUNT])].tolist()


def _addresses(chunk: Array) -> Array:
    """Return the address of each entry of a matrix."""
    rows, lanes = (np.arange(number) for number in chunk.shape)
    places = address(chunk) + rows[:, None] * chunk.strides[0] + lanes * chunk.strides[1]
    return places.reshape(-1)
