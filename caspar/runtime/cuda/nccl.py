"""CUDA devices that add up by NCCL: those of this host, and those of several processes.

NVLink multicast stays off (`NCCL_NVLS_ENABLE`), and connections are made when the group is
(`NCCL_RUNTIME_CONNECT`): members call from threads of one process, and must not wait for each other
inside a call that holds what the other needs. NCCL itself listens for connections of processes: on
the network interface by which rank 0 was reached, unless the user has set NCCL_SOCKET_IFNAME. Cost:
connections once for a group.
"""

import ctypes
import fcntl
import importlib
import os
import socket
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from threading import Event, Lock, Thread
from typing import Any

import cupy
import numpy as np

from caspar.errors import BackendError, GroupError
from caspar.memory.array import Array
from caspar.runtime.backend import Launch, LaunchSequence, Loop, SequenceLoop
from caspar.runtime.cuda.aside import aside
from caspar.runtime.cuda.backend import CudaBackend
from caspar.runtime.cuda.launch.launch import CudaLaunch, CudaSequence, Enqueued
from caspar.runtime.cuda.loop.loop import merged_launches, own_launch
from caspar.runtime.group.member import Group
from caspar.runtime.group.ranks import Ranks
from caspar.runtime.group.sockets import ProcessGroup
from caspar.runtime.group.threads import FAILED, AllReduce, ThreadGroup

_SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_RUNTIME_CONNECT": "0"}
"""Variables of NCCL, unless the user has set them; the first group of a process reads them."""

_TYPES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"}


def nccl_of_cupy() -> Any:
    """CuPy's interface to NCCL, with our settings; `BackendError` if it is not there."""
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")  # CuPy itself does not import it
    except ImportError:
        nccl = None
    if not getattr(nccl, "available", False):
        raise BackendError(
            "several CUDA devices need NCCL, which CuPy does not find. Install the wheel "
            "nvidia-nccl-cu12 or nvidia-nccl-cu13 that goes with CuPy, or use devices=1"
        )
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    return nccl


class Connection:
    """A member's connection to the others.

    NCCL ends a connection only when no CUDA graph uses it any more, and waits for that. Python may
    collect connection and graphs together, in any order, so the end is always left to a thread, for
    which only the end of the process waits, a moment.
    """

    def __init__(self, communicator: Any) -> None:
        self._nccl = nccl_of_cupy()
        self._communicator = communicator
        # CuPy ends a communicator that is collected, and waits: this one is never collected
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
        self._end = weakref.finalize(self, _abort, communicator)
        self._end.atexit = False

    def add_up(self, arrays: Sequence[Array], check: Callable[[], None]) -> None:
        """Enqueue sums in place over all members as one kernel; the others call it, too.

        `check` raises what is known to have failed; if nothing is, NCCL's refusal is a
        `BackendError`.
        """
        check()
        nccl, stream = self._nccl, cupy.cuda.get_current_stream().ptr
        try:
            nccl.groupStart()
            for array in arrays:
                place, dtype = array.data.ptr, getattr(nccl, _TYPES[array.dtype.name])
                self._communicator.allReduce(place, place, array.size, dtype, nccl.NCCL_SUM, stream)
            nccl.groupEnd()
        except nccl.NcclError as error:
            check()
            raise BackendError(f"NCCL cannot add up over these devices: {error}") from error

    def abort(self) -> None:
        """End kernels that wait for another member, at once; once for a connection."""
        self._end.detach()
        _abort(self._communicator)


def _abort(communicator: Any) -> None:
    """Call `ncclCommAbort`: `ncclCommDestroy` would also wait for the other members."""
    aside(communicator.abort)


def num_devices() -> int:
    """CUDA devices that this process sees."""
    return int(cupy.cuda.runtime.getDeviceCount())


