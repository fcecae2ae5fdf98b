"""Compiling a source for CUDA, for the number of threads in a block that suits it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy

from caspar.codegen.cuda.header import (
    BLOCK_SIZE_OPTION,
    COMPILE_OPTIONS,
    MIN_BLOCKS_OPTION,
    ONE_BLOCK_OPTION,
)
from caspar.codegen.source import KernelSource
from caspar.errors import ResourceError
from caspar.runtime.nvidia.cupy_cache import even_without_disk
from caspar.runtime.nvidia.limits import compile_refusal, first_that_fits, load_refusal
from caspar.runtime.nvidia.nvrtc import KernelResources
from caspar.runtime.usage import KernelUsage, kernel_usage

SPILLED_BYTES = 8
"""Bytes of a thread that a kernel with code of its own for long nodes may spill for another block:
that code needs most registers, and runs seldom. Products of bundle adjustment with float16 spilled
as many with 5 blocks, there alone, before they loaded ahead of a wait; since then none."""


@dataclass(frozen=True)
class CudaKernel:
    """A compiled kernel.

    Attributes:
        source: The kernel.
        function: What CuPy loaded.
        block_size: Threads of a block.
        options: Of NVRTC.
    """

    source: KernelSource
    function: Any
    block_size: int
    options: tuple[str, ...]

    def with_options(self, *options: str) -> "CudaKernel":
        """The same, compiled with more options."""
        return loaded_kernel(self.source, self.block_size, (*self.options, *options))


def compiled_kernel(source: KernelSource, block_size: int | None, device: str) -> CudaKernel:
    """Compile a kernel for the current device.

    Args:
        source: The kernel.
        block_size: Threads of a block, where the kernel allows it; None: the number of which a
            multiprocessor holds the most threads.
        device: The device in words, for errors.

    Raises:
        CompileError: The compiler does not take the source.
        ResourceError: The device has too little for the kernel.
        BackendError: The driver does not take the machine code.
    """
    try:
        if block_size in source.block_sizes:
            return with_block_size(source, block_size)
        preferred = first_that_fits(source.block_sizes, partial(with_block_size, source))
        best = loaded_usage(preferred).roomiest
        if block_size is not None or best == preferred.block_size:
            return preferred
        try:
            return with_block_size(source, best)
        except ResourceError:
            return preferred
    except cupy.cuda.driver.CUDADriverError as error:
        raise load_refusal(source.name, device, str(error)) from error


def loaded_kernel(source: KernelSource, block_size: int, options: tuple[str, ...]) -> CudaKernel:
    """Compile a kernel, or take it from CuPy's cache.

    Args:
        source: The kernel.
        block_size: Threads of a block, for errors: the options say it to the compiler.
        options: Of NVRTC.

    Raises:
        CompileError: The compiler does not take the source.
        ResourceError: The device has too little for the kernel.
    """
    try:
        function = even_without_disk(
            lambda: cupy.RawModule(code=source.text, options=options).get_function(source.name)
        )
    except cupy.cuda.compiler.CompileException as error:
        raise compile_refusal(source, block_size, str(error)) from error
    return CudaKernel(source, function, block_size, options)


def with_block_size(source: KernelSource, block_size: int) -> CudaKernel:
    """Compile a kernel for blocks of that many threads."""
    options: tuple[str, ...] = COMPILE_OPTIONS
    if block_size != source.block_size:
        options = (*options, BLOCK_SIZE_OPTION.format(block_size))
    kernel = loaded_kernel(source, block_size, options)
    local_bytes = kernel.function.local_size_bytes
    if local_bytes > 0:
        # spilled registers, or an array of the library's sine: what is less tells
        unhurried = kernel.with_options(ONE_BLOCK_OPTION)
        return unhurried if unhurried.function.local_size_bytes < local_bytes else kernel
    return _most_resident(kernel) if source.tiled else kernel


def _most_resident(kernel: CudaKernel) -> CudaKernel:
    """As many blocks on a multiprocessor as go without spilling, or nearly so.

    Kernels of node tiles wait for memory and at barriers, and another block has something to do.
    The compiler arranges the same instructions better where it is told how many blocks there are.
    Products of 29 M observations with recomputed Jacobians: 750 us with 4 blocks that it was not
    told of, 697 with 4, 854 with 5 and 48 bytes spilled; linearisations 3508 with 4, 3265 with 5;
    `reduce` 2750 with 3, 2619 with 4, 2640 with 5 and 8 bytes spilled (H200).
    """
    found, wanted = kernel, resident_blocks(kernel)
    may_spill = SPILLED_BYTES if kernel.source.stretches else 0
    while True:
        closer = kernel.with_options(MIN_BLOCKS_OPTION.format(wanted))
        resident = resident_blocks(closer)
        if closer.function.local_size_bytes > may_spill or resident < wanted:
            return found
        found, wanted = closer, resident + 1


def resident_blocks(kernel: CudaKernel) -> int:
    """Blocks that a multiprocessor holds at the same time."""
    held = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    return int(held(kernel.function.kernel.ptr, kernel.block_size, 0))


def loaded_usage(kernel: CudaKernel) -> KernelUsage:
    """What a loaded kernel takes of the current device."""
    function = kernel.function
    resources = KernelResources(
        registers=int(function.num_regs),
        stack_bytes=int(function.local_size_bytes),
        spill_store_bytes=0,
        spill_load_bytes=0,
        shared_bytes=int(function.shared_size_bytes),
    )
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    return kernel_usage(kernel.source, resources, kernel.block_size, arch)
