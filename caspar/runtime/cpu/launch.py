"""Kernels with their parameters, and lists of them that one compiled driver runs.

A launch is an entry in three integer arrays (function, parameter table, tiles), so that the driver
runs a whole list without returning to Python. Launches of late bindings are bound again in their
place: their entries are written anew, and no object is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.memory.access import TILES
from caspar.memory.array import Array
from caspar.memory.binding import Binding, Late, at_present
from caspar.runtime.backend import Kernel, LateNumbers
from caspar.runtime.cpu.driver import run_launches
from caspar.runtime.parameters import parameter_sources


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


@dataclass
class CpuLaunch:
    """A kernel with its parameter table.

    Attributes:
        kernel: The kernel, or a function that is called as one.
        table: (num_params,) int64: addresses and integers.
        num_tiles: Tiles to run.
        sources: What the table is made of.
        chosen: Which kernel it is at present; None: always the same.
        size: Items, or groups of node tiles; None: always as many tiles.
    """

    kernel: CpuKernel | CpuFunction
    table: NDArray[np.int64]
    num_tiles: int
    sources: Sequence[int | Array | Late]
    chosen: Late | None = None
    size: Late | None = None

    def __post_init__(self) -> None:
        """Find what is late."""
        self._late = [
            (place, one) for place, one in enumerate(self.sources) if isinstance(one, Late)
        ]
        self._entries = self.table.data  # which take single numbers sooner than arrays do
        self._bound_by: LateNumbers | None = None

    @property
    def values(self) -> tuple[int | Array, ...]:
        """The values that are passed at present."""
        return tuple(map(at_present, self.sources))

    def without(self, arrays: Sequence[Array]) -> "CpuLaunch":
        """The same, but it does not keep some arrays alive."""
        kept = [0 if any(one is array for array in arrays) else one for one in self.sources]
        return replace(self, sources=kept)

    def set_address(self, number: int, address: int) -> None:
        """Pass another address."""
        self.table[number] = address

    def replace_by(self, other: "CpuLaunch") -> bool:
        """Do what another launch does, wherever this one stands; False: it has another table."""
        if len(self.table) != len(other.table):
            return False
        self.kernel, self.sources, self.num_tiles = other.kernel, other.sources, other.num_tiles
        self.table[:] = other.table
        return True

    def bind_again(self, numbers: LateNumbers) -> None:
        """Write what is late anew; `numbers` has what was looked up already."""
        if self._bound_by is numbers:
            return  # as part of another sequence
        self._bound_by = numbers
        for place, late in self._late:
            self._entries[place] = _looked_up(late, numbers)
        if self.chosen is not None:
            self.kernel = self.chosen.now()
        if self.size is not None:
            assert isinstance(self.kernel, CpuKernel)
            self.num_tiles = _num_tiles(self.kernel, _looked_up(self.size, numbers))

    def run(self) -> None:
        """Run every tile."""
        CpuSequence([self]).run()


def _looked_up(late: Late, numbers: LateNumbers) -> int:
    number = numbers.get(late)
    if number is None:
        number = numbers[late] = late.number
    return number


def bound_launch(
    chosen: Kernel | Late, bindings: Mapping[str, Binding], count: int | Late
) -> CpuLaunch:
    """A launch for `count` items."""
    kernel: CpuKernel = at_present(chosen)
    sources = parameter_sources(kernel.source.params, bindings, count)
    values = map(at_present, sources)
    table = [value if isinstance(value, int) else value.ctypes.data for value in values]
    size = bindings[TILES].length if kernel.source.tiled else count
    num_tiles = _num_tiles(kernel, at_present(size))
    late = [one if isinstance(one, Late) else None for one in (chosen, size)]
    return CpuLaunch(kernel, np.array(table, dtype=np.int64), num_tiles, sources, *late)


def _num_tiles(kernel: CpuKernel, size: int) -> int:
    """Tiles of so many items, or groups of node tiles."""
    return size if kernel.source.tiled else kernel.source.num_blocks(size, kernel.block_size)


class CpuSequence:
    """Launches that the compiled driver runs in order.

    Attributes:
        launches: They.
    """

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
        self._num_tiles[:] = sizes = [launch.num_tiles for launch in self.launches]
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
            *self._addresses,
            is_shared=self._is_shared,
            flag=flag.ctypes.data,
            max_runs=max_runs,
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
