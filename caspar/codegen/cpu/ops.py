"""Text of each op in a kernel for the processor.

Also here: a graph as lines of a kernel, call by call. No pass changes it and nothing is fused, so
that results have the bits of the same text in Python: see `ir.traced`. Whatever is quick belongs
into a program (`codegen.cpu.kernel`).
"""

from collections.abc import Mapping

from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
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


_BETWEEN = {Op.SUM: " + ", Op.PROD: " * "}


def graph_lines(graph: Graph, arrays: Mapping[str, str]) -> list[str]:
    """Lines that compute all values of a graph, and store what it stores, in chunks of one.

    `arrays` has by argument an entry of an array; `{}` is replaced by the number of a scalar.
    """
    cast, lines = CAST[graph.dtype], []
    for call in graph.calls:
        operands = [f"v{operand}" for operand in call.operands]
        if call.op is Op.CONST:
            assert isinstance(call.data, float)
            values = [literal(call.data, graph.dtype)]
        elif call.op in (Op.READ, Op.STORE):
            assert isinstance(call.data, tuple)
            entry = arrays[call.data[0]]
            values = [entry.format(number) for number in range(len(call.outputs))]
            lines += [
                f"{entry.format(number)} = {operand}" for number, operand in enumerate(operands)
            ]
        elif call.op in _BETWEEN:
            values = [_BETWEEN[call.op].join(operands)]
        else:
            values = [OP_TEXT[call.op].format(*operands).replace("@one", f"{cast}(1.0)")]
        lines += [f"v{out} = {value}" for out, value in zip(call.outputs, values, strict=True)]
    return lines
