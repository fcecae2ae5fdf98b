"""CUDA kernels that sum the partials of each object, in a fixed order."""

from caspar.codegen.cuda.header import BLOCK_SIZE
from caspar.codegen.cuda.kernel import kernel_text
from caspar.codegen.source import KernelSource, reduce_params
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.scope import SCALAR_TYPE
from caspar.memory.kernel import ReduceSpec
from caspar.memory.layout import padded_width, row_scalars

BLOCK_SIZES_OF_REDUCE = (BLOCK_SIZE, 128, 512)
"""Any would do; in a loop it is that of the kernels beside it."""


def generate_cuda_reduce(spec: ReduceSpec) -> KernelSource:
    """Write the kernel of a segmented sum; each object gets `spec.lanes` threads."""
    args = (ArgSpec("partials", spec.dim, spec.dtype), spec.output)
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


AT_ONCE = 8
"""Partials that a thread of several warps loads at the same time."""


def _body(spec: ReduceSpec) -> list[str]:
    scalar = SCALAR_TYPE[spec.dtype]
    return [
        *([f"__shared__ {scalar} stage[BLOCK_SIZE / 32][4];"] if spec.lanes > 32 else []),
        f"const u32 object = (blockIdx.x * BLOCK_SIZE + threadIdx.x) / {spec.lanes}u;",
        f"const u32 lane = threadIdx.x % {spec.lanes}u;",
        "const bool active = object < count;",
        "const u32 first = 4u * blockIdx.y;",
        f"const u32 width = min({spec.dim}u - first, 4u);",
        f"const {scalar}* chunk = partials_data + u64(first) * partials_length;",
        f"{scalar} total[4] = {{0, 0, 0, 0}};",
        "const u32 end = active ? partials_object_start[object + 1] : 0u;",
        "u32 entry = active ? partials_object_start[object] + lane : 0u;",
        *(_add_several(spec) if spec.lanes > 32 else _add_partials(spec)),
        *_combine_lanes(spec.lanes),
        "if (!active || lane != 0u) return;",
        *(_add_warps(spec) if spec.lanes > 32 else []),
        "for (u32 k = 0; k < 4; ++k) {",
        "  const u32 column = first + k;",
        "  if (k >= width) break;",
        f"  {_output_element(spec.output)} += total[k];",
        "}",
    ]


def _add_partials(spec: ReduceSpec) -> list[str]:
    return [
        f"for (; entry < end; entry += {spec.lanes}u) {{",
        f"  const {SCALAR_TYPE[spec.dtype]}* partial = "
        "chunk + u64(partials_object_partials[entry]) * width;",
        "  for (u32 k = 0; k < 4; ++k) if (k < width) total[k] += partial[k];",
        "}",
    ]


def _add_several(spec: ReduceSpec) -> list[str]:
    """All places first, then what is there: loads that depend on none of the others."""
    each = f"for (u32 turn = 0; turn < {AT_ONCE}u; ++turn)"
    return [
        "#pragma unroll 1",
        f"for (; entry < end; entry += {AT_ONCE * spec.lanes}u) {{",
        f"  u32 place[{AT_ONCE}];",
        "#pragma unroll",
        f"  {each} {{",
        f"    const u32 at = entry + turn * {spec.lanes}u;",
        "    place[turn] = at < end ? u32(partials_object_partials[at]) : 0xffffffffu;",
        "  }",
        "#pragma unroll",
        f"  {each} {{",
        f"    const {SCALAR_TYPE[spec.dtype]}* partial = chunk + u64(place[turn]) * width;",
        "    const bool is_there = place[turn] != 0xffffffffu;",
        "    for (u32 k = 0; k < 4; ++k) if (is_there && k < width) total[k] += partial[k];",
        "  }",
        "}",
    ]


def _combine_lanes(lanes: int) -> list[str]:
    if lanes == 1:
        return []
    return [
        "for (u32 step = 16u; step > 0; step >>= 1) {",
        "  for (u32 k = 0; k < 4; ++k) total[k] += __shfl_down_sync(0xffffffffu, total[k], step);",
        "}",
        *(_STAGED if lanes > 32 else []),
    ]


_STAGED = (
    "if ((threadIdx.x & 31u) == 0u) {",
    "  for (u32 k = 0; k < 4; ++k) stage[threadIdx.x / 32u][k] = total[k];",
    "}",
    "__syncthreads();",
)


def _add_warps(spec: ReduceSpec) -> list[str]:
    return [
        f"for (u32 warp = 1u; warp < {spec.lanes // 32}u; ++warp) {{",
        "  for (u32 k = 0; k < 4; ++k) total[k] += stage[threadIdx.x / 32u + warp][k];",
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
