"""The text of a kernel for the processor, from a scheduled program.

A kernel handles one tile of items in a plain loop, so that the runtime can spread tiles over cores.
Its text is a small part of Python, which `codegen.llvm` translates:

* constants of the module, then one function of a parameter table and a tile;
* assignments to names and to entries of arrays, `for` over a `range`, `while`, `if`, `return`,
  `continue`;
* arithmetic and comparisons, and the functions in `_CALLS` of `codegen.llvm.translate`.

Every result has a new name.

A kernel with exchanges has parts: loops over items, and between them loops over nodes. Items are
summed by node, and whoever goes on with the sums does so once for each node. Values of items that
a later part needs are computed again, those of nodes are kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from caspar.codegen.body import BodyWriter, table_size
from caspar.codegen.cpu.ops import CAST, OP_TEXT, literal
from caspar.codegen.cpu.plain_loops import module_text
from caspar.codegen.source import CPU_TILE_SIZE, KernelSource, kernel_params
from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program, Register
from caspar.memory.access import ExchangeAccessor
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import first_number
from caspar.memory.tiling.node_tiles import WIDE_BITS


@dataclass(frozen=True)
class Part:
    """A loop over items, or over nodes, and its instructions.

    It takes registers of nodes that earlier parts have kept, and keeps some; its items add to the
    exchange `collects`.
    """

    of_nodes: bool
    instructions: tuple[Instruction, ...]
    takes: tuple[Register, ...] = ()
    keeps: tuple[Register, ...] = ()
    collects: Instruction | None = None


def node_parts(spec: KernelSpec, program: Program) -> list[Part]:
    """The loops of a kernel, in their order; without exchanges one loop over items."""
    if all(one.op is not Op.EXCHANGE for one in program.instructions):
        return [Part(of_nodes=False, instructions=program.instructions)]
    return _Parting(spec, program.instructions).parts()


class _Parting:
    """Divides instructions, each of whose results has a register of its own.

    The *stage* of a value is how many exchanges are behind it.
    """

    def __init__(self, spec: KernelSpec, instructions: Sequence[Instruction]) -> None:
        self._spec = spec
        self._instructions = list(self._renamed(instructions))
        self._place: dict[Register, int] = {}
        self._of_node: dict[Register, bool] = {}
        self._stage: dict[Register, int] = {}
        self._exchanges: list[Instruction] = []
        self._stores: dict[bool, list[int]] = {False: [], True: []}
        for place, one in enumerate(self._instructions):
            if one.op is Op.STORE:
                self._stores[self._is_for_node(one)].append(place)
                continue
            if one.op is Op.EXCHANGE:
                self._exchanges.append(one)
            self._place |= dict.fromkeys(one.outputs, place)
            of_node, stage = self._kind(one)
            self._of_node |= dict.fromkeys(one.outputs, of_node)
            self._stage |= dict.fromkeys(one.outputs, stage)

    def parts(self) -> list[Part]:
        """All of them; found from the last one to the first, as what later ones take is kept."""
        last = len(self._exchanges)
        found: list[Part] = []
        wanted: set[Register] = set()
        if len(self._stores[False]) > 0:
            found.append(self._part(wanted, last, self._stores[False], of_nodes=False))
        for stage in range(last, 0, -1):
            stores = self._stores[True] if stage == last else []
            found.append(self._part(wanted, stage, stores, of_nodes=True))
            found.append(self._part(wanted, stage - 1, [], of_nodes=False))
        return [one for one in reversed(found) if not one.of_nodes or len(one.instructions) > 0]

    def _part(
        self, wanted: set[Register], stage: int, stores: Sequence[int], *, of_nodes: bool
    ) -> Part:
        """A part that ends a stage; what it takes of nodes is added to `wanted`.

        `stage` is that of its results, if it goes over nodes; else how many exchanges are behind
        it. `stores` are places of what it stores.
        """
        keeps = [one for one in wanted if self._stage[one] == stage] if of_nodes else []
        is_before = not of_nodes and stage < len(self._exchanges)
        collects = self._exchanges[stage] if is_before else None
        needed = [*keeps, *([] if collects is None else _registers(collects))]
        for place in stores:
            needed += _registers(self._instructions[place])
        places, takes = set(stores), set[Register]()
        while len(needed) > 0:
            register = needed.pop()
            place = self._place[register]
            if self._is_kept(register) and not (of_nodes and self._stage[register] == stage):
                takes.add(register)
            elif place not in places:
                places.add(place)
                one = self._instructions[place]
                needed += [] if one.op is Op.EXCHANGE else _registers(one)
        wanted |= takes
        in_order = self._place.__getitem__
        return Part(
            of_nodes,
            tuple(self._instructions[place] for place in sorted(places)),
            tuple(sorted(takes, key=in_order)),
            tuple(sorted(keeps, key=in_order)),
            collects,
        )

    def _renamed(self, instructions: Sequence[Instruction]) -> Iterator[Instruction]:
        """Give each result a register of its own; leave out exchanges that spread values."""
        current: dict[Operand, Operand] = {}
        num_results = 0
        for one in instructions:
            operands = tuple(current.get(operand, operand) for operand in one.operands)
            if one.op is Op.EXCHANGE and not self._exchange(one).collects:
                current |= zip(one.outputs, operands, strict=True)
                continue
            outputs = []
            for register in one.outputs:
                current[register] = f"{register[0]}{num_results}"
                outputs.append(f"{register[0]}{num_results}")
                num_results += 1
            yield replace(one, outputs=tuple(outputs), operands=operands)

    def _exchange(self, one: Instruction) -> ExchangeAccessor:
        assert isinstance(one.data, tuple)
        access = self._spec.arg(one.data[0]).read
        assert isinstance(access, ExchangeAccessor)
        return access

    def _is_for_node(self, one: Instruction) -> bool:
        assert isinstance(one.data, tuple)
        access = self._spec.arg(one.data[0]).write
        assert access is not None
        return access.for_node

    def _kind(self, one: Instruction) -> tuple[bool, int]:
        """Return whether all items of a node have the same results, and their stage."""
        if one.op is Op.EXCHANGE:
            return True, len(self._exchanges)
        if one.op is Op.READ:
            assert isinstance(one.data, tuple)
            access = self._spec.arg(one.data[0]).read
            assert access is not None
            return access.for_node or access.has_one_object, 0
        registers = _registers(one)
        of_node = all(self._of_node[register] for register in registers)
        return of_node, max((self._stage[register] for register in registers), default=0)

    def _is_kept(self, register: Register) -> bool:
        """Return whether later parts take it: a node's number, made of sums but no sum itself."""
        is_sum = self._instructions[self._place[register]].op is Op.EXCHANGE
        is_number = register.startswith("r")
        return self._of_node[register] and self._stage[register] > 0 and is_number and not is_sum


