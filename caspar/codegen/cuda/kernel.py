"""CUDA C from a scheduled program.

One thread handles one item, one block one tile. Threads beyond the last item repeat it, so that
no barrier diverges: they store nothing and contribute exact zeros.
"""

from collections.abc import Sequence

from caspar.codegen.cuda.body import cuda_body
from caspar.codegen.cuda.header import AWAIT_LAUNCH, BLOCK_SIZES, HEADER
from caspar.codegen.cuda.places import CHOSEN, PLACES
from caspar.codegen.source import PLACE, KernelSource, Param, kernel_params
from caspar.ir.dtype import CHUNK_BYTES, DType
from caspar.ir.program import Program
from caspar.memory.access import TILES, ArgSpec
from caspar.memory.accessors.scope import SCALAR_TYPE
from caspar.memory.kernel import KernelSpec


def generate_cuda(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the CUDA kernel of a program; the text depends on the arguments and on nothing else."""
    params = kernel_params(spec.args, tiled=spec.tiled, stretches=spec.stretches)
    num_items = items_per_thread(spec)
    body = cuda_body(spec, program, num_items)
    sizes = block_sizes(spec)
    functions = [*half_functions(spec.args)]
    functions += [PLACES] if spec.tiled else []
    functions += [CHOSEN] if spec.stretches else []
    functions += [AWAIT_LAUNCH] if body.waits else []
    text = kernel_text(
        spec.name,
        spec.args,
        params,
        sizes[0],
        body.lines,
        functions=functions,
        restrict=num_items > 1,
    )
    return KernelSource(
        spec.name,
        text,
        params,
        sizes,
        items_per_thread=num_items,
        block_multiple=max((access.block_multiple for access in spec.accessors), default=1),
        num_registers=program.num_registers,
        tiled=spec.tiled,
        few_items=spec.few_items,
        stretches=spec.stretches,
        loads=body.loads,
        early=_early(spec) if body.waits else None,
    )


def _early(spec: KernelSpec) -> tuple[str, ...]:
    """Return the arguments that a kernel may read before it waits for the launch ahead."""
    late = {*spec.awaited, spec.guard}
    return (TILES, *(arg.name for arg in spec.args if not arg.is_written and arg.name not in late))


def block_sizes(spec: KernelSpec) -> tuple[int, ...]:
    """Threads a block may have, the preferred number first."""
    smallest = max((access.min_block_size for access in spec.accessors), default=1)
    sizes: tuple[int, ...] = BLOCK_SIZES
    for access in spec.accessors:
        if len(access.tile_sizes) > 0:
            allowed = access.tile_sizes if sizes is BLOCK_SIZES else sizes
            sizes = tuple(size for size in allowed if size in access.tile_sizes)
    return tuple(size for size in sizes if size % smallest == 0)


def items_per_thread(spec: KernelSpec) -> int:
    """Items a thread handles: several where one has less than a chunk to read.

    Too few bytes are on their way otherwise (H200, copies of one float32, fraction of the copy
    bandwidth: 0.63 with one item a thread, 0.88 with two, 0.98 with four; of two: 0.90 and 0.99).
    """
    if spec.tiled or spec.few_items or any(access.cooperates for access in spec.accessors):
        return 1
    if len(spec.graph.calls) > MANY_CALLS:
        return 1
    moved = [arg for arg in spec.args if any(one.touches_own_object for one in arg.accessors)]
    read = sum(arg.dim * arg.dtype.itemsize for arg in moved if arg.read is not None)
    if read == 0:
        read = sum(arg.dim * arg.dtype.itemsize for arg in moved)
    return max(1, min(MAX_ITEMS_PER_THREAD, CHUNK_BYTES // max(read, 1)))


def kernel_text(
    name: str,
    args: tuple[ArgSpec, ...],
    params: tuple[Param, ...],
    block_size: int,
    body: list[str],
    *,
    functions: Sequence[str] = (),
    restrict: bool = False,
) -> str:
    """A complete source: header, device functions, signature and body.

    `functions` are called besides those of the accesses. `restrict` says that arrays are apart,
    so that loads of one item may go before stores of another.
    """
    declared = ",\n    ".join(declared_as(param, restrict) for param in params)
    called = dict.fromkeys(
        access.cuda_functions for arg in args for access in arg.accessors if access.cuda_functions
    )
    header = "\n".join((HEADER, *called, *functions))
    lines = "\n".join(line if line.startswith("#") else f"  {line}" for line in body)
    return (
        f"{header}\n#undef BLOCK_SIZE\n#ifdef CHOSEN_BLOCK_SIZE\n"
        "#define BLOCK_SIZE CHOSEN_BLOCK_SIZE\n#else\n"
        f"#define BLOCK_SIZE {block_size}\n#endif\n"
        f"{KERNEL_START} void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS)\n"
        f"{name}(\n    {declared}) {{\n{lines}\n}}\n"
    )


def declared_as(param: Param, restrict: bool) -> str:
    """A parameter as it is declared."""
    if param.dtype is None:
        return f"{'u32' if param.is_unsigned else 'int'} {param.name}"
    if (param.field, param.dtype) == (PLACE.name, PLACE.dtype):
        return f"const Place* {param.name}"
    const = "" if param.written else "const "
    apart = "__restrict__ " if restrict else ""
    return f"{const}{SCALAR_TYPE[param.dtype]}* {apart}{param.name}"


KERNEL_START = 'extern "C" __global__'
"""The words with which a source's own text begins, after the functions that all kernels share."""

MAX_ITEMS_PER_THREAD = 4

MANY_CALLS = 200
"""Calls of a graph from which on a thread handles one item: it has enough to do, and the text of
several items is written twice."""


HALF = """\
#ifndef CASPAR_HALF
#define CASPAR_HALF
__device__ __forceinline__ float float_of_half(u16 bits) {
#ifdef __CUDACC_VER_MAJOR__
  float value;
  // volatile: unpacking again is not undone
  asm volatile("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  // where there is no PTX: the exponent's bias by a product, which is exact for small numbers too
  const u32 magnitude = (bits & 0x7fffu) << 13;
  const float value = __uint_as_float(magnitude) * 0x1p112f;
  const u32 finite = magnitude < 0x0f800000u ? __float_as_uint(value) : magnitude | 0x7f800000u;
  return __uint_as_float(finite | (bits & 0x8000u) << 16);
#endif
}

// To nearest, ties to even. What is too large becomes the largest number, never infinity.
__device__ __forceinline__ u16 half_of_float(float value) {
  value = value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
#ifdef __CUDACC_VER_MAJOR__
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const u32 word = __float_as_uint(value), magnitude = word & 0x7fffffffu;
  u32 half;
  if (magnitude > 0x7f800000u) {
    half = 0x7fffu;
  } else if (magnitude < 0x38800000u) {
    // below 2^-14 numbers are multiples of 2^-24, which is the last bit of 0.5f
    half = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  return u16(word >> 16 & 0x8000u | half);
#endif
}
#endif
"""
"""Device functions between float32 and float16, which arrays hold as its bits.

NVRTC ships cuda_fp16.h apart from itself, so the instructions are named here. An unpacked number
takes a register, a packed one half of it: what a kernel reads before an exchange and uses behind it
is unpacked twice, which takes one instruction each (product of bundle adjustment: 48 registers
instead of 63, five blocks of 256 threads on a multiprocessor instead of four)."""


def half_functions(args: tuple[ArgSpec, ...]) -> tuple[str, ...]:
    """Return the functions for float16 that a kernel with such arguments calls."""
    return (HALF,) if any(arg.dtype is DType.FLOAT16 for arg in args) else ()
