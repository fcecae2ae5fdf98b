"""Launches on CUDA: one kernel with its arguments, and sequences captured as CUDA graphs.

Also here: how long runs take on a device, measured by events in a stream.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from caspar.errors import CasparError
from caspar.memory.array import Array
from caspar.runtime.backend import LateNumbers
from caspar.runtime.cuda.compile.kernel import CudaKernel
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel
from caspar.runtime.nvidia.limits import launch_refusal
from caspar.runtime.parameters import BoundLaunch
from caspar.runtime.timing import runs_of_sample

RUNS_PER_GRAPH = 8
"""Runs of a repeated sequence captured in one graph: a host read of the flag costs about as much
as one run of a small problem, so it is taken once for several."""

EAGER_GROUPS = 2
"""Groups of runs after which the flag is read at once."""


@dataclass
class CudaLaunch(BoundLaunch[CudaKernel]):
    """A kernel with grid, block and arguments.

    Launched through CuPy's wrapper of the driver, 3.8 us a launch; calling its `RawKernel` takes
    5 to 7 (H200, eight parameters).

    Attributes:
        is_cooperative: Whether its blocks wait for each other, and are no cluster.
        call: Function, grid, block and shared memory, as the driver takes them.
        parameters: Address of the table of the parameters' addresses. Each parameter has 8 bytes;
            an integer is read from its lower half.
    """

    is_cooperative: bool = False

    def __post_init__(self) -> None:
        """Note what the driver takes."""
        super().__post_init__()
        first, size = self.table.ctypes.data, self.table.itemsize
        self._addresses = first + size * np.arange(len(self.table), dtype=np.uint64)
        self.parameters: int = self._addresses.ctypes.data
        self.call = self._called()

    def _called(self) -> tuple[int, ...]:
        kernel = self.kernel
        grid = (self.num_blocks, kernel.source.num_layers, 1)
        return (kernel.function.address, *grid, kernel.block_size, 1, 1, 0)

    @property
    def bound(self) -> BoundKernel:
        """The bound kernel that it launches."""
        return BoundKernel(self.kernel.source, self.kernel.block_size, self.num_blocks, self.values)

    def bind_again(self, numbers: LateNumbers) -> None:
        """Write what is late anew."""
        super().bind_again(numbers)
        self.call = self._called()

    def run(self) -> None:
        """Enqueue on the current stream; a `BackendError` says which kernel is refused, and why."""
        stream = cupy.cuda.get_current_stream().ptr
        try:
            if self.is_cooperative:
                driver.launchCooperativeKernel(*self.call, stream, self.parameters)
            else:
                driver.launchKernel(*self.call, stream, self.parameters, 0)
        except driver.CUDADriverError as error:
            raise refusal(self.kernel, str(error)) from error


def refusal(kernel: CudaKernel, error: str) -> CasparError:
    """Return the error to raise if the driver does not launch a kernel."""
    function = kernel.function
    return launch_refusal(
        kernel.source, kernel.block_size, lambda: (function.registers, function.shared_bytes), error
    )


class Enqueued(Protocol):
    """Anything that enqueues itself on the current stream."""

    def run(self) -> None:
        """Enqueue."""


def captured(run: Callable[[], None], num_runs: int) -> Any:
    """A graph of several runs, each of which enqueues on the current stream.

    It is captured on a stream of its own, so that no graph has what other threads enqueue
    meanwhile, and a failure leaves no other stream in capture.
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
    """Launches captured as CUDA graphs: one of a single run, one of several.

    The first run is none of a graph: some launches run once only, and a graph costs more than that.
    """

    def __init__(self, stream: Any, launches: Sequence[Enqueued]) -> None:
        self._stream = stream
        self.launches = tuple(launches)
        self._has_run = False
        self._once: Any = None
        self._several: Any = None
        self._events: list[Any] = []
        self._flags: NDArray[np.float64] | None = None

    def _enqueue(self) -> None:
        for launch in self.launches:
            launch.run()

    @property
    def graph(self) -> Any:
        """The graph of a single run."""
        if self._once is None:
            self._once = captured(self._enqueue, 1)
        return self._once

    def bind_again(self, numbers: LateNumbers) -> None:
        """See `LateSequence`: graphs keep parameters, and are captured anew when they run."""
        for launch in self.launches:
            assert isinstance(launch, CudaLaunch)
            launch.bind_again(numbers)
        self._once = self._several = None
        self._has_run = False

    def run(self) -> None:
        """Enqueue every launch once."""
        if self._has_run:
            self.graph.launch(stream=self._stream)
            return
        self._has_run = True
        with self._stream:
            self._enqueue()

    def prepare_groups(self) -> None:
        """Make what `run_until` needs, instead of in its first call."""
        if self._several is None:
            self._several = captured(self._enqueue, RUNS_PER_GRAPH)
        if self._flags is None:
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


_WARM_UPS = 5


def time_on_stream(run: Callable[[], None], stream: Any, num_samples: int) -> list[float]:
    """Seconds of a run on the device; each sample is the mean over a millisecond of runs.

    The runs of a sample are one CUDA graph, and the device is given the next sample before it is
    done with the last: what launches cost the host is not measured.
    """
    with stream:
        run()
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record(stream)
        for _ in range(_WARM_UPS):
            run()
        last.record(stream)
        last.synchronize()
        num_runs = runs_of_sample(_seconds(first, last) / _WARM_UPS)
        graph = captured(run, num_runs)
        graph.launch(stream=stream)  # the device has work while the first sample is enqueued
        events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(num_samples)]
        for start, end in events:
            start.record(stream)
            graph.launch(stream=stream)
            end.record(stream)
        stream.synchronize()
    return [_seconds(start, end) / num_runs for start, end in events]


def _seconds(start: Any, end: Any) -> float:
    milliseconds: float = cupy.cuda.get_elapsed_time(start, end)
    return milliseconds / 1000.0
