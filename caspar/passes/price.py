"""Add up the price of arithmetic. Input: an expression graph. Output: a number."""

from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.passes.cost import OpCosts
from caspar.passes.pipeline import GRAPH_STAGES

_FREE = frozenset({Op.CONST, Op.READ, Op.STORE, Op.NEG})

_FUNCTIONS = frozenset(
    {
        *(Op.EXP, Op.LOG, Op.TAN, Op.ASIN, Op.ACOS, Op.ATAN, Op.ATAN2, Op.SINH, Op.COSH, Op.TANH),
        *(Op.ASINH, Op.ACOSH, Op.ATANH, Op.ERF, Op.ERFC),
    }
)
"""Without a price of their own: no pass chooses between them and others."""


def graph_price(graph: Graph, costs: OpCosts) -> float:
    """Multiplications that a graph takes after all passes, by the prices of `passes.cost`.

    These count errors besides. A product and a sum are two, though a device may have one
    instruction for both.
    """
    for _, stage in GRAPH_STAGES:
        graph = stage(graph, costs)
    return sum(_price(call, costs) for call in graph.calls)


def _price(call: Call, costs: OpCosts) -> float:
    if call.op in _FREE:
        return 0.0
    if call.op in (Op.SUM, Op.PROD):
        return len(call.operands) - 1.0
    if call.op in _FUNCTIONS:
        return costs.price(Op.SIN)
    return costs.price(call.op) if costs.has(call.op) else 1.0
