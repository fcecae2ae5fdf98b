"""Lowering: SymEngine expressions to calls of the graph.

Expressions are visited once each, children first, without recursion: residuals may be thousands
of operations deep.

Also here: what each function of SymPy, SymEngine and SymForce becomes, by the name of its class.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from symengine.lib.symengine_wrapper import Number

from caspar.errors import UnsupportedFunctionError
from caspar.frontend.symbolic.lines import Line, Lines
from caspar.ir.builder import GraphBuilder
from caspar.ir.ops import OP_INFO, Op

Rule = Callable[[GraphBuilder, Any, Sequence[int]], int]
"""(builder, expression, values of its arguments) -> its value."""

CONSTANTS = ("Pi", "Exp1", "Constant", "EulerGamma", "GoldenRatio", "Catalan")
"""Classes of constants that `float` understands, beside those of numbers."""

INFINITIES = {"Infinity": math.inf, "NegativeInfinity": -math.inf}


def as_number(builder: GraphBuilder, value: int) -> int:
    """A truth value as 1 or 0; a number as it is."""
    if not OP_INFO[builder.producer_of(value).op].boolean:
        return value
    return builder.select(value, builder.const(1.0), builder.const(0.0))


def _call(op: Op, fold: Callable[..., float]) -> Rule:
    """One op of all arguments, in order; of literals, the number, unless the host has none."""

    def rule(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
        literals = [builder.literal(operand) for operand in operands]
        if None not in literals:
            with suppress(OverflowError, ValueError):  # the device gives infinity or NaN
                return builder.const(fold(*literals))
        return builder.call(op, operands)[0]

    return rule


def _function(function: Callable[[GraphBuilder, int], int]) -> Rule:
    return lambda builder, _, operands: function(builder, operands[0])


def _of_inverse(op: Op) -> Rule:
    return _function(lambda builder, x: builder.unary(op, _inverse(builder, x)))


def _inverse_of(op: Op) -> Rule:
    return _function(lambda builder, x: _inverse(builder, builder.unary(op, x)))


def _inverse(builder: GraphBuilder, value: int) -> int:
    return builder.div(builder.const(1.0), value)


def _fold(op: Op) -> Rule:
    def rule(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
        result = operands[0]
        for operand in operands[1:]:
            result = builder.binary(op, result, operand)
        return result

    return rule


def _pow(builder: GraphBuilder, expression: Any, operands: Sequence[int]) -> int:
    base, exponent = operands
    if type(expression.args[0]).__name__ == "Exp1":
        return builder.unary(Op.EXP, exponent)
    literal = builder.literal(exponent)
    if literal is not None:
        return builder.pow(base, literal)
    return builder.binary(Op.POW, base, exponent)


# -- rounding and signs ----------------------------------------------------------------------------


def _ceiling(builder: GraphBuilder, x: int) -> int:
    return builder.neg(builder.unary(Op.FLOOR, builder.neg(x)))


def _fraction(builder: GraphBuilder, x: int) -> int:
    return builder.sub(x, builder.unary(Op.FLOOR, x))


def _sign(x: float) -> float:
    return x if math.isnan(x) else float(x > 0.0) - float(x < 0.0)


_copysign = _call(Op.COPYSIGN, math.copysign)


def _sign_no_zero(builder: GraphBuilder, x: int) -> int:
    return _copysign(builder, None, [builder.const(1.0), x])


def _heaviside(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    """(1 + sign(x)) / 2, which keeps a NaN; SymPy's second argument is the value at 0."""
    x, at_zero = operands
    half = builder.const(0.5)
    step = builder.sum([half, builder.prod([half, builder.unary(Op.SIGN, x)])])
    if builder.literal(at_zero) == 0.5:
        return step
    return builder.select(builder.binary(Op.EQ, x, builder.const(0.0)), at_zero, step)


