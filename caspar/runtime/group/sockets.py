"""Processes that add up arrays of the host over connections to rank 0.

Rank 0 gets all arrays, takes their sums in the order of ranks, so that equal input gives equal
bits, and sends these back. Cost: two messages for each sum, some 100 microseconds within a host.
"""

from collections.abc import Mapping, Sequence
from threading import Lock

import numpy as np

from caspar.errors import GroupError
from caspar.memory.array import Array
from caspar.runtime.group.peers import Peers
from caspar.runtime.group.threads import FAILED
from caspar.runtime.group.wire import Wire


class ProcessGroup:
    """What groups of processes have in common: the first failure ends all.

    By itself it is that of a rank that is not a member.

    Args:
        peers: All ranks.
        number: Of the group.
        size: Members.
    """

    def __init__(self, peers: Peers, number: int, size: int) -> None:
        self.size = size
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
        """Whether it is of no more use."""
        return self._why != ""

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`; refused by a rank that has no part."""
        raise AssertionError("this rank has no part of what is added up")

    def _end(self, why: str) -> None:
        with self._lock:
            if self._why != "":
                return
            self._why = why
        self._let_go()

    def _let_go(self) -> None:
        """Wake whoever waits."""

    def close(self) -> None:
        """End it; the others end theirs."""
        self._peers.forget(self._number)
        self._end(FAILED)


class SocketGroup(ProcessGroup):
    """Members that add up over connections.

    Args:
        peers: All ranks.
        number: Of the group.
        active: Ranks of the members, 0 first.
    """

    def __init__(self, peers: Peers, number: int, active: Sequence[int]) -> None:
        self._wires: Mapping[int, Wire] = peers.sum_wires(number, active)
        super().__init__(peers, number, len(active))

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`."""
        self.check()
        try:
            if rank == 0:
                self._gather(arrays)
            else:
                self._wires[0].send_raw([_bytes_of(array) for array in arrays])
                self._wires[0].receive_raw([_bytes_of(array) for array in arrays])
        except (OSError, EOFError):
            self.abort()
            raise GroupError(self._peers.reason or FAILED) from None

    def _gather(self, arrays: Sequence[Array]) -> None:
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

    def _let_go(self) -> None:
        for wire in self._wires.values():
            wire.close()


def _bytes_of(array: Array) -> memoryview:
    """A contiguous array's own memory."""
    assert array.flags.c_contiguous
    return memoryview(array.reshape(-1).view(np.uint8))
