"""Rebuilding a graph call by call, with some calls replaced: how every graph pass is written."""

from collections.abc import Callable, Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op

Rule = Callable[[GraphBuilder, Call, tuple[int, ...]], Sequence[int] | None]
"""Given the builder, a call of the old graph and the new values of its operands: the new values of
its outputs, or None to keep the call."""

_UNARY_SIMPLIFIED = frozenset({Op.SQRT, Op.EXP, Op.SIN, Op.COS, Op.ABS, Op.FLOOR})


def rebuild(graph: Graph, rule: Rule) -> Graph:
    """Apply a rule to every call; kept calls go through the builder's simplifications again."""
    builder = GraphBuilder(graph.dtype)
    new_values: list[int] = [-1] * graph.num_values
    for call in graph.calls:
        builder.origin = call.origin
        operands = tuple(new_values[value] for value in call.operands)
        outputs = rule(builder, call, operands)
        if outputs is None:
            outputs = keep(builder, call, operands)
        for value, new_value in zip(call.outputs, outputs, strict=True):
            new_values[value] = new_value
    return builder.build()


def keep(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> Sequence[int]:
    """Make a call again on new operands."""
    op = call.op
    if op is Op.SUM:
        return [builder.sum(operands)]
    if op is Op.PROD:
        return [builder.prod(operands)]
    if op is Op.NEG:
        return [builder.neg(operands[0])]
    if op is Op.DIV:
        return [builder.div(*operands)]
    if op is Op.SELECT:
        return [builder.select(*operands)]
    if op in _UNARY_SIMPLIFIED:
        return [builder.unary(op, operands[0])]
    return builder.call(op, operands, call.data, len(call.outputs))
