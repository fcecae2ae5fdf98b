"""The arguments that a launch passes to a kernel, and its number of blocks.

Cost tier: once for a plan; `BoundLaunch.bind_again` once for a plan that takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from caspar.codegen.source import COUNT, DATA, FIRST, LENGTH, KernelSource, Param
from caspar.memory.access import TILES
from caspar.memory.array import Array, Binding, Late, address, at_present
from caspar.runtime.backend import Kernel, LateNumbers

AnyKernel = TypeVar("AnyKernel")
Own = TypeVar("Own", bound="BoundLaunch[Any]")


@dataclass
class BoundLaunch(Generic[AnyKernel]):
    """A kernel with its parameters. Those that are late can be looked up again.

    `table` has (num_params,) int64 addresses and integers, made of `sources`; `chosen` says which
    kernel it is at present, and `size` how many items or groups of node tiles; None: always the
    same.
    """

    kernel: AnyKernel
    table: NDArray[np.int64]
    num_blocks: int
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

    def without(self: Own, arrays: Sequence[Array]) -> Own:
        """The same, but it does not keep some arrays alive."""
        kept = [0 if any(one is array for array in arrays) else one for one in self.sources]
        return replace(self, sources=kept)

    def replace_by(self: Own, other: Own) -> bool:
        """Do what another launch does, wherever this one stands; False: it has another table."""
        if len(self.table) != len(other.table):
            return False
        self.kernel, self.sources, self.num_blocks = other.kernel, other.sources, other.num_blocks
        self.table[:] = other.table
        return True

    def set_address(self, number: int, address: int) -> None:
        """Pass another address: it is read when the kernel is launched."""
        self.table[number] = address

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
            own: Any = self.kernel
            size = _looked_up(self.size, numbers)
            self.num_blocks = _num_blocks(own.source, size, own.block_size)


def _looked_up(late: Late, numbers: LateNumbers) -> int:
    number = numbers.get(late)
    if number is None:
        number = numbers[late] = late.number
    return number


def bound_parts(
    chosen: Kernel | Late, bindings: Mapping[str, Binding], count: int | Late
) -> tuple[Any, ...]:
    """The fields of a `BoundLaunch` for `count` items."""
    kernel: Kernel = at_present(chosen)
    source = kernel.source
    sources = parameter_sources(source.params, bindings, count)
    size = _size(source, bindings, count)
    late = [one if isinstance(one, Late) else None for one in (chosen, size)]
    num_blocks = _num_blocks(source, at_present(size), kernel.block_size)
    return kernel, parameter_table(sources), num_blocks, sources, *late


def parameter_table(sources: Sequence[int | Array | Late]) -> NDArray[np.int64]:
    """Return (n,) parameters of a launch: integers, and addresses of arrays."""
    numbers = [one.number if isinstance(one, Late) else _number(one) for one in sources]
    return np.array(numbers, dtype=np.int64)


def entry_addresses(arrays: Sequence[Array]) -> NDArray[np.int64]:
    """The addresses of all entries of arrays, (n, lanes) each."""
    found = [np.zeros(0, np.int64)]
    for array in arrays:
        rows, lanes = (np.arange(number) for number in array.shape)
        places = address(array) + rows[:, None] * array.strides[0] + lanes * array.strides[1]
        found.append(places.reshape(-1))
    return np.concatenate(found)


def _number(value: int | Array) -> int:
    return value if isinstance(value, int) else address(value)


def parameter_sources(
    params: Sequence[Param], bindings: Mapping[str, Binding], count: int | Late
) -> list[int | Array | Late]:
    """Return the value of each parameter: an integer or an array whose address is meant."""
    values: list[int | Array | Late] = []
    for param in params:
        if param.field == COUNT:
            values.append(count)
            continue
        binding = bindings[param.arg]
        if param.field == DATA:
            values.append(binding.data)
        elif param.field == LENGTH:
            values.append(binding.length)
        elif param.field == FIRST:
            values.append(binding.first)
        else:
            values.append(binding.fields[param.field])
    return values


def bound_blocks(
    source: KernelSource, bindings: Mapping[str, Binding], count: int | Late, block_size: int
) -> int:
    """Blocks (on the CPU calls) of a launch: one for each tile, or group of node tiles."""
    size = _size(source, bindings, count)
    return _num_blocks(source, at_present(size), block_size)


def _size(source: KernelSource, bindings: Mapping[str, Binding], count: int | Late) -> int | Late:
    return bindings[TILES].length if source.tiled else count


def _num_blocks(source: KernelSource, size: int, block_size: int) -> int:
    return size if source.tiled else source.num_blocks(size, block_size)