def _kronecker_delta(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    return as_number(builder, builder.binary(Op.EQ, *operands))


# -- trigonometric and hyperbolic functions --------------------------------------------------------


def _acot(builder: GraphBuilder, x: int) -> int:
    """SymPy's is odd: atan(1 / x), pi / 2 at 0; without the quotient, 0 needs no care."""
    sign = _sign_no_zero(builder, x)
    angle = builder.binary(Op.ATAN2, builder.const(1.0), builder.prod([sign, x]))
    return builder.prod([sign, angle])


def _sech(builder: GraphBuilder, x: int) -> int:
    """2 u / (1 + u^2) with u = exp(-|x|), as 1 / cosh(x) has the derivative 0 * inf far out."""
    u = builder.unary(Op.EXP, builder.neg(builder.unary(Op.ABS, x)))
    one, two = builder.const(1.0), builder.const(2.0)
    return builder.div(builder.prod([two, u]), builder.sum([one, builder.pow(u, 2.0)]))


def _csch(builder: GraphBuilder, x: int) -> int:
    """sech(x) / tanh(x), for the same reason."""
    return builder.div(_sech(builder, x), builder.unary(Op.TANH, x))


# -- truth values ----------------------------------------------------------------------------------


def _comparison(op: Op, compare: Callable[[float, float], bool]) -> Rule:
    def rule(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
        left, right = (as_number(builder, operand) for operand in operands)
        known = builder.literal(left), builder.literal(right)
        if known[0] is not None and known[1] is not None:
            return builder.const(float(compare(known[0], known[1])))
        return builder.binary(op, left, right)

    return rule


def _all_or_any(op: Op, neutral: float) -> Rule:
    """Return the rule of AND or OR: a known operand decides, or has no influence."""

    def rule(builder: GraphBuilder, expression: Any, operands: Sequence[int]) -> int:
        literals = [builder.literal(operand) for operand in operands]
        if 1.0 - neutral in literals:
            return builder.const(1.0 - neutral)
        open_ones = [o for o, known in zip(operands, literals, strict=True) if known is None]
        if not open_ones:
            return builder.const(neutral)
        return _fold(op)(builder, expression, open_ones)

    return rule


_and = _all_or_any(Op.AND, 1.0)
_or = _all_or_any(Op.OR, 0.0)


def _not(builder: GraphBuilder, condition: int) -> int:
    literal = builder.literal(condition)
    if literal is not None:
        return builder.const(1.0 - literal)
    return builder.unary(Op.NOT, condition)


def _xor(builder: GraphBuilder, expression: Any, operands: Sequence[int]) -> int:
    """Return whether an odd number of conditions hold: one of two, but not both."""
    result = operands[0]
    for operand in operands[1:]:
        either = _or(builder, expression, [result, operand])
        both = _and(builder, expression, [result, operand])
        result = _and(builder, expression, [either, _not(builder, both)])
    return result


def _piecewise(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    """(value, condition) pairs; where none holds the result is NaN, as in SymPy."""
    result = builder.const(math.nan)
    for start in range(len(operands) - 2, -1, -2):
        value, condition = as_number(builder, operands[start]), operands[start + 1]
        known = builder.literal(condition)
        if known is not None:
            result = value if known != 0.0 else result
        else:
            result = builder.select(condition, value, result)
    return result


# -- tables ----------------------------------------------------------------------------------------

_FUNCTIONS = {
    "sin": _call(Op.SIN, math.sin),
    "cos": _call(Op.COS, math.cos),
    "tan": _call(Op.TAN, math.tan),
    "asin": _call(Op.ASIN, math.asin),
    "acos": _call(Op.ACOS, math.acos),
    "atan": _call(Op.ATAN, math.atan),
    "sinh": _call(Op.SINH, math.sinh),
    "cosh": _call(Op.COSH, math.cosh),
    "tanh": _call(Op.TANH, math.tanh),
    "asinh": _call(Op.ASINH, math.asinh),
    "acosh": _call(Op.ACOSH, math.acosh),
    "atanh": _call(Op.ATANH, math.atanh),
    "erf": _call(Op.ERF, math.erf),
    "erfc": _call(Op.ERFC, math.erfc),
    "log": _call(Op.LOG, math.log),
    "atan2": _call(Op.ATAN2, math.atan2),
    "Abs": _call(Op.ABS, abs),
    "sign": _call(Op.SIGN, _sign),
    "floor": _call(Op.FLOOR, lambda x: float(math.floor(x))),
    "CopysignNoZero": _copysign,
}
"""Functions that are one op."""

_IDENTITIES = ("UnevaluatedExpr", "conjugate", "re")
"""Functions that leave a real number as it is."""

TRUTH_RULES: dict[str, Rule] = {
    "StrictLessThan": _comparison(Op.LT, operator.lt),
    "LessThan": _comparison(Op.LE, operator.le),
    "Equality": _comparison(Op.EQ, operator.eq),
    "Unequality": _comparison(Op.NE, operator.ne),
    "And": _and,
    "Or": _or,
    "Xor": _xor,
    "Not": _function(_not),
    "BooleanTrue": lambda builder, _, __: builder.const(1.0),
    "BooleanFalse": lambda builder, _, __: builder.const(0.0),
    "Piecewise": _piecewise,
}
"""Rules whose arguments may be truth values."""

NUMBER_RULES: dict[str, Rule] = {
    **_FUNCTIONS,
    **dict.fromkeys(_IDENTITIES, _function(lambda _, x: x)),
    "Add": lambda builder, _, operands: builder.sum(operands),
    "Pow": _pow,
    "Min": _fold(Op.MIN),
    "Max": _fold(Op.MAX),
    "SignNoZero": _function(_sign_no_zero),
    "ceiling": _function(_ceiling),
    "frac": _function(_fraction),
    "Heaviside": _heaviside,
    "KroneckerDelta": _kronecker_delta,
    "im": lambda builder, _, __: builder.const(0.0),
    "cot": _inverse_of(Op.TAN),
    "sec": _inverse_of(Op.COS),
    "csc": _inverse_of(Op.SIN),
    "coth": _inverse_of(Op.TANH),
    "sech": _function(_sech),
    "csch": _function(_csch),
    "acot": _function(_acot),
    "asec": _of_inverse(Op.ACOS),
    "acsc": _of_inverse(Op.ASIN),
    "acoth": _of_inverse(Op.ATANH),
    "asech": _of_inverse(Op.ACOSH),
    "acsch": _of_inverse(Op.ASINH),
}
"""Rules whose arguments are numbers."""

_OTHER_NAMES = {"SignNoZero": "sign_no_zero", "CopysignNoZero": "copysign_no_zero"}
_NOT_NAMED = ("Add", "Pow", "im", *_IDENTITIES)

SUPPORTED = tuple(
    sorted(
        [
            *(_OTHER_NAMES.get(name, name) for name in NUMBER_RULES if name not in _NOT_NAMED),
            *("Mod", "Piecewise", "exp", "sqrt"),
        ],
        key=str.lower,
    )
)
"""Functions that a residual may call beside arithmetic and comparisons, for error messages."""


NOT_NUMBERS = {
    "ComplexInfinity": "a division by zero: guard denominators with sf.epsilon()",
    "NaN": "not a number, such as 0 / 0: guard denominators with sf.epsilon()",
    "ImaginaryUnit": "complex, such as the sqrt of a negative number",
    "Complex": "complex, such as the sqrt of a negative number",
    "ComplexDouble": "complex, such as the sqrt of a negative number",
}
"""SymEngine's constants that are no real numbers, and what to say of them."""


class Lowering:
    """Lowers expressions into one builder; equal subexpressions are lowered once.

    `lines` say the origin of calls: a sub-expression that has no line takes that of the expression
    it is in, and else the builder's origin as it was.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        symbols: Mapping[str, int],
        where: str,
        lines: Lines | None = None,
    ) -> None:
        self._builder = builder
        self._symbols = symbols
        self._where = where
        self._lines = Lines() if lines is None else lines
        self._line: Line | None = None
        self._known: dict[Any, int] = {}

    def lower(self, expression: Any) -> int:
        """The value of an expression.

        An `UnsupportedFunctionError` names the function, the sub-expression, the factor and the
        line.
        """
        if isinstance(expression, int | float):
            return self._builder.const(float(expression))
        outside = self._builder.origin
        pending: list[tuple[Any, Line | None]] = [(expression, None)]
        while pending:
            current, inherited = pending[-1]
            if current in self._known:
                pending.pop()
                continue
            line = self._lines.of.get(current, inherited)
            missing = [child for child in current.args if child not in self._known]
            if missing:
                pending += [(child, line) for child in reversed(missing)]
                continue
            self._line = line
            self._builder.origin = outside if line is None else line.origin
            self._known[current] = self._lower_one(current)
            pending.pop()
        self._builder.origin = outside
        return as_number(self._builder, self._known[expression])

    def _lower_one(self, expression: Any) -> int:
        kind = function_name(expression)
        if isinstance(expression, Number) or kind in CONSTANTS:
            return self._number(expression)
        operands = [self._known[child] for child in expression.args]
        if kind == "Symbol" or (not operands and hasattr(expression, "name")):
            return self._symbol(expression)
        if kind in TRUTH_RULES:
            return TRUTH_RULES[kind](self._builder, expression, operands)
        numbers = [as_number(self._builder, operand) for operand in operands]
        if kind == "Mul":
            return self._product(expression.args, numbers)
        if kind == "FunctionSymbol":
            return self._lookup(expression, numbers)
        if kind not in NUMBER_RULES:
            raise self._unsupported(expression)
        return NUMBER_RULES[kind](self._builder, expression, numbers)

    def _lookup(self, expression: Any, numbers: Sequence[int]) -> int:
        from caspar.frontend.symbolic.lookups import INSIDE, Lookup, lower_inside, lower_lookup

        if expression.get_name() == INSIDE:
            return lower_inside(self._builder, numbers)
        lookup = Lookup.of_name(expression.get_name())
        if lookup is None:
            raise self._unsupported(expression)
        return lower_lookup(self._builder, lookup, numbers)

    def _number(self, expression: Any) -> int:
        infinity = INFINITIES.get(type(expression).__name__)
        if infinity is not None:
            return self._builder.const(infinity)
        try:
            return self._builder.const(float(expression))
        except (TypeError, RuntimeError, ValueError) as error:
            raise self._unsupported(expression) from error

    def _product(self, factors: Sequence[Any], values: Sequence[int]) -> int:
        """Factors with a negative literal exponent form one denominator: a * b / (c * d)."""
        numerator, denominator = [], []
        for factor, value in zip(factors, values, strict=True):
            exponent = self._literal_exponent(factor)
            if exponent is not None and exponent < 0.0:
                base = as_number(self._builder, self._known[factor.args[0]])
                denominator.append(self._builder.pow(base, -exponent))
            else:
                numerator.append(value)
        product = self._builder.prod(numerator)
        if not denominator:
            return product
        return self._builder.div(product, self._builder.prod(denominator))

    def _literal_exponent(self, factor: Any) -> float | None:
        if type(factor).__name__ != "Pow" or not isinstance(factor.args[1], Number):
            return None
        return self._builder.literal(self._known[factor.args[1]])

    def _symbol(self, expression: Any) -> int:
        name = str(expression)
        if name not in self._symbols:
            raise UnsupportedFunctionError(
                f"{self._place()}: the residual contains the free symbol {name!r}; only arguments "
                "of the function may appear in it"
            )
        return self._symbols[name]

    def _place(self) -> str:
        """The factor, and the line of the expression that is being lowered."""
        return self._where + self._lines.place(self._line)

    def _unsupported(self, expression: Any) -> UnsupportedFunctionError:
        name = type(expression).__name__
        if name in NOT_NUMBERS:
            return UnsupportedFunctionError(
                f"{self._place()}: {_shortened(expression)} is {NOT_NUMBERS[name]}"
            )
        if name in ("FunctionSymbol", "PyFunction"):
            name = expression.get_name()
        return UnsupportedFunctionError(
            f"{self._place()}: the function {name!r} in {_shortened(expression)} is not supported; "
            f"supported are sums, products, powers, comparisons and {', '.join(SUPPORTED)}"
        )


def _shortened(expression: Any) -> str:
    text = str(expression)
    return text if len(text) <= 120 else text[:117] + "..."


def function_name(expression: Any) -> str:
    """The class's name; of a function that SymEngine leaves to SymPy, that one's."""
    name = type(expression).__name__
    return str(expression.get_name()) if name == "PyFunction" else name
