"""Compiling a source for CUDA, for the number of threads in a block that suits it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import cupy

from caspar.codegen.cuda.header import BLOCK_SIZE_OPTION, COMPILE_OPTIONS, ONE_BLOCK_OPTION
from caspar.codegen.source import KernelSource
from caspar.errors import CompileError, ResourceError
from caspar.runtime.cuda.compile.modules import LoadedFunction, load_functions
from caspar.runtime.nvidia.limits import compile_refusal, first_that_fits, load_refusal
from caspar.runtime.nvidia.machine_code import Choice, keep_choice, kept_choice
from caspar.runtime.nvidia.nvrtc import KernelResources
from caspar.runtime.nvidia.occupancy import KernelUsage, kernel_usage
from caspar.runtime.nvidia.resident_search import size_question

_ANY_SIZE = "any block size"


@dataclass(frozen=True)
class CudaKernel:
    """A compiled kernel and the threads of its block.

    `is_settled`: no other options are looked for.
    """

    source: KernelSource
    function: LoadedFunction
    block_size: int
    is_settled: bool = True


def compiled_kernel(
    source: KernelSource, block_size: int | None, device: str, *, is_settled: bool
) -> CudaKernel:
    """Compile a kernel for the current device, or take it from the cache.

    Args:
        source: The kernel.
        block_size: Threads of a block, where the kernel allows it; None: the number of which a
            multiprocessor holds the most threads.
        device: The device in words, for errors.
        is_settled: Whether it must be the same in every run: options that another run has found
            are not taken.

    Raises:
        CompileError: The compiler does not take the source.
        ResourceError: The device has too little for the kernel.
        BackendError: The driver does not take the machine code.
    """
    of_size = partial(_with_block_size, source, is_settled=is_settled)
    try:
        if block_size in source.block_sizes:
            return of_size(block_size)
        if block_size is not None:
            return first_that_fits(source.block_sizes, of_size)
        kept = kept_choice(source.text, architecture(), _ANY_SIZE)
        if kept is not None:
            return of_size(kept.block_size)
        chosen = _roomiest(source, of_size)
        keep_choice(source.text, architecture(), _ANY_SIZE, Choice(chosen.block_size))
        return chosen
    except cupy.cuda.driver.CUDADriverError as error:
        raise load_refusal(source.name, device, str(error)) from error


def _roomiest(source: KernelSource, of_size: Callable[[int], CudaKernel]) -> CudaKernel:
    """The kernel for the preferred block size, or for one of which more threads are resident."""
    preferred = first_that_fits(source.block_sizes, of_size)
    best = loaded_usage(preferred).roomiest
    if best == preferred.block_size:
        return preferred
    try:
        return of_size(best)
    except ResourceError:
        return preferred


def loaded_kernel(source: KernelSource, block_size: int, options: tuple[str, ...]) -> CudaKernel:
    """Compile a kernel, or take it from the cache; `block_size` is for errors, NVRTC has options.

    Raises `CompileError`, or `ResourceError` if the device has too little for the kernel.
    """
    try:
        function = load_functions(source.text, (source.name,), options)[source.name]
    except CompileError as error:
        raise compile_refusal(source, block_size, str(error)) from error
    return CudaKernel(source, function, block_size)


def _with_block_size(source: KernelSource, block_size: int, *, is_settled: bool) -> CudaKernel:
    """Compile a kernel for blocks of that many threads.

    Kernels of node tiles are quicker if the compiler is told for how many blocks it should leave
    room. That number is searched for later, see `runtime.cuda.compile.compilation`.
    """
    options = size_options(source, block_size)
    question = size_question(block_size, is_settled=is_settled)
    kept = kept_choice(source.text, architecture(), question)
    if kept is not None:
        kernel = loaded_kernel(source, block_size, (*options, *kept.options))
        return replace(kernel, is_settled=is_settled or kept.is_searched)
    kernel = loaded_kernel(source, block_size, options)
    more: tuple[str, ...] = ()
    local_bytes = kernel.function.local_bytes
    if local_bytes > 0:
        # spilled registers, or an array of the library's sine: what is less tells
        unhurried = loaded_kernel(source, block_size, (*options, ONE_BLOCK_OPTION))
        if unhurried.function.local_bytes < local_bytes:
            kernel, more = unhurried, (ONE_BLOCK_OPTION,)
    is_searched = local_bytes > 0 or not source.tiled
    keep_choice(source.text, architecture(), question, Choice(block_size, more, is_searched))
    return replace(kernel, is_settled=is_settled or is_searched)


def size_options(source: KernelSource, block_size: int) -> tuple[str, ...]:
    """Options of NVRTC for a block size."""
    if block_size == source.block_size:
        return COMPILE_OPTIONS
    return (*COMPILE_OPTIONS, BLOCK_SIZE_OPTION.format(block_size))


def architecture() -> str:
    """Return the architecture of the current device, for example `sm_90`."""
    return f"sm_{cupy.cuda.Device().compute_capability}"


def resident_blocks(kernel: CudaKernel) -> int:
    """Blocks that a multiprocessor holds at the same time."""
    held = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    return int(held(kernel.function.address, kernel.block_size, 0))


def loaded_usage(kernel: CudaKernel) -> KernelUsage:
    """Return the resources that a loaded kernel takes of the current device."""
    function = kernel.function
    resources = KernelResources(
        registers=function.registers,
        stack_bytes=function.local_bytes,
        spill_store_bytes=0,
        spill_load_bytes=0,
        shared_bytes=function.shared_bytes,
    )
    return kernel_usage(kernel.source, resources, kernel.block_size, architecture())
