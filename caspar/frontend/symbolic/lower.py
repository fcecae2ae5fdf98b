"""Lowering: SymEngine expressions to calls of the graph.

Expressions are visited once each, children first, without recursion: residuals may be thousands
of operations deep.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from symengine.lib.symengine_wrapper import Number

from caspar.errors import UnsupportedFunctionError
from caspar.frontend.symbolic.lines import Line, Lines
from caspar.frontend.symbolic.lower_rules import (
    CONSTANTS,
    INFINITIES,
    NUMBER_RULES,
    SUPPORTED,
    TRUTH_RULES,
    as_number,
)
from caspar.ir.builder import GraphBuilder

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

    Args:
        builder: Receives the calls.
        symbols: Value of each symbol, by name.
        where: The factor or node type, for errors.
        lines: Where sub-expressions come from: the origin of their calls. One that has no line
            takes that of the expression it is in, and else the builder's origin as it was.
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

        Raises:
            UnsupportedFunctionError: Names the function, the sub-expression, the factor and the
                line of its function.
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
        from caspar.frontend.symbolic.lookups import Lookup, lower_lookup

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
