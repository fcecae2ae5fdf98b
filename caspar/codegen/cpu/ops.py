"""Text of each op in a kernel for the processor."""

from caspar.codegen.lines import Language
from caspar.ir.dtype import DType
from caspar.ir.ops import Op

CAST = {DType.FLOAT32: "float32", DType.FLOAT64: "float64"}

OP_TEXT: dict[Op, str] = {
    Op.ADD: "{0} + {1}",
    Op.SUB: "{0} - {1}",
    Op.MUL: "{0} * {1}",
    Op.NMUL: "-{0} * {1}",
    Op.FMA: "fma({0}, {1}, {2})",
    Op.FNMA: "fma(-{0}, {1}, {2})",
    Op.NEG: "-{0}",
    Op.DIV: "{0} / {1}",
    Op.RCP: "@one / {0}",
    Op.POW: "pow({0}, {1})",
    Op.SQRT: "sqrt({0})",
    Op.RSQRT: "@one / sqrt({0})",
    Op.CBRT: "cbrt({0})",
    Op.RCBRT: "@one / cbrt({0})",
    Op.NORM2: "hypot({0}, {1})",
    Op.NORM3: "hypot(hypot({0}, {1}), {2})",
    Op.NORM4: "hypot(hypot({0}, {1}), hypot({2}, {3}))",
    Op.RNORM2: "@one / hypot({0}, {1})",
    Op.RNORM3: "@one / hypot(hypot({0}, {1}), {2})",
    Op.RNORM4: "@one / hypot(hypot({0}, {1}), hypot({2}, {3}))",
    Op.LDEXP: "ldexp({0}, int({1}))",
    Op.EXP: "exp({0})",
    Op.LOG: "log({0})",
    Op.SIN: "sin({0})",
    Op.COS: "cos({0})",
    Op.TAN: "tan({0})",
    Op.ASIN: "asin({0})",
    Op.ACOS: "acos({0})",
    Op.ATAN: "atan({0})",
    Op.ATAN2: "atan2({0}, {1})",
    Op.SINH: "sinh({0})",
    Op.COSH: "cosh({0})",
    Op.TANH: "tanh({0})",
    Op.ASINH: "asinh({0})",
    Op.ACOSH: "acosh({0})",
    Op.ATANH: "atanh({0})",
    Op.ERF: "erf({0})",
    Op.ERFC: "erfc({0})",
    Op.ABS: "abs({0})",
    Op.SIGN: "sign({0})",
    Op.COPYSIGN: "copysign({0}, {1})",
    Op.FLOOR: "floor({0})",
    Op.MIN: "min_nan({0}, {1})",
    Op.MAX: "max_nan({0}, {1})",
    Op.LT: "{0} < {1}",
    Op.LE: "{0} <= {1}",
    Op.EQ: "{0} == {1}",
    Op.NE: "{0} != {1}",
    Op.AND: "{0} & {1}",
    Op.OR: "{0} | {1}",
    Op.NOT: "not {0}",
    Op.SELECT: "select({0}, {1}, {2})",
}
"""Right-hand side of each one-output op; `@one` stands for the literal 1 of the program's type."""


def literal(number: float, dtype: DType) -> str:
    """A number of a type; what Python has no literal for stands in quotes."""
    text = repr(float(number))
    quoted = f'"{text}"' if text in ("inf", "-inf", "nan") else text
    return f"{CAST[dtype]}({quoted})"


LANGUAGE = Language(OP_TEXT, literal, "    {0} = {1}", "    {0} = {1}")
