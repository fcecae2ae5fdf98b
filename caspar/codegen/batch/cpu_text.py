"""The text of a kernel that solves one problem a thread, for the processor; see `codegen.cpu`.

A kernel for a warp is for one lane here.
"""

from collections.abc import Sequence

from caspar.codegen.batch.text import PROBLEM, ProblemText
from caspar.codegen.cpu.ops import CAST, OP_TEXT, literal
from caspar.codegen.source import KernelSource, Param
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.ir.program import Instruction

PROBLEMS_OF_TILE = 16
"""Problems that a thread takes at a time."""

_ARRAY = {DType.FLOAT32: "array_float32", DType.FLOAT64: "array_float64"}


class CpuProblemText(ProblemText):
    """Statements in the small part of Python that kernels for the processor are written in."""

    comment = "#"
    block_end = ""

    def let(self, name: str, value: str) -> None:
        """An assignment."""
        self.emit(f"{name} = {value}")

    def variable(self, name: str, dtype: DType, value: str) -> None:
        """An assignment: the first one decides about the type."""
        self.emit(f"{name} = {value if dtype is DType.INT64 else self.cast(value, dtype)}")

    def array(self, name: str, dtype: DType, size: int) -> None:
        """Memory of the call."""
        self.emit(f"{name} = {_ARRAY[dtype]}({size})")

    def set(self, place: str, value: str) -> None:
        """Append another assignment."""
        self.emit(f"{place} = {value}")

    def loop_head(self, name: str, first: str, end: str) -> list[str]:
        """`for` over a `range`."""
        return [f"for {name} in range({first}, {end}):"]

    def repeat_head(self, condition: str) -> list[str]:
        """`while`."""
        return [f"while {condition}:"]

    def branch_head(self, condition: str) -> list[str]:
        """`if`."""
        return [f"if {condition}:"]

    def cast(self, expression: str, dtype: DType) -> str:
        """A call of the type."""
        return f"{'int' if dtype is DType.INT64 else CAST[dtype]}({expression})"

    def number(self, value: float, dtype: DType) -> str:
        """A call of the type, with what Python has no literal for in quotes."""
        return literal(value, dtype)

    def chosen(self, condition: str, if_true: str, if_false: str) -> str:
        """`select`."""
        return f"select({condition}, {if_true}, {if_false})"

    def reciprocal_root(self, expression: str, dtype: DType) -> str:
        """Return the text of 1 / sqrt, as programs write it."""
        return OP_TEXT[Op.RSQRT].format(expression).replace("@one", self.number(1.0, dtype))

    def compute(self, step: Instruction, operands: Sequence[str], dtype: DType) -> list[str]:
        """One assignment for each result."""
        names = [self.name(register) for register in step.outputs]
        if step.op is Op.SINCOS:
            for name, function in zip(names, ("sin", "cos"), strict=True):
                self.let(name, f"{function}({operands[0]})")
            return names
        text = OP_TEXT[step.op].format(*operands).replace("@one", self.number(1.0, dtype))
        self.let(names[0], text)
        return names

    def source(self, name: str, params: Sequence[Param]) -> KernelSource:
        """A loop over the problems of a tile."""
        unpacked = [
            f"{param.name} = table[{number}]"
            if param.dtype is None
            else f"{param.name} = as_{param.dtype.value}(table[{number}])"
            for number, param in enumerate(params)
        ]
        first = f"tile * {PROBLEMS_OF_TILE}"
        end = f"min({first} + {PROBLEMS_OF_TILE}, count)"
        lines = [*unpacked, f"for {PROBLEM} in range({first}, {end}):"]
        lines += [f"    {line}" for line in self.lines]
        text = "".join(f"    {line}\n" for line in lines)
        return KernelSource(
            name, f"def {name}(table, tile):\n{text}", tuple(params), (PROBLEMS_OF_TILE,)
        )
