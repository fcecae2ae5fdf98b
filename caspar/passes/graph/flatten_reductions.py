"""A sum inside a sum, and a product inside a product, become one where nothing else reads it.

Derivatives nest sums by the way they are accumulated. As one n-ary call the terms can be
contributed in any order, and every product among them can be fused.
"""

from caspar.ir.builder import GraphBuilder
from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild


def flatten_reductions(graph: Graph, _costs: OpCosts) -> Graph:
    """Merge reductions with the only reduction of their kind that reads them."""
    inlined = {call.outputs[0] for call in graph.calls if _is_inlined(graph, call)}
    if len(inlined) == 0:
        return graph
    parts: dict[int, list[int]] = {}

    def rule(builder: GraphBuilder, call: Call, operands: tuple[int, ...]) -> list[int] | None:
        if call.op is Op.NEG and call.operands[0] in parts and call.outputs[0] in inlined:
            negated = [builder.neg(part) for part in parts.pop(call.operands[0])]
            parts[call.outputs[0]] = negated
            return [operands[0]]
        if call.op not in (Op.SUM, Op.PROD):
            return None
        found = [parts.pop(old, [new]) for old, new in zip(call.operands, operands, strict=True)]
        # growing the longest list, not copying it at every link, keeps long chains linear
        flat = max(found, key=len)
        for others in found:
            if others is not flat:
                flat += others
        if call.outputs[0] in inlined:
            parts[call.outputs[0]] = flat
            return [flat[0]]  # read by nothing: the reader takes the parts
        return [builder.sum(flat) if call.op is Op.SUM else builder.prod(flat)]

    return rebuild(graph, rule)


def _is_inlined(graph: Graph, call: Call) -> bool:
    """Return whether a call has one reader, a reduction of its own kind, directly or negated."""
    if call.op not in (Op.SUM, Op.PROD, Op.NEG):
        return False
    if graph.num_reads[call.outputs[0]] != 1:
        return False
    user = graph.calls[graph.users[call.outputs[0]][0]]
    if call.op is Op.NEG:
        return user.op is Op.SUM and graph.call_of(call.operands[0]).op is Op.SUM
    if call.op is Op.SUM and user.op is Op.NEG:
        return _is_inlined(graph, user)
    return user.op is call.op
