"""Memory of the device, and arrays on their way to it and back.

Also here: one CUDA device, and the stream on which caspar works.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.structure.checks import (
    ROW_KERNELS,
    ROW_SOURCE,
    VALUE_KERNELS,
    VALUE_SOURCE,
)
from caspar.errors import BackendError, OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Array, PickedRows
from caspar.memory.host_values import largest_of_columns
from caspar.runtime.backend import HostCopies, HostScalars
from caspar.runtime.cuda.compile.modules import load_functions
from caspar.runtime.cuda.launch.launch import time_on_stream
from caspar.runtime.cuda.launch.scalars import CudaCopies, CudaScalars
from caspar.runtime.cuda.launch.upload import uploader
from caspar.runtime.nvidia.machine_balance import machine_balance


class CudaDevice:
    """The current device; `BackendError` if none answers."""

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


_WORD = 4
"""Bytes of what rows are copied by."""

_MUCH_MEMORY = 1 << 28
"""Bytes that are worth giving back."""


_ROWS_OF_THREAD = 8
"""At least, if there is more than one block."""

_MOST_BLOCKS = 1024
"""Blocks of a column, at most."""

_MOST_COLUMNS, _NO_DRAW = 4, 32


def _value_kernels(array: Array) -> tuple[Any, ...]:
    every = tuple(name for names in VALUE_KERNELS.values() for name in names)
    loaded = load_functions(VALUE_SOURCE, every)
    return tuple(loaded[name].function for name in VALUE_KERNELS[array.itemsize])


def _number_rows(rows: Array) -> Array:
    """Return rows of float32 or float64 numbers that stand side by side; a copy if need be."""
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    is_plain = rows.strides[1] == rows.itemsize and rows.strides[0] >= rows.itemsize
    return rows if is_plain and rows.strides[0] % rows.itemsize == 0 else rows.copy()


def _is_in_order(array: Any) -> bool:
    """Return whether it is a torch tensor, and torch enqueues where CuPy does.

    Nothing has to wait for anything then, and DLPack, which takes 20 us, is not needed.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    stream = cupy.cuda.get_current_stream()
    return bool(torch.cuda.current_stream(array.device).cuda_stream == stream.ptr)


class CudaMemory(CudaDevice):
    """Device memory from CuPy's pool."""

    @property
    def xp(self) -> ModuleType:
        """CuPy."""
        module: ModuleType = cupy
        return module

    def allocate(self, num_bytes: int) -> Array:
        """Uninitialised device memory."""
        with self._memory_errors(f"the plan needs {num_bytes:,} bytes, more"):
            return cupy.empty(num_bytes, dtype=cupy.uint8)

    @property
    def free_bytes(self) -> int | None:
        """Free bytes of the driver and of CuPy's pool; None if another allocator is in use."""
        pool = cupy.get_default_memory_pool()
        is_own = getattr(cupy.cuda.get_allocator(), "__self__", None) is pool
        if not is_own:
            return None
        with self._device:
            free, _ = cupy.cuda.runtime.memGetInfo()
            kept, limit = int(pool.free_bytes()), int(pool.get_limit())
            # what the pool keeps may be used again whatever its limit is
            most = int(free) + kept if limit == 0 else limit - int(pool.used_bytes())
            return max(min(int(free) + kept, most), kept)

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

    def write(self, target: Array, host: NDArray[Any] | PickedRows) -> None:
        """Copy an array of the host, or rows of one, to the device."""
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

    def take_rows(self, target: Array, rows: Array, order: Array) -> None:
        """Take rows with a kernel of our own: CuPy would compile one for every pair of types."""
        kept, places = cupy.ascontiguousarray(rows), cupy.ascontiguousarray(order)
        num_words = target.nbytes // _WORD
        if num_words == 0:
            return
        name = ROW_KERNELS[places.dtype.itemsize]
        kernel = load_functions(ROW_SOURCE, tuple(ROW_KERNELS.values()))[name].function
        width = np.uint32(num_words // target.shape[0])
        arguments = (np.uint64(num_words), width, kept, places, target)
        kernel((-(-num_words // BLOCK_SIZE),), (BLOCK_SIZE,), arguments)

    def largest(self, arrays: Sequence[Array]) -> list[NDArray[np.float64]]:
        """Compute the largest entries with a kernel of our own; arrays of the host with NumPy."""
        away = [_number_rows(rows) for rows in arrays if not isinstance(rows, np.ndarray)]
        ends = np.cumsum([0, *(int(rows.shape[1]) for rows in away)])
        found = cupy.zeros(int(ends[-1]), np.uint64)
        for rows, first, end in zip(away, ends[:-1], ends[1:], strict=True):
            if rows.size > 0:
                self._find_largest(rows, found[first:end])
        sizes = self.to_host(found).view(np.float64)
        brought = iter(np.split(sizes, ends[1:-1]))
        return [
            largest_of_columns(rows) if isinstance(rows, np.ndarray) else next(brought)
            for rows in arrays
        ]

    def _find_largest(self, rows: Array, found: Array) -> None:
        count, width = rows.shape
        wanted = -(-count // (_ROWS_OF_THREAD * BLOCK_SIZE))
        grid = (min(wanted, _MOST_BLOCKS), int(width))
        stride = np.uint64(rows.strides[0] // rows.itemsize)
        kernel = _value_kernels(rows)[0]
        kernel(grid, (BLOCK_SIZE,), (np.uint64(count), stride, rows, found))

    def move(
        self, target: Array, source: Array, added: Sequence[float], draw: int | None = None
    ) -> None:
        """Move values with a kernel of our own."""
        if source.size == 0:
            return
        sizes = np.zeros(_MOST_COLUMNS, source.dtype)
        sizes[: len(added)] = added
        numbers = (np.uint64(source.size), np.uint32(source.shape[1]))
        drawn = np.uint32(_NO_DRAW if draw is None else draw)
        kernel = _value_kernels(source)[1]
        grid = (-(-int(source.size) // BLOCK_SIZE),)
        kernel(grid, (BLOCK_SIZE,), (*numbers, drawn, *sizes, source, target))

    def host_copies(self, arrays: Sequence[Array]) -> HostCopies:
        """Copy to the host through pinned memory."""
        return CudaCopies(self.stream, arrays)

    def host_scalars(self, scalars: Array) -> HostScalars:
        """Keep scalars of the host in pinned memory."""
        return CudaScalars(self.stream, scalars)
