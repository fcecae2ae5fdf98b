"""The languages that kernels are generated in, and what operations cost there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from caspar.codegen.cpu.plain_loops import generate_cpu_convert, generate_cpu_reduce
from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.ir.program import Program
from caspar.memory.kernel import ConvertSpec, Dialect, KernelSpec, ReduceSpec
from caspar.passes.cost import CPU, CUDA_FLOAT32, CUDA_FLOAT64, OpCosts


@dataclass(frozen=True)
class Target:
    """A language to generate, named as the backend.

    `machine_stages` are those of a kernel after its text, as `caspar inspect` names them.
    `generate` writes a program's kernel, `generate_reduce` the one that sums partials,
    `generate_convert` the one between rows and the blocked layout; `with_wide_places` rewrites a
    kernel for items' places with 64 bits, None: they always have. Prices are by computing type.
    """

    name: str
    dialect: Dialect
    machine_stages: tuple[str, ...]
    generate: Callable[[KernelSpec, Program], KernelSource]
    generate_reduce: Callable[[ReduceSpec], KernelSource]
    generate_convert: Callable[[ConvertSpec], KernelSource]
    with_wide_places: Callable[[KernelSource], KernelSource] | None
    costs: Mapping[DType, OpCosts]


def _generate_cpu(kernel: KernelSpec, program: Program) -> KernelSource:
    from caspar.codegen.cpu.kernel import generate_cpu

    return generate_cpu(kernel, program)


def _generate_cuda(kernel: KernelSpec, program: Program) -> KernelSource:
    from caspar.codegen.cuda.kernel import generate_cuda

    return generate_cuda(kernel, program)


def _generate_cuda_reduce(spec: ReduceSpec) -> KernelSource:
    from caspar.codegen.cuda.reduce import generate_cuda_reduce

    return generate_cuda_reduce(spec)


def _generate_cuda_convert(spec: ConvertSpec) -> KernelSource:
    from caspar.codegen.cuda.convert import generate_cuda_convert

    return generate_cuda_convert(spec)


def _with_wide_places(source: KernelSource) -> KernelSource:
    from caspar.codegen.cuda.places import with_wide_places

    return with_wide_places(source)


TARGETS = {
    "cuda": Target(
        "cuda",
        Dialect(adds_atomically=True, recomputes_jacobians=True, has_warps=True),
        ("ptx", "sass", "resources"),
        _generate_cuda,
        _generate_cuda_reduce,
        _generate_cuda_convert,
        _with_wide_places,
        {DType.FLOAT32: CUDA_FLOAT32, DType.FLOAT64: CUDA_FLOAT64},
    ),
    "cpu": Target(
        "cpu",
        Dialect(adds_atomically=False, recomputes_jacobians=False, has_warps=False),
        (),
        _generate_cpu,
        generate_cpu_reduce,
        generate_cpu_convert,
        None,
        {DType.FLOAT32: CPU, DType.FLOAT64: CPU},
    ),
}
