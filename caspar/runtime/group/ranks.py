"""The processes that share problems: `caspar.distributed.init`.

Also here: how the processes of a launch find each other: where rank 0 listens, and with which
token.

Also here: what launchers tell a process: its rank, how many there are, where the first one is.
"""

import atexit
import contextlib
import hashlib
import json
import math
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from caspar.errors import GroupError, OptionError
from caspar.runtime.group.peers import Peers, Purpose
from caspar.runtime.group.wire import Hello, Hub, Wire, connect

MASTER_OFFSET = 1
"""The distance from MASTER_PORT, on which torchrun itself listens, to the port of rank 0."""


@dataclass(frozen=True)
class Launch:
    """A process's knowledge of its group.

    Attributes:
        launcher: `torchrun`, `Open MPI`, `Slurm`, `CASPAR_*` or `mpi4py`.
        local_rank: Its number on its host: the device that it uses.
        local_size: Processes on this host; None: not known.
        job: Text that processes of the same job share, and others do not.
        address: Host and port of rank 0 as the launcher says; None: not known.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    job: str
    address: tuple[str, int] | None = None

    @property
    def is_on_one_host(self) -> bool:
        """Return whether all processes are on this host."""
        return self.local_size == self.size


_VARIABLES = {
    "CASPAR_*": ("CASPAR_RANK", "CASPAR_SIZE", "CASPAR_LOCAL_RANK", "CASPAR_LOCAL_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}

_JOBS = (
    *("CASPAR_JOB", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE"),
    *("OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"),
)


def launch_of(environment: Mapping[str, str]) -> Launch:
    """Read what a launcher has told; `OptionError` if none has, or it contradicts itself."""
    for launcher, (rank, size, local_rank, local_size) in _VARIABLES.items():
        if rank in environment and size in environment:
            found = Launch(
                launcher,
                _number(environment, rank),
                _number(environment, size),
                _number(environment, local_rank, 0),
                _local_size(environment, launcher, local_size),
                "|".join(f"{name}={environment.get(name, '')}" for name in _JOBS),
                _address(environment),
            )
            if not 0 <= found.rank < found.size:
                raise OptionError(f"{rank}={found.rank} with {size}={found.size}: no such rank")
            return found
    listed = "; ".join(f"{name}: {', '.join(names[:2])}" for name, names in _VARIABLES.items())
    raise OptionError(
        "caspar.distributed.init() finds no launcher in the environment. Start the program with "
        "torchrun, mpirun or srun, or pass an mpi4py communicator. These variables are looked for: "
        f"{listed}"
    )


def _number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    text = environment.get(name)
    if text is None and otherwise is not None:
        return otherwise
    try:
        return int(str(text))
    except ValueError:
        raise OptionError(f"{name}={text!r} in the environment: must be a whole number") from None


def _local_size(environment: Mapping[str, str], launcher: str, name: str) -> int | None:
    if launcher == "Slurm":
        # tasks of a node may be as "2(x3)", and nodes differ: one node has all tasks
        nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
        return _number(environment, "SLURM_NTASKS") if nodes == "1" else None
    return _number(environment, name) if name in environment else None


def _address(environment: Mapping[str, str]) -> tuple[str, int] | None:
    given = environment.get("CASPAR_ADDRESS")
    if given is not None:
        return address_of("CASPAR_ADDRESS", given)
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if host is None or port is None:
        return None
    return host, _number(environment, "MASTER_PORT") + MASTER_OFFSET


def address_of(where: str, text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an `OptionError` names `where` the text came from."""
    host, colon, port = text.rpartition(":")
    if colon == "" or host == "" or not port.isdigit() or int(port) > 65535:
        raise OptionError(f"{where}={text!r}: must be 'HOST:PORT', where rank 0 listens")
    return host.strip("[]"), int(port)


Found = TypeVar("Found")

POLL_S = 0.02


def meeting_file(job: str, size: int) -> Path:
    """Return the file through which processes of a job on one host meet.

    Raises a `GroupError` if the folder belongs to somebody else, or others may read it.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    base = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(base) if base is not None and Path(base).is_dir() else Path(tempfile.gettempdir())
    folder = root / f"caspar-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if hasattr(os, "getuid") and (status.st_uid != user or status.st_mode & 0o077):
        raise GroupError(
            f"{folder} belongs to somebody else or can be read by others, so no token is put "
            "there. Remove it, or set CASPAR_TOKEN and CASPAR_ADDRESS"
        )
    digest = hashlib.sha256(f"{job}|{size}".encode()).hexdigest()[:24]
    return folder / f"{digest}.json"


def announce(path: Path, address: tuple[str, int], token: bytes) -> None:
    """Write the file, whole or not at all, readable by its owner."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".caspar")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"host": address[0], "port": address[1], "token": token.hex()}, file)
    os.replace(name, path)


def withdraw(path: Path) -> None:
    """Remove the file, if it is there."""
    with contextlib.suppress(OSError):
        path.unlink()


