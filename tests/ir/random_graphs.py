"""Random valid graphs, the same for the same decisions.

A graph grows step by step; every decision is asked of a `Chooser`, so that Hypothesis and a
seeded generator make the same kinds of graph. What is known of each number (`known_numbers`) says
what may be done with it: roots and quotients stay away from zero, and only exact numbers are
compared, rounded or asked for their sign.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace

from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from tests.ir import known_numbers as known
from tests.ir.graph_cases import Chooser, GraphCase, Recipe, Seeded
from tests.ir.growing_graphs import MAX_BOUND, GrowingGraph
from tests.ir.known_numbers import FUNCTIONS, LOGARITHMS, ROOTS, Number

NORMS = {
    2: (Op.NORM2, Op.RNORM2),
    3: (Op.NORM3, Op.RNORM3),
    4: (Op.NORM4, Op.RNORM4),
}
EXPONENTS = (
    *(2.0, 0.5, -1.0, -0.5, 3.0, -2.0, 1.5, -1.5, 1 / 3, -1 / 3, 2 / 3, -1 / 6),
    *(4.0, 5.0, 7.0, -3.0, 0.25, 7 / 6, 0.3, -2.7),
)


def random_case(seed: int, recipe: Recipe) -> GraphCase:
    """The case of a seed."""
    chooser = Seeded(random.Random(seed))
    grower = Grower(chooser, recipe)
    for _ in range(recipe.num_steps):
        grower.grow(chooser)
    return grower.finish()


def random_graph(seed: int, num_steps: int = 40, dtype: DType = DType.FLOAT64) -> Graph:
    """The graph of a seed; about 2.5 calls a step."""
    return random_case(seed, Recipe(dtype, num_steps)).graph


class Grower(GrowingGraph):
    """A graph case under construction.

    Args:
        chooser: Where decisions come from that belong to no step.
        recipe: What kind of graph; its number of steps is the caller's business.
    """

    def __init__(self, chooser: Chooser, recipe: Recipe) -> None:
        super().__init__(chooser, recipe)
        makers = [self._add_sum, self._add_product, self._add_relatives, self._add_exact]
        makers += [self._add_sum, self._add_select]
        if not recipe.only_exact:
            makers += [self._add_function, self._add_sincos, self._add_power, self._add_quotients]
            makers += [self._add_norm]
        self._makers: list[Callable[[], None]] = makers

    def grow(self, chooser: Chooser) -> None:
        """Make one call or a few."""
        self._below = chooser.below
        self._builder.origin = f"step {len(self._numbers)}"
        self._makers[self._below(len(self._makers))]()

    # -- calls that round ------------------------------------------------------------------------

    def _within(self, number: Number, reach: float) -> Number:
        """The number, or one made of it, whose magnitude is at most `reach`, 1/2 or more."""
        if number.bound <= reach:
            return number
        bounded = self._function(Op.TANH, number)
        if reach >= 1.0:
            return bounded
        return self._product([bounded, self._literal(0.5)])

    def _function(self, op: Op, number: Number) -> Number:
        function = FUNCTIONS[op]
        argument = self._within(number, function.reach)
        value = self._builder.unary(op, argument.value)
        return known.inexact(value, function.bound, function.slope * argument.error)

    def _add_function(self) -> None:
        chosen = self._below(len(FUNCTIONS) + 1)
        if chosen < len(FUNCTIONS):
            self._keep(self._function(list(FUNCTIONS)[chosen], self._pick()))
            return
        # the angle jumps only where its first argument changes sign
        first, second = self._positive(), self._pick()
        value = self._call(Op.ATAN2, first, second)
        self._keep(known.inexact(value, 3.2, first.error + second.error))

    def _add_sincos(self) -> None:
        """Sine and cosine of one number, in one call or in two."""
        number = self._pick()
        if self._below(3) == 0:
            values = self._builder.call(Op.SINCOS, [number.value])
        else:
            values = tuple(self._builder.unary(op, number.value) for op in (Op.SIN, Op.COS))
        for value in values:
            self._keep(known.inexact(value, 1.0, number.error))

    def _positive(self) -> Number:
        """A number that is at least 1."""
        form = self._below(4)
        if form == 3 and len(self._at_least_one) > 0:
            return self._one_of(self._at_least_one)
        if form == 2:
            return self._sum_of_squares(2 + self._below(3))[1]
        return self._one_plus_square(self._within(self._pick(), 8.0))

    def _one_plus_square(self, number: Number) -> Number:
        return self._sum([self._literal(1.0), self._product([number, number])])

    def _sum_of_squares(self, count: int) -> tuple[list[Number], Number]:
        """Some numbers and the sum of their squares, at least 1."""
        components = [self._one_of(self._whole), *self._picks(count - 1)]
        squares = [self._product([number, number]) for number in components]
        # the first one is at least 1, the others are not below 0
        return components, replace(self._sum(squares), nonnegative=True, least=1.0)

    def _add_power(self) -> None:
        """A power or logarithm of a number, maybe a power of that, and so on."""
        base = self._positive()
        for _ in range(1 + self._below(4)):
            base = self._power(base)
            self._keep(base)
            if base.least < 1.0:
                return

    def _power(self, base: Number) -> Number:
        chosen = self._below(len(EXPONENTS) + len(ROOTS) + len(LOGARITHMS))
        if chosen < len(EXPONENTS):
            exponent = EXPONENTS[chosen]
            if base.bound**exponent > MAX_BOUND:
                base = self._one_plus_square(self._within(base, 1.0))
            value = self._builder.pow(base.value, exponent)
            return known.power_of(value, base, exponent)
        chosen -= len(EXPONENTS)
        if chosen < len(ROOTS):
            op = list(ROOTS)[chosen]
            return known.power_of(self._call(op, base), base, ROOTS[op])
        base = self._sum([self._literal(1.0), base])
        value = self._builder.unary(LOGARITHMS[chosen - len(ROOTS)], base.value)
        return known.inexact(value, math.log(2.0 * base.bound), base.error)

    def _add_quotients(self) -> None:
        """Quotients by one denominator, which may be a power."""
        if self._below(2) == 0:
            denominator = self._one_of(self._nonzero)
        else:
            denominator = self._positive()
            if self._below(2) == 0:
                exponent = (0.5, 1 / 3, 2.0, 1.5)[self._below(4)]
                value = self._builder.pow(denominator.value, exponent)
                denominator = known.power_of(value, denominator, exponent)
        for _ in range(1 + self._below(3)):
            numerator = self._literal(1.0) if self._below(3) == 2 else self._pick()
            self._keep(self._quotient(numerator, denominator))

    def _quotient(self, numerator: Number, denominator: Number) -> Number:
        value = self._builder.div(numerator.value, denominator.value)
        return known.quotient_of(value, numerator, denominator, self._dtype)

    def _add_norm(self) -> None:
        """A vector's length and its reciprocal in one call each, or a vector over its length."""
        count = 2 + self._below(3)
        components, squares = self._sum_of_squares(count)
        if self._below(3) == 0:
            for op, exponent in zip(NORMS[count], (0.5, -0.5), strict=True):
                norm = self._call(op, *components)
                self._keep(known.power_of(norm, squares, exponent))
            return
        length = known.power_of(self._builder.unary(Op.SQRT, squares.value), squares, 0.5)
        self._keep(length)
        for component in components[: self._below(count + 1)]:
            self._keep(self._quotient(component, length))
