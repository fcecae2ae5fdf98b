"""Lowering: SymEngine expressions to calls of the graph.

Expressions are visited once each, children first, without recursion: residuals may be thousands
of operations deep.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symengine.lib.symengine_wrapper import Number

from caspar.errors import UnsupportedFunctionError
from caspar.ir.builder import GraphBuilder
from caspar.ir.ops import Op

_UNARY = {
    "sin": Op.SIN,
    "cos": Op.COS,
    "tan": Op.TAN,
    "asin": Op.ASIN,
    "acos": Op.ACOS,
    "atan": Op.ATAN,
    "sinh": Op.SINH,
    "cosh": Op.COSH,
    "tanh": Op.TANH,
    "log": Op.LOG,
    "Abs": Op.ABS,
    "sign": Op.SIGN,
    "floor": Op.FLOOR,
}

_COMPARISONS = {
    "StrictLessThan": Op.LT,
    "LessThan": Op.LE,
    "Equality": Op.EQ,
    "Unequality": Op.NE,
}

_REAL_CONSTANTS = ("Pi", "Exp1", "Constant", "EulerGamma", "GoldenRatio", "Catalan")


class Lowering:
    """Lowers expressions into one builder; equal subexpressions are lowered once.

    Args:
        builder: Receives the calls.
        symbols: Value of each symbol, by name.
        where: The factor or node type, for errors.
    """

    def __init__(self, builder: GraphBuilder, symbols: Mapping[str, int], where: str) -> None:
        self._builder = builder
        self._symbols = symbols
        self._where = where
        self._known: dict[Any, int] = {}

    def lower(self, expression: Any) -> int:
        """The value of an expression.

        Raises:
            UnsupportedFunctionError: Names the function, the sub-expression and the factor.
        """
        if isinstance(expression, int | float):
            return self._builder.const(float(expression))
        pending = [expression]
        while pending:
            current = pending[-1]
            if current in self._known:
                pending.pop()
                continue
            missing = [child for child in current.args if child not in self._known]
            if missing:
                pending += reversed(missing)
                continue
            self._known[current] = self._lower_one(current)
            pending.pop()
        return self._known[expression]

    def _lower_one(self, expression: Any) -> int:
        kind = type(expression).__name__
        operands = [self._known[child] for child in expression.args]
        if isinstance(expression, Number) or kind in _REAL_CONSTANTS:
            return self._number(expression)
        if kind == "Symbol" or (not operands and hasattr(expression, "name")):
            return self._symbol(expression)
        if kind in _UNARY:
            return self._builder.unary(_UNARY[kind], operands[0])
        if kind in _COMPARISONS:
            return self._builder.binary(_COMPARISONS[kind], operands[0], operands[1])
        if kind == "Mul":
            return self._product(expression)
        rule = _RULES.get(kind)
        if rule is None:
            raise self._unsupported(expression)
        return rule(self._builder, expression, operands)

    def _number(self, expression: Any) -> int:
        try:
            return self._builder.const(float(expression))
        except (TypeError, RuntimeError, ValueError) as error:
            raise self._unsupported(expression) from error

    def _product(self, expression: Any) -> int:
        """Factors with a negative literal exponent form one denominator: a * b / (c * d)."""
        numerator, denominator = [], []
        for factor in expression.args:
            exponent = _literal_exponent(factor)
            if exponent is not None and exponent < 0.0:
                base = self._known[factor.args[0]]
                denominator.append(self._builder.pow(base, -exponent))
            else:
                numerator.append(self._known[factor])
        product = self._builder.prod(numerator)
        if not denominator:
            return product
        return self._builder.div(product, self._builder.prod(denominator))

    def _symbol(self, expression: Any) -> int:
        name = str(expression)
        if name not in self._symbols:
            raise UnsupportedFunctionError(
                f"{self._where}: the residual contains the free symbol {name!r}; only arguments "
                "of the function may appear in it"
            )
        return self._symbols[name]

    def _unsupported(self, expression: Any) -> UnsupportedFunctionError:
        name = type(expression).__name__
        if name == "FunctionSymbol":
            name = expression.get_name()
        supported = sorted([*_UNARY, "atan2", "exp", "sqrt", "Min", "Max", "Piecewise"])
        return UnsupportedFunctionError(
            f"{self._where}: the function {name!r} in {_shortened(expression)} is not supported; "
            f"supported are sums, products, powers, comparisons and {', '.join(supported)}"
        )


def _shortened(expression: Any) -> str:
    text = str(expression)
    return text if len(text) <= 120 else text[:117] + "..."


def _lower_add(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    return builder.sum(operands)


def _literal_exponent(expression: Any) -> float | None:
    if type(expression).__name__ != "Pow" or not isinstance(expression.args[1], Number):
        return None
    return float(expression.args[1])


def _lower_pow(builder: GraphBuilder, expression: Any, operands: Sequence[int]) -> int:
    base, exponent = operands
    if type(expression.args[0]).__name__ == "Exp1":
        return builder.unary(Op.EXP, exponent)
    literal = builder.literal(exponent)
    if literal is not None:
        return builder.pow(base, literal)
    return builder.binary(Op.POW, base, exponent)


def _fold(op: Op) -> Callable[[GraphBuilder, Any, Sequence[int]], int]:
    def rule(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
        result = operands[0]
        for operand in operands[1:]:
            result = builder.binary(op, result, operand)
        return result

    return rule


def _lower_ceiling(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    return builder.neg(builder.unary(Op.FLOOR, builder.neg(operands[0])))


def _lower_sign_no_zero(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    return builder.binary(Op.COPYSIGN, builder.const(1.0), operands[0])


def _lower_piecewise(builder: GraphBuilder, _: Any, operands: Sequence[int]) -> int:
    """(value, condition) pairs; where none holds the result is NaN, as in SymPy."""
    result = builder.const(float("nan"))
    for start in range(len(operands) - 2, -1, -2):
        value, condition = operands[start], operands[start + 1]
        known = builder.literal(condition)
        if known is not None:
            result = value if known != 0.0 else result
        else:
            result = builder.select(condition, value, result)
    return result


_RULES: dict[str, Callable[[GraphBuilder, Any, Sequence[int]], int]] = {
    "Add": _lower_add,
    "Pow": _lower_pow,
    "Min": _fold(Op.MIN),
    "Max": _fold(Op.MAX),
    "And": _fold(Op.AND),
    "Or": _fold(Op.OR),
    "Not": lambda builder, _, operands: builder.unary(Op.NOT, operands[0]),
    "atan2": lambda builder, _, operands: builder.binary(Op.ATAN2, *operands),
    "ceiling": _lower_ceiling,
    "SignNoZero": _lower_sign_no_zero,
    "CopysignNoZero": lambda builder, _, operands: builder.binary(Op.COPYSIGN, *operands),
    "Piecewise": _lower_piecewise,
    "BooleanTrue": lambda builder, _, __: builder.const(1.0),
    "BooleanFalse": lambda builder, _, __: builder.const(0.0),
}
