"""Python for Numba from a scheduled program.

A kernel handles one tile of items in a plain loop, so that the runtime can spread tiles over
cores. Each assignment gets a new name: Numba's type inference takes half the time on code that
is already in single-assignment form (measured: 1.2 s against 2.4 s for 1,500 instructions).
"""

from collections.abc import Callable

from caspar.codegen.body import BodyWriter
from caspar.codegen.cpu_ops import CAST, OP_TEXT
from caspar.codegen.source import (
    ADDRESS_KINDS,
    ExtraParams,
    KernelSource,
    Param,
    ParamKind,
    kernel_params,
    reduce_params,
)
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.access import ArgSpec, Read, Write
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import padded_width
from caspar.memory.reduce import ReduceSpec

TILE_SIZE = 1024
"""Items of a tile: enough to amortise the call, few enough to balance small problems."""

_HEADER = """\
import math
import numpy as np
from caspar.runtime.cpu_support import (
    as_float32, as_float64, as_int32, as_int64, as_uint16,
    fma, kernel, max_nan, min_nan, select, sum_partials,
)
"""

_EXTRA_PARAMS: ExtraParams = {
    Read.INDEXED: (ParamKind.INDEX,),
    Write.ADD_SHARED: (ParamKind.SLOT, ParamKind.TILE_START),
    Write.ADD_SUM: (ParamKind.OFFSET,),
}

_POINTER_CAST = {
    ParamKind.INDEX: "as_int32",
    ParamKind.SLOT: "as_uint16",
    ParamKind.TILE_START: "as_int32",
    ParamKind.OBJECT_START: "as_int32",
    ParamKind.OBJECT_PARTIALS: "as_int32",
}


