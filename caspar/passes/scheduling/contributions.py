"""The state of sums and products while their contributions are being ordered.

A state knows what has become available and proposes the next *move*: one binary step. Whether and
when a move is made is the scheduler's decision. A move is cheap even in wide sums, because at most
`SCAN_LIMIT` available operands are looked at. Operands that *die*, because nothing else reads them
any more, come first: `sole_reader[value]` is the one call that still reads a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from caspar.ir.ops import Op
from caspar.passes.scheduling.plan_accumulators import Term

SCAN_LIMIT = 32
"""Available operands searched for one that dies; wide sums take any of the first ones."""

# An attribute of an enum takes longer than the rest of a move.
_ADD, _SUB, _NEG = Op.ADD, Op.SUB, Op.NEG
_MUL, _NMUL, _FMA, _FNMA = Op.MUL, Op.NMUL, Op.FMA, Op.FNMA


class Move(NamedTuple):
    """One binary step of an accumulator, which is among the operands once it was started.

    `reads` are the others, without the factors of `product`, the fused product that is contributed.
    """

    op: Op
    operands: tuple[int, ...]
    reads: tuple[int, ...]
    product: "ProductState | None" = None


class ProductState:
    """A product while it is scheduled; of `available` factors a partial product comes first.

    `num_left` factors are not yet multiplied together, a partial product counting as one;
    `num_final` are left when it is complete: 2 if fused, else 1.
    """

    __slots__ = ("_first_op", "available", "call", "is_started", "num_final", "num_left")

    def __init__(self, call: int, num_factors: int, is_fused: bool, is_negative: bool) -> None:
        self.call = call
        self.available: list[int] = []
        self.num_left = num_factors
        self.num_final = 2 if is_fused else 1
        # the sum takes the sign of a fused product
        self._first_op = _NMUL if is_negative and not is_fused else _MUL
        self.is_started = False

    def offer(self, value: int, num_reads: int) -> None:
        """A factor became available, every occurrence of it."""
        self.available += [value] * num_reads

    def is_ready(self) -> bool:
        """Return whether a product is fused, and its last two factors are there."""
        return self.num_left == 2 and self.num_final == 2 and len(self.available) == 2

    def gives_result(self, move: Move) -> bool:
        """Return whether a move computes the product's own value."""
        return self.num_left == 2 and self.num_final == 1

    def final_reads(self) -> list[int]:
        """Return what the last multiplication of a fused product reads, but for the partial one."""
        return self.available[1:] if self.is_started else self.available

    def next_move(self, sole_reader: Sequence[int]) -> Move | None:
        """The next multiplication, dying factors first; None if there is none."""
        if self.num_left <= self.num_final or len(self.available) < 2:
            return None
        rest = self.available[: SCAN_LIMIT + 1]
        call = self.call
        first = rest.pop(0 if self.is_started else _pick(rest, call, sole_reader))
        second = rest[_pick(rest, call, sole_reader)]
        pair = (first, second)
        if self.is_started:
            return Move(_MUL, pair, (second,))
        return Move(self._first_op, pair, pair)

    def made(self, move: Move, result: int) -> None:
        """Record that a move was made."""
        for factor in move.operands:
            self.available.remove(factor)
        self.available.insert(0, result)
        self.num_left -= 1
        self.is_started = True

    def is_freeing(self, sole_reader: Sequence[int]) -> bool:
        """Return whether a value dies with a fused product's last multiplication."""
        if self.is_started:
            return True
        first, second = self.available
        return sole_reader[first] == self.call or sole_reader[second] == self.call


class _Start(Enum):
    """The first step of a sum, chosen so that every other product becomes an FMA."""

    POSITIVE = auto()
    """A plain positive term and any other term."""
    NEGATED = auto()
    """The plain terms are all negative: negate one."""
    PRODUCT = auto()
    """There are only products: multiply one out, a positive one if there is any."""


@dataclass(frozen=True, slots=True)
class SumTerms:
    """The terms of a sum, once for each graph.

    `signs` has for each occurrence of a plain term whether it is subtracted; `negative_products`
    are call indices of fused products that are subtracted.
    """

    call: int
    num_terms: int
    signs: dict[int, list[bool]]
    negative_products: frozenset[int]
    any_positive: bool
    start: _Start

    @staticmethod
    def of(call: int, terms: Sequence[Term]) -> "SumTerms":
        """Group the terms that `plan_accumulators` found."""
        plain = [term for term in terms if term.product is None]
        signs: dict[int, list[bool]] = {}
        for term in plain:
            signs.setdefault(term.value, []).append(term.negative)
        if any(not term.negative for term in plain):
            start = _Start.POSITIVE
        else:
            start = _Start.NEGATED if plain else _Start.PRODUCT
        negative = (term.product for term in terms if term.product is not None and term.negative)
        any_positive = any(not term.negative for term in terms)
        return SumTerms(call, len(terms), signs, frozenset(negative), any_positive, start)