class NcclGroup:
    """Devices of one process, by their numbers, that add up by NCCL, if it does not refuse."""

    shares_memory = True

    def __init__(self, devices: Sequence[int]) -> None:
        self.size = len(devices)
        self._host = ThreadGroup(self.size)
        self._failed = False
        self._lock = Lock()
        nccl = nccl_of_cupy()
        try:
            made = nccl.NcclCommunicator.initAll([*devices])
            self._connections = [Connection(communicator) for communicator in made]
            nccl.groupStart()
            streams = [self._add_up_once(rank, device) for rank, device in enumerate(devices)]
            nccl.groupEnd()
        except nccl.NcclError as error:
            raise BackendError(
                f"devices={[*devices]}: NCCL cannot connect these devices: {error}. Set "
                "NCCL_DEBUG=INFO to see why, or use devices=1"
            ) from error
        for number, stream in zip(devices, streams, strict=True):
            with cupy.cuda.Device(number):
                stream.synchronize()

    def _add_up_once(self, rank: int, device: int) -> cupy.cuda.Stream:
        """So that all is connected, whatever is added up first and whoever comes first."""
        with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
            self.add_up(rank, [cupy.ones(1, np.float64)])
        return stream

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`: one kernel for all arrays."""
        self._connections[rank].add_up(arrays, self.check)

    def gather(self, rank: int, value: Any) -> list[Any]:
        """See `Group`: the values themselves."""
        return self._host.gather(rank, value)

    def collect(self, rank: int, value: Any) -> list[Any]:
        """See `Group`: the values themselves."""
        return self._host.collect(rank, value)

    def abort(self) -> None:
        """See `Group`: threads and kernels that wait for a member end."""
        with self._lock:
            if self._failed:
                return
            self._failed = True
        self._host.abort()
        for connection in self._connections:
            connection.abort()

    def check(self) -> None:
        """See `Group`."""
        if self._failed:
            raise GroupError(FAILED)


class CudaMember(CudaBackend):
    """A device of a group, by its number."""

    def __init__(self, number: int) -> None:
        with cupy.cuda.Device(number):
            super().__init__()
        self._group: Group = ThreadGroup(1)
        self._rank = 0

    def join(self, group: Group, rank: int) -> None:
        """See `Member`."""
        self._group, self._rank = group, rank

    def all_reduce(self, arrays: Sequence[Array]) -> Launch:
        """Add up arrays of all members with NCCL."""
        return AllReduce(self._group, self._rank, tuple(arrays))

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Launches, and sums between them, as one CUDA graph.

        It is captured at once, whether or not it has sums: what allocates may wait for kernels of
        all devices, and these for the member that allocates.
        """
        made = CudaSequence(self.stream, [*_present(launches)])
        with self._device:
            made.graph  # noqa: B018
        return made

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A call that enqueues launches in order on the caller's current stream."""
        return super().runner([*_present(launches)])

    def loop(
        self,
        phases: Sequence[Sequence[Launch]],
        flag: Array,
        scalars: Array,
        *,
        fused: bool | None = None,
    ) -> Loop:
        """Graphs that the host launches until it reads the flag: NCCL has no place in a loop's."""
        if not any(isinstance(one, AllReduce) for phase in phases for one in phase):
            return super().loop(phases, flag, scalars, fused=fused)
        launches: list[Enqueued] = []
        kept = [present for phase in phases if len(present := [*_present(phase)]) > 0]
        with self._device:
            for is_sum, some in groupby(kept, lambda phase: isinstance(phase[0], AllReduce)):
                if is_sum:
                    launches += [one for phase in some for one in phase]
                else:
                    launches += merged_launches([*some], flag, scalars, self.device)
            made = CudaSequence(self.stream, launches)
            made.prepare_groups()
        return SequenceLoop(made, flag)

    def receive(self, target: Array, source: Array) -> None:
        """Between devices, or within this one: on the current stream, and done when it returns.

        A copy without a stream would not wait for that one, nor, between devices, for kernels of
        the null stream: what they still read may have been freed, and be the target.
        """
        with self._device:
            stream = cupy.cuda.get_current_stream()
            target.data.copy_from_device_async(source.data, source.nbytes, stream)
            stream.synchronize()

    def bring(self, array: Array) -> Array:
        """A copy, if it is on another device."""
        if not isinstance(array, cupy.ndarray) or array.device.id == self._device.id:
            return array
        with array.device:
            rows = cupy.ascontiguousarray(array)
            cupy.cuda.get_current_stream().synchronize()
        with self._device:
            copied = cupy.empty(rows.shape, rows.dtype)
        self.receive(copied, rows)
        return copied


def _present(launches: Sequence[Launch]) -> Iterator[CudaLaunch | AllReduce]:
    """Leave out launches without items: a part of a problem may have none of something."""
    for launch in launches:
        if isinstance(launch, AllReduce):
            yield launch
        elif own_launch(launch).bound.all_blocks > 0:
            yield own_launch(launch)


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
    """Processes with a device each; `unique_id` is by `meeting`, of the first member.

    Raises `BackendError` if NCCL refuses, `GroupError` if a process is gone.
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
