"""The operations of the expression graph and their properties.

An op says how many operands and outputs it has and how it behaves; how it is spelt in CUDA or
Python is the business of `codegen`, its price the business of the target (`passes.cost`).
"""

from dataclasses import dataclass
from enum import Enum, auto


class Op(Enum):
    """Everything a call can do."""

    # That of Enum is written in Python, and takes longer than all else of looking up an op.
    __hash__ = object.__hash__

    # Leaves and memory. READ: data = (argument, chunk). STORE: the same, with the values as
    # operands; whether it writes or accumulates is a property of the argument's access.
    # EXCHANGE: the same, but values of other items of one object come back, such as their sums.
    # GATHER: data = TableEntry, one number of a table, by places that the operands count.
    CONST = auto()
    READ = auto()
    STORE = auto()
    EXCHANGE = auto()
    GATHER = auto()
    # n-ary reductions: stay n-ary until scheduling
    SUM = auto()
    PROD = auto()
    # binary steps of a reduction: in programs only, a graph keeps SUM and PROD
    ADD = auto()
    SUB = auto()
    MUL = auto()
    NMUL = auto()
    FMA = auto()
    FNMA = auto()
    # arithmetic
    NEG = auto()
    DIV = auto()
    RCP = auto()
    POW = auto()
    SQRT = auto()
    RSQRT = auto()
    CBRT = auto()
    RCBRT = auto()
    # Lengths of vectors of 2, 3 and 4, and their reciprocals. LDEXP(x, k) = x * 2^k, k a literal.
    NORM2 = auto()
    NORM3 = auto()
    NORM4 = auto()
    RNORM2 = auto()
    RNORM3 = auto()
    RNORM4 = auto()
    LDEXP = auto()
    # transcendental
    EXP = auto()
    LOG = auto()
    SIN = auto()
    COS = auto()
    SINCOS = auto()
    TAN = auto()
    ASIN = auto()
    ACOS = auto()
    ATAN = auto()
    ATAN2 = auto()
    SINH = auto()
    COSH = auto()
    TANH = auto()
    ASINH = auto()
    ACOSH = auto()
    ATANH = auto()
    ERF = auto()
    ERFC = auto()
    # piecewise
    ABS = auto()
    SIGN = auto()
    COPYSIGN = auto()
    FLOOR = auto()
    MIN = auto()
    MAX = auto()
    LT = auto()
    LE = auto()
    EQ = auto()
    NE = auto()
    AND = auto()
    OR = auto()
    NOT = auto()
    SELECT = auto()


@dataclass(frozen=True)
class OpInfo:
    """Properties of an op.

    Attributes:
        arity: Number of operands; None where it varies.
        num_outputs: Number of values produced; None where it varies (READ, EXCHANGE).
        commutative: Operand order is immaterial; the builder sorts operands.
        associative: An n-ary reduction that the scheduler may contribute to in any order.
        boolean: The output is a truth value.
        effect: The call changes memory and is never dead.
    """

    arity: int | None
    num_outputs: int | None = 1
    commutative: bool = False
    associative: bool = False
    boolean: bool = False
    effect: bool = False


_UNARY = OpInfo(1)
_BINARY = OpInfo(2)
_COMPARISON = OpInfo(2, boolean=True)

OP_INFO: dict[Op, OpInfo] = {
    Op.CONST: OpInfo(0),
    Op.READ: OpInfo(0, num_outputs=None),
    Op.STORE: OpInfo(None, num_outputs=0, effect=True),
    Op.EXCHANGE: OpInfo(None, num_outputs=None),
    Op.GATHER: OpInfo(None),
    Op.SUM: OpInfo(None, commutative=True, associative=True),
    Op.PROD: OpInfo(None, commutative=True, associative=True),
    Op.ADD: _BINARY,
    Op.SUB: _BINARY,
    Op.MUL: _BINARY,
    Op.NMUL: _BINARY,
    Op.FMA: OpInfo(3),
    Op.FNMA: OpInfo(3),
    Op.NEG: _UNARY,
    Op.DIV: _BINARY,
    Op.RCP: _UNARY,
    Op.POW: _BINARY,
    Op.SQRT: _UNARY,
    Op.RSQRT: _UNARY,
    Op.CBRT: _UNARY,
    Op.RCBRT: _UNARY,
    Op.NORM2: OpInfo(2, commutative=True),
    Op.NORM3: OpInfo(3, commutative=True),
    Op.NORM4: OpInfo(4, commutative=True),
    Op.RNORM2: OpInfo(2, commutative=True),
    Op.RNORM3: OpInfo(3, commutative=True),
    Op.RNORM4: OpInfo(4, commutative=True),
    Op.LDEXP: _BINARY,
    Op.EXP: _UNARY,
    Op.LOG: _UNARY,
    Op.SIN: _UNARY,
    Op.COS: _UNARY,
    Op.SINCOS: OpInfo(1, num_outputs=2),
    Op.TAN: _UNARY,
    Op.ASIN: _UNARY,
    Op.ACOS: _UNARY,
    Op.ATAN: _UNARY,
    Op.ATAN2: _BINARY,
    Op.SINH: _UNARY,
    Op.COSH: _UNARY,
    Op.TANH: _UNARY,
    Op.ASINH: _UNARY,
    Op.ACOSH: _UNARY,
    Op.ATANH: _UNARY,
    Op.ERF: _UNARY,
    Op.ERFC: _UNARY,
    Op.ABS: _UNARY,
    Op.SIGN: _UNARY,
    Op.COPYSIGN: _BINARY,
    Op.FLOOR: _UNARY,
    Op.MIN: OpInfo(2, commutative=True),
    Op.MAX: OpInfo(2, commutative=True),
    Op.LT: _COMPARISON,
    Op.LE: _COMPARISON,
    Op.EQ: OpInfo(2, commutative=True, boolean=True),
    Op.NE: OpInfo(2, commutative=True, boolean=True),
    Op.AND: OpInfo(2, commutative=True, boolean=True),
    Op.OR: OpInfo(2, commutative=True, boolean=True),
    Op.NOT: OpInfo(1, boolean=True),
    Op.SELECT: OpInfo(3),
}

PROGRAM_ONLY: frozenset[Op] = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NMUL, Op.FMA, Op.FNMA})
"""Ops that scheduling introduces. NMUL(a, b) = -a*b, FMA(a, b, c) = a*b + c, FNMA(a, b, c) =
c - a*b: hardware takes the sign of an operand for nothing."""

MEMORY_OPS: frozenset[Op] = frozenset({Op.READ, Op.STORE, Op.EXCHANGE})
"""Ops whose data is (argument, chunk)."""

GRAPH_ONLY: frozenset[Op] = frozenset({Op.CONST, Op.SUM, Op.PROD})
"""Ops that scheduling removes: reductions become steps, constants become immediate operands."""
