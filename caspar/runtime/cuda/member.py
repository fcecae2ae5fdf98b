"""A CUDA device as one of several of this host: sums with the others by NCCL."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from threading import Lock
from typing import Any

import cupy
import numpy as np

from caspar.errors import BackendError, GroupError
from caspar.memory.array import Array
from caspar.runtime.backend import Launch, LaunchSequence, Loop
from caspar.runtime.cuda.backend import CudaBackend
from caspar.runtime.cuda.launch.launch import CudaLaunch, CudaSequence, Enqueued
from caspar.runtime.cuda.loop.loop import merged_launches, own_launch
from caspar.runtime.cuda.nccl import Connection, nccl_of_cupy
from caspar.runtime.group.member import Group
from caspar.runtime.group.threads import FAILED, AllReduce, ThreadGroup
from caspar.runtime.sequence_loop import SequenceLoop


def num_devices() -> int:
    """CUDA devices that this process sees."""
    return int(cupy.cuda.runtime.getDeviceCount())


class NcclGroup:
    """Devices of one process that add up by NCCL.

    Args:
        devices: Their numbers.

    Raises:
        BackendError: CuPy has no NCCL, or NCCL refuses.
    """

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
    """A device of a group.

    Args:
        number: Of the device.
    """

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
