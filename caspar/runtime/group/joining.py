"""How the processes of a launch find each other: where rank 0 listens, and with which token.

Three ways: a file of the user's own on one host or in a shared folder, an address and a token that
the environment has, or a communicator of mpi4py. Cost: once for a process.
"""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caspar.errors import GroupError, OptionError
from caspar.runtime.group.hub import Hub
from caspar.runtime.group.launcher import Launch, address_of, launch_of
from caspar.runtime.group.rendezvous import (
    announce,
    meeting_file,
    read_announcement,
    until,
    withdraw,
)
from caspar.runtime.group.wire import Hello, Wire, connect

LOOPBACK = "127.0.0.1"
TOKEN = "CASPAR_TOKEN"
NUM_TOKEN_BYTES = 32
LATER_S = 5.0
"""Seconds for connections after the first ones, when rank 0 is known to listen."""

Address = tuple[str, int]


@dataclass(frozen=True)
class Request:
    """What the user said to `init`; see there."""

    communicator: Any
    address: str | None
    token: str | None
    interface: str | None
    rendezvous: str | os.PathLike[str] | None
    join_s: float


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a launch meet.

    Attributes:
        launch: What this process knows of them.
        address: Where rank 0 listens.
        hub: Rank 0's own; None at the others.
        connect: Makes a connection to rank 0.
        end: To be called when all have come.
    """

    launch: Launch
    address: Address
    hub: Hub | None
    connect: Callable[[Hello], Wire]
    end: Callable[[], None] = lambda: None


def meet(request: Request) -> Meeting:
    """Find out where the processes meet, and listen there if this is rank 0.

    Raises:
        OptionError: No launcher, or no token where one is needed.
        GroupError: Rank 0 cannot listen, or is not found.
    """
    if request.communicator is not None:
        return _by_communicator(request)
    launch = launch_of(os.environ)
    given = os.environ.get(TOKEN, "") if request.token is None else request.token
    token = given.encode() if given != "" else None
    place = launch.address
    if request.address is not None:
        place = address_of("address", request.address)
    if request.rendezvous is not None:
        return _by_file(request, launch, token, Path(request.rendezvous))
    is_named = request.address is not None or "CASPAR_ADDRESS" in os.environ
    if launch.is_on_one_host and not is_named:
        return _by_file(request, launch, token, meeting_file(launch.job, launch.size))
    if token is None or place is None:
        raise OptionError(_lacking(launch, token, place))
    hub = None
    if launch.rank == 0:
        interface = place[0] if request.interface is None else request.interface
        hub = Hub(interface, place[1], token, launch.size)
        place = place if place[1] != 0 else hub.address
    return _meeting(request, launch, hub, place, token)


def _meeting(
    request: Request, launch: Launch, hub: Hub | None, address: Address, token: bytes
) -> Meeting:
    late = f"rank {launch.rank} of {launch.size} cannot join rank 0 at {address[0]}:{address[1]}"

    def reach(hello: Hello) -> Wire:
        patience_s = request.join_s if hello[2] == 0 else LATER_S
        return until(lambda: connect(address, token, hello, patience_s), patience_s, late)

    return Meeting(launch, address, hub, reach)


def _by_file(request: Request, launch: Launch, token: bytes | None, path: Path) -> Meeting:
    """Rank 0 writes address and token to a file; the token only if the user has set none."""
    if launch.rank == 0:
        interface = request.interface
        if interface is None and not launch.is_on_one_host:
            raise OptionError(
                "init(rendezvous=...) on several hosts needs interface=..., the address at which "
                "the others reach the host of rank 0"
            )
        made = secrets.token_bytes(NUM_TOKEN_BYTES) if token is None else token
        hub = Hub(LOOPBACK if interface is None else interface, 0, made, launch.size)
        announce(path, hub.address, made if token is None else b"")
        found = _meeting(request, launch, hub, hub.address, made)
        return Meeting(launch, hub.address, hub, found.connect, lambda: withdraw(path))
    known: list[tuple[Address, bytes]] = []

    def attempt(hello: Hello) -> Wire | None:
        # a file of an earlier job may lie there until rank 0 has written its own
        announced = known[0] if len(known) > 0 else read_announcement(path)
        if announced is None:
            return None
        address, written = announced
        wire = connect(address, written if token is None else token, hello, request.join_s)
        known[:] = [announced]
        return wire

    def reach(hello: Hello) -> Wire:
        late = f"rank {launch.rank} of {launch.size} finds no rank 0 by {path}"
        return until(lambda: attempt(hello), request.join_s if hello[2] == 0 else LATER_S, late)

    return Meeting(launch, (LOOPBACK, 0), None, reach)


def _by_communicator(request: Request) -> Meeting:
    """All that is to be known goes over MPI."""
    given = request.communicator
    missing = [name for name in ("Get_rank", "Get_size", "bcast") if not hasattr(given, name)]
    if len(missing) > 0:
        raise OptionError(
            f"init({given!r}): must be a communicator of mpi4py, such as MPI.COMM_WORLD; it has no "
            f"{', '.join(missing)}"
        )
    rank, size = int(given.Get_rank()), int(given.Get_size())
    hosts: Sequence[str] = given.allgather(socket.gethostname())
    here = hosts[rank]
    launch = Launch("mpi4py", rank, size, hosts[:rank].count(here), hosts.count(here), "")
    hub, told = None, None
    if rank == 0:
        interface = request.interface
        if interface is None:
            interface = LOOPBACK if launch.is_on_one_host else socket.gethostbyname(here)
        token = secrets.token_bytes(NUM_TOKEN_BYTES)
        try:
            hub = Hub(interface, 0, token, size)
            told = hub.address, token
        except GroupError as error:
            given.bcast(None, root=0)
            raise error
    told = given.bcast(told, root=0)
    if told is None:
        raise GroupError("rank 0 cannot listen: see what it printed")
    return _meeting(request, launch, hub, told[0], told[1])


def _lacking(launch: Launch, token: bytes | None, place: Address | None) -> str:
    lacks = [] if token is not None else ["a token: set CASPAR_TOKEN, the same for all processes"]
    if place is None:
        lacks.append(
            "the address of rank 0: set CASPAR_ADDRESS=HOST:PORT, or MASTER_ADDR and MASTER_PORT"
        )
    return (
        f"caspar.distributed.init(): {launch.size} processes of {launch.launcher}, not known to be "
        f"on one host, need {'; and '.join(lacks)}. Or pass an mpi4py communicator"
    )
