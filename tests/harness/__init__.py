"""Runs CUDA C source on the host: the very text NVRTC gets, compiled by g++.

    module = compile_cuda(source)
    module.launch("kernel", grid=4, block=256, args=[array, np.int32(array.size)])

Input: CUDA C text, NumPy arrays. Output: the arrays, or a `HarnessError` that names the thread,
the line and what is wrong: access out of bounds or misaligned, data race, deadlock, divergent
barrier, arithmetic without a defined result, a name that CUDA lacks.

Cost: once per source, a compilation (about a second; kept on disk); per launch, some nanoseconds
per operation and some tens of nanoseconds per memory access.

Limits: no dynamic shared memory (`extern __shared__`), inline PTX, cooperative groups, half
precision, textures or kernel templates. Denormal numbers are kept, products and sums are not
contracted to fma, approximate intrinsics are exact: compare with a tolerance. Blocks run one
after another, so a block that waits for a later one runs into the time limit. Names of the host's
C library that CUDA lacks are mostly but not all refused: NVRTC, which needs no GPU either, is the
judge of that. Memory model: only __syncthreads() and __syncwarp() order plain accesses; for flags
and fences switch `check_races` off.
"""

from tests.harness.arguments import KernelArgument
from tests.harness.compile import compile_cuda, compile_together, find_compiler
from tests.harness.errors import HarnessError
from tests.harness.module import CudaModule
from tests.harness.schedule import (
    DEFAULT_SCHEDULES,
    FORWARD,
    REVERSED,
    Order,
    Schedule,
    shuffled,
)

__all__ = [
    "DEFAULT_SCHEDULES",
    "FORWARD",
    "REVERSED",
    "CudaModule",
    "HarnessError",
    "KernelArgument",
    "Order",
    "Schedule",
    "compile_cuda",
    "compile_together",
    "find_compiler",
    "shuffled",
]
