"""The text of a kernel that solves one problem a thread, in CUDA C."""

from collections.abc import Sequence

from caspar.codegen.batch.text import PROBLEM, ProblemText
from caspar.codegen.cuda.kernel import HALF, kernel_text
from caspar.codegen.cuda.ops import OP_TEXT, SINCOS_TEXT, literal
from caspar.codegen.source import KernelSource, Param
from caspar.ir.dtype import DType
from caspar.ir.ops import OP_INFO, Op
from caspar.ir.program import Instruction
from caspar.memory.accessors.scope import SCALAR_TYPE

BLOCK_SIZES = (128, 64, 32)
"""Threads of a block: few, since a thread takes many registers and problems end at different
times."""

_TYPE = {**SCALAR_TYPE, DType.INT64: "long long"}


class CudaProblemText(ProblemText):
    """Statements in CUDA C."""

    comment = "//"
    block_end = "}"

    def let(self, name: str, value: str) -> None:
        """A constant."""
        self.emit(f"const auto {name} = {value};")

    def variable(self, name: str, dtype: DType, value: str) -> None:
        """A declaration."""
        self.emit(f"{_TYPE[dtype]} {name} = {value};")

    def array(self, name: str, dtype: DType, size: int) -> None:
        """A declaration."""
        # nothing is read before it is written, but compilers do not see that and warn
        self.emit(f"{_TYPE[dtype]} {name}[{size}] = {{}};")

    def set(self, place: str, value: str) -> None:
        """An assignment."""
        self.emit(f"{place} = {value};")

    def count(self, place: str) -> None:
        """An addition that others cannot disturb."""
        self.emit(f"atomicAdd(&{place}, 1);")

    def loop_head(self, name: str, first: str, end: str) -> list[str]:
        """`for`, not unrolled."""
        loop = f"for ({_TYPE[DType.INT64]} {name} = {first}; {name} < {end}; ++{name}) {{"
        return ["#pragma unroll 1", loop]

    def repeat_head(self, condition: str) -> list[str]:
        """`while`, not unrolled."""
        return ["#pragma unroll 1", f"while ({condition}) {{"]

    def branch_head(self, condition: str) -> list[str]:
        """`if`."""
        return [f"if ({condition}) {{"]

    def cast(self, expression: str, dtype: DType) -> str:
        """A cast."""
        return f"(({_TYPE[dtype]})({expression}))"

    def number(self, value: float, dtype: DType) -> str:
        """The nearest literal."""
        return literal(value, dtype)

    def chosen(self, condition: str, if_true: str, if_false: str) -> str:
        """The conditional operator."""
        return f"(({condition}) ? ({if_true}) : ({if_false}))"

    def reciprocal_root(self, expression: str, dtype: DType) -> str:
        """Return the text of 1 / sqrt, as programs write it."""
        return OP_TEXT[dtype][Op.RSQRT].format(f"({expression})")

    def compute(self, step: Instruction, operands: Sequence[str], dtype: DType) -> list[str]:
        """Constants, by the functions of `cuda.ops`."""
        names = [self.name(register) for register in step.outputs]
        scalar = SCALAR_TYPE[dtype]
        if step.op is Op.SINCOS:
            self.emit(f"{scalar} {', '.join(names)};")
            self.emit(SINCOS_TEXT[dtype].format(*operands, *names))
            return names
        template = OP_TEXT[dtype][step.op].replace("<T>", f"<{scalar}>")
        kind = "bool" if OP_INFO[step.op].boolean else scalar
        self.emit(f"const {kind} {names[0]} = {template.format(*operands)};")
        return names

    def source(self, name: str, params: Sequence[Param]) -> KernelSource:
        """The kernel of one thread for each problem."""
        head = [
            f"const {_TYPE[DType.INT64]} {PROBLEM} = blockIdx.x * BLOCK_SIZE + threadIdx.x;",
            f"if ({PROBLEM} >= count) return;",
        ]
        text = self.kernel_text(name, params, BLOCK_SIZES[0], [*head, *self.lines])
        return KernelSource(name, text, tuple(params), BLOCK_SIZES)

    @staticmethod
    def kernel_text(name: str, params: Sequence[Param], block_size: int, body: list[str]) -> str:
        """A complete source, with the functions that widen float16 if a table is kept in it."""
        functions = (HALF,) if any(one.dtype is DType.UINT16 for one in params) else ()
        return kernel_text(
            name, (), tuple(params), block_size, body, functions=functions, restrict=True
        )
