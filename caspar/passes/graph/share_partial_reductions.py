"""Common subsets of sums and of products are computed once (paper: Common Partial Subexpressions).

Before: r0 = a+b+c, r1 = a+c+d+e, r2 = a+c+e, seven additions. After: r3 = a+c, r0 = r3+b,
r2 = r3+e, r1 = r2+d, four.

The subset that occurs in most reductions is taken first, the larger one of equals; where a
reduction is the subset as a whole, it is used itself. Terms may have opposite signs: a-b and b-a
share. A subset is taken only if that saves instructions, counting that a product which only sums
read costs a sum nothing but the fused multiply-add (`_saving`).

Departure from the paper, for speed: not every pair of terms is a candidate. Within one reduction
the terms are sorted by where else they occur, and each is paired with the next `WINDOW` ones; so
terms that always occur together are neighbours. Cost: n log n.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild

WINDOW = 12
"""Neighbours that a term is paired with."""

MAX_TIES = 6
"""Equally frequent pairs whose subsets are compared by size."""

Element = tuple[int, int]
"""A value and its number among equal operands: x * x has (x, 0) and (x, 1). Subsets that were
taken out are values too, numbered from `Graph.num_values`."""

Pair = tuple[Element, Element, int]
"""Two elements and the product of their signs."""


def share_partial_sums(graph: Graph, _costs: OpCosts) -> Graph:
    """Compute common subsets of the terms of sums once."""
    return _share(graph, Op.SUM)


def share_partial_products(graph: Graph, _costs: OpCosts) -> Graph:
    """Compute common subsets of the factors of products once."""
    return _share(graph, Op.PROD)


def _share(graph: Graph, op: Op) -> Graph:
    reductions = _Reductions(graph, op)
    if not reductions.share():
        return graph
    made: dict[int, int] = {}

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        made.update(zip(call.operands, operands, strict=True))
        if call.op is not op:
            return None
        return [_make(builder, reductions, made, call.outputs[0])]

    return rebuild(graph, rule)


def _make(
    builder: GraphBuilder, reductions: "_Reductions", made: dict[int, int], wanted: int
) -> int:
    """The new value of a reduction, made after those it is made of."""
    pending = [wanted]
    while pending:
        value = pending[-1]
        members = reductions.members[value]
        missing = [part for part, _ in members if part not in made]
        if len(missing) > 0:
            pending += missing
            continue
        signed = [
            made[part] if sign > 0 else builder.neg(made[part])
            for (part, _), sign in members.items()
        ]
        reduce = builder.sum if reductions.op is Op.SUM else builder.prod
        made[value] = reduce(signed)
        pending.pop()
    return made[wanted]


class _Reductions:
    """The sums (or products) of a graph while subsets are taken out of them.

    `members` has the elements of each reduction, `places` the reductions of each element, both with
    signs.
    """

    def __init__(self, graph: Graph, op: Op) -> None:
        self.op = op
        self.members: dict[int, dict[Element, int]] = {}
        self.places: dict[Element, dict[int, int]] = {}
        self._next_value = graph.num_values
        self._fused = {call.outputs[0] for call in graph.calls if _is_fused_product(graph, call)}
        self._heap: list[tuple[int, int, Pair]] = []
        self._num_pushed = 0
        for call in graph.calls:
            if call.op is op:
                self._add(call.outputs[0], _elements(graph, call))

    def share(self) -> bool:
        counts: Counter[Pair] = Counter()
        for value in self.members:
            counts.update(self._near_pairs(value))
        for pair, count in counts.items():
            if count > 1:
                self._push(pair, count)
        any_taken = False
        while True:
            subset = self._most_frequent()
            if subset is None:
                return any_taken
            self._take_out(*subset)
            any_taken = True

    # -- membership ----------------------------------------------------------------------------

    def _add(self, value: int, elements: dict[Element, int]) -> None:
        self.members[value] = elements
        for element, sign in elements.items():
            self.places.setdefault(element, {})[value] = sign

    def _remove(self, value: int, element: Element) -> None:
        del self.members[value][element]
        del self.places[element][value]

    # -- candidates ----------------------------------------------------------------------------

    def _near_pairs(self, value: int) -> Iterator[Pair]:
        """Pairs of one reduction's elements that occur elsewhere and in similar places."""
        shared = [e for e in self.members[value] if len(self.places[e]) > 1]
        shared.sort(key=lambda element: (tuple(islice(self.places[element], WINDOW)), element))
        for number, first in enumerate(shared):
            for second in shared[number + 1 : number + 1 + WINDOW]:
                yield self._pair(value, first, second)

    def _pair(self, value: int, first: Element, second: Element) -> Pair:
        members = self.members[value]
        low, high = min(first, second), max(first, second)
        return low, high, members[low] * members[high]

    def _push(self, pair: Pair, count: int) -> None:
        heapq.heappush(self._heap, (-count, self._num_pushed, pair))
        self._num_pushed += 1

    def _where(self, pair: Pair) -> list[int]:
        """The reductions that hold both elements with that relative sign, in order."""
        first, second, relative = pair
        fewer, more = sorted((self.places[first], self.places[second]), key=len)
        return sorted(
            value for value, sign in fewer.items() if sign * more.get(value, 0) == relative
        )

    def _most_frequent(self) -> tuple[list[int], dict[Element, int]] | None:
        best: tuple[list[int], dict[Element, int]] | None = None
        best_count = num_ties = 0
        passed: list[tuple[Pair, int]] = []
        while self._heap and num_ties < MAX_TIES:
            if -self._heap[0][0] < best_count:
                break
            count, _, pair = heapq.heappop(self._heap)
            where = self._where(pair)
            if len(where) < -count:
                if len(where) > 1:
                    self._push(pair, len(where))
                continue
            subset = self._largest_subset(pair[0], where)
            if self._saving(where, subset) <= 0:
                continue
            num_ties += 1
            best_count = len(where)
            passed.append((pair, best_count))
            if best is None or len(subset) > len(best[1]):
                best = where, subset
        for pair, count in passed:
            self._push(pair, count)
        return best

    def _largest_subset(self, first: Element, where: list[int]) -> dict[Element, int]:
        """All elements that occur wherever `first` is among the given reductions."""
        smallest = min(where, key=lambda value: (len(self.members[value]), value))
        orientation = self.members[smallest][first]
        subset = {first: 1}
        for element, sign in self.members[smallest].items():
            relative = sign * orientation
            places, leading = self.places[element], self.places[first]
            if all(places.get(value, 0) * leading[value] == relative for value in where):
                subset[element] = relative
        return subset

    def _saving(self, where: list[int], subset: dict[Element, int]) -> int:
        """Instructions saved by computing a subset of k elements once for n reductions.

        A product of k factors takes k - 1 instructions. A sum of k terms takes k, or k - 1 where
        some term is not a product: a sum of products alone starts with a multiplication.
        """
        if self.op is Op.PROD:
            return (len(where) - 1) * (len(subset) - 1)
        starts = sum(self._has_start(self.members[value]) for value in where)
        before = len(where) * len(subset) - starts
        return before - (len(subset) - self._has_start(subset))

    def _has_start(self, elements: dict[Element, int]) -> bool:
        return any(value not in self._fused for value, _ in elements)

    # -- taking out ----------------------------------------------------------------------------

    def _take_out(self, where: list[int], subset: dict[Element, int]) -> None:
        first = next(iter(subset))
        orientations = {value: self.members[value][first] for value in where}
        whole = [value for value in where if len(self.members[value]) == len(subset)]
        if len(whole) > 0:
            shared, relative = whole[0], orientations[whole[0]]
        else:
            shared, relative = self._next_value, 1
            self._next_value += 1
        rest = [value for value in where if value != shared]
        for value in rest:
            for element in subset:
                self._remove(value, element)
        if len(whole) == 0:
            self._add(shared, dict(subset))
        # a product may hold the shared one already: x * x * p with p = x * x
        taken = [n for value in rest for part, n in self.members[value] if part == shared]
        new = (shared, max(taken, default=-1) + 1)
        for value in rest:
            sign = orientations[value] * relative
            self.members[value][new] = sign
            self.places.setdefault(new, {})[value] = sign
        self._pair_up(new, rest)

    def _pair_up(self, new: Element, where: list[int]) -> None:
        """Candidates of a new element with what is beside it most often."""
        counts: Counter[Pair] = Counter()
        for value in where:
            beside = [e for e in self.members[value] if e != new and len(self.places[e]) > 1]
            counts.update(self._pair(value, new, element) for element in beside[: 2 * WINDOW])
        for pair, count in counts.items():
            if count > 1:
                self._push(pair, count)


def _elements(graph: Graph, call: Call) -> dict[Element, int]:
    elements: dict[Element, int] = {}
    counts: Counter[int] = Counter()
    for operand in call.operands:
        producer = graph.call_of(operand)
        is_negated = call.op is Op.SUM and producer.op is Op.NEG
        value = producer.operands[0] if is_negated else operand
        elements[value, counts[value]] = -1 if is_negated else 1
        counts[value] += 1
    return elements


def _is_fused_product(graph: Graph, call: Call) -> bool:
    """Return whether a call is a product that nothing but sums read."""
    if call.op is not Op.PROD:
        return False
    readers = [graph.calls[user] for user in graph.users[call.outputs[0]]]
    negations = [reader.outputs[0] for reader in readers if reader.op is Op.NEG]
    readers += [graph.calls[user] for negation in negations for user in graph.users[negation]]
    return all(reader.op in (Op.SUM, Op.NEG) for reader in readers)