def _registers(one: Instruction) -> list[Register]:
    return [operand for operand in one.operands if isinstance(operand, str)]


_PLACES = {
    "tiles_begin": f"tiles_at & {(1 << WIDE_BITS) - 1:#x}",
    "tiles_position": f"tiles_at >> {WIDE_BITS} & {(1 << WIDE_BITS) - 1:#x}",
    "tiles_object": f"tiles_at >> {2 * WIDE_BITS}",
}
"""Names of a tiled kernel for each item. Places have 64 bits, because tiles are large."""


def generate_cpu(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the kernel of a program."""
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
        for arg, start, num_axes in self.tables():
            self.emit(f"{arg.name}_begin = {start}")
            for axis in range(num_axes):
                size, dtype = table_size(f"{arg.name}_data[{arg.name}_begin + ", axis, arg.dtype)
                if axis > 0:
                    self.emit(f"{arg.name}_size_{axis} = int({size})")
                last = self.cast(size, dtype, self.dtype)
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
        return literal(value, dtype)

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
        value = literal(number, self.dtype)
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
        if entry.is_one_inside:
            value = self._literal(1.0)
        else:
            at, arg = self.temporary(), self.spec.arg(name)
            offset = first_number(len(instruction.operands), arg.dtype) + entry.channel
            self.emit(f"{at} = {name}_begin + {offset} + {entry.num_channels} * ({number})")
            value = self.cast(f"{name}_data[{at}]", arg.dtype, self.dtype)
        if entry.is_zero_outside:
            value = f"select({' and '.join(f'({one})' for one in inside)}, {value}, {zero})"
        self.emit(f"{self._name(instruction.outputs[0])} = {value}")

    def compute(self, instruction: Instruction) -> None:
        operands = [self._operand(operand) for operand in instruction.operands]
        if instruction.op is Op.SINCOS:
            sine, cosine = (self._name(register) for register in instruction.outputs)
            self.lines += [f"{sine} = sin({operands[0]})", f"{cosine} = cos({operands[0]})"]
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
