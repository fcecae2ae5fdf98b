"""Divisions by one denominator share a reciprocal (paper: Context-Aware Optimizations).

a/x alone stays a division; a/x and b/x, or a/x beside 1/x, become products with one r = RCP(x).
"""

from collections import Counter

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild


def share_reciprocals(graph: Graph, costs: OpCosts) -> Graph:
    """Replace divisions by one denominator with products, where that is cheaper."""
    divisions = Counter(call.operands[1] for call in graph.calls if call.op is Op.DIV)
    inverted = {call.operands[0] for call in graph.calls if call.op is Op.RCP}
    division, reciprocal, product = (costs.price(op) for op in (Op.DIV, Op.RCP, Op.MUL))

    def is_shared(denominator: int, count: int) -> bool:
        if denominator in inverted:
            return product < division
        return count > 1 and reciprocal + count * product < count * division

    shared = {
        denominator for denominator, count in divisions.items() if is_shared(denominator, count)
    }
    if len(shared) == 0:
        return graph

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op is not Op.DIV or call.operands[1] not in shared:
            return None
        numerator, denominator = operands
        inverse = builder.div(builder.const(1.0), denominator)
        return [builder.prod([numerator, inverse])]

    return rebuild(graph, rule)
