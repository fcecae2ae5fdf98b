"""A loop of launches as one cooperative kernel on CUDA; see `codegen.cuda_fuse`.

The kernel stays on the device until the flag is set: the host enqueues it and goes on. A barrier
of the grid takes the place of a launch.
"""

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from numpy.typing import NDArray

from caspar.codegen.cuda_fuse import ONE_BLOCK_LOOP_OPTION
from caspar.errors import BackendError
from caspar.memory.tiles import Array
from caspar.runtime.cuda_compile import CudaKernel, with_block_size
from caspar.runtime.limits import launch_refusal, load_refusal
from caspar.runtime.loops import LoopPlan


@dataclass(frozen=True)
class CudaLoop:
    """A fused kernel with grid and arguments.

    Attributes:
        kernel: The kernel.
        grid: Its blocks, all resident at the same time.
        places: (num_params,) the parameters: 8 bytes each, integers in the lower half.
        addresses: (num_params,) their addresses, as the driver takes them.
        kept: The arrays behind the parameters.
    """

    kernel: CudaKernel
    grid: int
    places: NDArray[np.uint64]
    addresses: NDArray[np.uint64]
    kept: tuple[int | Array, ...]

    def run(self, max_runs: int) -> None:
        """Enqueue on the current stream; may be captured in a graph, with `max_runs` as it is.

        Raises:
            BackendError: The driver refuses; says why.
        """
        self.places[0] = max_runs
        function = self.kernel.function
        size = self.kernel.block_size
        stream: int = cupy.cuda.get_current_stream().ptr
        table = self.addresses.ctypes.data
        # plain launches of one block need not ask whether others run beside it
        launch = driver.launchKernel if self.grid == 1 else driver.launchCooperativeKernel
        more = (0,) if self.grid == 1 else ()
        try:
            launch(function.kernel.ptr, self.grid, 1, 1, size, 1, 1, 0, stream, table, *more)
        except driver.CUDADriverError as error:
            raise launch_refusal(
                self.kernel.source,
                size,
                lambda: (function.num_regs, function.shared_size_bytes),
                str(error),
            ) from error


def cuda_loop(plan: LoopPlan, flag: Array, device: str) -> CudaLoop:
    """Compile a loop for the current device and fix its grid.

    Args:
        plan: What it is made of.
        flag: (1,) float64.
        device: The device in words, for errors.

    Raises:
        CompileError: The compiler does not take the source.
        ResourceError: The device has too little for the kernel.
        BackendError: The device cannot keep a grid resident, or the driver refuses.
    """
    attributes = cupy.cuda.Device().attributes
    more = (ONE_BLOCK_LOOP_OPTION,) if plan.max_blocks <= 1 else ()
    if attributes["CooperativeLaunch"] == 0:
        raise BackendError(
            f"{device} has no cooperative launches, which loops on the device need: "
            "use a GPU from Pascal (sm_60) on, or backend='cpu'"
        )
    try:
        kernel = with_block_size(plan.source, plan.block_size, more)
        per_multiprocessor = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel.function.kernel.ptr, plan.block_size, 0
        )
    except driver.CUDADriverError as error:
        raise load_refusal(plan.source.name, device, str(error)) from error
    resident = int(per_multiprocessor) * int(attributes["MultiProcessorCount"])
    if resident == 0:
        raise _does_not_fit(kernel)
    grid = max(1, min(plan.max_blocks, resident))
    state = cupy.zeros(1, dtype=np.uint32)
    values: tuple[Any, ...] = (0, flag, state, *plan.values)
    # a place of 8 bytes for each: an integer is read from its lower half
    places = np.array(
        [value & 0xFFFFFFFF if isinstance(value, int) else value.data.ptr for value in values],
        dtype=np.uint64,
    )
    addresses = places.ctypes.data + places.itemsize * np.arange(len(places), dtype=np.uint64)
    return CudaLoop(kernel, grid, places, addresses, values)


def _does_not_fit(kernel: CudaKernel) -> Exception:
    function = kernel.function
    return launch_refusal(
        kernel.source,
        kernel.block_size,
        lambda: (function.num_regs, function.shared_size_bytes),
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: no multiprocessor holds a block",
    )
