"""The program: a graph after scheduling and register assignment.

Straight-line code of one thread. Reductions have become binary steps, literals are immediate
operands, every other operand is a register. Registers `r0, r1, ...` hold numbers of the program's
dtype, `p0, p1, ...` hold truth values.
"""

from dataclasses import dataclass, field

from caspar.ir.dtype import DType
from caspar.ir.graph import CallData
from caspar.ir.ops import Op

Register = str
Operand = Register | float


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step; never one of `ops.GRAPH_ONLY`.

    An output may be one of the operands' registers. `data` of READ, STORE and EXCHANGE is (argument
    name, chunk number); `origin` is for comments.
    """

    op: Op
    outputs: tuple[Register, ...]
    operands: tuple[Operand, ...]
    data: CallData = None
    origin: str = field(default="", compare=False)


@dataclass(frozen=True)
class Program:
    """Scheduled straight-line code: instructions in execution order, and numbers of registers.

    `num_registers` of `r` registers, which have the dtype, is the predicted peak pressure;
    `num_predicates` are `p` registers.
    """

    instructions: tuple[Instruction, ...]
    num_registers: int
    num_predicates: int
    dtype: DType
