"""Depth-first orders of a graph's calls: the K of the scheduling key.

Different orders give different schedules, so the scheduler tries several. An order is decided by
the sequence in which stored arguments are visited and the sequence of operands within a call.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from caspar.ir.graph import Call, Graph
from caspar.ir.ops import OP_INFO, Op


class OperandOrder(Enum):
    """Which operand's subtree comes first."""

    GIVEN = auto()
    DEMANDING_FIRST = auto()
    """The one that needs most registers, by the rule of Sethi and Ullman for trees."""
    SHUFFLED = auto()


@dataclass(frozen=True, slots=True)
class TraversalSpec:
    """A depth-first traversal.

    Attributes:
        seed: 0 visits stores as they are; another number shuffles the stored arguments, keeping
            the chunks of each argument together and in order.
        operands: Order of the operands.
    """

    seed: int
    operands: OperandOrder


class DepthFirstOrders:
    """The orders of one graph. One that several traversals have in common is found once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._stores: dict[str, list[int]] = {}
        for number, call in enumerate(graph.calls):
            if call.op is Op.STORE and isinstance(call.data, tuple):
                self._stores.setdefault(call.data[0], []).append(number)
        self._sorted: dict[OperandOrder, list[list[int]]] = {}
        self._known: dict[tuple[OperandOrder, tuple[int, ...]], tuple[int, ...]] = {}

    def order(self, traversal: TraversalSpec) -> tuple[int, ...]:
        """Position of each call in a post-order traversal from the stores."""
        generator = random.Random(traversal.seed)
        stores = self._ordered_stores(traversal.seed, generator)
        if traversal.operands is OperandOrder.SHUFFLED:
            weights = [generator.random() for _ in range(self._graph.num_values)]
            return _positions(stores, self._sorted_operands(weights))
        key = (traversal.operands, stores)
        if key not in self._known:
            self._known[key] = _positions(stores, self._operands(traversal.operands))
        return self._known[key]

    def _operands(self, order: OperandOrder) -> list[list[int]]:
        if order not in self._sorted:
            is_given = order is OperandOrder.GIVEN
            weights = None if is_given else [-need for need in _register_needs(self._graph)]
            self._sorted[order] = self._sorted_operands(weights)
        return self._sorted[order]

    def _ordered_stores(self, seed: int, generator: random.Random) -> tuple[int, ...]:
        if seed == 0:
            return tuple(sorted(store for stores in self._stores.values() for store in stores))
        arguments = list(self._stores)
        generator.shuffle(arguments)
        return tuple(store for argument in arguments for store in self._stores[argument])

    def _sorted_operands(self, weights: Sequence[float] | None) -> list[list[int]]:
        """For each call, what produces its operands, by ascending weight, then as given."""
        producer = self._graph.producer
        if weights is None:
            return [[producer[value] for value in call.operands] for call in self._graph.calls]
        weight = weights.__getitem__
        return [
            [producer[value] for value in sorted(call.operands, key=weight)]
            for call in self._graph.calls
        ]


def _positions(stores: Sequence[int], operands: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Position of each call behind its operands, which are visited in the given order."""
    position = [-1] * len(operands)
    count = 0
    for store in stores:
        path = [(store, iter(operands[store]))]
        while path:
            call, rest = path[-1]
            for operand in rest:
                if position[operand] != -1:
                    continue
                if operands[operand]:
                    path.append((operand, iter(operands[operand])))
                    break
                position[operand] = count
                count += 1
            else:
                path.pop()
                position[call] = count
                count += 1
    return tuple(position)


def _register_needs(graph: Graph) -> list[int]:
    """Registers each value would need if the graph were a tree."""
    needs = [0] * graph.num_values
    for call in graph.calls:
        need = _register_need(call, needs)
        for value in call.outputs:
            needs[value] = need
    return needs


def _register_need(call: Call, needs: Sequence[int]) -> int:
    if call.op is Op.CONST:
        return 0
    descending = sorted([needs[value] for value in set(call.operands)], reverse=True)
    # operands of a reduction are contributed one by one beside a single accumulator
    most_held = 1 if OP_INFO[call.op].associative else len(descending)
    by_operands = [need + min(held, most_held) for held, need in enumerate(descending)]
    return max([len(call.outputs), *by_operands])
