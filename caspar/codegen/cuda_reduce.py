"""CUDA kernels that sum the partials of each object, in a fixed order."""

from caspar.codegen.cuda import kernel_text
from caspar.codegen.cuda_header import BLOCK_SIZE
from caspar.codegen.source import KernelSource, reduce_params
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.scope import SCALAR_TYPE
from caspar.memory.layout import padded_width, row_scalars
from caspar.memory.reduce import ReduceSpec

BLOCK_SIZES_OF_REDUCE = (BLOCK_SIZE, 128, 512)
"""Any would do; in a loop it is that of the kernels beside it."""


def generate_cuda_reduce(spec: ReduceSpec) -> KernelSource:
    """Write the kernel of a segmented sum; each object gets `spec.lanes` threads."""
    args = (
        ArgSpec("partials", spec.dim, spec.dtype),
        spec.output,
    )
    params = reduce_params(*args)
    text = kernel_text(spec.name, args, params, BLOCK_SIZE, _body(spec))
    num_layers = len(spec.partial_chunk_widths)
    return KernelSource(
        spec.name,
        text,
        params,
        BLOCK_SIZES_OF_REDUCE,
        threads_per_item=spec.lanes,
        num_layers=num_layers,
    )


def _body(spec: ReduceSpec) -> list[str]:
    scalar = SCALAR_TYPE[spec.dtype]
    step = "+=" if spec.accumulate else "="
    return [
        f"const u32 object = (blockIdx.x * BLOCK_SIZE + threadIdx.x) / {spec.lanes}u;",
        f"const u32 lane = threadIdx.x % {spec.lanes}u;",
        "const bool active = object < count;",
        "const u32 first = 4u * blockIdx.y;",
        f"const u32 width = min({spec.dim}u - first, 4u);",
        f"const {scalar}* chunk = partials_data + u64(first) * partials_length;",
        f"{scalar} total[4] = {{0, 0, 0, 0}};",
        "const u32 end = active ? partials_object_start[object + 1] : 0u;",
        "u32 entry = active ? partials_object_start[object] + lane : 0u;",
        f"for (; entry < end; entry += {spec.lanes}u) {{",
        f"  const {scalar}* partial = chunk + u64(partials_object_partials[entry]) * width;",
        "  for (u32 k = 0; k < 4; ++k) if (k < width) total[k] += partial[k];",
        "}",
        *_combine_lanes(spec.lanes),
        "if (!active || lane != 0u) return;",
        "for (u32 k = 0; k < 4; ++k) {",
        "  const u32 column = first + k;",
        "  if (k >= width) break;",
        f"  {_output_element(spec.output)} {step} total[k];",
        "}",
    ]


def _combine_lanes(lanes: int) -> list[str]:
    if lanes == 1:
        return []
    return [
        f"for (u32 step = {lanes // 2}u; step > 0; step >>= 1) {{",
        "  for (u32 k = 0; k < 4; ++k) total[k] += __shfl_down_sync(0xffffffffu, total[k], step);",
        "}",
    ]


def _output_element(output: ArgSpec) -> str:
    """The scalar `column` of `object` in the output."""
    if output.in_rows:
        row = row_scalars(output.dim, output.dtype)
        return f"output_data[{row}ull * {output.object('object')} + column]"
    length = output.chunk_length
    last = padded_width(output.chunk_widths[-1])
    last_start = length * (len(output.chunk_widths) - 1)
    number = output.object("object")
    if last_start == 0:
        return f"output_data[{last}ull * {number} + column]"
    full = f"(column / {length}u * {length}ull) * output_length + {length}ull * {number}"
    rest = f"{last_start}ull * output_length + {last}ull * {number}"
    within = f"column % {length}u"
    return f"output_data[(column < {last_start}u ? {full} : {rest}) + {within}]"
