"""Sine and cosine of one argument become one call (paper: Context-Aware Optimizations)."""

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild


def fuse_sincos(graph: Graph, costs: OpCosts) -> Graph:
    """Replace SIN and COS of one argument by one SINCOS, where the target has it cheaper."""
    if not costs.has(Op.SINCOS):
        return graph
    if costs.price(Op.SINCOS) >= costs.price(Op.SIN) + costs.price(Op.COS):
        return graph
    sines = {call.operands[0] for call in graph.calls if call.op is Op.SIN}
    cosines = {call.operands[0] for call in graph.calls if call.op is Op.COS}
    both = sines & cosines
    if len(both) == 0:
        return graph

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op not in (Op.SIN, Op.COS) or call.operands[0] not in both:
            return None
        sine, cosine = builder.call(Op.SINCOS, operands)
        return [sine if call.op is Op.SIN else cosine]

    return rebuild(graph, rule)
