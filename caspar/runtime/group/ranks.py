"""The processes that share problems: `caspar.distributed.init`."""

import atexit
import math
import os
from typing import Any

from caspar.errors import OptionError
from caspar.runtime.group.joining import Address, Request, meet
from caspar.runtime.group.launcher import Launch
from caspar.runtime.group.peers import Peers, Purpose
from caspar.runtime.group.wire import Wire

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
        """Refused: connections belong to their process.

        Raises:
            TypeError: Always.
        """
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
