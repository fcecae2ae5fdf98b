"""Compiling a source for CUDA, for the number of threads in a block that suits it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import cupy

from caspar.codegen.cuda_header import (
    BLOCK_SIZE_OPTION,
    COMPILE_OPTIONS,
    MIN_BLOCKS_OPTION,
    ONE_BLOCK_OPTION,
)
from caspar.codegen.source import KernelSource
from caspar.errors import ResourceError
from caspar.runtime.limits import compile_refusal, first_that_fits, load_refusal
from caspar.runtime.nvrtc import KernelResources
from caspar.runtime.usage import KernelUsage, kernel_usage

SPILLED_BYTES = 8
"""Bytes of a thread that a kernel with code of its own for long nodes may spill for another block:
that code needs most registers, and runs seldom. Products of bundle adjustment with float16 spilled
as many with 5 blocks, there alone, before they loaded ahead of a wait; since then none."""


@dataclass(frozen=True)
class CudaKernel:
    """A compiled kernel."""

    source: KernelSource
    function: Any
    block_size: int


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


def loaded_function(source: KernelSource, block_size: int, options: tuple[str, ...]) -> Any:
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
        return cupy.RawModule(code=source.text, options=options).get_function(source.name)
    except cupy.cuda.compiler.CompileException as error:
        raise compile_refusal(source, block_size, str(error)) from error


def with_block_size(source: KernelSource, block_size: int) -> CudaKernel:
    """Compile a kernel for blocks of that many threads."""
    options: tuple[str, ...] = COMPILE_OPTIONS
    if block_size != source.block_size:
        options = (*options, BLOCK_SIZE_OPTION.format(block_size))
    function = loaded_function(source, block_size, options)
    if function.local_size_bytes > 0:
        # spilled registers, or an array of the library's sine: what is less tells
        unhurried = loaded_function(source, block_size, (*options, ONE_BLOCK_OPTION))
        if unhurried.local_size_bytes < function.local_size_bytes:
            function = unhurried
    elif source.tiled:
        function = _most_resident(source, block_size, options, function)
    return CudaKernel(source, function, block_size)


def _most_resident(
    source: KernelSource, block_size: int, options: tuple[str, ...], function: Any
) -> Any:
    """As many blocks on a multiprocessor as go without spilling, or nearly so.

    Kernels of node tiles wait for memory and at barriers, and another block has something to do.
    The compiler arranges the same instructions better where it is told how many blocks there are.
    Products of 29 M observations with recomputed Jacobians: 750 us with 4 blocks that it was not
    told of, 697 with 4, 854 with 5 and 48 bytes spilled; linearisations 3508 with 4, 3265 with 5;
    `reduce` 2750 with 3, 2619 with 4, 2640 with 5 and 8 bytes spilled (H200).
    """
    wanted = resident_blocks(function, block_size)
    may_spill = SPILLED_BYTES if source.stretches else 0
    while True:
        closer = loaded_function(source, block_size, (*options, MIN_BLOCKS_OPTION.format(wanted)))
        resident = resident_blocks(closer, block_size)
        if closer.local_size_bytes > may_spill or resident < wanted:
            return function
        function, wanted = closer, resident + 1


def resident_blocks(function: Any, block_size: int) -> int:
    """Blocks that a multiprocessor holds at the same time."""
    held = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    return int(held(function.kernel.ptr, block_size, 0))


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
