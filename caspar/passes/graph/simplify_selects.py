"""Selections and signs by as few calls as possible. Every rule is exact.

* SELECT(NOT c, a, b) becomes SELECT(c, b, a).
* A branch that selects by the same condition again is replaced by what it gives there.
* SELECT(c, -a, -b) becomes -SELECT(c, a, b): sums and products take the sign for nothing.
* k * COPYSIGN(1, x) with a literal k > 0 becomes COPYSIGN(k, x): `epsilon * sign_no_zero(x)`.
"""

import math

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild


def simplify_selects(graph: Graph, _costs: OpCosts) -> Graph:
    """Apply the rules to every call."""
    if all(call.op not in (Op.SELECT, Op.COPYSIGN) for call in graph.calls):
        return graph

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op is Op.SELECT:
            return [_select(builder, *operands)]
        if call.op is Op.PROD:
            return _signed_literal(builder, operands)
        return None

    return rebuild(graph, rule)


def _select(builder: GraphBuilder, condition: int, if_true: int, if_false: int) -> int:
    tested = builder.producer_of(condition)
    if tested.op is Op.NOT:
        return _select(builder, tested.operands[0], if_false, if_true)
    branches = [if_true, if_false]
    for place in range(2):
        inner = builder.producer_of(branches[place])
        if inner.op is Op.SELECT and inner.operands[0] == condition:
            branches[place] = inner.operands[1 + place]
    negated = [builder.producer_of(branch) for branch in branches]
    if all(call.op is Op.NEG for call in negated):
        magnitudes = [call.operands[0] for call in negated]
        return builder.neg(builder.select(condition, *magnitudes))
    return builder.select(condition, *branches)


def _signed_literal(builder: GraphBuilder, operands: tuple[int, ...]) -> list[int] | None:
    """The product with a literal and a bare sign made one call; None if it has not both."""
    for value in operands:
        sign = builder.producer_of(value)
        if sign.op is not Op.COPYSIGN or builder.literal(sign.operands[0]) != 1.0:
            continue
        for factor in operands:
            literal = builder.literal(factor)
            if literal is not None and 0.0 < literal < math.inf:
                rest = list(operands)
                rest.remove(value)
                rest.remove(factor)
                copied = builder.binary(Op.COPYSIGN, factor, sign.operands[1])
                return [builder.prod([copied, *rest])]
    return None
