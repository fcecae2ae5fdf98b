"""Launches on CUDA: one kernel with its arguments, and sequences captured as CUDA graphs."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from caspar.errors import CasparError
from caspar.memory.array import Array
from caspar.runtime.cuda.compile.kernel import CudaKernel
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel
from caspar.runtime.nvidia.limits import launch_refusal

RUNS_PER_GRAPH = 8
"""Runs of a repeated sequence captured in one graph: a host read of the flag costs about as much
as one run of a small problem, so it is taken once for several."""

EAGER_GROUPS = 2
"""Groups of runs after which the flag is read at once."""


@dataclass(frozen=True)
class CudaLaunch:
    """A kernel with grid, block and arguments.

    Launched through CuPy's wrapper of the driver, 3.8 us a launch; calling its `RawKernel` takes
    5 to 7 (H200, eight parameters).

    Attributes:
        call: Function, grid, block and shared memory, as the driver takes them.
        table: Address of the table of the parameters' addresses.
        places: (num_params,) the parameters: 8 bytes each, integers in the lower half.
        values: What the parameters were made of.
        kernel: What is launched.
        addresses: (num_params,) the table.
        is_cooperative: Whether its blocks wait for each other, and are no cluster.
    """

    call: tuple[int, ...]
    table: int
    places: NDArray[np.uint64]
    values: tuple[int | Array, ...]
    kernel: CudaKernel
    addresses: NDArray[np.uint64]
    is_cooperative: bool = False

    @property
    def bound(self) -> BoundKernel:
        """The bound kernel that it launches."""
        return BoundKernel(self.kernel.source, self.kernel.block_size, self.call[1], self.values)

    def without(self, arrays: Sequence[Array]) -> "CudaLaunch":
        """The same, but it does not keep some arrays alive."""
        kept = tuple(
            0 if any(value is array for array in arrays) else value for value in self.values
        )
        return replace(self, values=kept)

    def set_address(self, number: int, address: int) -> None:
        """Pass another address: the driver copies parameters when a kernel is launched."""
        self.places[number] = address

    def run(self) -> None:
        """Enqueue on the current stream.

        Raises:
            BackendError: The driver refuses; says which kernel, and why.
        """
        stream = cupy.cuda.get_current_stream().ptr
        try:
            if self.is_cooperative:
                driver.launchCooperativeKernel(*self.call, stream, self.table)
            else:
                driver.launchKernel(*self.call, stream, self.table, 0)
        except driver.CUDADriverError as error:
            raise refusal(self.kernel, str(error)) from error


def refusal(kernel: CudaKernel, error: str) -> CasparError:
    """Return the error to raise if the driver does not launch a kernel."""
    function = kernel.function
    return launch_refusal(
        kernel.source,
        kernel.block_size,
        lambda: (function.registers, function.shared_bytes),
        error,
    )


def address(array: Array) -> int:
    """Return the address of an array on the device."""
    return int(array.data.ptr)


def parameter_table(
    values: Sequence[int | Array],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return (n,) parameters of a launch and (n,) their addresses, as the driver takes them.

    A parameter has 8 bytes; an integer is read from its lower half.
    """
    places = np.array(
        [value & 0xFFFFFFFF if isinstance(value, int) else address(value) for value in values],
        dtype=np.uint64,
    )
    return places, places.ctypes.data + places.itemsize * np.arange(len(places), dtype=np.uint64)


class Enqueued(Protocol):
    """Anything that enqueues itself on the current stream."""

    def run(self) -> None:
        """Enqueue."""


def captured(run: Callable[[], None], num_runs: int) -> Any:
    """A graph of several runs.

    It is captured on a stream of its own, so that no graph has what other threads enqueue
    meanwhile, and a failure leaves no other stream in capture.

    Args:
        run: Enqueues on the current stream what a graph can hold.
        num_runs: How often.
    """
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            for _ in range(num_runs):
                run()
        except BaseException:
            # a failed launch may have ended the capture: what failed first is what counts
            with suppress(cupy.cuda.runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        return stream.end_capture()


class CudaSequence:
    """Launches captured as CUDA graphs: one of a single run, one of several."""

    def __init__(self, stream: Any, launches: Sequence[Enqueued]) -> None:
        self._stream = stream
        self._launches = tuple(launches)
        self._once: Any = None
        self._several: Any = None
        self._events: list[Any] = []
        self._flags: NDArray[np.float64] | None = None

    def _capture(self, num_runs: int) -> Any:
        def run() -> None:
            for launch in self._launches:
                launch.run()

        return captured(run, num_runs)

    @property
    def graph(self) -> Any:
        """The graph of a single run."""
        if self._once is None:
            self._once = self._capture(1)
        return self._once

    def run(self) -> None:
        """Enqueue every launch once."""
        self.graph.launch(stream=self._stream)

    def prepare_groups(self) -> None:
        """Make what `run_until` needs, instead of in its first call."""
        if self._flags is None:
            self._several = self._capture(RUNS_PER_GRAPH)
            self._events = [cupy.cuda.Event(disable_timing=True) for _ in range(2)]
            self._flags = _pinned_flags()

    def run_until(self, flag: Array, max_runs: int) -> None:
        """Enqueue groups of runs until the flag is seen.

        The first groups are waited for, as most loops end there and a group of guarded launches
        costs more than the wait; later the flag is read one group behind, and the device never
        waits.
        """
        self.prepare_groups()
        assert self._flags is not None
        for group in range(-(-max_runs // RUNS_PER_GRAPH)):
            self._several.launch(stream=self._stream)
            slot = group % 2
            target = self._flags[slot : slot + 1].ctypes.data_as(ctypes.c_void_p)
            flag.data.copy_to_host_async(target, flag.nbytes, self._stream)
            self._events[slot].record(self._stream)
            awaited = slot if group < EAGER_GROUPS else 1 - slot
            self._events[awaited].synchronize()
            if self._flags[awaited] != 0.0:
                return


def _pinned_flags() -> NDArray[np.float64]:
    memory = cupy.cuda.alloc_pinned_memory(16)
    return np.frombuffer(memory, np.float64, 2)
