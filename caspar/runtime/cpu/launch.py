"""Kernels with their parameters, and lists of them that one compiled driver runs.

A launch is an entry in three integer arrays (function, parameter table, tiles), so that the driver
runs a whole list without returning to Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import KernelSource
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.runtime.cpu.driver import run_launches
from caspar.runtime.parameters import bound_blocks, parameter_values


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


@dataclass(frozen=True)
class CpuLaunch:
    """A kernel with its parameter table.

    Attributes:
        kernel: The kernel, or a function that is called as one.
        table: (num_params,) int64: addresses and integers.
        num_tiles: Tiles to run.
        values: What the table was made of.
    """

    kernel: CpuKernel | CpuFunction
    table: NDArray[np.int64]
    num_tiles: int
    values: tuple[int | Array, ...]

    def without(self, arrays: Sequence[Array]) -> "CpuLaunch":
        """The same, but it does not keep some arrays alive."""
        kept = tuple(
            0 if any(value is array for array in arrays) else value for value in self.values
        )
        return replace(self, values=kept)

    def set_address(self, number: int, address: int) -> None:
        """Pass another address."""
        self.table[number] = address

    def run(self) -> None:
        """Run every tile."""
        CpuSequence([self]).run()


def bound_launch(kernel: CpuKernel, bindings: Mapping[str, Binding], count: int) -> CpuLaunch:
    """A launch for `count` items."""
    values = parameter_values(kernel.source.params, bindings, count)
    table = [value if isinstance(value, int) else value.ctypes.data for value in values]
    num_tiles = bound_blocks(kernel.source, bindings, count, kernel.block_size)
    return CpuLaunch(kernel, np.array(table, dtype=np.int64), num_tiles, tuple(values))


class CpuSequence:
    """Launches that the compiled driver runs in order.

    Attributes:
        launches: They.
    """

    def __init__(self, launches: Sequence[CpuLaunch]) -> None:
        self.launches = tuple(launches)
        rows = (
            [launch.kernel.address for launch in launches],
            [launch.table.ctypes.data for launch in launches],
            [launch.num_tiles for launch in launches],
        )
        self._arrays = tuple(np.array(row, dtype=np.int64) for row in rows)
        functions, tables, num_tiles = (array.ctypes.data for array in self._arrays)
        self._addresses = (functions, tables, num_tiles, len(launches))
        self._is_shared = any(launch.num_tiles > 1 for launch in launches)

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
        """What was copied."""
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
        """What was copied."""
        return self._fetched
