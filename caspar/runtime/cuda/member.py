"""A CUDA device as one of several of this host: sums with the others by NCCL.

NVLink multicast stays off (`NCCL_NVLS_ENABLE`), and connections are made when the group is:
members call from threads of one process, and must not wait for each other inside a call that holds
what the other needs.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from threading import Lock, Thread
from typing import Any

import cupy
import numpy as np

from caspar.errors import BackendError, GroupError
from caspar.memory.array import Array
from caspar.runtime.backend import Launch, LaunchSequence, Loop
from caspar.runtime.cuda.backend import CudaBackend
from caspar.runtime.cuda.launch.launch import CudaLaunch, CudaSequence, Enqueued
from caspar.runtime.cuda.loop.loop import merged_launches, own_launch
from caspar.runtime.group.member import Group
from caspar.runtime.group.threads import FAILED, AllReduce, ThreadGroup
from caspar.runtime.sequence_loop import SequenceLoop

SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_RUNTIME_CONNECT": "0"}
"""Of NCCL, unless the user has set them; it reads them when the process makes its first group."""

NCCL_TYPES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"}


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

    def __init__(self, devices: Sequence[int]) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self.size = len(devices)
        self._nccl = nccl_of_cupy()
        self._failed = False
        self._lock = Lock()
        try:
            self._communicators = self._nccl.NcclCommunicator.initAll([*devices])
            self._add_up_once(devices)
        except self._nccl.NcclError as error:
            raise BackendError(
                f"devices={[*devices]}: NCCL cannot connect these devices: {error}. Set "
                "NCCL_DEBUG=INFO to see why, or use devices=1"
            ) from error

    def _add_up_once(self, devices: Sequence[int]) -> None:
        """So that all is connected, whatever is added up first and whoever comes first."""
        arrays, streams = [], []
        for number in devices:
            with cupy.cuda.Device(number):
                streams.append(cupy.cuda.Stream(non_blocking=True))
                with streams[-1]:
                    arrays.append(cupy.ones(1, np.float64))
        self._nccl.groupStart()
        for rank, (array, stream) in enumerate(zip(arrays, streams, strict=True)):
            self._enqueue(rank, array, stream.ptr)
        self._nccl.groupEnd()
        for number, stream in zip(devices, streams, strict=True):
            with cupy.cuda.Device(number):
                stream.synchronize()

    def add_up(self, rank: int, arrays: Sequence[Array]) -> None:
        """See `Group`: one kernel for all arrays."""
        self.check()
        stream = cupy.cuda.get_current_stream().ptr
        try:
            self._nccl.groupStart()
            for array in arrays:
                self._enqueue(rank, array, stream)
            self._nccl.groupEnd()
        except self._nccl.NcclError as error:
            self.check()
            raise BackendError(f"NCCL cannot add up over {self.size} devices: {error}") from error

    def _enqueue(self, rank: int, array: Array, stream: int) -> None:
        place, dtype = array.data.ptr, getattr(self._nccl, NCCL_TYPES[array.dtype.name])
        communicator = self._communicators[rank]
        communicator.allReduce(place, place, array.size, dtype, self._nccl.NCCL_SUM, stream)

    def abort(self) -> None:
        """See `Group`: kernels that wait for a member end.

        NCCL tells the kernels at once, but returns when no graph has the communicator any more: in
        threads that nobody waits for.
        """
        with self._lock:
            if self._failed:
                return
            self._failed = True
        for communicator in self._communicators:
            Thread(target=communicator.abort, name="caspar abort", daemon=True).start()

    def check(self) -> None:
        """See `Group`."""
        if self._failed:
            raise GroupError(FAILED)


def nccl_of_cupy() -> Any:
    """CuPy's interface to NCCL.

    Raises:
        BackendError: It is not there.
    """
    try:
        nccl = importlib.import_module("cupy.cuda.nccl")  # CuPy itself does not import it
    except ImportError:
        nccl = None
    if not getattr(nccl, "available", False):
        raise BackendError(
            "several CUDA devices need NCCL, which CuPy does not find. Install the wheel "
            "nvidia-nccl-cu12 or nvidia-nccl-cu13 that goes with CuPy, or use devices=1"
        )
    return nccl


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
        """By NCCL."""
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
        scalars: Array | None = None,
        *,
        fused: bool | None = None,
    ) -> Loop:
        """Graphs that the host launches until it reads the flag: NCCL has no place in a loop's."""
        if not any(isinstance(one, AllReduce) for phase in phases for one in phase):
            return super().loop(phases, flag, scalars, fused=fused)
        scalars = flag if scalars is None else scalars
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
        """Between devices, or within this one."""
        with self._device:
            target.data.copy_from_device(source.data, source.nbytes)

    def bring(self, array: Array) -> Array:
        """A copy, if it is on another device."""
        if not isinstance(array, cupy.ndarray) or array.device.id == self._device.id:
            return array
        with array.device:
            rows = cupy.ascontiguousarray(array)
            cupy.cuda.get_current_stream().synchronize()
        copied = cupy.empty(rows.shape, rows.dtype)
        self.receive(copied, rows)
        return copied


def _present(launches: Sequence[Launch]) -> Iterator[CudaLaunch | AllReduce]:
    """Without those that have no items: a part of a problem may have none of something."""
    for launch in launches:
        if isinstance(launch, AllReduce):
            yield launch
        elif own_launch(launch).bound.all_blocks > 0:
            yield own_launch(launch)
