"""The CUDA backend: NVRTC through CuPy, launches captured in CUDA graphs.

CuPy keeps machine code in its own cache, keyed by source and architecture. All work goes to one
stream of its own; results are read after it is synchronised. CuPy compiles with `-ftz=true`:
denormal float32 numbers are flushed to zero.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from types import ModuleType
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.source import KernelSource
from caspar.errors import BackendError, OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Array
from caspar.memory.binding import Binding
from caspar.memory.tiling.node_tiles import NodeTiles, PlaceType
from caspar.memory.tiling.tiles import TileIndex, TileOrder, single_object_tiles
from caspar.runtime.backend import (
    HostScalars,
    Kernel,
    Launch,
    LaunchSequence,
    Loop,
    bound_blocks,
    parameter_values,
)
from caspar.runtime.cuda.launch.compile import (
    CudaKernel,
    compiled_kernel,
    loaded_usage,
    resident_blocks,
)
from caspar.runtime.cuda.launch.launch import CudaLaunch, CudaSequence, parameter_table
from caspar.runtime.cuda.launch.scalars import CudaScalars, fetch_arrays
from caspar.runtime.cuda.launch.timing import time_on_stream
from caspar.runtime.cuda.launch.upload import uploader
from caspar.runtime.cuda.loop.loop import cuda_loop, fits_device, merged_launches, own_launch
from caspar.runtime.cuda.loop.repeat import repeated_loop
from caspar.runtime.cuda.structure.node_tile_steps import make_node_tiles
from caspar.runtime.cuda.structure.tools import StructureTools
from caspar.runtime.factorization import (
    DenseFactorization,
    SparseFactorization,
    load_direct_solver,
)
from caspar.runtime.nvidia.machine_balance import machine_balance
from caspar.runtime.traits import CUDA_TRAITS
from caspar.runtime.usage import KernelUsage

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


class CudaBackend:
    """One CUDA device: the current one.

    Raises:
        BackendError: No device answers.
    """

    name = "cuda"
    traits = CUDA_TRAITS
    clock = "CUDA events"
    tile_size = BLOCK_SIZE

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
        self._structure = StructureTools(self._device, self.num_multiprocessors)

    @property
    def xp(self) -> ModuleType:
        """CuPy."""
        module: ModuleType = cupy
        return module

    @property
    def device(self) -> str:
        """Name and compute capability."""
        return f"{self._name} (sm_{self._device.compute_capability})"

    def load(
        self, sources: Sequence[KernelSource], block_size: int | None = None
    ) -> Mapping[str, Kernel]:
        """Compile kernels in parallel threads: NVRTC releases the interpreter lock.

        Each thread starts with the device's context: a module that CuPy has already gives it none.
        """
        jobs = self._structure.jobs(tiled=any(source.tiled for source in sources))
        compiled = partial(compiled_kernel, block_size=block_size, device=self.device)
        with ThreadPoolExecutor(initializer=self._device.use) as pool:
            tools = [pool.submit(job) for job in jobs]
            kernels = list(pool.map(compiled, sources))
            for tool in tools:
                tool.result()
        return {kernel.source.name: kernel for kernel in kernels}

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

    def host_scalars(self, scalars: Array) -> HostScalars:
        """By way of pinned memory."""
        return CudaScalars(self.stream, scalars)

    def tile_index(self, index: Array, num_objects: int, tile_size: int) -> TileIndex:
        """Tiles of an index."""
        return self._structure.tiles.build(index, num_objects, tile_size)

    def tile_order(self, index: Array, tile_size: int) -> TileOrder:
        """Order of an index within tiles; waits for the device."""
        return self._structure.tiles.order(index, tile_size)

    def first_outside(self, index: Array, size: int) -> int | None:
        """First entry outside 0 .. size - 1."""
        return self._structure.checker.first_outside(index, size)

    def first_repeated(self, index: Array, size: int) -> int | None:
        """An entry whose object another one names."""
        return self._structure.checker.first_repeated(index, size)

    def locality_order(self, main: Array, partner: Array | None, num_main: int) -> Array:
        """Order of items in which tiles have few partials."""
        return self._structure.tiles.locality_order(main, partner, num_main)

    def node_tiles(
        self,
        node: Array,
        partner: Array | None,
        num_nodes: int,
        num_partners: int,
        tile_size: int,
        dtype: PlaceType | None = None,
    ) -> NodeTiles:
        """Tiles that do not split nodes; waits for the device."""
        sizes = (num_nodes, num_partners, tile_size)
        return make_node_tiles(self._structure.node_tiles, node, partner, *sizes, dtype)

    def checksum(self, arrays: Sequence[Array]) -> int:
        """A number that tells whether indices are still the same; waits for the device."""
        return self._structure.checksum.of(arrays)

    def single_object_tiles(self, num_tiles: int) -> TileIndex:
        """One partial for each tile, all of one object."""
        host = single_object_tiles(num_tiles)
        arrays = {
            field.name: self.upload(getattr(host, field.name))
            for field in fields(host)
            if field.name != "num_partials"
        }
        return TileIndex(num_partials=num_tiles, **arrays)

    def bind(self, kernel: Kernel, bindings: Mapping[str, Binding], count: int) -> Launch:
        """Fix grid and arguments."""
        assert isinstance(kernel, CudaKernel)
        source = kernel.source
        values = parameter_values(source.params, bindings, count)
        places, table = parameter_table(values)
        num_blocks = bound_blocks(source, bindings, count, kernel.block_size)
        function = kernel.function.kernel
        grid = (num_blocks, source.num_layers, 1)
        call = (function.ptr, *grid, kernel.block_size, 1, 1, 0)
        return CudaLaunch(call, table.ctypes.data, places, tuple(values), kernel, table)

    def sequence(self, launches: Sequence[Launch]) -> LaunchSequence:
        """Put launches in a row."""
        return CudaSequence(self.stream, [own_launch(launch) for launch in launches])

    def loop(
        self,
        phases: Sequence[Sequence[Launch]],
        flag: Array,
        scalars: Array | None = None,
        *,
        fused: bool | None = None,
    ) -> Loop:
        """One cooperative kernel where the device holds all blocks of each phase.

        Else, or where not `fused`, a graph that repeats itself, or graphs that the host launches
        until it reads the flag.
        """
        scalars = flag if scalars is None else scalars
        with self._device:
            if fused is None:
                fused = fits_device(phases)
            if fused:
                return cuda_loop(phases, flag, scalars, self.device)
            launches = merged_launches(phases, flag, scalars, self.device)
            polled = partial(CudaSequence, self.stream, launches)
            return repeated_loop(self.stream, launches, flag, polled)

    def dense_factorization(self, size: int, failed: Array | None = None) -> DenseFactorization:
        """Cholesky factorisation by cuSOLVER."""
        solver = load_direct_solver("cuda.direct.dense", "CusolverCholesky")
        factorization: DenseFactorization = solver(size, failed)
        return factorization

    def sparse_factorization(
        self, indptr: Array, indices: Array, size: int, failed: Array | None = None
    ) -> SparseFactorization:
        """Cholesky factorisation by cuDSS."""
        solver = load_direct_solver("cuda.direct.cudss", "CudssFactorization")
        factorization: SparseFactorization = solver(indptr, indices, size, failed)
        return factorization

    def runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """A call that enqueues launches in order on the caller's current stream."""
        own = [own_launch(launch) for launch in launches]

        def run() -> None:
            for launch in own:
                launch.run()

        return own[0].run if len(own) == 1 else run

    def repeated_runner(self, launches: Sequence[Launch]) -> Callable[[], None]:
        """The same for many runs, as one CUDA graph: 3 us a run, where one launch takes 5."""
        own = [own_launch(launch) for launch in launches]
        if len(own) == 0:
            return self.runner(own)
        sequence = CudaSequence(self.stream, own)
        direct = self.runner(own)

        def run() -> None:
            stream = cupy.cuda.get_current_stream()
            if stream.is_capturing():
                direct()  # a graph cannot be launched into another that is being captured
            else:
                sequence.graph.launch(stream=stream)

        return run

    def time(self, run: Callable[[], None], num_samples: int) -> list[float]:
        """Seconds of a run on the device, after the caller's stream has finished."""
        with self.scope():
            return time_on_stream(run, self.stream, num_samples)

    def usage(self, kernel: Kernel) -> KernelUsage | None:
        """What the driver says of the loaded kernel."""
        assert isinstance(kernel, CudaKernel)
        with self._device:
            return loaded_usage(kernel)

    def resident_blocks(self, kernel: Kernel) -> int:
        """What multiprocessors hold of it, if they hold nothing else."""
        assert isinstance(kernel, CudaKernel)
        with self._device:
            return resident_blocks(kernel) * self.num_multiprocessors

    @property
    def current_stream(self) -> int:
        """The caller's current stream."""
        return int(cupy.cuda.get_current_stream().ptr)

    @property
    def num_multiprocessors(self) -> int:
        """Multiprocessors of the device."""
        return int(self._device.attributes["MultiProcessorCount"])

    def machine_balance(self, dtype: DType) -> float:
        """See `runtime.nvidia.machine_balance`."""
        return machine_balance(self._device.attributes, int(self._device.compute_capability), dtype)

    def accepts_device(self, kind: str, number: int) -> bool:
        """CUDA arrays of this device."""
        return kind == "cuda" and number == self._device.id

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
                "free. Free arrays, use fewer factors, jacobian='recompute', precision='float32'."
            ) from error

    def to_host(self, array: Array) -> NDArray[Any]:
        """A NumPy copy, after all work is done."""
        self.stream.synchronize()
        return np.asarray(cupy.asnumpy(array))

    def fetch(self, arrays: Sequence[Array]) -> Callable[[], list[NDArray[Any]]]:
        """Enqueue copies of contiguous arrays to the host."""
        return fetch_arrays(self.stream, arrays)

    def synchronize(self) -> None:
        """Wait for all work of the solver's stream and of the current one."""
        cupy.cuda.get_current_stream().synchronize()
        self.stream.synchronize()
