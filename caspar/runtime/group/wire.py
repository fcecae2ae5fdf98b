"""Messages over a TCP connection between two processes that hold the same token.

Nothing is unpickled before both sides have proved that they know the token (HMAC-SHA256 of random
numbers, RFC 2104); the token itself is never sent. Whoever knows it may run code in the processes,
as with MPI. Cost: some 30 microseconds for a short message within a host.

Also here: the hub, which accepts connections at rank 0 from processes that know the token.
"""

import errno
import hmac
import pickle
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

from caspar.errors import GroupError

GREETING_S = 5.0
"""Seconds after which a connection is closed unless the whole greeting has come."""

_NUMBER = 32
_HELLO = struct.Struct("!BIII")
_SIZE = struct.Struct("!Q")
_FRAME = struct.Struct("!QI")

Hello = tuple[int, int, int, int]
"""Purpose of a connection, rank of the process that connects, number of the group, its size."""


class Wire:
    """A connected socket. Messages are whole; one thread sends at a time, and one receives."""

    def __init__(self, connection: socket.socket) -> None:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    @property
    def socket(self) -> socket.socket:
        """The connected socket, for `readable`."""
        return self._socket

    def send(self, message: object) -> None:
        """Send a message, contiguous arrays without a copy; `OSError` if it is closed."""
        buffers: list[pickle.PickleBuffer] = []
        text = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        sizes = b"".join(_SIZE.pack(view.nbytes) for view in views)
        self._socket.sendall(_FRAME.pack(len(text), len(views)) + sizes + text)
        for view in views:
            self._socket.sendall(view)

    def receive(self) -> Any:
        """Wait for a message; `OSError` or `EOFError` if the connection is closed."""
        text_size, num_buffers = _FRAME.unpack(self._exactly(_FRAME.size))
        sizes = self._exactly(_SIZE.size * num_buffers)
        text = self._exactly(text_size)
        buffers = [self._exactly(size) for (size,) in _SIZE.iter_unpack(sizes)]
        return pickle.loads(text, buffers=buffers)

    def has_message(self, timeout_s: float | None) -> bool:
        """Return whether one begins to arrive, or the connection ends, within some time."""
        return len(readable([self._socket], timeout_s)) > 0

    def send_raw(self, views: Sequence[memoryview]) -> None:
        """Send bytes whose number the other side knows."""
        total = sum(view.nbytes for view in views)
        self._socket.sendall(_SIZE.pack(total))
        for view in views:
            self._socket.sendall(view)

    def receive_raw(self, views: Sequence[memoryview]) -> None:
        """Receive such bytes; a `GroupError` if the other side has sent another number of them."""
        (total,) = _SIZE.unpack(self._exactly(_SIZE.size))
        wanted = sum(view.nbytes for view in views)
        if total != wanted:
            raise GroupError(
                f"processes add up arrays of {wanted:,} and {total:,} bytes: they do not run the "
                "same program with the same factors and options"
            )
        for view in views:
            self._fill(view)

    def close(self) -> None:
        """End it; whoever waits for it, in any thread, is woken."""
        with suppress(OSError):  # it may have ended already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, size: int, end_s: float | None = None) -> bytearray:
        data = bytearray(size)
        self._fill(memoryview(data), end_s)
        return data

    def _fill(self, view: memoryview, end_s: float | None = None) -> None:
        place = 0
        while place < view.nbytes:
            if end_s is not None:
                # the time limit of a socket is one of each read, however little that brings
                left_s = end_s - time.monotonic()
                if left_s <= 0.0:
                    raise TimeoutError("the greeting was not complete in time")
                self._socket.settimeout(left_s)
            number = self._socket.recv_into(view[place:])
            if number == 0:
                raise EOFError("the connection was closed")
            place += number


_SELECTOR: type[selectors.BaseSelector] = getattr(
    selectors, "PollSelector", selectors.SelectSelector
)
"""`select` takes no descriptor from 1,024 on, except on Windows, which has no `poll`. `epoll` needs
a descriptor of its own, and there may be none left."""


def readable(sockets: Collection[socket.socket], timeout_s: float | None) -> list[socket.socket]:
    """The sockets of which something can be read, or that have ended, within some time."""
    with _SELECTOR() as selector:
        of_number = {}
        for one in sockets:
            number = one.fileno()
            if number < 0:
                raise OSError(errno.EBADF, "this process has closed the connection")
            of_number[number] = one
            selector.register(number, selectors.EVENT_READ)
        # another thread may close one meanwhile, which has no number then
        return [of_number[key.fd] for key, _ in selector.select(timeout_s)]


def _proof(token: bytes, side: bytes, *parts: bytes) -> bytes:
    return hmac.digest(token, b"|".join((b"caspar", side, *parts)), "sha256")


def connect(address: tuple[str, int], token: bytes, hello: Hello, timeout_s: float) -> Wire:
    """Connect to a process that listens, and prove to each other that both know the token.

    Raises an `OSError` if nobody listens, a `GroupError` if the other side does not know the token.
    """
    connection = socket.create_connection(address, timeout=max(timeout_s, 0.1))
    try:
        end_s = time.monotonic() + GREETING_S
        wire, own = Wire(connection), secrets.token_bytes(_NUMBER)
        text = _HELLO.pack(*hello)
        other = bytes(wire._exactly(_NUMBER, end_s))
        connection.sendall(own + text + _proof(token, b"joins", other, own, text))
        answer = bytes(wire._exactly(_NUMBER, end_s))
    except TimeoutError as error:
        connection.close()
        raise GroupError(
            f"the process at {address[0]}:{address[1]} accepted the connection and has not "
            f"answered within {GREETING_S:g} s: it is another program, or has too many open files"
        ) from error
    except (EOFError, OSError) as error:
        connection.close()
        raise GroupError(_refused(address)) from error
    if not hmac.compare_digest(answer, _proof(token, b"listens", own, other, text)):
        connection.close()
        raise GroupError(_refused(address))
    connection.settimeout(None)
    return wire


def _refused(address: tuple[str, int]) -> str:
    return (
        f"the process at {address[0]}:{address[1]} refused this one: its token is another. All "
        "ranks of a group need the same CASPAR_TOKEN"
    )


def greet(connection: socket.socket, token: bytes) -> tuple[Wire, Hello] | None:
    """The listening side of `connect`; None, and closed, if the other does not know the token."""
    try:
        end_s = time.monotonic() + GREETING_S
        connection.settimeout(GREETING_S)
        wire, own = Wire(connection), secrets.token_bytes(_NUMBER)
        connection.sendall(own)
        other = bytes(wire._exactly(_NUMBER, end_s))
        text = bytes(wire._exactly(_HELLO.size, end_s))
        proof = bytes(wire._exactly(_NUMBER, end_s))
        if hmac.compare_digest(proof, _proof(token, b"joins", own, other, text)):
            connection.sendall(_proof(token, b"listens", other, own, text))
            connection.settimeout(None)
            purpose, rank, number, size = _HELLO.unpack(text)
            return wire, (purpose, rank, number, size)
    except (EOFError, OSError):
        pass  # it is no rank of this group
    connection.close()
    return None


LOOK_S = 0.2
"""Between two looks whether there is still something to wait for."""


class Hub:
    """A listening socket for processes that know the token, and the connections that came.

    It listens on that interface and no other; port 0: any that is free.
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
        """The connection that a rank has made for a group, or makes within some time.

        `check` raises if there is nothing to wait for any more. Raises a `GroupError` if it does
        not come.
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
