"""CUDA C from a scheduled program.

One thread handles one item, one block one tile. Threads beyond the last item repeat it, so that
no barrier diverges: they store nothing and contribute exact zeros.
"""

import re
from collections.abc import Mapping

from caspar.codegen.body import BodyWriter
from caspar.codegen.cuda_header import BLOCK_SIZES, HEADER
from caspar.codegen.cuda_ops import OP_TEXT, SINCOS_TEXT, literal
from caspar.codegen.source import KernelSource, Param, kernel_params
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.program import Instruction, Operand, Program
from caspar.memory.access import ArgSpec
from caspar.memory.accessors.scope import SCALAR_TYPE, converted
from caspar.memory.kernel import KernelSpec


def generate_cuda(spec: KernelSpec, program: Program) -> KernelSource:
    """Write the CUDA kernel of a program.

    Args:
        spec: Name, arguments and guard.
        program: What an item computes.

    Returns:
        The source for NVRTC; the text depends on the arguments and on nothing else.
    """
    params = kernel_params(spec.args)
    body = _Writer(spec, program).write()
    smallest = max((access.min_block_size for access in spec.accessors), default=1)
    sizes = tuple(size for size in BLOCK_SIZES if size % smallest == 0)
    text = kernel_text(spec.name, spec.args, params, sizes[0], body)
    return KernelSource(spec.name, text, params, sizes, num_registers=program.num_registers)


def kernel_text(
    name: str,
    args: tuple[ArgSpec, ...],
    params: tuple[Param, ...],
    block_size: int,
    body: list[str],
) -> str:
    """A complete source: header, device functions, signature and body."""
    declared = ",\n    ".join(_declare(param) for param in params)
    functions = dict.fromkeys(
        access.cuda_functions for arg in args for access in arg.accessors if access.cuda_functions
    )
    header = "\n".join((HEADER, *functions))
    lines = "\n".join(f"  {line}" for line in body)
    return (
        f"{header}\n#undef BLOCK_SIZE\n#ifdef CHOSEN_BLOCK_SIZE\n#define BLOCK_SIZE CHOSEN_BLOCK_SIZE\n#else\n"
        f"#define BLOCK_SIZE {block_size}\n#endif\n"
        f"{KERNEL_START} void __launch_bounds__(BLOCK_SIZE MIN_BLOCKS)\n"
        f"{name}(\n    {declared}) {{\n{lines}\n}}\n"
    )


def _declare(param: Param) -> str:
    if param.dtype is None:
        return f"{'u32' if param.is_unsigned else 'int'} {param.name}"
    const = "" if param.written else "const "
    return f"{const}{SCALAR_TYPE[param.dtype]}* {param.name}"


KERNEL_START = 'extern "C" __global__'
"""Where a source's own text begins, after the functions that kernels have in common."""

_PLACE = {
    "tile": "const u32 tile = blockIdx.x;",
    "own_item": "const u32 own_item = tile * BLOCK_SIZE + threadIdx.x;",
    "active": "const bool active = own_item < count;",
    "item": "const u32 item = active ? own_item : count - 1u;",
}
"""What every body may name, each with the names before it."""


def _used(definitions: Mapping[str, str], text: str) -> list[str]:
    """Those of the definitions that the text, or a later one of them, names."""
    lines: list[str] = []
    for name, line in reversed(list(definitions.items())):
        if re.search(rf"\b{name}\b", text) is not None:
            lines.insert(0, line)
            text += line
    return lines


class _Writer(BodyWriter):
    """Writes the lines of one kernel body, instruction by instruction."""

    comment = "//"

    def __init__(self, spec: KernelSpec, program: Program) -> None:
        super().__init__(spec, program)
        self._scalar = SCALAR_TYPE[program.dtype]
        self._num_temporaries = 0
        self._num_uses: dict[str, int] = {}
        self._shared: dict[str, str] = {}

    def write(self) -> list[str]:
        for arg in self.spec.args:
            for access in arg.accessors:
                access.cuda_before(self, arg)
        self.write_instructions()
        for arg in self.spec.args:
            for access in arg.accessors:
                access.cuda_after(self, arg)
        return [*self._prologue(), *self.lines]

    def _prologue(self) -> list[str]:
        spec, program = self.spec, self.program
        lines = []
        if spec.guard is not None:
            lines.append(f"if ({spec.guard}_data[0] != 0) return;")
        lines += _used(_PLACE, "\n".join(self.lines))
        lines += [f"__shared__ {declaration};" for declaration in self._shared.values()]
        for kind, prefix, number in (
            (self._scalar, "r", program.num_registers),
            ("bool", "p", program.num_predicates),
        ):
            if number > 0:
                names = ", ".join(f"{prefix}{register}" for register in range(number))
                lines.append(f"{kind} {names};")
        return lines

    # -- what accesses ask for: see memory.accessors.scope.CudaScope ---------------------------

    def temporary(self) -> str:
        self._num_temporaries += 1
        return f"m{self._num_temporaries}"

    def shared(self, name: str, declaration: str) -> None:
        assert self._shared.setdefault(name, declaration) == declaration

    def alternate(self, name: str) -> str:
        number = self._num_uses.get(name, 0)
        self._num_uses[name] = number + 1
        return f"{name}[{number % 2}]"

    def literal(self, number: float, dtype: DType) -> str:
        return literal(number, dtype)

    # -- arithmetic ----------------------------------------------------------------------------

    def _operand(self, operand: Operand) -> str:
        return operand if isinstance(operand, str) else literal(operand, self.dtype)

    def compute(self, instruction: Instruction) -> None:
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
        scalars = arg.read.cuda_read(self, arg, chunk)
        dtype = arg.read.value_dtype(arg)
        for register, scalar in zip(instruction.outputs, scalars, strict=True):
            self.emit(f"{register} = {converted(scalar, dtype, self.dtype)};")

    def store(self, instruction: Instruction) -> None:
        arg, chunk = self.argument(instruction)
        assert arg.write is not None
        values = [self._operand(operand) for operand in instruction.operands]
        arg.write.cuda_write(self, arg, chunk, values)
