"""CUDA C from a scheduled program.

One thread handles one item, one block one tile. Threads beyond the last item repeat it, so that
no barrier diverges: they store nothing and contribute exact zeros.
"""

from collections.abc import Sequence

from caspar.codegen.cuda.body import cuda_body
from caspar.codegen.cuda.half import half_functions
from caspar.codegen.cuda.header import AWAIT_LAUNCH, BLOCK_SIZES, HEADER
from caspar.codegen.cuda.places import CHOSEN, PLACES
from caspar.codegen.source import PLACE, KernelSource, Param, kernel_params
from caspar.ir.dtype import CHUNK_BYTES
from caspar.ir.program import Program
from caspar.memory.access import TILES, ArgSpec
from caspar.memory.accessors.scope import SCALAR_TYPE
from caspar.memory.kernel import KernelSpec


def generate_cuda(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the CUDA kernel of a program.

    Args:
        spec: Name, arguments and guard.
        program: What an item computes.

    Returns:
        The source for NVRTC; the text depends on the arguments and on nothing else.
    """
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
    """What a kernel may read before it waits for the launch ahead."""
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
"""Where a source's own text begins, after the functions that kernels have in common."""

MAX_ITEMS_PER_THREAD = 4

MANY_CALLS = 200
"""Calls of a graph from which on a thread handles one item: it has enough to do, and the text of
several items is written twice."""
