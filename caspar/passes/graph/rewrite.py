"""Rebuilding a graph call by call, with some calls replaced: how every graph pass is written."""

from collections.abc import Callable, Sequence

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op

Rule = Callable[[GraphBuilder, Call, tuple[int, ...]], Sequence[int] | None]
"""Given the builder, a call of the old graph and the new values of its operands: the new values of
its outputs, or None to keep the call."""

_SIMPLIFIED: dict[Op, Callable[[GraphBuilder, tuple[int, ...]], int]] = {
    Op.SUM: GraphBuilder.sum,
    Op.PROD: GraphBuilder.prod,
    Op.NEG: lambda builder, operands: builder.neg(*operands),
    Op.DIV: lambda builder, operands: builder.div(*operands),
    Op.SELECT: lambda builder, operands: builder.select(*operands),
}
_FOLDED = frozenset({Op.SQRT, Op.EXP, Op.SIN, Op.COS, Op.ABS, Op.FLOOR})


def rebuild(graph: Graph, rule: Rule) -> Graph:
    """Apply a rule to every call; kept calls go through the builder's simplifications again."""
    builder = GraphBuilder(graph.dtype)
    new_values: list[int] = [-1] * graph.num_values
    for call in graph.calls:
        builder.origin = call.origin
        operands = tuple([new_values[value] for value in call.operands])
        outputs = rule(builder, call, operands)
        if outputs is None:
            outputs = keep(builder, call, operands)
        for value, new_value in zip(call.outputs, outputs, strict=True):
            new_values[value] = new_value
    return builder.build()


def keep(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> Sequence[int]:
    """Make a call again on new operands."""
    simplify = _SIMPLIFIED.get(call.op)
    if simplify is not None:
        return [simplify(builder, operands)]
    if call.op in _FOLDED:
        return [builder.unary(call.op, operands[0])]
    return builder.call(call.op, operands, call.data, len(call.outputs))
