"""The body of a CUDA kernel: what accesses ask for, and the program's instructions."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caspar.codegen.body import BodyWriter, table_size
from caspar.codegen.cuda.ops import OP_TEXT, SINCOS_TEXT, literal
from caspar.codegen.cuda.places import (
    ACTIVE,
    PLACES_AHEAD,
    Ahead,
    item_places,
    loop_over_tiles,
    next_index_lines,
    next_stream_lines,
)
from caspar.codegen.source import Load
from caspar.ir.dtype import DType
from caspar.ir.graph import TableEntry
from caspar.ir.ops import MEMORY_OPS, Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.access import ArgSpec, ExchangeAccessor
from caspar.memory.accessors.scope import SCALAR_TYPE, converted
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import first_number

GUARD = "if ({}_data[0] != 0) return;"
"""First of all, where a kernel has a guard and waits for no launch."""

AWAIT_LINE = "if (tile == first_tile) await_launch();"
FIRST_LOOK = "if (is_done_already({}_data)) return;"
IS_DONE = "const bool is_done = {}_data[0] != 0;"
LEAVE_LINE = "if (is_done) return;"
"""The guard of one that waits: it is looked at first of all, as launches that have nothing to do
should not read what others need, and again together with what was waited for."""

FIRST_WORDS = 64
"""Registers that loads before all else may take where items are few, 4 bytes each."""


def used_lines(definitions: Mapping[str, str], text: str) -> list[str]:
    """Return the definitions that the text, or a later definition, names."""
    lines: list[str] = []
    for name, line in reversed(list(definitions.items())):
        if re.search(rf"\b{name}\b", text) is not None:
            lines.insert(0, line)
            text += f"\n{line}"
    return lines


@dataclass(frozen=True)
class CudaBody:
    """The text of a kernel's body, and properties of it.

    `loads` may be moved out of it, see `KernelSource`. `waits`: every block waits for the launch
    ahead, before it stores anything.
    """

    lines: list[str]
    loads: tuple[Load, ...]
    waits: bool


def cuda_body(spec: KernelSpec, program: Program, num_items: int) -> CudaBody:
    """Write the body of a kernel."""
    writer = _Writer(spec, program, num_items)
    lines = writer.write()
    return CudaBody(lines, tuple(writer.own_loads), writer.waits)


class _Writer(BodyWriter):
    comment = "//"

    def __init__(self, spec: KernelSpec, program: Program, num_items: int) -> None:
        super().__init__(spec, program)
        self.own_loads: list[Load] = []
        self._num_items = num_items
        self._scalar = SCALAR_TYPE[program.dtype]
        self._num_temporaries = 0
        self._num_uses: dict[str, int] = {}
        self._noted: dict[str, list[int]] = {}
        self._shared: dict[str, str] = {}
        self._leader: str | None = None
        self._num_exchanges = 0
        self._num_stages = 0
        self._indices = [PLACES_AHEAD] if spec.stretches else []
        self._streams: list[Ahead] = []
        self._after_indices = 0
        self._is_fenced = True
        self._stored = False
        self._loads_at: int | None = None
        self._first_loads_at = 0
        self._first_words = FIRST_WORDS if spec.few_items else 0
        self._unpacked: dict[str, str] = {}
        self.waits = any(self._is_awaited(step) for step in program.instructions)
        self._awaited: dict[int, list[str]] | None = None
        self._delayed: list[Instruction] = []
        self._before_tiles: list[str] = []
        self._after_tiles: list[str] = []

    @property
    def is_cuda(self) -> bool:
        return True

    def write(self) -> list[str]:
        for arg, access in self.used_accesses():
            access.cuda_before(self, arg)
        for arg, begin, num_axes in self.tables():
            scalar = SCALAR_TYPE[arg.dtype.in_arrays]
            self.emit(f"const {scalar}* {arg.name}_table = {arg.name}_data + {begin};")
            for axis in range(num_axes):
                size, dtype = table_size(f"{arg.name}_table[", axis, arg.dtype)
                if axis > 0:
                    self.emit(f"const int {arg.name}_size_{axis} = int({size});")
                last = f"{converted(size, dtype, self.dtype)} - {literal(1.0, self.dtype)}"
                self.emit(f"const {self._scalar} {arg.name}_last_{axis} = {last};")
        if self.spec.stretches:
            at = self._after_indices
            self.lines[at:at] = next_index_lines(self._indices)
        if self.spec.few_items:
            self._loads_at = len(self.lines)
        self._first_loads_at = len(self.lines)
        self.write_instructions(self.program.instructions)
        self.emit(*next_stream_lines(self._streams))
        for arg, access in self.used_accesses():
            access.cuda_after(self, arg)
        guard = self.spec.guard
        assert self.waits == (self._awaited is not None)
        first = FIRST_LOOK if self.waits else GUARD
        start = [] if guard is None else [first.format(guard)]
        shared = [f"__shared__ {declaration};" for declaration in self._shared.values()]
        body = [*self._declarations(), *self.lines]
        if self.spec.tiled:
            # two exchanges, or four: each finds its memory as the one before the last has left it
            is_fenced = self._is_fenced and self._num_stages > 0 and self._num_stages % 2 == 0
            walk = loop_over_tiles(
                self.spec,
                (self._before_tiles, body, self._after_tiles),
                self._num_exchanges,
                [*self._indices, *self._streams],
                has_barriers=is_fenced,
            )
            return [*start, *shared, *walk]
        body = [*shared, *self._before_tiles, *body, *self._after_tiles]
        if self._num_items == 1:
            return [*start, *body]
        loop = f"for (u32 turn = 0; turn < {self._num_items}u; ++turn) {{"
        # where no thread is idle nothing is conditional, and all loads go before the first store
        return [
            *start,
            f"if ((blockIdx.x + 1u) * {self._num_items}u * BLOCK_SIZE <= count) {{",
            "#pragma unroll",
            f"  {loop}",
            *(f"    {line}".replace(ACTIVE, "const bool active = true;") for line in body),
            "  }",
            "  return;",
            "}",
            "#pragma unroll 1",
            loop,
            *(f"  {line}" for line in body),
            "}",
        ]

    def _declarations(self) -> list[str]:
        program = self.program
        defined = item_places(self.spec, self._num_items, self._leader)
        lines = used_lines(defined, "\n".join(self.lines))
        for kind, prefix, number in (
            (self._scalar, "r", program.num_registers),
            ("bool", "p", program.num_predicates),
        ):
            if number > 0:
                names = ", ".join(f"{prefix}{register}" for register in range(number))
                lines.append(f"{kind} {names};")
        return lines

    # -- what accesses ask for: see memory.accessors.scope.CudaScope ---------------------------

    def before_tiles(self, *lines: str) -> None:
        self._before_tiles += lines

    def after_tiles(self, *lines: str) -> None:
        self._after_tiles += lines

    def temporary(self) -> str:
        self._num_temporaries += 1
        return f"m{self._num_temporaries}"

    def index(self, name: str, array: str) -> None:
        found = Ahead(name, "u32", lambda item: f"load_once({array} + {item})")
        if self.spec.stretches:
            self._indices.append(found)
            self.emit(found.declared)
            self._after_indices = len(self.lines)
        else:
            self.emit(f"const u32 {name} = {found.load('item')};")

    def stream(self, vector: str, load: Callable[[str], str], *, packed: bool) -> str:
        found = Ahead(self.temporary(), vector, load)
        if self.spec.stretches and packed:
            self._streams.append(found)
            self.emit(found.declared)
        else:
            self.emit(f"const {vector} {found.name} = {load('item')};")
        return found.name

    def shared(self, name: str, declaration: str, *, fenced: bool = False) -> None:
        self._is_fenced = self._is_fenced and fenced
        assert self._shared.setdefault(name, declaration) == declaration

    def alternate(self, name: str) -> str:
        number = self._num_uses.get(name, 0)
        self._num_uses[name] = number + 1
        return f"{name}[{number % 2}]"

    def next_exchange(self) -> int:
        self._num_exchanges += 1
        return self._num_exchanges - 1

    def noted(self, name: str) -> list[int]:
        return self._noted.setdefault(name, [])

    def literal(self, number: float, dtype: DType) -> str:
        return literal(number, dtype)

    def lead(self, argument: str) -> bool:
        if self._leader is None:
            if any(access.needs_item_order for access in self.spec.accessors):
                return False
            self._leader = argument
        return self._leader == argument

    def emit_by_itself(self, argument: str, line: str) -> None:
        if self.spec.few_items:
            self.own_loads.append(Load(argument, "", "", (line,)))
        self.emit(line)

    # -- arithmetic ----------------------------------------------------------------------------

    def _operand(self, operand: Operand) -> str:
        return operand if isinstance(operand, str) else literal(operand, self.dtype)

    def gather(self, instruction: Instruction) -> None:
        self._await_launch(instruction)
        entry = instruction.data
        assert isinstance(entry, TableEntry)
        name, zero = entry.argument, literal(0.0, self.dtype)
        number, inside = "", []
        for axis, operand in enumerate(instruction.operands):
            place, last = self._operand(operand), f"{name}_last_{axis}"
            # a NaN compares as false: it becomes 0 before it is an integer
            clamped = f"({place} > {zero} ? ({place} < {last} ? {place} : {last}) : {zero})"
            number = (
                f"int{clamped}"
                if axis == 0
                else (f"({number}) * {name}_size_{axis} + int{clamped}")
            )
            inside += [f"{place} >= {zero}", f"{place} <= {last}"]
        arg = self.spec.arg(name)
        offset = first_number(len(instruction.operands), arg.dtype) + entry.channel
        address = f"{name}_table + {offset} + {entry.num_channels} * ({number})"
        value = converted(f"__ldg({address})", arg.dtype, self.dtype)
        if entry.is_one_inside:
            value = literal(1.0, self.dtype)
        if entry.is_zero_outside:
            value = f"{' && '.join(inside)} ? {value} : {zero}"
        self.emit(f"{instruction.outputs[0]} = {value};")

    def compute(self, instruction: Instruction) -> None:
        self._await_launch(instruction)
        operands = [self._operand(operand) for operand in instruction.operands]
        if instruction.op is Op.SINCOS:
            self.emit(SINCOS_TEXT[self.dtype].format(*operands, *instruction.outputs))
            return
        template = OP_TEXT[self.dtype][instruction.op].replace("<T>", f"<{self._scalar}>")
        self.emit(f"{instruction.outputs[0]} = {template.format(*operands)};")

    # -- memory --------------------------------------------------------------------------------

    def read(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.read is not None
        if self._is_awaited(instruction):
            if self._awaited is None:
                self._delayed.append(instruction)
            else:
                self._assign(instruction, arg, self._awaited[id(instruction)])
            return
        before = len(self.lines)
        scalars = arg.read.cuda_read(self, arg, chunk)
        if self.spec.few_items and arg.read.touches_own_object:
            self.own_loads += Load.of(arg.name, self.lines[before:])
        elif arg.read.holds_partials:
            self.own_loads += Load.of(arg.name, self.lines[before : before + 1])
        if self.spec.stretches and arg.read.loads_first:
            num_moved = self._move_lines(before, self._first_loads_at)
            self._first_loads_at += num_moved
            if self._loads_at is not None:
                self._loads_at += num_moved
        elif self._loads_at is not None and self._is_early(arg, len(scalars)):
            # a load may pass neither a barrier nor a store by itself
            self._loads_at += self._move_lines(before, self._loads_at)
        self._assign(instruction, arg, scalars)

    def _is_awaited(self, instruction: Instruction) -> bool:
        if instruction.op is not Op.READ:
            return False
        return self.argument(instruction)[0].name in self.spec.awaited

    def _assign(self, instruction: Instruction, arg: ArgSpec, scalars: Sequence[str]) -> None:
        assert arg.read is not None
        dtype = arg.read.value_dtype(arg)
        for register, scalar in zip(instruction.outputs, scalars, strict=True):
            value = converted(scalar, dtype, self.dtype)
            self.emit(f"{register} = {value};")
            if dtype is DType.FLOAT16:
                self._unpacked[register] = value

    def _await_launch(self, instruction: Instruction) -> None:
        """Before the first instruction that needs what the launch ahead writes: wait, load it all.

        Then as much as can be was done before: a PCG iteration of 0.7 M factors took 23.5 us, and
        23.9 where the wait stood before the arithmetic, with float16 23.4 and 24.7 (H200).
        """
        if not self.waits or self._awaited is not None:
            return
        delayed = {register for read in self._delayed for register in read.outputs}
        if instruction.op in MEMORY_OPS or not delayed.isdisjoint(instruction.operands):
            self._wait()

    def _wait(self) -> None:
        self._awaited = {}
        assert self.spec.guard is not None
        assert self.spec.stretches
        self.emit(AWAIT_LINE, IS_DONE.format(self.spec.guard))
        for step in self.program.instructions:
            if self._is_awaited(step):
                arg, chunk = self.argument(step)
                assert arg.read is not None
                self._awaited[id(step)] = arg.read.cuda_read(self, arg, chunk)
        self.emit(LEAVE_LINE)
        for read in self._delayed:
            self._assign(read, self.argument(read)[0], self._awaited[id(read)])

    def _move_lines(self, first: int, target: int) -> int:
        """Put all lines from `first` on before line `target`; how many they are."""
        moved = self.lines[first:]
        del self.lines[first:]
        self.lines[target:target] = moved
        return len(moved)

    def _is_early(self, arg: ArgSpec, num_scalars: int) -> bool:
        """Return whether a load goes before what stands before it."""
        if not self.spec.few_items:
            return True
        self._first_words -= num_scalars * max(arg.dtype.itemsize // 4, 1)
        return self._first_words >= 0

    def _unpack_again(self, exchange: Instruction) -> None:
        """Convert again the float16 values read so far that are needed before the next exchange."""
        steps = self.program.instructions
        place = next(number for number, step in enumerate(steps) if step is exchange)
        written = [register for step in steps[:place] for register in step.outputs]
        kept = {register for register in self._unpacked if written.count(register) == 1}
        kept -= {*exchange.outputs}
        for step in steps[place + 1 :]:
            if step.op is Op.EXCHANGE:
                # behind it what is left is unpacked again
                return
            for register in sorted(kept.intersection(step.operands)):
                self.emit(f"{register} = {self._unpacked[register]};")
            kept -= {*step.operands, *step.outputs}

    def exchange(self, instruction: Instruction) -> None:
        arg, _ = self.argument(instruction)
        assert isinstance(arg.read, ExchangeAccessor)
        self._await_launch(instruction)
        if self._loads_at is None:
            # what is read later is on its way while the block exchanges
            self._loads_at = len(self.lines)
        assert not self._stored, f"{self.spec.name}: a store comes before an exchange"
        self._num_stages += 1
        values = [self._operand(operand) for operand in instruction.operands]
        sums = arg.read.cuda_exchange(self, arg, values)
        for register, scalar in zip(instruction.outputs, sums, strict=True):
            self.emit(f"{register} = {scalar};")
        self._unpack_again(instruction)

    def store(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.write is not None
        self._await_launch(instruction)
        self._stored = True
        values = [self._operand(operand) for operand in instruction.operands]
        arg.write.cuda_write(self, arg, chunk, values)
