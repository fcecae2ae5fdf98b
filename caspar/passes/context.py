"""Rewrites that pay because of what else the kernel computes (paper: Context-Aware Optimizations).

`share_reciprocals`: a/x alone stays a division; a/x and b/x, or a/x beside 1/x, become products
with one r = RCP(x). `fuse_sincos`: SIN and COS of one argument become one SINCOS.
"""

from collections import Counter

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.rewrite import rebuild


def share_reciprocals(graph: Graph, costs: OpCosts) -> Graph:
    """Replace divisions by one denominator with products, where that is cheaper."""
    divisions = Counter(call.operands[1] for call in graph.calls if call.op is Op.DIV)
    inverted = {call.operands[0] for call in graph.calls if call.op is Op.RCP}
    division, reciprocal, product = (costs.price(op) for op in (Op.DIV, Op.RCP, Op.MUL))

    def is_shared(denominator: int) -> bool:
        count = divisions[denominator]
        if denominator in inverted:
            return product < division
        return count > 1 and reciprocal + count * product < count * division

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op is not Op.DIV or not is_shared(call.operands[1]):
            return None
        numerator, denominator = operands
        inverse = builder.div(builder.const(1.0), denominator)
        return [builder.prod([numerator, inverse])]

    return rebuild(graph, rule)


def fuse_sincos(graph: Graph, costs: OpCosts) -> Graph:
    """Replace SIN and COS of one argument by one SINCOS."""
    if not costs.has(Op.SINCOS):
        return graph
    sines = {call.operands[0] for call in graph.calls if call.op is Op.SIN}
    cosines = {call.operands[0] for call in graph.calls if call.op is Op.COS}
    pays = costs.price(Op.SINCOS) < costs.price(Op.SIN) + costs.price(Op.COS)

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op not in (Op.SIN, Op.COS) or not pays:
            return None
        if call.operands[0] not in sines or call.operands[0] not in cosines:
            return None
        both = builder.call(Op.SINCOS, operands)
        return [both[0 if call.op is Op.SIN else 1]]

    return rebuild(graph, rule)
