"""What compiler and driver refuse is said in terms of the kernel, with what to do."""

from typing import Annotated, Any

import pytest
import symforce.symbolic as sf

import caspar
from caspar.codegen.cuda.header import BLOCK_SIZE_OPTION
from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.errors import BackendError, CompileError, OutOfMemoryError, ResourceError
from caspar.ir.dtype import DType
from caspar.kernels.call.compiled import kernel_source
from caspar.kernels.kernel import Kernel
from caspar.runtime.nvidia.limits import (
    compile_refusal,
    first_that_fits,
    launch_refusal,
    load_refusal,
)
from caspar.runtime.nvidia.nvrtc import compile_text

Spread = Annotated[caspar.Pair[sf.V3], caspar.WritePair]
V3In = Annotated[sf.V3, caspar.ReadSequential]


@caspar.kernel
def spread(x: V3In) -> Spread:
    """To each object and the next one."""
    return caspar.Pair((x, 2 * x))


@caspar.kernel
def spread_in_runs(x: V3In) -> tuple[Spread, Annotated[sf.V3, caspar.WriteBlockSum(1024)]]:
    """The same, and sums that need large blocks."""
    return caspar.Pair((x, 2 * x)), x


def source_of(kernel: Kernel, dtype: DType = DType.FLOAT64) -> KernelSource:
    writes = {one.name: one.access.in_kernel({}, True) for one in kernel.traced.outputs}
    return kernel_source(kernel.traced, dtype, writes, TARGETS["cuda"])


def compiled(source: KernelSource, block_size: int) -> int:
    """The block size, if NVRTC takes the source with it."""
    try:
        compile_text(source.text, "sm_90", (BLOCK_SIZE_OPTION.format(block_size),))
    except CompileError as error:
        raise compile_refusal(source, block_size, str(error)) from error
    return block_size


def test_blocks_of_another_size_need_less_shared_memory() -> None:
    source = source_of(spread)
    with pytest.raises(ResourceError) as caught:
        compiled(source, 1024)
    assert str(caught.value) == (
        "kernel spread__kernel: a block of 1024 threads needs 65,536 bytes of shared memory, the "
        "device allows 49,152; blocks of 32, 64, 128, 256, 512 should fit: pass block_size=512; or "
        "write fewer outputs in one kernel, or compute in float32"
    )
    assert compiled(source, 512) == 512
    assert compiled(source_of(spread, DType.FLOAT32), 1024) == 1024


def test_no_other_size_is_allowed() -> None:
    source = source_of(spread_in_runs)
    with pytest.raises(ResourceError) as caught:
        first_that_fits(source.block_sizes, lambda size: compiled(source, size))
    message = str(caught.value)
    assert "kernel spread_in_runs__kernel: a block of 1024 threads needs 67,584 bytes" in message
    assert "its accesses allow blocks of 1024 only: write fewer outputs in one kernel" in message


@pytest.mark.parametrize(
    ("sizes", "tried"), [((1024, 256, 512), [1024, 512]), ((256, 1024, 64), [256])]
)
def test_the_largest_smaller_block_is_taken(sizes: tuple[int, ...], tried: list[int]) -> None:
    seen = []

    def compile_for(size: int) -> str:
        seen.append(size)
        if size > 512:
            raise ResourceError(f"{size}")
        return f"blocks of {size}"

    assert first_that_fits(sizes, compile_for) == f"blocks of {tried[-1]}"
    assert seen == tried


def test_the_error_is_that_of_the_preferred_block() -> None:
    def never(size: int) -> None:
        raise ResourceError(f"blocks of {size}")

    with pytest.raises(ResourceError, match="blocks of 256"):
        first_that_fits((256, 128, 512, 32), never)


SOURCE = KernelSource("k", "", (), (256, 128, 64))


def test_too_many_parameters() -> None:
    text = (
        "struct A { char bytes[40000]; };\n"
        'extern "C" __global__ void k(A a, char* b) { *b = a.bytes[threadIdx.x]; }'
    )
    with pytest.raises(CompileError) as caught:
        compile_text(text, "sm_90")
    error = compile_refusal(SOURCE, 256, str(caught.value))
    assert type(error) is ResourceError
    assert "kernel k: its parameters take 40,008 bytes, the device allows " in str(error)
    assert "use fewer arguments and outputs" in str(error)


def test_other_errors_are_the_compilers() -> None:
    with pytest.raises(CompileError) as caught:
        compile_text('extern "C" __global__ void k() { undefined(); }', "sm_90")
    error = compile_refusal(SOURCE, 256, str(caught.value))
    assert type(error) is CompileError
    assert "kernel k: NVRTC rejected the generated source: " in str(error)
    assert 'identifier "undefined" is undefined' in str(error)


def test_too_many_registers() -> None:
    said = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch"
    error = launch_refusal(SOURCE, 256, lambda: (255, 1024), said)
    assert type(error) is ResourceError
    assert str(error) == (
        "kernel k: the device cannot hold a block of 256 threads with 255 registers each and 1,024 "
        f"bytes of shared memory: {said}; pass block_size=128, or write fewer outputs in one "
        "kernel, or compute in float32"
    )
    error = launch_refusal(SOURCE, 64, lambda: (255, 0), said)
    assert str(error).endswith(f"{said}; write fewer outputs in one kernel, or compute in float32")


def never_asked() -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("CUDA_ERROR_INVALID_VALUE: invalid argument", "the driver does not launch it: CUDA_ERROR"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "an index out of range in a call"),
        ("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address", "Start a new process"),
    ],
)
def test_other_errors_at_launch(said: str, advice: str) -> None:
    error = launch_refusal(SOURCE, 256, never_asked, said)
    assert type(error) is BackendError
    assert "kernel k: " in str(error)
    assert said in str(error)
    assert advice in str(error)


@pytest.mark.parametrize(
    "said",
    [
        "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported "
        "toolchain.",
    ],
)
def test_machine_code_that_the_driver_does_not_take(said: str) -> None:
    error = load_refusal("k", "A100 (sm_80)", said)
    assert type(error) is BackendError
    assert f"kernel k: the driver does not load it on A100 (sm_80): {said}" in str(error)
    assert "`caspar doctor`" in str(error)


def test_no_memory_to_load_into() -> None:
    error = load_refusal("k", "A100 (sm_80)", "CUDA_ERROR_OUT_OF_MEMORY: out of memory")
    assert type(error) is OutOfMemoryError
    assert "kernel k: A100 (sm_80) has no memory left" in str(error)
