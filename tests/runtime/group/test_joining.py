"""What launchers say, and who is let in."""

import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.distributed import Ranks, init
from caspar.errors import GroupError, OptionError
from caspar.runtime.group import wire as wire_module
from caspar.runtime.group.peers import News, Watch
from caspar.runtime.group.ranks import (
    address_of,
    announce,
    launch_of,
    meeting_file,
    read_announcement,
    until,
)
from caspar.runtime.group.wire import Hub, Wire, connect, greet

ROOT = Path(__file__).parents[3]
TOKEN = b"of this test"

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NNODES": "2"}


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        (TORCHRUN, ("torchrun", 3, 4, 1, False, ("node0", 29501))),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, ("torchrun", 3, 4, 1, True, ("node0", 29501))),
        (OPEN_MPI, ("Open MPI", 1, 2, 1, True, None)),
        (SLURM, ("Slurm", 5, 8, 1, False, None)),
        ({**SLURM, "SLURM_NNODES": "1"}, ("Slurm", 5, 8, 1, True, None)),
        ({**SLURM, "CASPAR_ADDRESS": "a:7"}, ("Slurm", 5, 8, 1, False, ("a", 7))),
    ],
)
def test_launchers(variables: dict[str, str], wanted: tuple[Any, ...]) -> None:
    found = launch_of(variables)
    told = found.launcher, found.rank, found.size, found.local_rank, found.is_on_one_host
    assert (*told, found.address) == wanted


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "finds no launcher"),
        ({**TORCHRUN, "RANK": "x"}, "RANK='x' in the environment: must be a whole number"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4 with WORLD_SIZE=4: no such rank"),
    ],
)
def test_what_no_launcher_says(variables: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        launch_of(variables)


@pytest.mark.parametrize("text", ["host", ":1", "host:", "host:x", "host:99999"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(OptionError, match="must be 'HOST:PORT'"):
        address_of("address", text)


def test_several_hosts_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CASPAR_TOKEN", raising=False)
    with pytest.raises(OptionError, match="need a token: set CASPAR_TOKEN"):
        init()


@pytest.mark.parametrize(
    "options", [{"results": "none"}, {"silence_s": 0.0}, {"wait_s": float("nan")}]
)
def test_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        init(**options)


# -- who is let in ---------------------------------------------------------------------------------


@pytest.fixture(name="hub")
def _hub() -> Any:
    hub = Hub("127.0.0.1", 0, TOKEN, 2)
    yield hub
    hub.close()


def _nothing() -> None:
    """There is still something to wait for."""


def test_who_knows_the_token_is_let_in(hub: Hub) -> None:
    assert hub.address[0] == "127.0.0.1"
    wire = connect(hub.address, TOKEN, (1, 1, 0, 2), 5.0)
    other = hub.take(1, 1, 0, 5.0, _nothing)
    arrays = {"rows": np.arange(6.0).reshape(2, 3), "text": "of any kind"}
    wire.send(arrays)
    found = other.receive()
    np.testing.assert_array_equal(found["rows"], arrays["rows"])
    assert found["text"] == "of any kind"
    wire.close()
    with pytest.raises(EOFError):
        other.receive()
    other.close()


def test_another_token_is_turned_away(hub: Hub) -> None:
    with pytest.raises(GroupError, match="refused this one: its token is another"):
        connect(hub.address, b"guessed", (1, 1, 0, 2), 5.0)
    with pytest.raises(GroupError, match="rank 1 of 2 did not connect"):
        hub.take(1, 1, 0, 0.1, _nothing)


def test_who_listens_must_know_the_token_too() -> None:
    """One that has taken the port answers whatever it likes; nothing of it is unpickled."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10.0)

    def answer() -> None:
        connection, _ = listener.accept()
        connection.sendall(bytes(64))
        connection.recv(1000)
        time.sleep(0.2)
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(GroupError, match="refused"):
        connect(listener.getsockname(), TOKEN, (1, 1, 0, 2), 5.0)
    listener.close()


def test_silence_and_noise_keep_nobody_out(hub: Hub) -> None:
    silent = socket.create_connection(hub.address)
    noisy = socket.create_connection(hub.address)
    noisy.sendall(bytes(range(256)) * 10)
    test_who_knows_the_token_is_let_in(hub)
    silent.close()
    noisy.close()


def test_a_rank_is_let_in_once(hub: Hub) -> None:
    first = connect(hub.address, TOKEN, (1, 1, 0, 2), 5.0)
    second = connect(hub.address, TOKEN, (1, 1, 0, 2), 5.0)
    # rank 0 greets each in a thread of its own: either may be the one that is turned away
    (turned_away,) = wire_module.readable([first.socket, second.socket], 20.0)
    with turned_away, pytest.raises((EOFError, OSError)):
        Wire(turned_away).receive()
    first.close()
    second.close()


def test_a_greeting_ends_in_time_however_slowly_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "GREETING_S", 0.5)
    left, right = socket.socketpair()
    done = threading.Event()

    def drip() -> None:
        while not done.wait(0.05):
            left.sendall(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    start_s = time.monotonic()
    assert greet(right, TOKEN) is None
    assert time.monotonic() - start_s < 3.0
    done.set()
    thread.join(5.0)
    left.close()


def test_who_accepts_and_says_nothing_has_no_other_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "GREETING_S", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(GroupError, match="has not answered within"),
    ):
        connect(listener.getsockname(), TOKEN, (1, 1, 0, 2), 5.0)


FEW_DESCRIPTORS = """
import resource, sys
from caspar.runtime.group import wire
wire.GREETING_S = 1.0
hub = wire.Hub("127.0.0.1", 0, b"of this test", 2)
print(hub.address[1], flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
sys.stdin.readline()
found = hub.take(1, 1, 0, 30.0, lambda: None)
print(found.receive(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of descriptors")
def test_a_rank_joins_after_more_connections_than_there_are_descriptors() -> None:
    command = [sys.executable, "-c", FEW_DESCRIPTORS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        end = threading.Timer(60.0, process.kill)
        end.start()
        assert process.stdin is not None
        assert process.stdout is not None
        address = "127.0.0.1", int(process.stdout.readline())
        silent = [socket.create_connection(address, 5.0) for _ in range(60)]
        print(file=process.stdin, flush=True)
        wire = until(lambda: connect(address, TOKEN, (1, 1, 0, 2), 5.0), 30.0, "not let in")
        wire.send("joined")
        assert process.stdout.readline() == "joined\n"
        for one in silent:
            one.close()
        wire.close()
        end.cancel()
    assert process.returncode == 0


def assert_they_hear_each_other(*wires: Wire) -> None:
    """Two watches, one at each end."""
    told: Queue[News] = Queue()
    watches = [
        Watch({rank: wire}, 60.0, lambda news, *_: told.put(news))
        for rank, wire in enumerate(wires)
    ]
    for one in watches:
        one.tell(News.INTERRUPT)
        assert told.get(timeout=20.0) is News.INTERRUPT
    for one in watches:
        one.close()


def test_who_waits_is_woken_if_another_thread_closes_the_connection() -> None:
    left, right = map(Wire, socket.socketpair())
    end = threading.Timer(0.2, left.close)
    end.start()
    assert left.has_message(20.0)
    with pytest.raises((OSError, EOFError)):
        left.receive()
    right.close()


@pytest.mark.skipif(sys.platform == "win32", reason="sockets have no small numbers")
def test_descriptors_beyond_those_of_select() -> None:
    import fcntl
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1100
    if hard != resource.RLIM_INFINITY and hard < wanted + 10:
        pytest.skip("the system allows no such descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 10), hard))
    try:
        ends = []
        for one in socket.socketpair():
            ends.append(socket.socket(fileno=fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, wanted)))
            one.close()
        left, right = map(Wire, ends)
        assert left.socket.fileno() >= wanted
        assert not right.has_message(0.01)
        left.send("here")
        assert right.has_message(5.0)
        assert right.receive() == "here"
        assert_they_hear_each_other(left, right)
        with pytest.raises(OSError, match="closed"):
            left.has_message(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_watch_goes_on_after_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [OSError("no memory")] * 2

    def refusing(*given: Any) -> Any:
        if len(refusals) > 0:
            raise refusals.pop()
        return wire_module.readable(*given)

    monkeypatch.setattr("caspar.runtime.group.peers.readable", refusing)
    assert_they_hear_each_other(*map(Wire, socket.socketpair()))
    assert refusals == []


def test_sums_of_other_sizes_are_refused() -> None:
    left, right = socket.socketpair()
    Wire(left).send_raw([memoryview(bytes(8))])
    with left, right, pytest.raises(GroupError, match="arrays of 4 and 8 bytes"):
        Wire(right).receive_raw([memoryview(bytearray(4))])


def test_a_port_that_is_taken(hub: Hub) -> None:
    with pytest.raises(GroupError, match="rank 0 cannot listen on 127"):
        Hub("127.0.0.1", hub.address[1], TOKEN, 2)


# -- files -----------------------------------------------------------------------------------------


def test_the_file_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = meeting_file("job", 2)
    announce(path, ("127.0.0.1", 5), TOKEN)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_announcement(path) == (("127.0.0.1", 5), TOKEN)
    assert meeting_file("other job", 2) != path
    path.parent.chmod(0o755)
    with pytest.raises(GroupError, match="can be read by others"):
        meeting_file("job", 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "a"}', '{"host": 1, "port": "x"}'])
def test_files_of_others_are_not_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert read_announcement(path) is None


def test_why_a_file_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert read_announcement(tmp_path / "none") is None
    with pytest.raises(GroupError, match=r"not found within 0 s.*directory|not found .*denied"):
        until(lambda: read_announcement(tmp_path), 0.0, "not found")


# -- in threads ------------------------------------------------------------------------------------


class Communicator:
    """What is used of mpi4py's, among threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, told: dict[str, Any]) -> None:
        self._rank, self._barrier, self._told = rank, barrier, told

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._barrier.parties

    def allgather(self, given: Any) -> list[Any]:
        self._told[f"from {self._rank}"] = given
        self._barrier.wait()
        return [self._told[f"from {rank}"] for rank in range(self._barrier.parties)]

    def bcast(self, given: Any, root: int) -> Any:
        if self._rank == root:
            self._told["broadcast"] = given
        self._barrier.wait()
        return self._told["broadcast"]


def _in_threads(size: int, work: Callable[[int], Any]) -> list[Any]:
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        found[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    return found


def test_a_communicator_tells_all() -> None:
    barrier = threading.Barrier(3, timeout=20.0)
    told: dict[str, Any] = {}

    def work(rank: int) -> Any:
        ranks = init(Communicator(rank, barrier, told), join_s=10.0)
        assert isinstance(ranks, Ranks)
        found = ranks.peers.exchange(lambda: f"of {ranks.rank}")
        ranks.barrier()
        ranks.close()
        return ranks.rank, ranks.local_rank, ranks.address[0], found

    everything = ["of 0", "of 1", "of 2"]
    assert _in_threads(3, work) == [(rank, rank, "127.0.0.1", everything) for rank in range(3)]


def test_what_is_no_communicator() -> None:
    with pytest.raises(OptionError, match="must be a communicator of mpi4py"):
        init(3)


def test_one_process_needs_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    ranks = init()
    ranks.barrier()
    assert repr(ranks) == "<rank 0 of 1, started by torchrun>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        ranks.__reduce__()
    ranks.close()
    assert caspar.distributed.Ranks is Ranks
