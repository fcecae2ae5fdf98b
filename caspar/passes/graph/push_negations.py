"""Negations of sums and products move into them, where hardware takes the sign for nothing.

Before: -(x*y + z*w) is two steps and a negation. After: -x*y - z*w, a multiplication and a fused
multiply-add that take the sign of an operand as it is read. Only a sum or product that nothing else
reads is changed; a literal factor is negated itself. The builder would undo all this: no stage
after it may use the builder.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from caspar.ir.graph import Call, Graph, needed
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts


def push_negations(graph: Graph, _costs: OpCosts) -> Graph:
    """Replace -(a + b) by -a - b and -(a * b) by (-a) * b, where something but a sum reads it."""
    pushed = {call.operands[0]: call.outputs[0] for call in graph.calls if _is_pushed(graph, call)}
    if len(pushed) == 0:
        return graph
    fresh = count(graph.num_values)
    calls: list[Call] = []
    for call in graph.calls:
        if call.op is Op.NEG and pushed.get(call.operands[0]) == call.outputs[0]:
            continue
        if len(call.outputs) == 1 and call.outputs[0] in pushed:
            inner = replace(call, outputs=(pushed[call.outputs[0]],))
            calls += _negated(graph, inner, pushed, fresh)
        else:
            calls.append(call)
    return needed(calls, graph.dtype)


def _is_pushed(graph: Graph, call: Call) -> bool:
    """Return whether a call negates a sum or product of its own, and not for sums alone."""
    if call.op is not Op.NEG:
        return False
    inner = graph.call_of(call.operands[0])
    readers = [graph.calls[user].op for user in graph.users[call.outputs[0]]]
    is_own = inner.op in (Op.SUM, Op.PROD) and len(graph.users[call.operands[0]]) == 1
    return is_own and any(op is not Op.SUM for op in readers)


def _negated(
    graph: Graph, call: Call, pushed: Mapping[int, int], fresh: Iterator[int]
) -> list[Call]:
    """A sum with all its terms negated, or a product with one factor, and what that takes."""
    made: list[Call] = []
    operands = list(call.operands)
    places = range(len(operands)) if call.op is Op.SUM else [_place_to_negate(graph, call)]
    for place in places:
        producer = graph.call_of(operands[place])
        if producer.op is Op.NEG and producer.operands[0] not in pushed:
            operands[place] = producer.operands[0]
            continue
        value = next(fresh)
        if producer.op is Op.CONST:
            assert isinstance(producer.data, float)
            made.append(replace(producer, outputs=(value,), data=-producer.data))
        else:
            made.append(Call(Op.NEG, (operands[place],), (value,), None, call.origin))
        operands[place] = value
    return [*made, replace(call, operands=tuple(operands))]


def _place_to_negate(graph: Graph, call: Call) -> int:
    """A literal factor if there is one, else the first."""
    literals = [n for n, v in enumerate(call.operands) if graph.call_of(v).op is Op.CONST]
    return literals[0] if len(literals) > 0 else 0
