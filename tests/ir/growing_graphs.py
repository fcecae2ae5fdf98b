"""A random graph under construction: its inputs, its numbers, and calls that need not round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.ops import Op
from tests.ir import known_numbers as known
from tests.ir.graph_cases import Array, Chooser, GraphCase, Recipe
from tests.ir.known_numbers import Number

MAX_ERROR = 2000.0
"""Numbers less certain than this, in roundings, are stored but not used again."""

MAX_BOUND = 4096.0
"""Greater numbers are stored but not used again."""

MAX_ROUNDED_PRODUCT = 2.0**16
"""Greatest magnitude of products that are not exact."""

COMPARISONS = (Op.LT, Op.LE, Op.EQ, Op.NE)
LITERALS = (1.0, 2.0, -1.0, 0.5, -2.0, 3.0, 0.25, -4.0, 0.0, 1024.0, 0.1, -1e-3)
SPECIAL_LITERALS = (-0.0, math.inf, -math.inf, math.nan, 5e-324, 1e300)


class GrowingGraph:
    """What a graph case under construction holds, and calls that need not round.

    Args:
        chooser: Where decisions come from that belong to no step.
        recipe: What kind of graph; its number of steps is the caller's business.
    """

    def __init__(self, chooser: Chooser, recipe: Recipe) -> None:
        self._recipe = recipe
        self._dtype = recipe.dtype
        self._chooser = chooser
        self._below = chooser.below
        self._builder = GraphBuilder(recipe.dtype)
        self._inputs: dict[str, Array] = {}
        self._columns: dict[str, dict[int, Number]] = {}
        self._numbers: list[Number] = []
        self._exact: list[Number] = []
        self._nonzero: list[Number] = []
        self._whole: list[Number] = []
        self._at_least_one: list[Number] = []
        self._truths: list[int] = []
        self._unused: dict[int, Number] = {}
        self._read_inputs()

    def _read_inputs(self) -> None:
        """Arguments of random size, numbers of every kind."""
        rng = np.random.default_rng(self._below(1000))
        num_integers = 2 + self._below(max(8, self._recipe.max_width))
        integers, state = rng.choice([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], (2, 4, num_integers))
        units = rng.choice([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0], (4, 6))
        reals = rng.choice([-1.0, 1.0], (1, 5)) * rng.uniform(0.5, 1.0, (1, 5))
        integer = Number(-1, 3.0, 1.0, 1.0, math.log2(3.0))
        unit = Number(-1, 2.0, 0.5, 0.5, 0.0)
        bits = known.significand_bits(self._dtype)
        self._read("integers", integers, integer)
        self._read("units", units[:, : 1 + self._below(6)], unit)
        self._read("state", state[:, : 1 + self._below(9)], integer)
        if not self._recipe.only_exact:
            real = Number(-1, 1.0, 0.5, 2.0**-bits, bits)
            self._read("reals", reals[:, : 1 + self._below(5)], real)

    def _read(self, argument: str, array: Array, kind: Number) -> None:
        self._inputs[argument] = array
        for chunk, width in self._chunks(array.shape[1]):
            for value in self._builder.read(argument, chunk, width):
                self._keep(replace(kind, value=value))

    def _chunks(self, dim: int) -> list[tuple[int, int]]:
        length = self._dtype.chunk_length
        return [(first // length, min(length, dim - first)) for first in range(0, dim, length)]

    def finish(self) -> GraphCase:
        """Store some of the state in place, and whatever nothing reads."""
        self._below = self._chooser.below
        for chunk, width in self._chunks(self._inputs["state"].shape[1]):
            if self._below(2) == 1:
                self._store("state", chunk, self._picks(width))
        stored = [*self._unused.values(), *self._picks(1 + self._below(12))]
        for chunk, width in self._chunks(len(stored)):
            first = chunk * self._dtype.chunk_length
            self._store("y", chunk, stored[first : first + width])
        eps = float(np.finfo(self._dtype.value).eps)
        tolerances = {name: np.zeros(max(found) + 1) for name, found in self._columns.items()}
        for name, found in self._columns.items():
            for column, number in found.items():
                tolerances[name][column] = 2.0 * eps * number.error
        return GraphCase(self._builder.build(), self._inputs, tolerances)

    def _store(self, argument: str, chunk: int, numbers: Sequence[Number]) -> None:
        columns = self._columns.setdefault(argument, {})
        columns.update(enumerate(numbers, chunk * self._dtype.chunk_length))
        self._builder.store(argument, chunk, [number.value for number in numbers])

    # -- what is there ---------------------------------------------------------------------------

    def _keep(self, number: Number) -> None:
        self._unused[number.value] = number
        if number.error > MAX_ERROR or number.bound > MAX_BOUND:
            return
        if self._recipe.only_exact and 2.0 * number.bits > known.significand_bits(self._dtype):
            return
        self._numbers.append(number)
        if number.nonnegative and number.least >= 1.0:
            self._at_least_one.append(number)
        if number.error > 0.0:
            return
        self._exact.append(number)
        if number.least > 0.0:
            self._nonzero.append(number)
        if number.least >= 1.0:
            self._whole.append(number)

    def _one_of(self, numbers: Sequence[Number]) -> Number:
        """One of the last two, four or eight, or any: what is made together is used together."""
        window, index = divmod(self._below(4 * len(numbers)), len(numbers))
        if window > 0:
            index = len(numbers) - 1 - index % min(2**window, len(numbers))
        self._unused.pop(numbers[index].value, None)
        return numbers[index]

    def _pick(self) -> Number:
        return self._one_of(self._numbers)

    def _picks(self, count: int) -> list[Number]:
        """Some numbers; now and then one again."""
        picked = [self._pick()]
        while len(picked) < count:
            picked.append(picked[-1] if self._below(5) == 4 else self._pick())
        return picked

    def _width(self) -> int:
        """2 to 5; one in three times any width."""
        if self._below(3) < 2:
            return 2 + self._below(4)
        return 2 + self._below(self._recipe.max_width - 1)

    def _literal(self, number: float) -> Number:
        return known.literal(self._builder.const(number), number, self._dtype)

    def _any_literal(self) -> Number:
        choices = LITERALS + (SPECIAL_LITERALS if self._recipe.special_literals else ())
        return self._literal(choices[self._below(len(choices))])

    # -- sums and products -----------------------------------------------------------------------

    def _sum(self, terms: Sequence[Number]) -> Number:
        """The sum; if only what is exact is wanted, of as many terms as have room in it."""
        if self._recipe.only_exact:
            terms = self._first(terms, known.sum_of, 0.0)
        values = [term.value for term in terms]
        # the builder merges repeated terms, but a graph may hold them
        as_it_is = self._below(3) == 2
        value = self._builder.call(Op.SUM, values)[0] if as_it_is else self._builder.sum(values)
        return known.sum_of(value, terms, self._dtype)

    def _product(self, factors: Sequence[Number]) -> Number:
        """The product of as many factors as have room in it."""
        limit = 0.0 if self._recipe.only_exact else MAX_ROUNDED_PRODUCT
        chosen = self._first(factors, known.product_of, limit)
        values = [factor.value for factor in chosen]
        as_it_is = self._below(4) == 3
        value = self._builder.call(Op.PROD, values)[0] if as_it_is else self._builder.prod(values)
        return known.product_of(value, chosen, self._dtype)

    def _first(
        self,
        operands: Sequence[Number],
        combine: Callable[[int, Sequence[Number], DType], Number],
        limit: float,
    ) -> list[Number]:
        """Two operands and those others that leave the result exact or below a limit."""
        chosen = list(operands[:2])
        for operand in operands[2:]:
            result = combine(-1, [*chosen, operand], self._dtype)
            if result.error == 0.0 or result.bound <= limit:
                chosen.append(operand)
        return chosen

    def _negated(self, number: Number) -> Number:
        # the builder takes two negations off
        as_it_is = self._below(4) == 3
        value = self._call(Op.NEG, number) if as_it_is else self._builder.neg(number.value)
        return replace(number, value=value, nonnegative=False)

    def _term(self) -> Number:
        """A number, a product or a literal, maybe negated."""
        form = self._below(8)
        if form == 7:
            return self._any_literal()
        number = self._product(self._picks(2 + self._below(3))) if form >= 4 else self._pick()
        return self._negated(number) if form % 2 == 1 else number

    def _terms(self, count: int) -> list[Number]:
        """Some terms; now and then one again."""
        terms = [self._term()]
        while len(terms) < count:
            terms.append(terms[-1] if self._below(6) == 5 else self._term())
        return terms

    def _keep_signed(self, number: Number) -> None:
        """Keep the number or, now and then, its negative alone."""
        self._keep(self._negated(number) if self._below(2) == 1 else number)

    def _add_sum(self) -> None:
        self._keep_signed(self._sum(self._terms(self._width())))

    def _add_product(self) -> None:
        factors = self._picks(self._width())
        if self._below(4) == 3:
            factors = [*[self._signed()] * (1 + self._below(2)), *factors]
        if self._below(2) == 1:
            factors.insert(0, self._any_literal())
        if self._below(3) == 2:
            factors[0] = self._negated(factors[0])
        self._keep_signed(self._product(factors))

    def _add_relatives(self) -> None:
        """Sums or products with operands in common."""
        is_product = self._below(2) == 1
        width = self._width()
        common = self._picks(width) if is_product else self._terms(width)
        for _ in range(2 + self._below(3)):
            dropped = self._below(3 * len(common))
            operands = [number for index, number in enumerate(common) if index != dropped]
            if is_product:
                self._keep(self._product(operands + self._picks(1 + self._below(2))))
                continue
            if self._below(3) == 2:
                operands = [self._negated(number) for number in operands]
            self._keep(self._sum(operands + self._terms(1 + self._below(2))))

    # -- other calls that are exact --------------------------------------------------------------

    def _call(self, op: Op, *numbers: Number) -> int:
        return self._builder.call(op, [number.value for number in numbers])[0]

    def _add_exact(self) -> None:
        makers = [self._sign, self._floor, self._magnitude, self._extreme, self._signed]
        makers += [self._scaled, self._negative]
        self._keep(makers[self._below(len(makers))]())

    def _sign(self) -> Number:
        return Number(self._call(Op.SIGN, self._one_of(self._exact)), 1.0)

    def _floor(self) -> Number:
        number = self._one_of(self._exact)
        bound = number.bound + 1.0
        return Number(self._call(Op.FLOOR, number), bound, bits=math.log2(bound))

    def _magnitude(self) -> Number:
        number = self._pick()
        return replace(number, value=self._call(Op.ABS, number), nonnegative=True)

    def _extreme(self) -> Number:
        first, second = self._pick(), self._pick()
        value = self._call((Op.MIN, Op.MAX)[self._below(2)], first, second)
        return replace(known.either(first, second), value=value)

    def _negative(self) -> Number:
        return self._negated(self._pick())

    def _signed(self) -> Number:
        number = self._pick() if self._below(2) == 0 else self._literal(1.0)
        value = self._call(Op.COPYSIGN, number, self._one_of(self._nonzero))
        return replace(number, value=value, nonnegative=False)

    def _scaled(self) -> Number:
        number = self._pick()
        exponent = (1, -1, 2, -3)[self._below(4)]
        value = self._call(Op.LDEXP, number, self._literal(float(exponent)))
        return known.scaled(value, number, exponent)

    def _condition(self) -> int:
        """A truth value: a new one, or one of the last six."""
        if len(self._truths) > 0 and self._below(4) == 3:
            return self._truths[-1 - self._below(min(6, len(self._truths)))]
        form = self._below(7)
        if form < 4:
            left, right = self._one_of(self._exact), self._one_of(self._exact)
            truth = self._call(COMPARISONS[form], left, right)
        elif form < 6:
            operation = (Op.AND, Op.OR)[form - 4]
            truth = self._builder.binary(operation, self._condition(), self._condition())
        else:
            truth = self._builder.unary(Op.NOT, self._condition())
        self._truths.append(truth)
        return truth

    def _add_select(self) -> None:
        """One or the other, which may itself be chosen by the same condition."""
        condition = self._condition()
        chosen = self._select(condition, self._pick(), self._pick())
        form = self._below(4)
        if form >= 2:
            other = self._pick()
            branches = (chosen, other) if form == 2 else (other, chosen)
            chosen = self._select(condition, *branches)
        self._keep(chosen)

    def _select(self, condition: int, first: Number, second: Number) -> Number:
        value = self._builder.select(condition, first.value, second.value)
        return replace(known.either(first, second), value=value)
