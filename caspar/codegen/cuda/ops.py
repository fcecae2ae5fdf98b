"""Text of each op in CUDA C, by floating type."""

import math

import numpy as np

from caspar.codegen.lines import Language
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from caspar.memory.accessors.scope import SCALAR_TYPE

_SAME_IN_BOTH: dict[Op, str] = {
    Op.ADD: "{0} + {1}",
    Op.SUB: "{0} - {1}",
    Op.MUL: "{0} * {1}",
    Op.NMUL: "-{0} * {1}",
    Op.NEG: "-{0}",
    Op.DIV: "{0} / {1}",
    Op.MIN: "min_nan<T>({0}, {1})",
    Op.MAX: "max_nan<T>({0}, {1})",
    Op.SIGN: "sign_of<T>({0})",
    Op.LT: "{0} < {1}",
    Op.LE: "{0} <= {1}",
    Op.EQ: "{0} == {1}",
    Op.NE: "{0} != {1}",
    Op.AND: "{0} && {1}",
    Op.OR: "{0} || {1}",
    Op.NOT: "!{0}",
    Op.SELECT: "{0} ? {1} : {2}",
}

_LIBRARY: dict[Op, str] = {
    Op.FMA: "fma@({0}, {1}, {2})",
    Op.FNMA: "fma@(-({0}), {1}, {2})",
    Op.POW: "pow@({0}, {1})",
    Op.SQRT: "sqrt@({0})",
    Op.RSQRT: "rsqrt@({0})",
    Op.CBRT: "cbrt@({0})",
    Op.RCBRT: "rcbrt@({0})",
    Op.NORM2: "hypot@({0}, {1})",
    Op.NORM3: "norm3d@({0}, {1}, {2})",
    Op.NORM4: "norm4d@({0}, {1}, {2}, {3})",
    Op.RNORM2: "rhypot@({0}, {1})",
    Op.RNORM3: "rnorm3d@({0}, {1}, {2})",
    Op.RNORM4: "rnorm4d@({0}, {1}, {2}, {3})",
    Op.LDEXP: "ldexp@({0}, int({1}))",
    Op.EXP: "exp@({0})",
    Op.LOG: "log@({0})",
    Op.SIN: "sin@({0})",
    Op.COS: "cos@({0})",
    Op.TAN: "tan@({0})",
    Op.ASIN: "asin@({0})",
    Op.ACOS: "acos@({0})",
    Op.ATAN: "atan@({0})",
    Op.ATAN2: "atan2@({0}, {1})",
    Op.SINH: "sinh@({0})",
    Op.COSH: "cosh@({0})",
    Op.TANH: "tanh@({0})",
    Op.ASINH: "asinh@({0})",
    Op.ACOSH: "acosh@({0})",
    Op.ATANH: "atanh@({0})",
    Op.ERF: "erf@({0})",
    Op.ERFC: "erfc@({0})",
    Op.ABS: "fabs@({0})",
    Op.COPYSIGN: "copysign@({0}, {1})",
    Op.FLOOR: "floor@({0})",
}

OP_TEXT: dict[DType, dict[Op, str]] = {
    DType.FLOAT32: {
        **_SAME_IN_BOTH,
        **{op: text.replace("@", "f") for op, text in _LIBRARY.items()},
        Op.RCP: "__frcp_rn({0})",
    },
    DType.FLOAT64: {
        **_SAME_IN_BOTH,
        **{op: text.replace("@", "") for op, text in _LIBRARY.items()},
        Op.RCP: "1.0 / {0}",
    },
}
"""Right-hand side of each one-output op; `T` stands for the scalar type."""

SINCOS_TEXT = {
    DType.FLOAT32: "sincosf({0}, &{1}, &{2});",
    DType.FLOAT64: "sincos({0}, &{1}, &{2});",
}


def literal(number: float, dtype: DType) -> str:
    """A number as a literal of a floating type: the nearest of that type, exactly."""
    if dtype is DType.FLOAT32:
        # rounded here: rounding to digits first and to float32 then may miss the nearest
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if math.isnan(number) or math.isinf(number):
        bits = "0x7fc00000" if math.isnan(number) else "0x7f800000"
        sign = "-" if number < 0 else ""
        return f"{sign}{SCALAR_TYPE[dtype]}(__int_as_float({bits}))"
    text = f"{number:.9g}" if dtype is DType.FLOAT32 else f"{number:.17g}"
    if not any(mark in text for mark in ".e"):
        text += ".0"
    text += "f" if dtype is DType.FLOAT32 else ""
    return f"({text})" if number < 0 or text.startswith("-") else text


_UNFUSED = {
    Op.ADD: "__dadd_rn({0}, {1})",
    Op.SUB: "__dsub_rn({0}, {1})",
    Op.MUL: "__dmul_rn({0}, {1})",
    Op.NMUL: "__dmul_rn(-{0}, {1})",
}
"""Of these the compiler makes no fused multiplication and addition."""

EXACT_LANGUAGE = Language(
    {
        op: text.replace("<T>", "<double>")
        for op, text in (OP_TEXT[DType.FLOAT64] | _UNFUSED).items()
    },
    literal,
    "  const auto {0} = {1};",
    "  {0} = {1};",
)
"""Each operation in float64 by itself, with the bits that the host's have."""