def generate_cpu(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the Numba kernel of a program.

    Args:
        spec: Name, arguments and guard.
        program: What an item computes.

    Returns:
        The source of a Python module that defines the kernel.
    """
    params = kernel_params(spec.args, _EXTRA_PARAMS)
    writer = _Writer(spec, program)
    body = writer.write()
    text = _module_text(spec.name, spec.args, params, writer.constants(), body)
    return KernelSource(spec.name, text, params, TILE_SIZE, num_registers=program.num_registers)


def generate_cpu_reduce(spec: ReduceSpec) -> KernelSource:
    """Write the kernel that sums the partials of each object in order."""
    args = (ArgSpec("partials", spec.dim, spec.dtype), spec.output)
    params = reduce_params()
    text = _module_text(spec.name, args, params, [], _reduce_body(spec))
    return KernelSource(spec.name, text, params, TILE_SIZE)


def _reduce_body(spec: ReduceSpec) -> list[str]:
    output = spec.output
    zero = f"{CAST[spec.dtype]}(0.0)"
    lines = ["for item in range(first, last):"]
    for column in range(spec.dim):
        chunk = column // 4
        width = spec.partial_chunk_widths[chunk]
        lines += [
            f"    total = {zero}",
            "    for entry in range(partials_object_start[item], partials_object_start[item + 1]):",
            f"        total += partials_data[{4 * chunk} * partials_length"
            f" + {width} * partials_object_partials[entry] + {column % 4}]",
        ]
        own, lane = divmod(column, output.chunk_length)
        target = f"output_data[{_scalar_index(output, own, 'item')} + {lane}]"
        previous = f"{target} + " if spec.accumulate else ""
        lines.append(f"    {target} = {previous}total")
    return lines


def _scalar_index(arg: ArgSpec, chunk: int, item: str) -> str:
    offset = chunk * arg.chunk_length
    width = arg.chunk_widths[chunk]
    padded = width if arg.holds_partials else padded_width(width)
    return f"{offset} * {arg.name}_length + {padded} * {item}"


def _module_text(
    name: str,
    args: tuple[ArgSpec, ...],
    params: tuple[Param, ...],
    constants: list[str],
    body: list[str],
) -> str:
    specs = {arg.name: arg for arg in args}
    lines = [_unpack(number, param, specs) for number, param in enumerate(params)]
    lines += [f"first = tile * {TILE_SIZE}", f"last = min(first + {TILE_SIZE}, count)", *body]
    text = "\n".join(f"    {line}" for line in lines)
    declared = "".join(f"{constant}\n" for constant in constants)
    signature = f"@kernel\ndef {name}(args, tile):\n    table = as_int64(args)\n"
    return f"{_HEADER}\n{declared}\n{signature}{text}\n"


def _unpack(number: int, param: Param, specs: dict[str, ArgSpec]) -> str:
    name = f"{param.arg}_{param.kind.value}" if param.arg else param.kind.value
    if param.kind not in ADDRESS_KINDS:
        return f"{name} = table[{number}]"
    if param.kind is ParamKind.DATA:
        return f"{name} = as_{specs[param.arg].dtype.value}(table[{number}])"
    return f"{name} = {_POINTER_CAST[param.kind]}(table[{number}])"


class _Writer(BodyWriter):
    """Writes the lines of one kernel body, instruction by instruction."""

    comment = "#"

    def __init__(self, spec: KernelSpec, program: Program) -> None:
        super().__init__(spec, program)
        self._dtype = program.dtype
        self._names: dict[str, str] = {}
        self._num_names = 0
        self._constants: dict[str, str] = {}

    def constants(self) -> list[str]:
        """Definitions of the literals the body names."""
        return [f"{name} = {value}" for value, name in self._constants.items()]

    def write(self) -> list[str]:
        before = self._before_loop()
        self.lines = []
        self.write_instructions()
        objects = [
            f"{arg.name}_object = {arg.name}_index[item]"
            for arg in self.spec.args
            if arg.read is Read.INDEXED
        ]
        inner = [f"    {line}" for line in (*objects, *self.lines)]
        loop = ["for item in range(first, last):", *inner]
        return [*before, *loop, *self._after_loop()]

    def _before_loop(self) -> list[str]:
        lines = []
        if self.spec.guard is not None:
            lines += [f"if {self.spec.guard}_data[0] != 0:", "    return"]
        for arg in self.spec.args:
            if arg.write is Write.ADD_SHARED:
                lines += self._zero_partials(arg)
            elif arg.write is Write.ADD_SUM:
                zero = f"{CAST[arg.dtype]}(0.0)"
                lines += [f"{arg.name}_total{column} = {zero}" for column in range(arg.dim)]
        return lines

    def _zero_partials(self, arg: ArgSpec) -> list[str]:
        lines = [
            f"{arg.name}_first = {arg.name}_tile_start[tile]",
            f"{arg.name}_last = {arg.name}_tile_start[tile + 1]",
        ]
        for chunk, width in enumerate(arg.chunk_widths):
            start = f"{chunk * arg.chunk_length} * {arg.name}_length"
            lines += [
                f"for scalar in range({start} + {width} * {arg.name}_first, "
                f"{start} + {width} * {arg.name}_last):",
                f"    {arg.name}_data[scalar] = 0.0",
            ]
        return lines

    def _after_loop(self) -> list[str]:
        lines = []
        for arg in self.spec.args:
            if arg.write is Write.ADD_SUM:
                for column in range(arg.dim):
                    chunk, lane = divmod(column, arg.chunk_length)
                    index = _scalar_index(arg, chunk, f"({arg.name}_offset + tile)")
                    lines.append(f"{arg.name}_data[{index} + {lane}] = {arg.name}_total{column}")
        return lines

    # -- arithmetic ----------------------------------------------------------------------------

    def _operand(self, operand: Operand) -> str:
        return self._names[operand] if isinstance(operand, str) else self._literal(operand)

    def _literal(self, number: float) -> str:
        value = f"{CAST[self._dtype]}({_python_literal(number)})"
        return self._constants.setdefault(value, f"K{len(self._constants)}")

    def _name(self, register: str) -> str:
        self._num_names += 1
        self._names[register] = f"{register}_{self._num_names}"
        return self._names[register]

    def compute(self, instruction: Instruction) -> None:
        operands = [self._operand(operand) for operand in instruction.operands]
        if instruction.op is Op.SINCOS:
            sine, cosine = (self._name(register) for register in instruction.outputs)
            self.lines += [
                f"{sine} = math.sin({operands[0]})",
                f"{cosine} = math.cos({operands[0]})",
            ]
            return
        text = OP_TEXT[instruction.op].format(*operands)
        if "@one" in text:
            text = text.replace("@one", self._literal(1.0))
        self.lines.append(f"{self._name(instruction.outputs[0])} = {text}")

    # -- memory --------------------------------------------------------------------------------

    def _base(self, arg: ArgSpec, chunk: int) -> str:
        self._num_names += 1
        base = f"at_{self._num_names}"
        if arg.read is Read.ROWS or arg.write is Write.ROWS:
            index = f"{arg.dim} * item + {chunk * arg.chunk_length}"
        else:
            index = _scalar_index(arg, chunk, self.object_of(arg))
        self.lines.append(f"{base} = {index}")
        return base

    def read(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        if arg.read is Read.SUM:
            self._read_sum(arg, chunk, instruction.outputs)
            return
        base = self._base(arg, chunk)
        for lane, register in enumerate(instruction.outputs):
            scalar = f"{arg.name}_data[{base} + {lane}]"
            self.lines.append(f"{self._name(register)} = {self._cast(scalar, arg.dtype)}")

    def _read_sum(self, arg: ArgSpec, chunk: int, outputs: tuple[str, ...]) -> None:
        width = arg.chunk_widths[chunk]
        for lane, register in enumerate(outputs):
            start = f"{chunk * arg.chunk_length} * {arg.name}_length + {lane}"
            total = f"sum_partials({arg.name}_data, {start}, {width}, {arg.name}_length)"
            self.lines.append(f"{self._name(register)} = {self._cast(total, DType.FLOAT64)}")

    def _cast(self, scalar: str, dtype: DType) -> str:
        return scalar if dtype is self._dtype else f"{CAST[self._dtype]}({scalar})"

    def store(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.write is not None
        values = [self._operand(operand) for operand in instruction.operands]
        if arg.dtype is not self._dtype:
            values = [f"{CAST[arg.dtype]}({value})" for value in values]
        lower: dict[Write, Callable[[ArgSpec, int, list[str]], None]] = {
            Write.SEQUENTIAL: self._store_object,
            Write.UNIQUE: self._store_object,
            Write.ROWS: self._store_object,
            Write.ADD_SHARED: self._add_shared,
            Write.ADD_SUM: self._add_sum,
        }
        lower[arg.write](arg, chunk, values)

    def _store_object(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        base = self._base(arg, chunk)
        for lane, value in enumerate(values):
            self.lines.append(f"{arg.name}_data[{base} + {lane}] = {value}")

    def _add_shared(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        self._num_names += 1
        base = f"at_{self._num_names}"
        partial = f"({arg.name}_first + {arg.name}_slot[item])"
        self.lines.append(f"{base} = {_scalar_index(arg, chunk, partial)}")
        for lane, value in enumerate(values):
            self.lines.append(f"{arg.name}_data[{base} + {lane}] += {value}")

    def _add_sum(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        for lane, value in enumerate(values):
            total = f"{arg.name}_total{chunk * arg.chunk_length + lane}"
            self.lines.append(f"{total} += {value}")


def _python_literal(number: float) -> str:
    text = repr(number)
    return f'"{text}"' if text in ("inf", "-inf", "nan") else text
