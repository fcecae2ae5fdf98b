"""CUDA devices of several processes, on one host or several, that add up by NCCL.

NCCL itself listens for its own connections: on the network interface by which rank 0 was reached,
unless the user has set NCCL_SOCKET_IFNAME. Cost: connections once for a group.
"""

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import cupy
import numpy as np

from caspar.errors import BackendError
from caspar.memory.array import Array
from caspar.runtime.cuda.nccl import Connection, nccl_of_cupy
from caspar.runtime.group.ranks import Ranks
from caspar.runtime.group.sockets import ProcessGroup

_ADDRESS_OF_INTERFACE = 0x8915
"""SIOCGIFADDR of Linux."""

POLL_S = 0.1


def meeting() -> Any:
    """NCCL's unique id, which all members need."""
    return nccl_of_cupy().get_unique_id()


def interface_of(address: str) -> str | None:
    """Name of the network interface that has an IPv4 address; None: not known."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _ADDRESS_OF_INTERFACE, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


class NcclRankGroup(ProcessGroup):
    """Processes with a device each.

    Args:
        ranks: All processes.
        number: Of the group.
        active: Ranks of the members.
        unique_id: By `meeting`, of the first member.

    Raises:
        BackendError: NCCL refuses.
        GroupError: A process is gone.
    """

    def __init__(self, ranks: Ranks, number: int, active: Sequence[int], unique_id: Any) -> None:
        interface = interface_of(ranks.peers.own_address)
        if interface is not None:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
        nccl = nccl_of_cupy()
        self._connection: Connection | None = None
        super().__init__(ranks.peers, number, active)
        place, device = tuple(active).index(ranks.rank), cupy.cuda.Device()

        def begin() -> None:
            with device:
                made = nccl.NcclCommunicator(len(active), unique_id, place)
                self._connection = Connection(made)
                # so that all is connected, whatever is added up first and whoever comes first
                with cupy.cuda.Stream(non_blocking=True) as stream:
                    self._connection.add_up([cupy.ones(1, np.float64)], self.check)
                    stream.synchronize()

        try:
            self._wait_for(begin)
        except nccl.NcclError as error:
            raise BackendError(
                f"NCCL cannot connect {len(active)} processes: {error}. Set NCCL_DEBUG=INFO to see "
                "why"
            ) from error

    def _wait_for(self, begin: Callable[[], None]) -> None:
        """Until it is done, or another process is gone: NCCL would wait for that forever."""
        raised: list[BaseException] = []
        ended = Event()

        def run() -> None:
            try:
                begin()
            except BaseException as error:
                raised.append(error)
            ended.set()

        Thread(target=run, name="caspar NCCL", daemon=True).start()
        while not ended.wait(POLL_S):
            self.check()
        self.check()
        if len(raised) > 0:
            raise raised[0]

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`: one kernel for all arrays."""
        assert self._connection is not None
        self._connection.add_up(arrays, self.check)

    def _let_go(self) -> None:
        """Kernels that wait for another member end.

        If this rank leaves as it should, nothing waits: its end takes the connection with it.
        """
        super()._let_go()
        if self._connection is not None and not self._peers.is_closed:
            self._connection.abort()
