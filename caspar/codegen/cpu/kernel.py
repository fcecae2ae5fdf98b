"""The text of a kernel for the processor, from a scheduled program.

A kernel handles one tile of items in a plain loop, so that the runtime can spread tiles over cores.
Its text is a small part of Python, which `codegen.llvm` translates:

* constants of the module, then one function of a parameter table and a tile;
* assignments to names and to entries of arrays, `for` over a `range`, `while`, `if`, `return`,
  `continue`;
* arithmetic and comparisons, and the functions in `_CALLS` of `codegen.llvm.translate`.

Every result has a new name.
"""

from caspar.codegen.body import BodyWriter
from caspar.codegen.cpu.ops import CAST, OP_TEXT
from caspar.codegen.source import KernelSource, Param, kernel_params, reduce_params
from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.access import ArgSpec, ExchangeAccessor
from caspar.memory.accessors.blocked import cpu_index
from caspar.memory.conversion import ConvertSpec, Direction
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import PARTIAL_CHUNK
from caspar.memory.reduce import ReduceSpec
from caspar.memory.tiling.node_tiles import WIDE_BITS

TILE_SIZE = 1024
"""Items of a tile: enough to amortise the call, few enough to balance small problems."""

_PLACES = {
    "tiles_begin": f"tiles_at & {(1 << WIDE_BITS) - 1:#x}",
    "tiles_position": f"tiles_at >> {WIDE_BITS} & {(1 << WIDE_BITS) - 1:#x}",
    "tiles_object": f"tiles_at >> {2 * WIDE_BITS}",
}
"""What a tiled kernel has of each item: tiles are so large that places have 64 bits."""