def read_announcement(path: Path) -> tuple[tuple[str, int], bytes] | None:
    """Address and token; None: there is no such file yet, or it is not whole."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return (str(found["host"]), int(found["port"])), bytes.fromhex(found["token"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def until(attempt: Callable[[], Found | None], timeout_s: float, otherwise: str) -> Found:
    """Try again and again, as files of earlier jobs may lie about and rank 0 may come later.

    Raises a `GroupError` with `otherwise` and what went wrong last.
    """
    end_s, last = time.monotonic() + timeout_s, ""
    while True:
        try:
            found = attempt()
        except (OSError, GroupError) as error:
            found, last = None, f": {error}"
        if found is not None:
            return found
        if time.monotonic() > end_s:
            raise GroupError(f"{otherwise} within {timeout_s:g} s{last}")
        time.sleep(POLL_S)


LOOPBACK = "127.0.0.1"
TOKEN = "CASPAR_TOKEN"
NUM_TOKEN_BYTES = 32
LATER_S = 5.0
"""Seconds for connections after the first ones, when rank 0 is known to listen."""

Address = tuple[str, int]


@dataclass(frozen=True)
class Request:
    """The user's arguments of `init`; see there."""

    communicator: Any
    address: str | None
    token: str | None
    interface: str | None
    rendezvous: str | os.PathLike[str] | None
    join_s: float


@dataclass(frozen=True)
class Meeting:
    """The place where the processes of a launch meet: the address of rank 0, at rank 0 its hub.

    `connect` makes a connection to rank 0; `end` must be called when all have come.
    """

    launch: Launch
    address: Address
    hub: Hub | None
    connect: Callable[[Hello], Wire]
    end: Callable[[], None] = lambda: None


def meet(request: Request) -> Meeting:
    """Find out where the processes meet, and listen there if this is rank 0.

    Raises an `OptionError` without a launcher or a needed token, a `GroupError` if rank 0 cannot
    listen or is not found.
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


RESULTS = ("all", "first")


class Ranks:
    """The processes that share problems; made by `init`, for `Solver(devices=...)`.

    Attributes:
        rank: Number of this process, from 0.
        size: Processes.
        local_rank: Number of this process on its host.
        device: Number of the CUDA device that this process uses.
        results: Which ranks get all values after a solve: `all`, or the `first` alone.
        address: Host and port at which rank 0 listens.
        is_on_one_host: Whether all processes are known to be on one host.
        peers: The others, as solvers see them.
    """

    def __init__(
        self, peers: Peers, launch: Launch, device: int | None, results: str, address: Address
    ) -> None:
        self.peers = peers
        self.rank, self.size = launch.rank, launch.size
        self.local_rank = launch.local_rank
        self.device = launch.local_rank if device is None else device
        self.results = results
        self.address = address
        self.is_on_one_host = launch.is_on_one_host
        self._launcher = launch.launcher
        atexit.register(self.close)

    def __repr__(self) -> str:
        """Rank, how many there are, and who started them."""
        return f"<rank {self.rank} of {self.size}, started by {self._launcher}>"

    def __reduce__(self) -> Any:
        """Refuse: connections belong to their process."""
        raise TypeError("ranks cannot be pickled or copied: they belong to their process")

    def barrier(self) -> None:
        """Wait until all ranks are here.

        Raises:
            GroupError: A rank is gone, or does not come.
        """
        self.peers.exchange(lambda: None)

    def close(self) -> None:
        """Leave the others. Connections end; solvers of these ranks are of no more use."""
        atexit.unregister(self.close)
        self.peers.close()


def init(
    communicator: Any = None,
    *,
    address: str | None = None,
    token: str | None = None,
    interface: str | None = None,
    rendezvous: str | os.PathLike[str] | None = None,
    device: int | None = None,
    results: str = "all",
    join_s: float = 120.0,
    silence_s: float = 8.0,
    wait_s: float = 1800.0,
) -> Ranks:
    """Join the other processes that torchrun, mpirun or srun has started.

    Rank 0 listens; the others connect and prove that they know the token, without which nobody is
    let in. On one host nothing has to be said. On several set CASPAR_TOKEN, the same everywhere,
    and where rank 0 is; or pass a communicator of mpi4py. Docs: `docs/guide/devices.md`.

    Args:
        communicator: Of mpi4py, such as `MPI.COMM_WORLD`: ranks, address and token come by it.
        address: `HOST:PORT` at which rank 0 listens. None: CASPAR_ADDRESS, else MASTER_ADDR with
            the port after MASTER_PORT; on one host 127.0.0.1, and any port.
        token: Text that only these processes know. None: CASPAR_TOKEN.
        interface: Address of the network interface that rank 0 listens on. None: of `address`.
        rendezvous: File in a folder of the user's own that all hosts see, by which rank 0 tells
            address and token. On several hosts rank 0 needs `interface` for it.
        device: Number of this process's CUDA device. None: the number of the process on its host.
        results: `all`: every rank gets all values of a solve. `first`: only rank 0 gets those of
            eliminated node types.
        join_s: Seconds that the processes wait for each other here.
        silence_s: Seconds without a heartbeat after which a process counts as gone. The end of a
            process is noticed at once.
        wait_s: Seconds that a process waits for others, alive, to call the same method.

    Raises:
        OptionError: No launcher, no token where one is needed, or an argument out of range.
        GroupError: A process does not come, or has another token.
    """
    if results not in RESULTS:
        raise OptionError(f"results={results!r}: must be 'all' or 'first'")
    for name, value in (("join_s", join_s), ("silence_s", silence_s), ("wait_s", wait_s)):
        if not (math.isfinite(value) and value > 0.0):
            raise OptionError(f"{name}={value!r}: must be a positive number of seconds")
    found = meet(Request(communicator, address, token, interface, rendezvous, join_s))
    launch = found.launch

    def dial(purpose: Purpose, number: int) -> Wire:
        return found.connect((int(purpose), launch.rank, number, launch.size))

    times = {"join_s": join_s, "silence_s": silence_s, "wait_s": wait_s}
    try:
        peers = Peers(launch.rank, launch.size, found.hub, dial, **times)
    finally:
        found.end()
    return Ranks(peers, launch, device, results, found.address)