class SumState:
    """A sum while it is scheduled: terms left now, and when it is complete."""

    __slots__ = (
        "_accumulator",
        "_negatives",
        "_positives",
        "_products",
        "_terms",
        "is_started",
        "num_left",
    )

    num_final = 0

    def __init__(self, terms: SumTerms) -> None:
        self.is_started = False
        self._accumulator = -1
        self.num_left = terms.num_terms
        self._terms = terms
        self._positives: list[int] = []
        self._negatives: list[int] = []
        self._products: list[ProductState] = []

    def offer(self, value: int, num_reads: int) -> None:
        """A plain term became available, every occurrence of it."""
        for negative in self._terms.signs[value]:
            (self._negatives if negative else self._positives).append(value)

    def offer_product(self, product: ProductState) -> None:
        """A fused product is down to its last multiplication."""
        self._products.append(product)

    def gives_result(self, move: Move) -> bool:
        """Return whether a move computes the sum's own value."""
        return self.num_left == len(move.reads) + (move.product is not None)

    def next_move(self, sole_reader: Sequence[int]) -> Move | None:
        """The next contribution, dying terms first; None if none is possible."""
        if self.is_started:
            return self._contribution(self._accumulator, (), sole_reader)
        if self._terms.start is _Start.POSITIVE:
            return self._positive_start(sole_reader)
        if self._terms.start is _Start.NEGATED:
            return self._negated_start(sole_reader)
        return self._product_start(sole_reader)

    def _positive_start(self, sole_reader: Sequence[int]) -> Move | None:
        if not self._positives:
            return None
        index = _pick(self._positives, self._terms.call, sole_reader)
        first = self._positives.pop(index)
        move = self._contribution(first, (first,), sole_reader)
        self._positives.insert(index, first)
        return move

    def _negated_start(self, sole_reader: Sequence[int]) -> Move | None:
        if not self._negatives:
            return None
        value = self._negatives[_pick(self._negatives, self._terms.call, sole_reader)]
        return Move(_NEG, (value,), (value,))

    def _product_start(self, sole_reader: Sequence[int]) -> Move | None:
        candidates, negative = self._products, self._terms.negative_products
        if negative and self._terms.any_positive:
            candidates = [one for one in candidates[:SCAN_LIMIT] if one.call not in negative]
        if not candidates:
            return None
        product = _pick_product(candidates, sole_reader)
        op = _MUL if self._terms.any_positive else _NMUL
        return Move(op, tuple(product.available), (), product)

    def _contribution(
        self, accumulator: int, start: tuple[int, ...], sole_reader: Sequence[int]
    ) -> Move | None:
        call = self._terms.call
        best: Move | None = None
        for op, terms in ((_ADD, self._positives), (_SUB, self._negatives)):
            if terms:
                value = terms[_pick(terms, call, sole_reader)]
                is_dying = sole_reader[value] == call
                if is_dying or best is None:
                    best = Move(op, (accumulator, value), (*start, value))
                if is_dying:
                    return best
        if self._products:
            product = _pick_product(self._products, sole_reader)
            if best is None or product.is_freeing(sole_reader):
                op = _FNMA if product.call in self._terms.negative_products else _FMA
                return Move(op, (*product.available, accumulator), start, product)
        return best

    def made(self, move: Move, result: int) -> None:
        """Record that a move was made."""
        self.num_left -= len(move.reads)
        for value in move.reads[:-1]:
            self._positives.remove(value)
        for value in move.reads[-1:]:
            is_subtracted = move.op is _NEG or move.op is _SUB
            (self._negatives if is_subtracted else self._positives).remove(value)
        if move.product is not None:
            self._products.remove(move.product)
            self.num_left -= 1
        self._accumulator = result
        self.is_started = True


def _pick(values: Sequence[int], call: int, sole_reader: Sequence[int]) -> int:
    """Index of a value that dies when the call has read it; 0 if none does."""
    for index in range(min(len(values), SCAN_LIMIT)):  # loops: generators take twice the time
        if sole_reader[values[index]] == call:
            return index
    return 0


def _pick_product(products: Sequence[ProductState], sole_reader: Sequence[int]) -> ProductState:
    """A product with whose last multiplication a value dies; the first one if there is none."""
    for product in products[:SCAN_LIMIT]:
        if product.is_freeing(sole_reader):
            return product
    return products[0]
