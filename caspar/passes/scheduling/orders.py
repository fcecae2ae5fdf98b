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


def depth_first_order(graph: Graph, traversal: TraversalSpec) -> list[int]:
    """Position of each call in a post-order traversal from the stores."""
    generator = random.Random(traversal.seed)
    stores = _ordered_stores(graph, traversal.seed, generator)
    weights = _operand_weights(graph, traversal.operands, generator)
    position = [-1] * len(graph.calls)
    count = 0
    for store in stores:
        stack = [store]
        while stack:
            number = stack[-1]
            if position[number] != -1:
                # -2 marks a call whose operands are being visited
                if position[number] == -2:
                    position[number] = count
                    count += 1
                stack.pop()
                continue
            position[number] = -2
            operands = sorted(graph.calls[number].operands, key=lambda value: weights[value])
            stack.extend(
                graph.producer[value]
                for value in reversed(operands)
                if position[graph.producer[value]] == -1
            )
    return position


def _ordered_stores(graph: Graph, seed: int, generator: random.Random) -> list[int]:
    by_argument: dict[str, list[int]] = {}
    for number, call in enumerate(graph.calls):
        if call.op is Op.STORE and isinstance(call.data, tuple):
            by_argument.setdefault(call.data[0], []).append(number)
    arguments = list(by_argument)
    if seed != 0:
        generator.shuffle(arguments)
        return [store for argument in arguments for store in by_argument[argument]]
    return sorted(store for stores in by_argument.values() for store in stores)


def _operand_weights(
    graph: Graph, order: OperandOrder, generator: random.Random
) -> Sequence[float]:
    """A weight of each value; operands are visited by ascending weight, then as given."""
    if order is OperandOrder.DEMANDING_FIRST:
        return [-need for need in _register_needs(graph)]
    if order is OperandOrder.SHUFFLED:
        return [generator.random() for _ in range(graph.num_values)]
    return [0] * graph.num_values


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
    descending = sorted((needs[value] for value in set(call.operands)), reverse=True)
    if OP_INFO[call.op].associative:
        # operands are contributed one by one beside a single accumulator
        held = [0] + [1] * (len(descending) - 1)
    else:
        held = list(range(len(descending)))
    by_operands = max((need + n for need, n in zip(descending, held, strict=True)), default=0)
    return max(by_operands, len(call.outputs))
