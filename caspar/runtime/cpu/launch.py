"""Kernels with their parameters, and lists of them that one compiled driver runs.

A launch is an entry in three integer arrays (function, parameter table, tiles), so that the driver
runs a whole list without returning to Python. Launches of late bindings are bound again in their
place: their entries are written anew, and no object is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.memory.array import Array
from caspar.runtime.backend import LateNumbers
from caspar.runtime.cpu.driver import run_launches
from caspar.runtime.parameters import BoundLaunch


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

    def replace_by(self, other: "CpuLaunch") -> bool:
        """Do what another launch does, wherever this one stands; False: it has another table."""
        if len(self.table) != len(other.table):
            return False
        self.kernel, self.sources, self.num_blocks = other.kernel, other.sources, other.num_blocks
        self.table[:] = other.table
        return True

    def run(self) -> None:
        """Run every tile."""
        CpuSequence([self]).run()


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
