"""Accept connections at rank 0 from processes that know the token, and sort them.

Cost: connections are made once for a group of processes, and for each group that adds up.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread

from caspar.errors import GroupError
from caspar.runtime.group.wire import Hello, Wire, greet

LOOK_S = 0.2
"""Between two looks whether there is still something to wait for."""


class Hub:
    """A listening socket and the connections that came.

    Args:
        interface: Address that is listened on, and no other.
        port: 0: any that is free.
        token: What processes must know.
        size: Ranks.
    """

    def __init__(self, interface: str, port: int, token: bytes, size: int) -> None:
        family = socket.AF_INET6 if ":" in interface else socket.AF_INET
        try:
            self._socket = socket.create_server((interface, port), family=family, backlog=64)
        except OSError as error:
            raise GroupError(
                f"rank 0 cannot listen on {interface}, port {port}: {error}. Choose another with "
                "caspar.distributed.init(address='HOST:PORT') or CASPAR_ADDRESS"
            ) from error
        self._token, self._size = token, size
        self._wires: dict[Hello, Wire] = {}
        self._changed = Condition()
        self._is_closed = False
        self.refused = 0
        Thread(target=self._accept, name="caspar hub", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        found = self._socket.getsockname()
        return str(found[0]), int(found[1])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._is_closed:
                    return
                # there are no descriptors left, or the other side gave up: later ones may come
                time.sleep(LOOK_S)
                continue
            try:
                # one that says nothing keeps nobody else waiting
                Thread(target=self._greet, args=(connection,), daemon=True).start()
            except RuntimeError:  # the system has no thread left
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        found = greet(connection, self._token)
        with self._changed:
            if found is None:
                self.refused += 1
                return
            wire, hello = found
            _, rank, _, size = hello
            if self._is_closed or hello in self._wires or size != self._size or rank >= size:
                wire.close()
                return
            self._wires[hello] = wire
            self._changed.notify_all()

    def take(
        self, purpose: int, rank: int, number: int, timeout_s: float, check: Callable[[], None]
    ) -> Wire:
        """The connection that a rank has made, or makes within some time.

        Args:
            purpose: Of the connection.
            rank: Who makes it.
            number: Of the group.
            timeout_s: Seconds that it may take.
            check: Raises if there is nothing to wait for any more.

        Raises:
            GroupError: It does not come.
        """
        hello, end_s = (purpose, rank, number, self._size), time.monotonic() + timeout_s
        with self._changed:
            while hello not in self._wires:
                left_s = end_s - time.monotonic()
                if left_s <= 0.0 or self._is_closed:
                    raise GroupError(self._missing(rank, timeout_s))
                self._changed.wait(min(left_s, LOOK_S))
                check()
            return self._wires.pop(hello)

    def _missing(self, rank: int, timeout_s: float) -> str:
        refused = ""
        if self.refused > 0:
            refused = f" {self.refused} connections did not know the token."
        return (
            f"rank {rank} of {self._size} did not connect to {self.address[0]}:{self.address[1]} "
            f"within {timeout_s:g} s.{refused} See whether it runs, and calls "
            "caspar.distributed.init() too"
        )

    def close(self) -> None:
        """Listen no more."""
        with self._changed:
            self._is_closed = True
            for wire in self._wires.values():
                wire.close()
            self._wires.clear()
            self._changed.notify_all()
        with suppress(OSError):  # not every system wakes `accept` by it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
