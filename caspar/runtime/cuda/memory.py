"""Memory of the device, and arrays on their way to it and back."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.memory.array import Array
from caspar.runtime.backend import HostScalars
from caspar.runtime.cuda.device import CudaDevice
from caspar.runtime.cuda.launch.scalars import CudaScalars, fetch_arrays
from caspar.runtime.cuda.launch.upload import uploader

_MUCH_MEMORY = 1 << 28
"""Bytes that are worth giving back."""


def _is_in_order(array: Any) -> bool:
    """Whether it is a torch tensor, and torch enqueues where CuPy does.

    Nothing has to wait for anything then, and DLPack, which takes 20 us, is not needed.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    stream = cupy.cuda.get_current_stream()
    return bool(torch.cuda.current_stream(array.device).cuda_stream == stream.ptr)


class CudaMemory(CudaDevice):
    """By CuPy, from its pool."""

    @property
    def xp(self) -> ModuleType:
        """CuPy."""
        module: ModuleType = cupy
        return module

    def allocate(self, num_bytes: int) -> Array:
        """Uninitialised device memory."""
        with self._memory_errors(f"the plan needs {num_bytes:,} bytes, more"):
            return cupy.empty(num_bytes, dtype=cupy.uint8)

    def trim(self) -> None:
        """Free what CuPy's pool holds: not a little, as that waits for the device."""
        pool = cupy.get_default_memory_pool()
        if pool.free_bytes() >= _MUCH_MEMORY:
            pool.free_all_blocks()

    def clear(self, array: Array) -> None:
        """Fill with zero bytes."""
        array.data.memset_async(0, array.nbytes)

    def copy(self, target: Array, source: Array) -> None:
        """Copy within the device."""
        target.data.copy_from_device_async(source.data, source.nbytes)

    def write(self, target: Array, host: NDArray[Any]) -> None:
        """Copy a host array to the device."""
        uploader(self._device.id).write(target, host)

    def upload(self, array: Any) -> Array:
        """Host arrays are copied (in native byte order), arrays of this device are shared."""
        if isinstance(array, np.ndarray):
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            copied = cupy.empty(native.shape, native.dtype)
            self.write(copied, native)
            return copied
        if isinstance(array, cupy.ndarray):
            return array
        return cupy.asarray(array.detach()) if _is_in_order(array) else cupy.from_dlpack(array)

    def accepts_device(self, kind: str, number: int) -> bool:
        """CUDA arrays of this device."""
        return kind == "cuda" and number == self._device.id

    def to_host(self, array: Array) -> NDArray[Any]:
        """A NumPy copy, after all work is done."""
        self.stream.synchronize()
        return np.asarray(cupy.asnumpy(array))

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], list[NDArray[Any]]]:
        """Enqueue copies of contiguous arrays to the host."""
        return fetch_arrays(self.stream, arrays)

    def host_scalars(self, scalars: Array) -> HostScalars:
        """By way of pinned memory."""
        return CudaScalars(self.stream, scalars)
