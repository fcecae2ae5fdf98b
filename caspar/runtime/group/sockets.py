"""Processes that exchange values, and add up arrays of the host, over connections to rank 0.

Rank 0 gets all arrays, takes their sums in the order of ranks, so that equal input gives equal
bits, and sends these back. Cost: two messages for each sum, some 100 microseconds within a host.
"""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from caspar.errors import GroupError
from caspar.memory.array import Array
from caspar.runtime.group.peers import Peers
from caspar.runtime.group.threads import FAILED

Result = TypeVar("Result")


class ProcessGroup:
    """The common part of groups of processes: the first failure ends all.

    The class itself serves a rank that is not among the `active` ranks.
    """

    shares_memory = False

    def __init__(self, peers: Peers, number: int, active: Sequence[int]) -> None:
        self.size = len(active)
        self._wires = peers.sum_wires(number, active) if peers.rank in active else {}
        self._peers, self._number = peers, number
        self._why = ""
        self._lock = Lock()
        peers.on_abort(number, self._end)

    def abort(self) -> None:
        """See `Group`: also those in other processes."""
        if self._why == "":
            self._peers.tell_abort(self._number, FAILED)
            self._end(FAILED)

    def check(self) -> None:
        """See `Group`."""
        if self._why != "":
            raise GroupError(self._peers.reason or self._why)

    @property
    def has_failed(self) -> bool:
        """Return whether it has failed and cannot be used any more."""
        return self._why != ""

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`; refused by a rank that has no part."""
        raise AssertionError("this rank has no part of what is added up")

    def collect(self, rank: int, value: Any) -> list[Any]:
        """See `Group`."""
        return self._exchanged(lambda: self._collected(rank, value))

    def gather(self, rank: int, value: Any) -> list[Any]:
        """See `Group`."""

        def gathered() -> list[Any]:
            found = self._collected(rank, value)
            if rank > 0:
                return [*self._wires[0].receive()]
            for other in sorted(self._wires):
                self._wires[other].send(found)
            return found

        return self._exchanged(gathered)

    def _collected(self, rank: int, value: Any) -> list[Any]:
        if rank > 0:
            self._wires[0].send(value)
            return []
        return [value, *(self._wires[other].receive() for other in sorted(self._wires))]

    def _exchanged(self, exchange: Callable[[], Result]) -> Result:
        """Do something with the connections, whose end is that of the group."""
        self.check()
        try:
            return exchange()
        except (OSError, EOFError):
            self.abort()
            raise GroupError(self._peers.reason or FAILED) from None

    def _end(self, why: str) -> None:
        with self._lock:
            if self._why != "":
                return
            self._why = why
        self._let_go()

    def _let_go(self) -> None:
        for wire in self._wires.values():
            wire.close()

    def close(self) -> None:
        """End it; the others end theirs."""
        self._peers.forget(self._number)
        self._end(FAILED)


class SocketGroup(ProcessGroup):
    """Members that add up over connections."""

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`."""

        def added() -> None:
            if rank == 0:
                self._sum(arrays)
            else:
                self._wires[0].send_raw([_bytes_of(array) for array in arrays])
                self._wires[0].receive_raw([_bytes_of(array) for array in arrays])

        self._exchanged(added)

    def _sum(self, arrays: Sequence[Array]) -> None:
        parts = []
        for rank in sorted(self._wires):
            part = [np.empty_like(array) for array in arrays]
            self._wires[rank].receive_raw([_bytes_of(array) for array in part])
            parts.append(part)
        # padding may hold any bits
        with np.errstate(all="ignore"):
            for part in parts:
                for array, added in zip(arrays, part, strict=True):
                    array += added
        for rank in sorted(self._wires):
            self._wires[rank].send_raw([_bytes_of(array) for array in arrays])


def _bytes_of(array: Array) -> memoryview:
    assert array.flags.c_contiguous
    return memoryview(array.reshape(-1).view(np.uint8))
