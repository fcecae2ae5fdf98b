"""Compiling a source for CUDA, for the number of threads in a block that suits it."""

from dataclasses import dataclass
from typing import Any

import cupy

from caspar.codegen.cuda_header import (
    BLOCK_SIZE_OPTION,
    COMPILE_OPTIONS,
    ONE_BLOCK_OPTION,
)
from caspar.codegen.source import KernelSource
from caspar.runtime.nvrtc import KernelResources
from caspar.runtime.occupancy import WARP, occupancy

MIN_BLOCK_SIZE = 64
"""Smaller blocks are never chosen: a multiprocessor holds at most 16 to 32 of them."""


@dataclass(frozen=True)
class CudaKernel:
    """A compiled kernel."""

    source: KernelSource
    function: Any
    block_size: int


def _function(source: KernelSource, options: tuple[str, ...]) -> Any:
    """Compile a kernel, or take it from CuPy's cache."""
    return cupy.RawModule(code=source.text, options=options).get_function(source.name)


def with_block_size(source: KernelSource, block_size: int) -> CudaKernel:
    """Compile a kernel for blocks of that many threads."""
    options: tuple[str, ...] = COMPILE_OPTIONS
    if block_size != source.block_size:
        options = (*options, BLOCK_SIZE_OPTION.format(block_size))
    function = _function(source, options)
    if function.local_size_bytes > 0:
        # spilled registers, or an array of the library's sine: what is less tells
        unhurried = _function(source, (*options, ONE_BLOCK_OPTION))
        if unhurried.local_size_bytes < function.local_size_bytes:
            function = unhurried
    return CudaKernel(source, function, block_size)


def roomiest(kernel: CudaKernel) -> int:
    """The block size of which a multiprocessor holds the most threads, the preferred one first.

    Registers of a thread are taken to be those of the preferred size, shared memory to grow with
    the block.
    """
    sizes = [size for size in kernel.source.block_sizes if size >= MIN_BLOCK_SIZE]
    return max(sizes or [kernel.block_size], key=lambda size: _resident_threads(kernel, size))


def _resident_threads(kernel: CudaKernel, block_size: int) -> int:
    """Threads of such blocks that a multiprocessor holds; 0 where its limits are not known."""
    function = kernel.function
    shared = function.shared_size_bytes * block_size // kernel.block_size
    resources = KernelResources(function.num_regs, function.local_size_bytes, 0, 0, shared)
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    found = occupancy(resources, block_size, arch)
    return 0 if found is None else found.warps * WARP
