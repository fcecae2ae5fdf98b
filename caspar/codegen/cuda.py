"""CUDA C from a scheduled program.

One thread handles one item, one block one tile. Threads beyond the last item repeat it, so that
no barrier diverges: they store nothing and contribute exact zeros.
"""

from collections.abc import Callable

from caspar.codegen.body import BodyWriter
from caspar.codegen.cuda_header import BLOCK_SIZE, HEADER, STAGE_PADDING, SUM_BLOCK_SIZE
from caspar.codegen.cuda_ops import OP_TEXT, SCALAR_TYPE, SINCOS_TEXT, VECTOR_TYPE, literal
from caspar.codegen.source import (
    ADDRESS_KINDS,
    ExtraParams,
    KernelSource,
    Param,
    ParamKind,
    kernel_params,
)
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.access import ArgSpec, Read, Write
from caspar.memory.kernel import KernelSpec
from caspar.memory.layout import padded_width

_LANES = "xyzw"

_EXTRA_PARAMS: ExtraParams = {
    Read.INDEXED: (ParamKind.INDEX,),
    Write.ADD_SHARED: (ParamKind.POSITION, ParamKind.TILE_START, ParamKind.SEGMENT_END),
    Write.ADD_SUM: (ParamKind.OFFSET,),
}

_BY_ITEM = {
    Read.SEQUENTIAL,
    Read.INDEXED,
    Read.ROWS,
    Write.SEQUENTIAL,
    Write.ROWS,
    Write.ADD_SHARED,
}
"""Accesses that name their place by the item."""

_POINTER_TYPE = {
    ParamKind.INDEX: "const int*",
    ParamKind.POSITION: "const u16*",
    ParamKind.TILE_START: "const int*",
    ParamKind.SEGMENT_END: "const u16*",
    ParamKind.OBJECT_START: "const int*",
    ParamKind.OBJECT_PARTIALS: "const int*",
}


