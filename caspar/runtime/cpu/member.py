"""The processor as one of several: the host's cores, and sums with other threads."""

from collections.abc import Sequence

from caspar.memory.array import Array
from caspar.runtime.backend import Launch, LaunchSequence
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.group.member import Group
from caspar.runtime.group.threads import AllReduce, MixedSequence, ThreadGroup


class CpuMember(CpuBackend):
    """A part of a problem on the host."""

    def __init__(self) -> None:
        self._group: Group = ThreadGroup(1)
        self._rank = 0

    def join(self, group: Group, rank: int) -> None:
        """See `Member`."""
        self._group, self._rank = group, rank

    def all_reduce(self, arrays: Sequence[Array]) -> Launch:
        """A meeting of threads."""
        return AllReduce(self._group, self._rank, tuple(arrays))

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Launches, and sums between them."""
        if not any(isinstance(one, AllReduce) for one in launches):
            return super().sequence(launches)
        return MixedSequence(launches, super().sequence)

    def receive(self, target: Array, source: Array) -> None:
        """Copy it."""
        target[...] = source

    def bring(self, array: Array) -> Array:
        """The array itself."""
        return array
