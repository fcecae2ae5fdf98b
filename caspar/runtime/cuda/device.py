"""One CUDA device, and the stream on which caspar works.

All work goes to one stream of its own; results are read after it is synchronised.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cupy

from caspar.errors import BackendError, OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.runtime.cuda.launch.timing import time_on_stream
from caspar.runtime.nvidia.machine_balance import machine_balance


class CudaDevice:
    """The current device.

    Raises:
        BackendError: No device answers.
    """

    clock = "CUDA events"

    def __init__(self) -> None:
        try:
            self._device = cupy.cuda.Device()
            self._device.use()
            properties = cupy.cuda.runtime.getDeviceProperties(self._device.id)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise BackendError(
                f"backend='cuda' needs an NVIDIA GPU and driver, and CUDA says: {error}. "
                "`caspar doctor` tells what is missing; backend='cpu' needs none."
            ) from error
        self._name = properties["name"].decode()
        self.stream = cupy.cuda.Stream(non_blocking=True)

    @property
    def device(self) -> str:
        """Name and compute capability."""
        return f"{self._name} (sm_{self._device.compute_capability})"

    @property
    def num_multiprocessors(self) -> int:
        """Multiprocessors of the device."""
        return int(self._device.attributes["MultiProcessorCount"])

    def machine_balance(self, dtype: DType) -> float:
        """See `runtime.nvidia.machine_balance`."""
        return machine_balance(self._device.attributes, int(self._device.compute_capability), dtype)

    @property
    def current_stream(self) -> int:
        """The caller's current stream."""
        return int(cupy.cuda.get_current_stream().ptr)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The solver's device and stream, after the caller's stream has finished."""
        with self._device:
            cupy.cuda.get_current_stream().synchronize()
            with self.stream, self._memory_errors("a solve needs more memory"):
                yield

    @contextmanager
    def _memory_errors(self, what: str) -> Iterator[None]:
        """Turn an out-of-memory error into caspar's: CuPy's names what was needed, Thrust's not."""
        try:
            yield
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            free, total = cupy.cuda.runtime.memGetInfo()
            raise OutOfMemoryError(
                f"{what} than {self.device} has left: {error} {free:,} of {total:,} bytes are "
                "free. Free arrays, use fewer factors, jacobian='recompute', "
                "precision='float32', or share the problem by devices=..."
            ) from error

    def synchronize(self) -> None:
        """Wait for all work of the solver's stream and of the current one."""
        cupy.cuda.get_current_stream().synchronize()
        self.stream.synchronize()

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Seconds of a run on the device, after the caller's stream has finished."""
        with self.scope():
            return time_on_stream(run, self.stream, num_samples)
