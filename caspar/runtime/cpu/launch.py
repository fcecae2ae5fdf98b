"""Kernels with their parameters, and lists of them that one compiled driver runs.

A launch is an entry in three integer arrays (function, parameter table, tiles), so that the driver
runs a whole list without returning to Python. Launches of late bindings are bound again in their
place: their entries are written anew, and no object is made.

Also here: plain steps of Levenberg-Marquardt, accepted ones with nothing else to say about them.
Most steps of a small fit are plain, and Python takes longer to decide about one than the processor
does for it. Here the decision is one more launch behind those of the step. So a run of steps is a
list of launches that the driver repeats until the decision sets a flag: at the first step that is
not plain, before anything is decided about it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.memory.array import Array, address
from caspar.runtime.backend import COUNT, MOST_STEPS, ROW, STOP, LateNumbers, PlainDecision
from caspar.runtime.cpu.compile import function_address
from caspar.runtime.cpu.driver import run_launches
from caspar.runtime.parameters import BoundLaunch, entry_addresses


@dataclass(frozen=True)
class CpuKernel:
    """A compiled kernel: the address of `f(parameter table, tile)`."""

    source: KernelSource
    address: int

    @property
    def block_size(self) -> int:
        """Items of a tile."""
        return self.source.block_size


@dataclass(frozen=True)
class CpuFunction:
    """A compiled function that is no kernel: the address of `f(parameter table, tile)`."""

    address: int


class CpuLaunch(BoundLaunch[CpuKernel | CpuFunction]):
    """A kernel, or a function that is called as one, with its parameters."""

    def run(self) -> None:
        """Run every tile."""
        CpuSequence([self]).run()


class CpuSequence:
    """Launches that the compiled driver runs in order."""

    def __init__(self, launches: Sequence[CpuLaunch]) -> None:
        self.launches = tuple(launches)
        self._tables = np.array([one.table.ctypes.data for one in launches], dtype=np.int64)
        self._functions, self._num_tiles = np.zeros((2, len(launches)), dtype=np.int64)
        arrays = (self._functions, self._tables, self._num_tiles)
        functions, tables, num_tiles = (array.ctypes.data for array in arrays)
        self._addresses = (functions, tables, num_tiles, len(launches))
        self.write()

    def write(self) -> None:
        """Note which kernels the launches have at present, and how many tiles."""
        self._functions[:] = [launch.kernel.address for launch in self.launches]
        self._num_tiles[:] = sizes = [launch.num_blocks for launch in self.launches]
        self._is_shared = max(sizes, default=0) > 1

    def bind_again(self, numbers: LateNumbers) -> None:
        """See `LateSequence`."""
        for launch in self.launches:
            launch.bind_again(numbers)
        self.write()

    def run(self) -> None:
        """Run every launch once."""
        run_launches(*self._addresses, is_shared=self._is_shared)

    def run_until(self, flag: Array, max_runs: int) -> None:
        """Run until the flag is set, at most `max_runs` times."""
        run_launches(
            *self._addresses, is_shared=self._is_shared, flag=flag.ctypes.data, max_runs=max_runs
        )


class CpuScalars:
    """Scalars of the host, see `HostScalars`: nothing is under way when a call returns."""

    def __init__(self, scalars: Array) -> None:
        self._scalars = scalars
        self._fetched: list[float] = []

    def write(self, values: Sequence[float]) -> None:
        """Set the first."""
        self._scalars[: len(values)] = values

    def fetch(self) -> None:
        """Copy all of them."""
        self._fetched = self._scalars.tolist()

    def read(self) -> list[float]:
        """Return the copied scalars."""
        return self._fetched


class CpuCopies:
    """Copies of arrays, see `HostCopies`."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._fetched: list[NDArray[Any]] = []

    def fetch(self) -> None:
        """Copy all of them."""
        self._fetched = [np.array(array) for array in self._arrays]

    def read(self) -> list[NDArray[Any]]:
        """Return the copied arrays."""
        return self._fetched


MOST_TILES = 200
"""Tiles of all launches of a step, at most. With more, the host's part in a step is small, and
users want to see the progress."""


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
        places = entry_addresses(diagonals)
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
