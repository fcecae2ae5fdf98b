"""How each op is spelt in the Python that Numba compiles."""

from caspar.ir.dtype import DType
from caspar.ir.ops import Op

CAST = {DType.FLOAT32: "np.float32", DType.FLOAT64: "np.float64"}

OP_TEXT: dict[Op, str] = {
    Op.ADD: "{0} + {1}",
    Op.SUB: "{0} - {1}",
    Op.MUL: "{0} * {1}",
    Op.FMA: "fma({0}, {1}, {2})",
    Op.FNMA: "fma(-{0}, {1}, {2})",
    Op.NEG: "-{0}",
    Op.DIV: "{0} / {1}",
    Op.RCP: "@one / {0}",
    Op.POW: "{0} ** {1}",
    Op.SQRT: "math.sqrt({0})",
    Op.RSQRT: "@one / math.sqrt({0})",
    Op.CBRT: "np.cbrt({0})",
    Op.RCBRT: "@one / np.cbrt({0})",
    Op.EXP: "math.exp({0})",
    Op.LOG: "math.log({0})",
    Op.SIN: "math.sin({0})",
    Op.COS: "math.cos({0})",
    Op.TAN: "math.tan({0})",
    Op.ASIN: "math.asin({0})",
    Op.ACOS: "math.acos({0})",
    Op.ATAN: "math.atan({0})",
    Op.ATAN2: "math.atan2({0}, {1})",
    Op.SINH: "math.sinh({0})",
    Op.COSH: "math.cosh({0})",
    Op.TANH: "math.tanh({0})",
    Op.ABS: "abs({0})",
    Op.SIGN: "np.sign({0})",
    Op.COPYSIGN: "math.copysign({0}, {1})",
    Op.FLOOR: "np.floor({0})",
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
