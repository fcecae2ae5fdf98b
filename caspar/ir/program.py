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
    """One step.

    Attributes:
        op: What is done; never one of `ops.GRAPH_ONLY`.
        outputs: Registers written. An output may be one of the operands' registers.
        operands: Registers or literals read.
        data: READ, STORE and EXCHANGE: (argument name, chunk number).
        origin: Where the step comes from, for comments.
    """

    op: Op
    outputs: tuple[Register, ...]
    operands: tuple[Operand, ...]
    data: CallData = None
    origin: str = field(default="", compare=False)


@dataclass(frozen=True)
class Program:
    """Scheduled straight-line code.

    Attributes:
        instructions: In execution order.
        num_registers: Numbers of `r` registers used: the predicted peak pressure.
        num_predicates: Number of `p` registers used.
        dtype: Floating type of the `r` registers.
    """

    instructions: tuple[Instruction, ...]
    num_registers: int
    num_predicates: int
    dtype: DType
