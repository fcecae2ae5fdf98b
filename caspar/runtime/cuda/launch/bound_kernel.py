"""Launches of CUDA source as what they are made of: a kernel, its grid, and what is passed.

Cost tier: once for a plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caspar.codegen.source import KernelSource
from caspar.memory.array import Array

Area = tuple[int, int]
"""Where bytes begin and end."""


def overlap(some: Sequence[Area], others: Sequence[Area]) -> bool:
    """Return whether a byte belongs to both."""
    return any(begin < last and first < end for begin, end in some for first, last in others)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel, the threads of a block, blocks in x, and the value passed for each parameter."""

    source: KernelSource
    block_size: int
    num_blocks: int
    values: Sequence[int | Array]

    @property
    def all_blocks(self) -> int:
        """Blocks in x and y."""
        return self.num_blocks * self.source.num_layers

    def areas(self, address: Callable[[Array], int], *, written: bool) -> list[Area]:
        """Return the areas that it writes, or those it reads before it awaits the launch ahead."""
        early = self.source.early or ()
        return [
            area
            for param, area in zip(self.source.params, self.all_areas(address), strict=True)
            if area is not None and (param.written if written else param.arg in early)
        ]

    def all_areas(self, address: Callable[[Array], int]) -> list[Area | None]:
        """Return begin and end of each parameter's array; None: the parameter is a number."""
        return [
            None if isinstance(value, int) else (address(value), address(value) + int(value.nbytes))
            for value in self.values
        ]

    def runs_with(self, block_size: int) -> bool:
        """Return whether that block size gives the same result: arrays may hold one sum a block."""
        if block_size == self.block_size:
            return True
        count = self.values[0]
        assert isinstance(count, int)
        is_alone = self.num_blocks <= 1 and self.source.num_blocks(count, block_size) <= 1
        return is_alone and not self.source.tiled and block_size % self.source.block_multiple == 0
