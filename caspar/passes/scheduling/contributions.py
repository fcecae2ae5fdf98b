"""The state of sums and products while their contributions are being ordered.

A state knows what has become available and proposes the next *move*: one binary step. Whether and
when a move is made is the scheduler's decision. A move is cheap even in wide sums, because at most
`SCAN_LIMIT` available operands are looked at.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from caspar.ir.ops import Op
from caspar.passes.scheduling.plan_accumulators import Term

SCAN_LIMIT = 32
"""Available operands searched for one that dies; wide sums take any of the first ones."""

Dies = Callable[[int, int], bool]
"""Whether a value is read by nothing but one call: (value, call index) -> bool."""


@dataclass(frozen=True, slots=True)
class Move:
    """One binary step of an accumulator.

    Attributes:
        op: ADD, SUB, MUL, NMUL, FMA, FNMA or NEG.
        operands: Values read; the accumulator is among them once it was started.
        reads: (value, call that reads it) of the operands other than the accumulator: the sum
            or product itself, or a fused product.
        starts: Whether this is the first step, which makes a new value.
        product: The fused product that is contributed.
    """

    op: Op
    operands: tuple[int, ...]
    reads: tuple[tuple[int, int], ...]
    starts: bool
    product: "ProductState | None" = None


class ProductState:
    """A product while it is scheduled.

    Attributes:
        call: Its call index.
        available: Factors that can be multiplied now; a partial product comes first.
        num_left: Factors not yet multiplied together, a partial product counting as one.
        num_final: Factors that are left when it is complete: 2 if fused, else 1.
        started: Whether the first available factor is a partial product.
    """

    __slots__ = ("_first_op", "available", "call", "num_final", "num_left", "started")

    def __init__(self, call: int, num_factors: int, fused: bool, negative: bool) -> None:
        self.call = call
        self.available: deque[int] = deque()
        self.num_left = num_factors
        self.num_final = 2 if fused else 1
        # the sum takes the sign of a fused product
        self._first_op = Op.NMUL if negative and not fused else Op.MUL
        self.started = False

    def is_ready(self) -> bool:
        """Whether a fused product's last two factors are there."""
        return self.num_left == 2 and len(self.available) == 2

    def is_complete(self) -> bool:
        """Whether nothing is left to multiply here."""
        return self.num_left <= self.num_final

    def gives_result(self, move: Move) -> bool:
        """Whether a move computes the product's own value."""
        return self.num_left == 2 and self.num_final == 1

    def final_reads(self) -> tuple[tuple[int, int], ...]:
        """What a fused product's last multiplication reads, without the partial product."""
        first = 1 if self.started else 0
        return tuple((factor, self.call) for factor in islice(self.available, first, None))

    def next_move(self, dies: Dies) -> Move | None:
        """The next multiplication, dying factors first; None if there is none."""
        if self.is_complete() or len(self.available) < 2:
            return None
        rest = list(islice(self.available, SCAN_LIMIT + 1))
        first = rest.pop(0 if self.started else _pick(rest, self.call, dies))
        pair = (first, rest[_pick(rest, self.call, dies)])
        reads = pair[1:] if self.started else pair
        op = Op.MUL if self.started else self._first_op
        return Move(op, pair, tuple((v, self.call) for v in reads), not self.started)

    def made(self, move: Move, result: int) -> None:
        """Record that a move was made."""
        for factor in move.operands:
            self.available.remove(factor)
        self.available.appendleft(result)
        self.num_left -= 1
        self.started = True


class _Start(Enum):
    """What a sum's first step is made of, so that every other product becomes an FMA."""

    POSITIVE = auto()
    """A plain positive term and any other term."""
    NEGATED = auto()
    """The plain terms are all negative: negate one."""
    PRODUCT = auto()
    """There are only products: multiply one out, a positive one if there is any."""


