"""Kernels for the processor that have no program: sums of partials, conversions of rows.

And what all kernels there have around their loop, see `codegen.cpu.kernel`.
"""

from collections.abc import Sequence

from caspar.codegen.cpu.ops import CAST
from caspar.codegen.source import CPU_TILE_SIZE, KernelSource, Param, kernel_params, reduce_params
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.blocked import cpu_index
from caspar.memory.kernel import ConvertSpec, Direction, ReduceSpec
from caspar.memory.layout import PARTIAL_CHUNK


def generate_cpu_reduce(spec: ReduceSpec) -> KernelSource:
    """Write the kernel that sums the partials of each object in order.

    Full chunks are a loop, as in `generate_cpu_convert`.
    """
    args = (ArgSpec("partials", spec.dim, spec.dtype), spec.output)
    params = reduce_params(*args)
    text = module_text(spec.name, params, [], _reduce_body(spec))
    return KernelSource(spec.name, text, params, (CPU_TILE_SIZE,))


def _reduce_body(spec: ReduceSpec) -> list[str]:
    full, rest = divmod(spec.dim, PARTIAL_CHUNK)
    lines = [
        "for item in range(first, last):",
        "    begin = partials_object_start[item]",
        "    end = partials_object_start[item + 1]",
    ]
    if full > 0:
        # chunks of the output are no longer, so that a chunk of partials fills as many of them
        step = "" if spec.output.in_rows else "output_length * "
        lines += [
            f"    for chunk in range({full}):",
            f"        column = {PARTIAL_CHUNK} * chunk",
            *_summed_chunk(spec, 0, PARTIAL_CHUNK, "column", f"{step}column + ", " " * 8),
        ]
    if rest > 0:
        first = PARTIAL_CHUNK * full
        lines += _summed_chunk(spec, first, rest, str(first), "", " " * 4)
    return lines


def _summed_chunk(
    spec: ReduceSpec, first: int, width: int, column: str, further: str, indent: str
) -> list[str]:
    """Sum one chunk of all partials of an object.

    `first` is a scalar that begins a chunk of this width, and `column` the text of the one it
    begins with; `further` is added to an index of the output for `column` instead of `first`.
    """
    output, lanes = spec.output, range(width)
    lines = [f"total_{lane} = {CAST[spec.dtype]}(0.0)" for lane in lanes]
    lines += [
        "for entry in range(begin, end):",
        f"    place = {column} * partials_length + {width} * partials_object_partials[entry]",
        *(f"    total_{lane} += partials_data[place + {lane}]" for lane in lanes),
    ]
    for lane in lanes:
        chunk, place = divmod(first + lane, output.chunk_length)
        index = cpu_index(output, chunk, output.object("item"))
        target = f"output_data[{further}{index} + {place}]"
        lines.append(f"{target} = {target} + total_{lane}")
    return [f"{indent}{line}" for line in lines]


def generate_cpu_convert(spec: ConvertSpec) -> KernelSource:
    """Write the kernel that moves objects between rows and the blocked layout.

    Full chunks are a loop: as quick as code without it up to 17 scalars, up to half as slow again
    with 60, and compiled in 0.2 s whatever their number.
    """
    params = kernel_params(spec.args)
    return KernelSource(
        spec.name, module_text(spec.name, params, [], _convert_body(spec)), params, (CPU_TILE_SIZE,)
    )


def _convert_body(spec: ConvertSpec) -> list[str]:
    length = spec.blocked.chunk_length
    full, rest = divmod(spec.dim, length)
    item = spec.blocked.object("item")
    lines = ["for item in range(first, last):", f"    row = {spec.dim} * item"]
    if full > 0:
        lines += [
            f"    for chunk in range({full}):",
            f"        column = row + {length} * chunk",
            f"        place = {length} * (chunk * blocked_length + {item})",
            *(f"        {line}" for line in _moved_chunk(spec.direction, length)),
        ]
    if rest > 0:
        lines += [
            f"    column = row + {length * full}",
            f"    place = {cpu_index(spec.blocked, full, item)}",
            *(f"    {line}" for line in _moved_chunk(spec.direction, rest)),
        ]
    return lines


def _moved_chunk(direction: Direction, width: int) -> list[str]:
    row, blocked = "rows_data[column + {}]", "blocked_data[place + {}]"
    source, target = (row, blocked) if direction is Direction.PACK else (blocked, row)
    loads = [f"scalar_{lane} = {source.format(lane)}" for lane in range(width)]
    return [*loads, *(f"{target.format(lane)} = scalar_{lane}" for lane in range(width))]


def module_text(
    name: str,
    params: Sequence[Param],
    constants: Sequence[str],
    body: Sequence[str],
    *,
    tiled: bool = False,
) -> str:
    """A function of a table of parameters and a tile, or a group of node tiles."""
    lines = [_unpack(number, param) for number, param in enumerate(params)]
    if not tiled:
        lines += [f"first = tile * {CPU_TILE_SIZE}", f"last = min(first + {CPU_TILE_SIZE}, count)"]
    text = "\n".join(f"    {line}" for line in [*lines, *body])
    declared = "".join(f"{constant}\n" for constant in constants)
    place = "group" if tiled else "tile"
    return f"{declared}def {name}(table, {place}):\n{text}\n"


def _unpack(number: int, param: Param) -> str:
    if param.dtype is None:
        return f"{param.name} = table[{number}]"
    return f"{param.name} = as_{param.dtype.value}(table[{number}])"
