"""Lengths of vectors of 2, 3 or 4 and their reciprocals become one call, where that is cheaper.

sqrt(x*x + y*y + z*z) becomes NORM3(x, y, z), and its reciprocal RNORM3, if nothing else reads the
sum (paper: Hardware-Mapped Functions). A literal term c becomes the component sqrt(c). The paper
does this always. Here the target's prices decide: on CUDA the library's norms scale their operands
against overflow, which costs more instructions than the bare root in float32 (docs/design/0007).
"""

import math

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild

NORMS: dict[Op, dict[int, Op]] = {
    Op.SQRT: {2: Op.NORM2, 3: Op.NORM3, 4: Op.NORM4},
    Op.RSQRT: {2: Op.RNORM2, 3: Op.RNORM3, 4: Op.RNORM4},
}
"""Root -> number of squares below it -> norm."""


def use_norms(graph: Graph, costs: OpCosts) -> Graph:
    """Replace roots of sums of squares by norms."""
    norms = _norms(graph, costs)
    if len(norms) == 0:
        return graph

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if len(call.outputs) != 1 or call.outputs[0] not in norms:
            return None
        norm = norms[call.outputs[0]]
        squares = builder.producer_of(operands[0])  # the sum may have been folded meanwhile
        if squares.op is not Op.SUM or len(squares.operands) != OP_INFO[norm].arity:
            return None
        components = [_component(builder, square) for square in squares.operands]
        if any(component is None for component in components):
            return None
        return list(builder.call(norm, [c for c in components if c is not None]))

    return rebuild(graph, rule)


def _norms(graph: Graph, costs: OpCosts) -> dict[int, Op]:
    """Roots of sums that a norm would be cheaper for, if their terms are squares."""
    norms = {}
    for call in graph.calls:
        if call.op not in NORMS or len(graph.users[call.operands[0]]) != 1:
            continue
        squares = graph.call_of(call.operands[0])
        norm = NORMS[call.op].get(len(squares.operands)) if squares.op is Op.SUM else None
        if norm is None or not costs.has(norm):
            continue
        # the first square is a product, each further one a fused multiply-add
        bare = costs.price(call.op) + len(squares.operands) * costs.price(Op.MUL)
        if costs.price(norm) < bare:
            norms[call.outputs[0]] = norm
    return norms


def _component(builder: GraphBuilder, square: int) -> int | None:
    """x of x * x, sqrt(c) of a positive literal c; else None."""
    literal = builder.literal(square)
    if literal is not None:
        return builder.const(math.sqrt(literal)) if literal > 0.0 else None
    call = builder.producer_of(square)
    if call.op is Op.PROD and len(call.operands) == 2 and call.operands[0] == call.operands[1]:
        return call.operands[0]
    return None