class SumState:
    """A sum while it is scheduled.

    Attributes:
        call: Its call index.
        accumulator: Value of the partial sum, once started.
        num_left: Terms not yet contributed.
    """

    __slots__ = (
        "_any_positive",
        "_negatives",
        "_positives",
        "_products",
        "_signs",
        "_start",
        "accumulator",
        "call",
        "num_left",
    )

    def __init__(self, call: int, terms: Sequence[Term]) -> None:
        self.call = call
        self.accumulator: int | None = None
        self.num_left = len(terms)
        self._positives: list[int] = []
        self._negatives: list[int] = []
        self._products: list[ProductState] = []
        self._signs: dict[int, list[bool]] = {}
        for term in terms:
            key = term.value if term.product is None else ~term.product
            self._signs.setdefault(key, []).append(term.negative)
        self._any_positive = any(not term.negative for term in terms)
        self._start = self._choose_start(terms)

    def _choose_start(self, terms: Sequence[Term]) -> _Start:
        plain = [term for term in terms if term.product is None]
        if any(not term.negative for term in plain):
            return _Start.POSITIVE
        return _Start.NEGATED if plain else _Start.PRODUCT

    def offer(self, value: int) -> None:
        """A plain term became available (every occurrence of it)."""
        for negative in self._signs[value]:
            (self._negatives if negative else self._positives).append(value)

    def offer_product(self, product: ProductState) -> None:
        """A fused product is down to its last multiplication."""
        self._products.append(product)

    def is_complete(self) -> bool:
        """Whether every term has been contributed."""
        return self.num_left == 0

    def gives_result(self, move: Move) -> bool:
        """Whether a move computes the sum's own value."""
        return self.num_left == self._num_terms(move)

    def _num_terms(self, move: Move) -> int:
        plain = sum(reader == self.call for _, reader in move.reads)
        return plain + (move.product is not None)

    def next_move(self, dies: Dies) -> Move | None:
        """The next contribution, dying terms first; None if none is possible."""
        if self.accumulator is not None:
            return self._contribution(self.accumulator, None, dies)
        if self._start is _Start.POSITIVE:
            return self._positive_start(dies)
        if self._start is _Start.NEGATED:
            return self._negated_start(dies)
        return self._product_start(dies)

    def _positive_start(self, dies: Dies) -> Move | None:
        if not self._positives:
            return None
        index = _pick(self._positives, self.call, dies)
        first = self._positives.pop(index)
        move = self._contribution(first, (first, self.call), dies)
        self._positives.insert(index, first)
        return move

    def _negated_start(self, dies: Dies) -> Move | None:
        if not self._negatives:
            return None
        value = self._negatives[_pick(self._negatives, self.call, dies)]
        return Move(Op.NEG, (value,), ((value, self.call),), True)

    def _product_start(self, dies: Dies) -> Move | None:
        candidates = self._products[:SCAN_LIMIT]
        if self._any_positive:
            candidates = [product for product in candidates if not self._is_negative(product)]
        if len(candidates) == 0:
            return None
        product = candidates[_pick_product(candidates, dies)]
        pair = (product.available[0], product.available[1])
        op = Op.MUL if self._any_positive else Op.NMUL
        return Move(op, pair, product.final_reads(), True, product)

    def _contribution(
        self, accumulator: int, start: tuple[int, int] | None, dies: Dies
    ) -> Move | None:
        """A step that adds one available term to a value; `start` is its read, at the start."""
        reads = () if start is None else (start,)
        best: Move | None = None
        for op, terms in ((Op.ADD, self._positives), (Op.SUB, self._negatives)):
            if terms:
                value = terms[_pick(terms, self.call, dies)]
                move = Move(
                    op, (accumulator, value), (*reads, (value, self.call)), start is not None
                )
                if dies(value, self.call):
                    return move
                best = move if best is None else best
        if self._products:
            product = self._products[_pick_product(self._products, dies)]
            op = Op.FNMA if self._is_negative(product) else Op.FMA
            operands = (product.available[0], product.available[1], accumulator)
            reads = (*reads, *product.final_reads())
            move = Move(op, operands, reads, start is not None, product)
            if best is None or _kills(product, dies):
                return move
        return best

    def _is_negative(self, product: ProductState) -> bool:
        return self._signs[~product.call][0]

    def made(self, move: Move, result: int) -> None:
        """Record that a move was made."""
        self.num_left -= self._num_terms(move)
        plain = [value for value, reader in move.reads if reader == self.call]
        for position, value in enumerate(plain):
            last = position == len(plain) - 1
            subtracted = move.op is Op.NEG or (move.op is Op.SUB and last)
            (self._negatives if subtracted else self._positives).remove(value)
        if move.product is not None:
            self._products.remove(move.product)
        self.accumulator = result


def _pick(values: Sequence[int], call: int, dies: Dies) -> int:
    """Index of a value that dies when the call has read it; 0 if none does."""
    for index in range(min(len(values), SCAN_LIMIT)):  # loops: generators take twice the time
        if dies(values[index], call):
            return index
    return 0


def _pick_product(products: Sequence[ProductState], dies: Dies) -> int:
    for index in range(min(len(products), SCAN_LIMIT)):
        if _kills(products[index], dies):
            return index
    return 0


def _kills(product: ProductState, dies: Dies) -> bool:
    return product.started or any(dies(factor, product.call) for factor in product.available)
