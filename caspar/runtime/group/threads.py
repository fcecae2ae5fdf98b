"""Members that are threads of this process, and exchange values and arrays of the host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from threading import Barrier, BrokenBarrierError
from typing import Any, ClassVar

import numpy as np

from caspar.errors import GroupError
from caspar.memory.array import Array
from caspar.runtime.backend import Launch, LaunchSequence
from caspar.runtime.group.member import Group

FAILED = "another device failed, so this one stopped"


class ThreadGroup:
    """Threads that meet at a barrier.

    Sums are taken in the order of ranks: equal input gives equal bits, whoever comes first.
    """

    shares_memory = True

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = Barrier(size)
        # a member that is late still reads those of the meeting before
        self._given: tuple[list[Any], list[Any]] = ([None] * size, [None] * size)
        self._num_meetings = [0] * size

    def gather(self, rank: int, value: Any) -> list[Any]:
        """See `Group`: the values themselves."""
        given = self._given[self._num_meetings[rank] % 2]
        self._num_meetings[rank] += 1
        given[rank] = value
        self._meet()
        return [*given]

    def collect(self, rank: int, value: Any) -> list[Any]:
        """See `Group`: arrays are not kept alive by it."""
        found = self.gather(rank, value)
        self._read_by_all(rank)
        return found

    def _read_by_all(self, rank: int) -> None:
        """Wait until all have read what was gathered last, and forget this member's part."""
        self._meet()
        self._given[(self._num_meetings[rank] - 1) % 2][rank] = None

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`."""
        totals, found = [], self.gather(rank, arrays)
        # padding may hold any bits
        with np.errstate(all="ignore"):
            for parts in zip(*found, strict=True):
                total = parts[0].copy()
                for part in parts[1:]:
                    total += part
                totals.append(total)
        self._read_by_all(rank)
        for array, total in zip(arrays, totals, strict=True):
            array[...] = total

    def abort(self) -> None:
        """See `Group`."""
        self._barrier.abort()

    def check(self) -> None:
        """See `Group`."""
        if self._barrier.broken:
            raise GroupError(FAILED)

    def _meet(self) -> None:
        try:
            self._barrier.wait()
        except BrokenBarrierError:
            raise GroupError(FAILED) from None


@dataclass(frozen=True)
class AllReduce:
    """A launch that adds up arrays over a group, in place, as the member with that rank."""

    group: Group
    rank: int
    arrays: tuple[Array, ...]

    is_cooperative: ClassVar[bool] = False

    @property
    def values(self) -> Sequence[int | Array]:
        """The arrays."""
        return self.arrays

    def without(self, arrays: Sequence[Array]) -> "AllReduce":
        """The same: it needs them."""
        return self

    def set_address(self, number: int, address: int) -> None:
        """Refuse: arrays that devices add up do not move."""
        raise AssertionError("arrays that devices add up do not move")

    def run(self) -> None:
        """Meet the others."""
        self.group.add_up(self.rank, self.arrays)


class MixedSequence:
    """Launches of the processor, and sums between them; `sequence` takes those that are no sums."""

    def __init__(
        self, launches: Sequence[Launch], sequence: Callable[[Sequence[Launch]], LaunchSequence]
    ) -> None:
        self._parts: list[AllReduce | LaunchSequence] = []
        for is_sum, some in groupby(launches, lambda one: isinstance(one, AllReduce)):
            if is_sum:
                self._parts += [one for one in some if isinstance(one, AllReduce)]
            else:
                self._parts.append(sequence([*some]))

    def run(self) -> None:
        """Run every launch once."""
        for part in self._parts:
            part.run()

    def run_until(self, flag: Array, max_runs: int) -> None:
        """Run until the flag is set, which all members see at the same time."""
        for _ in range(max_runs):
            if flag[0] != 0.0:
                return
            self.run()
