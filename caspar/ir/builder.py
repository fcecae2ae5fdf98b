"""Building graphs: interning, constant folding and the algebra that needs no context.

Equal calls get equal value ids, so common subexpressions cannot arise; `build` keeps only what a
store needs, so dead code cannot either. Operands of commutative calls are sorted by value id,
which is creation order: the result depends on the order of construction and on nothing else.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from caspar.errors import SizeError
from caspar.ir.dtype import DType
from caspar.ir.graph import Call, CallData, Graph, TableEntry, needed
from caspar.ir.ops import OP_INFO, Op

_FOLDABLE: dict[Op, Callable[[float], float]] = {
    Op.SQRT: math.sqrt,
    Op.EXP: math.exp,
    Op.SIN: math.sin,
    Op.COS: math.cos,
    Op.ABS: abs,
    Op.FLOOR: lambda x: float(math.floor(x)),
}


class GraphBuilder:
    """Grows the graph of a kernel call by call; a `SizeError` after `max_calls`."""

    def __init__(self, dtype: DType, name: str = "", max_calls: int | None = None) -> None:
        self.dtype = dtype
        self._name = name
        self._max_calls = max_calls
        self.origin = ""
        self._calls: list[Call] = []
        self._producer: list[int] = []
        self._interned: dict[tuple[object, ...], Call] = {}
        self._literals: dict[int, float] = {}
        self._negated: dict[int, int] = {}  # the value of a NEG -> its operand

    # -- calls ---------------------------------------------------------------------------------

    def call(
        self,
        op: Op,
        operands: Sequence[int] = (),
        data: CallData = None,
        num_outputs: int | None = None,
    ) -> tuple[int, ...]:
        """Intern a call as it is, without simplification; return its values."""
        info = OP_INFO[op]
        ordered = tuple(sorted(operands)) if info.commutative else tuple(operands)
        # repr tells 0.0 from -0.0, which compare equal
        key = (op, ordered, repr(data) if isinstance(data, float) else data)
        known = self._interned.get(key)
        if known is not None and not info.effect:
            return known.outputs
        count = info.num_outputs if num_outputs is None else num_outputs
        assert count is not None, f"{op} needs num_outputs"
        first = len(self._producer)
        outputs = tuple(range(first, first + count))
        if self._max_calls is not None and len(self._calls) >= self._max_calls:
            raise SizeError(
                f"kernel {self._name} has more than {self._max_calls:,} operations, which would "
                "take minutes to compile",
                self._name,
            )
        made = Call(op, ordered, outputs, data, self.origin)
        self._producer.extend([len(self._calls)] * count)
        self._calls.append(made)
        self._interned[key] = made
        if isinstance(data, float):
            self._literals[first] = data
        elif op is Op.NEG:
            self._negated[first] = ordered[0]
        return outputs

    def producer_of(self, value: int) -> Call:
        """The call that produced a value."""
        return self._calls[self._producer[value]]

    def literal(self, value: int) -> float | None:
        """The number a value is known to be, or None."""
        return self._literals.get(value)

    # -- leaves and memory ---------------------------------------------------------------------

    def const(self, number: float) -> int:
        """A literal."""
        return self.call(Op.CONST, data=float(number))[0]

    def read(self, argument: str, chunk: int, width: int) -> tuple[int, ...]:
        """The scalars of one chunk of an argument."""
        return self.call(Op.READ, data=(argument, chunk), num_outputs=width)

    def store(self, argument: str, chunk: int, values: Sequence[int]) -> None:
        """Write (or accumulate, as the argument's access says) one chunk."""
        self.call(Op.STORE, values, data=(argument, chunk))

    def exchange(self, argument: str, values: Sequence[int]) -> tuple[int, ...]:
        """Exchange values among all items that share an object, as the argument's access does."""
        return self.call(Op.EXCHANGE, values, data=(argument, 0), num_outputs=len(values))

    def gather(self, entry: TableEntry, places: Sequence[int]) -> int:
        """One number of a table, by a place along each of its axes."""
        return self.call(Op.GATHER, places, data=entry)[0]

    def gathers(self, argument: str) -> list[Call]:
        """The loads from the tables of an argument so far, each once, in the order of creation."""
        return [
            call
            for call in self._calls
            if isinstance(call.data, TableEntry)
            and call.data.argument == argument
            and not call.data.is_one_inside
        ]

    # -- algebra -------------------------------------------------------------------------------

    def sum(self, terms: Iterable[int]) -> int:
        """Sum; constants are folded, opposite and repeated terms are merged."""
        constant = 0.0
        counts: dict[int, int] = {}
        for term in terms:
            if term in self._literals:
                constant += self._literals[term]
            elif term in self._negated:
                negated = self._negated[term]
                counts[negated] = counts.get(negated, 0) - 1
            else:
                counts[term] = counts.get(term, 0) + 1
        merged = [self._multiple(value, count) for value, count in counts.items() if count != 0]
        if constant != 0.0 or not merged:
            merged.append(self.const(constant))
        if len(merged) == 1:
            return merged[0]
        if all(value in self._negated for value in merged):
            return self.neg(self.sum(self.neg(value) for value in merged))
        return self.call(Op.SUM, merged)[0]

    def _multiple(self, value: int, count: int) -> int:
        magnitude = value if abs(count) == 1 else self.prod([self.const(abs(count)), value])
        return self.neg(magnitude) if count < 0 else magnitude

    def prod(self, factors: Iterable[int]) -> int:
        """Product; constants are folded and the sign is pulled out, so that x and -x share."""
        coefficient = 1.0
        others: list[int] = []
        for factor in factors:
            while factor in self._negated:
                coefficient = -coefficient
                factor = self._negated[factor]
            if factor in self._literals:
                coefficient *= self._literals[factor]
            else:
                others.append(factor)
        if coefficient == 0.0 or not others:
            return self.const(coefficient)
        if abs(coefficient) != 1.0:
            others.append(self.const(abs(coefficient)))
        magnitude = others[0] if len(others) == 1 else self.call(Op.PROD, others)[0]
        return self.neg(magnitude) if coefficient < 0.0 else magnitude

    def neg(self, value: int) -> int:
        """Negation."""
        if value in self._negated:
            return self._negated[value]
        if value in self._literals:
            return self.const(-self._literals[value])
        return self.call(Op.NEG, [value])[0]

    def sub(self, left: int, right: int) -> int:
        """Difference."""
        return self.sum([left, self.neg(right)])

    def div(self, numerator: int, denominator: int) -> int:
        """Quotient; the sign is pulled out, division by a literal becomes a product."""
        literal = self.literal(denominator)
        if literal is not None and literal != 0.0:
            return self.prod([numerator, self.const(1.0 / literal)])
        if self.literal(numerator) == 0.0:
            return self.const(0.0)
        sign, (top, bottom) = self._split_signs(numerator, denominator)
        if self.literal(top) == 1.0:
            quotient = self.call(Op.RCP, [bottom])[0]
        else:
            quotient = self.call(Op.DIV, [top, bottom])[0]
        return self.neg(quotient) if sign < 0 else quotient

    def _split_signs(self, *values: int) -> tuple[int, list[int]]:
        sign = 1
        bare = []
        for value in values:
            if value in self._negated:
                sign, value = -sign, self._negated[value]
            elif self._literals.get(value, 0.0) < 0.0:
                sign, value = -sign, self.const(-self._literals[value])
            bare.append(value)
        return sign, bare

    def pow(self, base: int, exponent: float) -> int:
        """Power with a literal exponent; folded where that gives a finite number."""
        if exponent == 0.0:
            return self.const(1.0)
        if exponent == 1.0:
            return base
        literal = self.literal(base)
        if literal is not None and (literal > 0.0 or (exponent.is_integer() and literal != 0.0)):
            with suppress(OverflowError):  # left to the device, which gives infinity
                return self.const(literal**exponent)
        if exponent == -1.0:
            return self.div(self.const(1.0), base)
        return self.call(Op.POW, [base, self.const(exponent)])[0]

    def unary(self, op: Op, value: int) -> int:
        """A function of one value, folded on literals where it is defined."""
        literal = self.literal(value)
        if literal is not None and op in _FOLDABLE:
            with suppress(OverflowError, ValueError):  # left to the device: infinity or NaN
                return self.const(_FOLDABLE[op](literal))
        return self.call(op, [value])[0]

    def binary(self, op: Op, left: int, right: int) -> int:
        """A function of two values."""
        return self.call(op, [left, right])[0]

    def select(self, condition: int, if_true: int, if_false: int) -> int:
        """`if_true` where the condition holds, else `if_false`."""
        if if_true == if_false:
            return if_true
        return self.call(Op.SELECT, [condition, if_true, if_false])[0]

    # -- result --------------------------------------------------------------------------------

    def build(self) -> Graph:
        """The graph of everything a store needs, with values renumbered without gaps."""
        return needed(self._calls, self.dtype)