def generate_cpu(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the kernel of a program.

    Args:
        spec: Name, arguments and guard.
        program: What an item computes.

    Returns:
        The kernel's source.
    """
    params = kernel_params(spec.args, tiled=spec.tiled)
    writer = _Writer(spec, program)
    body = writer.write()
    text = _module_text(spec.name, params, writer.constants(), body, tiled=spec.tiled)
    return KernelSource(
        spec.name,
        text,
        params,
        (TILE_SIZE,),
        num_registers=program.num_registers,
        tiled=spec.tiled,
    )


def generate_cpu_reduce(spec: ReduceSpec) -> KernelSource:
    """Write the kernel that sums the partials of each object in order.

    Full chunks are a loop, as in `generate_cpu_convert`.
    """
    args = (ArgSpec("partials", spec.dim, spec.dtype), spec.output)
    params = reduce_params(*args)
    text = _module_text(spec.name, params, [], _reduce_body(spec))
    return KernelSource(spec.name, text, params, (TILE_SIZE,))


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

    Args:
        spec: Of the sums.
        first: A scalar that begins a chunk of this width.
        width: Scalars of the chunk.
        column: The scalar that the chunk begins with.
        further: What is added to an index of the output for `column` instead of `first`.
        indent: In front of the lines.
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
        spec.name, _module_text(spec.name, params, [], _convert_body(spec)), params, (TILE_SIZE,)
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


def _module_text(
    name: str,
    params: tuple[Param, ...],
    constants: list[str],
    body: list[str],
    *,
    tiled: bool = False,
) -> str:
    lines = [_unpack(number, param) for number, param in enumerate(params)]
    if not tiled:
        lines += [f"first = tile * {TILE_SIZE}", f"last = min(first + {TILE_SIZE}, count)"]
    text = "\n".join(f"    {line}" for line in [*lines, *body])
    declared = "".join(f"{constant}\n" for constant in constants)
    place = "group" if tiled else "tile"
    return f"{declared}def {name}(table, {place}):\n{text}\n"


def _unpack(number: int, param: Param) -> str:
    if param.dtype is None:
        return f"{param.name} = table[{number}]"
    return f"{param.name} = as_{param.dtype.value}(table[{number}])"


class _Writer(BodyWriter):
    """Writes the lines of one kernel body, instruction by instruction."""

    comment = "#"

    def __init__(self, spec: KernelSpec, program: Program) -> None:
        super().__init__(spec, program)
        self._names: dict[str, str] = {}
        self._num_names = 0
        self._constants: dict[str, str] = {}
        self._once: list[str] = []
        self._before: list[str] = []
        self._after: list[str] = []
        self._num_exchanges = 0
        self._stored = False

    @property
    def is_cuda(self) -> bool:
        return False

    def constants(self) -> list[str]:
        """Definitions of the literals the body names."""
        return [f"{name} = {value}" for value, name in self._constants.items()]

    def write(self) -> list[str]:
        if self.spec.guard is not None:
            self.once(f"if {self.spec.guard}_data[0] != 0:", "    return")
        for arg, access in self.used_accesses():
            access.cpu_before(self, arg)
        for arg, start, num_axes in self.tables():
            self.emit(f"{arg.name}_begin = {start}")
            for axis in range(num_axes):
                size = f"{arg.name}_data[{arg.name}_begin + {axis}]"
                if axis > 0:
                    self.emit(f"{arg.name}_size_{axis} = int({size})")
                last = self.cast(size, arg.dtype, self.dtype)
                self.emit(f"{arg.name}_last_{axis} = {last} - {self._literal(1.0)}")
        self.write_instructions()
        for arg, access in self.used_accesses():
            access.cpu_after(self, arg)
        loop = ["for item in range(first, last):", *(f"    {line}" for line in self._item_lines())]
        body = [*self._before, *loop, *self._after]
        return [*self._once, *(self._tile_loop(body) if self.spec.tiled else body)]

    def _item_lines(self) -> list[str]:
        """With what a tiled kernel has of each item; what has nothing to store does nothing."""
        if not self.spec.tiled:
            return self.lines or ["pass"]
        text = "\n".join(self.lines)
        used = [f"{name} = {value}" for name, value in _PLACES.items() if name in text]
        return ["tiles_at = tiles_place[item]", *used, *self.lines]

    def _tile_loop(self, body: list[str]) -> list[str]:
        """Walk the tiles of a group; twice where sums come back."""
        tiles = [
            "for tile in range(tiles_group_start[group], tiles_group_start[group + 1]):",
            f"    first = tile * {TILE_SIZE}",
            "    last = first + tiles_items[tile]",
            *(f"    {line}" for line in body),
        ]
        if self._num_exchanges == 0:
            return tiles
        return [
            f"for turn in range({self._num_exchanges + 1}):",
            *(f"    {line}" for line in tiles),
        ]

    # -- what accesses ask for: see memory.accessors.scope.CpuScope ----------------------------

    def once(self, *lines: str) -> None:
        self._once += [line.replace("TILE_SIZE", str(TILE_SIZE)) for line in lines]

    def before(self, *lines: str) -> None:
        self._before += lines

    def after(self, *lines: str) -> None:
        self._after += lines

    def temporary(self) -> str:
        self._num_names += 1
        return f"at_{self._num_names}"

    def index(self, name: str, array: str) -> None:
        self.emit(f"{name} = {array}[item]")

    def next_exchange(self) -> int:
        self._num_exchanges += 1
        return self._num_exchanges - 1

    def number(self, value: float, dtype: DType) -> str:
        return f"{CAST[dtype]}({_python_literal(value)})"

    def cast(self, expression: str, source: DType, target: DType) -> str:
        if source is target:
            return expression
        if source is DType.FLOAT16:
            return self.cast(f"float_of_half({expression})", DType.FLOAT32, target)
        if target is DType.FLOAT16:
            return f"half_of_float({self.cast(expression, source, DType.FLOAT32)})"
        return f"{CAST[target]}({expression})"

    # -- arithmetic ----------------------------------------------------------------------------

    def _operand(self, operand: Operand) -> str:
        return self._names[operand] if isinstance(operand, str) else self._literal(operand)

    def _literal(self, number: float) -> str:
        value = f"{CAST[self.dtype]}({_python_literal(number)})"
        return self._constants.setdefault(value, f"K{len(self._constants)}")

    def _name(self, register: str) -> str:
        self._num_names += 1
        self._names[register] = f"{register}_{self._num_names}"
        return self._names[register]

    def gather(self, instruction: Instruction) -> None:
        entry = instruction.data
        assert isinstance(entry, TableEntry)
        name, zero = entry.argument, self._literal(0.0)
        number, inside = "", []
        for axis, operand in enumerate(instruction.operands):
            place, last = self._operand(operand), f"{name}_last_{axis}"
            # a NaN compares as false: it becomes 0 before it is an integer
            nearest = f"int(select({zero} < {place}, min({place}, {last}), {zero}))"
            number = nearest if axis == 0 else f"({number}) * {name}_size_{axis} + {nearest}"
            inside += [f"{zero} <= {place}", f"{place} <= {last}"]
        at = self.temporary()
        offset = len(instruction.operands) + entry.channel
        self.emit(f"{at} = {name}_begin + {offset} + {entry.num_channels} * ({number})")
        value = self.cast(f"{name}_data[{at}]", self.spec.arg(name).dtype, self.dtype)
        if entry.is_zero_outside:
            value = f"select({' and '.join(f'({one})' for one in inside)}, {value}, {zero})"
        self.emit(f"{self._name(instruction.outputs[0])} = {value}")

    def compute(self, instruction: Instruction) -> None:
        operands = [self._operand(operand) for operand in instruction.operands]
        if instruction.op is Op.SINCOS:
            sine, cosine = (self._name(register) for register in instruction.outputs)
            self.lines += [
                f"{sine} = sin({operands[0]})",
                f"{cosine} = cos({operands[0]})",
            ]
            return
        text = OP_TEXT[instruction.op].format(*operands)
        if "@one" in text:
            text = text.replace("@one", self._literal(1.0))
        self.lines.append(f"{self._name(instruction.outputs[0])} = {text}")

    # -- memory --------------------------------------------------------------------------------

    def read(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.read is not None
        scalars = arg.read.cpu_read(self, arg, chunk)
        dtype = arg.read.value_dtype(arg)
        for register, scalar in zip(instruction.outputs, scalars, strict=True):
            self.emit(f"{self._name(register)} = {self.cast(scalar, dtype, self.dtype)}")

    def exchange(self, instruction: Instruction) -> None:
        arg, _ = self.argument(instruction)
        assert isinstance(arg.read, ExchangeAccessor)
        assert not self._stored, f"{self.spec.name}: a store comes before an exchange"
        values = [self._operand(operand) for operand in instruction.operands]
        sums = arg.read.cpu_exchange(self, arg, values)
        for register, scalar in zip(instruction.outputs, sums, strict=True):
            self.emit(f"{self._name(register)} = {scalar}")

    def store(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.write is not None
        self._stored = True
        values = [self._operand(operand) for operand in instruction.operands]
        arg.write.cpu_write(self, arg, chunk, values)


def _python_literal(number: float) -> str:
    text = repr(number)
    return f'"{text}"' if text in ("inf", "-inf", "nan") else text