def generate_cuda(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the CUDA kernel of a program.

    Args:
        spec: Name, arguments and guard.
        program: What an item computes.

    Returns:
        The source for NVRTC; the text depends on the arguments and on nothing else.
    """
    params = kernel_params(spec.args, _EXTRA_PARAMS)
    body = _Writer(spec, program).write()
    block_size = SUM_BLOCK_SIZE if _sums_partials(spec) else BLOCK_SIZE
    text = kernel_text(spec.name, spec.args, params, block_size, body)
    return KernelSource(spec.name, text, params, block_size, num_registers=program.num_registers)


def kernel_text(
    name: str,
    args: tuple[ArgSpec, ...],
    params: tuple[Param, ...],
    block_size: int,
    body: list[str],
) -> str:
    """A complete source: header, signature and body."""
    specs = {arg.name: arg for arg in args}
    declared = ",\n    ".join(_declare(param, specs) for param in params)
    lines = "\n".join(f"  {line}" for line in body)
    return (
        f'{HEADER}\nextern "C" __global__ void __launch_bounds__({block_size} MIN_BLOCKS)\n'
        f"{name}(\n    {declared}) {{\n{lines}\n}}\n"
    )


def param_name(param: Param) -> str:
    """Name of a parameter in the source."""
    return f"{param.arg}_{param.kind.value}" if param.arg else param.kind.value


def _declare(param: Param, specs: dict[str, ArgSpec]) -> str:
    if param.kind not in ADDRESS_KINDS:
        kind = "u32"
    elif param.kind is ParamKind.DATA:
        arg = specs[param.arg]
        const = "const " if arg.write is None else ""
        kind = f"{const}{SCALAR_TYPE[arg.dtype]}*"
    else:
        kind = _POINTER_TYPE[param.kind]
    return f"{kind} {param_name(param)}"


def _sums_partials(spec: KernelSpec) -> bool:
    return any(arg.read is Read.SUM for arg in spec.args)


class _Writer(BodyWriter):
    """Writes the lines of one kernel body, instruction by instruction."""

    comment = "//"

    def __init__(self, spec: KernelSpec, program: Program) -> None:
        super().__init__(spec, program)
        self._dtype = program.dtype
        self._scalar = SCALAR_TYPE[program.dtype]
        self._num_temporaries = 0
        self._num_stagings = 0
        self._num_sums = 0

    def write(self) -> list[str]:
        self._prologue()
        self.write_instructions()
        return self.lines

    def _prologue(self) -> None:
        spec, program = self.spec, self.program
        if spec.guard is not None:
            self.lines.append(f"if ({spec.guard}_data[0] != 0) return;")
        self.lines += [
            "const u32 tile = blockIdx.x;",
            "const u32 own_item = tile * blockDim.x + threadIdx.x;",
            "const bool active = own_item < count;",
        ]
        if any({arg.read, arg.write} & _BY_ITEM for arg in spec.args):
            self.lines.append("const u32 item = active ? own_item : count - 1u;")
        for arg in spec.args:
            if arg.read is Read.INDEXED:
                self.lines.append(f"const u32 {arg.name}_object = {arg.name}_index[item];")
        if any(arg.write is Write.ADD_SHARED for arg in spec.args):
            columns = BLOCK_SIZE + STAGE_PADDING
            self.lines.append(f"__shared__ {self._scalar} stage[2][4][{columns}];")
        if any(arg.write is Write.ADD_SUM or arg.read is Read.SUM for arg in spec.args):
            self.lines.append("__shared__ double sums[2][4][32];")
        if program.num_registers > 0:
            names = ", ".join(f"r{number}" for number in range(program.num_registers))
            self.lines.append(f"{self._scalar} {names};")
        if program.num_predicates > 0:
            names = ", ".join(f"p{number}" for number in range(program.num_predicates))
            self.lines.append(f"bool {names};")

    # -- arithmetic ----------------------------------------------------------------------------

    def _operand(self, operand: Operand) -> str:
        return operand if isinstance(operand, str) else literal(operand, self._dtype)

    def compute(self, instruction: Instruction) -> None:
        operands = [self._operand(operand) for operand in instruction.operands]
        if instruction.op is Op.SINCOS:
            call = SINCOS_TEXT[self._dtype].format(*operands, *instruction.outputs)
            self.lines.append(call)
            return
        template = OP_TEXT[self._dtype][instruction.op].replace("<T>", f"<{self._scalar}>")
        self.lines.append(f"{instruction.outputs[0]} = {template.format(*operands)};")

    # -- reads ---------------------------------------------------------------------------------

    def read(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.read is not None
        lower: dict[Read, Callable[[ArgSpec, int, tuple[str, ...]], None]] = {
            Read.SEQUENTIAL: self._read_object,
            Read.INDEXED: self._read_object,
            Read.UNIQUE: self._read_object,
            Read.ROWS: self._read_rows,
            Read.SUM: self._read_sum,
        }
        lower[arg.read](arg, chunk, instruction.outputs)

    def _chunk_address(self, arg: ArgSpec, chunk: int) -> str:
        offset = chunk * arg.chunk_length
        width = padded_width(arg.chunk_widths[chunk])
        start = f"{offset}ull * {arg.name}_length + " if offset > 0 else ""
        return f"{arg.name}_data + {start}{width}ull * {self.object_of(arg)}"

    def _read_object(self, arg: ArgSpec, chunk: int, outputs: tuple[str, ...]) -> None:
        width = arg.chunk_widths[chunk]
        vector = VECTOR_TYPE[arg.dtype, width]
        loaded = self._temporary()
        address = self._chunk_address(arg, chunk)
        self.lines.append(
            f"const {vector} {loaded} = *reinterpret_cast<const {vector}*>({address});"
        )
        for lane, register in enumerate(outputs):
            scalar = loaded if width == 1 else f"{loaded}.{_LANES[lane]}"
            self._assign(register, scalar, arg.dtype)

    def _read_rows(self, arg: ArgSpec, chunk: int, outputs: tuple[str, ...]) -> None:
        for lane, register in enumerate(outputs):
            column = chunk * arg.chunk_length + lane
            self._assign(register, f"{arg.name}_data[{arg.dim}ull * item + {column}u]", arg.dtype)

    def _read_sum(self, arg: ArgSpec, chunk: int, outputs: tuple[str, ...]) -> None:
        width = arg.chunk_widths[chunk]
        total = self._temporary()
        offset = chunk * arg.chunk_length
        start = f" + {offset}ull * {arg.name}_length" if offset > 0 else ""
        self.lines += [
            f"double {total}[{width}];",
            f"sum_partials<{width}>({arg.name}_data{start}, {arg.name}_length, {total}, sums[0]);",
        ]
        for lane, register in enumerate(outputs):
            self._assign(register, f"{total}[{lane}]", DType.FLOAT64)

    def _assign(self, register: str, scalar: str, dtype: DType) -> None:
        value = scalar if dtype is self._dtype else f"{self._scalar}({scalar})"
        self.lines.append(f"{register} = {value};")

    def _temporary(self) -> str:
        self._num_temporaries += 1
        return f"m{self._num_temporaries}"

    # -- stores --------------------------------------------------------------------------------

    def store(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.write is not None
        values = [self._operand(operand) for operand in instruction.operands]
        lower: dict[Write, Callable[[ArgSpec, int, list[str]], None]] = {
            Write.SEQUENTIAL: self._store_object,
            Write.UNIQUE: self._store_object,
            Write.ROWS: self._store_rows,
            Write.ADD_SHARED: self._add_shared,
            Write.ADD_SUM: self._add_sum,
        }
        lower[arg.write](arg, chunk, values)

    def _converted(self, values: list[str], dtype: DType) -> list[str]:
        if dtype is self._dtype:
            return values
        return [f"{SCALAR_TYPE[dtype]}({value})" for value in values]

    def _store_object(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        width = arg.chunk_widths[chunk]
        vector = VECTOR_TYPE[arg.dtype, width]
        scalars = self._converted(values, arg.dtype)
        scalars += [literal(0.0, arg.dtype)] * (padded_width(width) - width)
        packed = scalars[0] if width == 1 else f"make_{vector}({', '.join(scalars)})"
        address = self._chunk_address(arg, chunk)
        self.lines.append(f"if (active) *reinterpret_cast<{vector}*>({address}) = {packed};")

    def _store_rows(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        for lane, value in enumerate(self._converted(values, arg.dtype)):
            column = chunk * arg.chunk_length + lane
            self.lines.append(
                f"if (active) {arg.name}_data[{arg.dim}ull * item + {column}u] = {value};"
            )

    def _partials(self, arg: ArgSpec, chunk: int) -> str:
        offset = chunk * arg.chunk_length
        return f"{arg.name}_data" + (f" + {offset}ull * {arg.name}_length" if offset else "")

    def _add_shared(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        # two staging arrays in turn: one barrier a chunk is enough
        stage = f"stage[{self._num_stagings % 2}]"
        self._num_stagings += 1
        staged = " ".join(
            f"{stage}[{row}][{arg.name}_position[item]] = {value};"
            for row, value in enumerate(values)
        )
        self.lines += [
            f"if (active) {{ {staged} }}",
            "__syncthreads();",
            f"add_segments<{len(values)}>({self._partials(arg, chunk)}, {stage}, "
            f"{arg.name}_tile_start[tile], {arg.name}_tile_start[tile + 1], "
            f"{arg.name}_segment_end);",
        ]

    def _add_sum(self, arg: ArgSpec, chunk: int, values: list[str]) -> None:
        stage = f"sums[{self._num_sums % 2}]"
        self._num_sums += 1
        total = self._temporary()
        width = len(values)
        items = ", ".join(f"active ? double({value}) : 0.0" for value in values)
        self.lines += [
            f"double {total}[{width}] = {{{items}}};",
            f"block_sum<{width}>({total}, {stage});",
            f"if (threadIdx.x < {width}u) ({self._partials(arg, chunk)})"
            f"[{width}ull * ({arg.name}_offset + tile) + threadIdx.x] = {total}[0];",
        ]
