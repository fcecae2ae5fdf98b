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
from caspar.codegen.cpu.node_parts import Part, node_parts
from caspar.codegen.cpu.ops import CAST, OP_TEXT
from caspar.codegen.cpu.plain_loops import module_text
from caspar.codegen.source import CPU_TILE_SIZE, KernelSource, kernel_params
from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.access import ExchangeAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.tiling.node_tiles import WIDE_BITS

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
    text = module_text(spec.name, params, writer.constants(), body, tiled=spec.tiled)
    return KernelSource(
        spec.name,
        text,
        params,
        (CPU_TILE_SIZE,),
        num_registers=program.num_registers,
        tiled=spec.tiled,
    )


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
        self._kept: dict[str, str] = {}

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
        around, parts = self.lines, node_parts(self.spec, self.program)
        kept = dict.fromkeys(register for part in parts for register in part.keeps)
        self._kept = {register: f"nodes_kept[kept_at + {n}]" for n, register in enumerate(kept)}
        if len(kept) > 0:
            self.once(f"nodes_kept = zeros({CPU_TILE_SIZE} * {len(kept)})")
            around.append(f"kept_at = {len(kept)} * tiles_begin")
        loops = []
        for number, part in enumerate(parts):
            self.lines = list(around)
            self._write_part(part)
            is_last = number == len(parts) - 1
            if is_last:
                for arg, access in self.used_accesses():
                    access.cpu_after(self, arg)
            lines = [f"    {line}" for line in self._item_lines(part)]
            loop = ["for item in range(first, last):", *lines]
            if is_last:
                loop = [*self._before, *loop, *self._after]
            loops += self._tile_loop(part, loop) if self.spec.tiled else loop
        return [*self._once, *loops]

    def _write_part(self, part: Part) -> None:
        """Write the inputs of a part, its instructions, and what it keeps or adds to sums."""
        self._names = {}
        for register in part.takes:
            kept = self.cast(self._kept[register], DType.FLOAT64, self.dtype)
            self.emit(f"{self._name(register)} = {kept}")
        self._write_tables()
        self.write_instructions(part.instructions)
        for register in part.keeps:
            self.emit(f"{self._kept[register]} = {self._names[register]}")
        if part.collects is not None:
            arg, _ = self.argument(part.collects)
            assert isinstance(arg.read, ExchangeAccessor)
            values = [self._operand(operand) for operand in part.collects.operands]
            arg.read.cpu_collect(self, arg, values)

    def _write_tables(self) -> None:
        """Write where the tables of an item begin, and their sizes."""
        for arg, start, num_axes in self.tables():
            self.emit(f"{arg.name}_begin = {start}")
            for axis in range(num_axes):
                size = f"{arg.name}_data[{arg.name}_begin + {axis}]"
                if axis > 0:
                    self.emit(f"{arg.name}_size_{axis} = int({size})")
                last = self.cast(size, arg.dtype, self.dtype)
                self.emit(f"{arg.name}_last_{axis} = {last} - {self._literal(1.0)}")

    def _item_lines(self, part: Part) -> list[str]:
        """Return a part's lines for one item; in a tiled kernel the item's place is read first."""
        if not self.spec.tiled:
            return self.lines or ["pass"]
        leads = ["if tiles_position != tiles_begin:", "    continue"] if part.of_nodes else []
        text = "\n".join([*leads, *self.lines])
        used = [f"{name} = {value}" for name, value in _PLACES.items() if name in text]
        return ["tiles_at = tiles_place[item]", *used, *leads, *self.lines]

    def _tile_loop(self, part: Part, body: list[str]) -> list[str]:
        """Walk the tiles of a group; of several, which one node has, its first item leads."""
        begin, end = "tiles_group_start[group]", "tiles_group_start[group + 1]"
        return [
            f"for tile in range({begin}, {f'{begin} + 1' if part.of_nodes else end}):",
            f"    first = tile * {CPU_TILE_SIZE}",
            "    last = first + tiles_items[tile]",
            *(f"    {line}" for line in body),
        ]

    # -- what accesses ask for: see memory.accessors.scope.CpuScope ----------------------------

    def once(self, *lines: str) -> None:
        self._once += [line.replace("TILE_SIZE", str(CPU_TILE_SIZE)) for line in lines]

    def before(self, *lines: str) -> None:
        self._before += lines

    def after(self, *lines: str) -> None:
        self._after += lines

    def temporary(self) -> str:
        self._num_names += 1
        return f"at_{self._num_names}"

    def index(self, name: str, array: str) -> None:
        line = f"{name} = {array}[item]"
        if line not in self.lines:  # where an argument is read and written, both ask
            self.emit(line)

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
        sums = arg.read.cpu_exchanged(self, arg)
        for register, scalar in zip(instruction.outputs, sums, strict=True):
            self.emit(f"{self._name(register)} = {scalar}")

    def store(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.write is not None
        values = [self._operand(operand) for operand in instruction.operands]
        arg.write.cpu_write(self, arg, chunk, values)


def _python_literal(number: float) -> str:
    text = repr(number)
    return f'"{text}"' if text in ("inf", "-inf", "nan") else text
