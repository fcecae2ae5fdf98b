"""The compiler's middle end as one flat list of stages: expression graph -> program.

Cost tier: once per kernel. Each stage is a pure function; `GRAPH_STAGES` run in order, then the
graph is scheduled and its values get registers. Also here: the price of what a graph leaves.
"""

from collections.abc import Callable

from caspar.ir.graph import Call, Graph
from caspar.ir.ops import Op
from caspar.ir.program import Program
from caspar.passes.cost import OpCosts
from caspar.passes.graph.decompose_powers import decompose_powers
from caspar.passes.graph.flatten_reductions import flatten_reductions
from caspar.passes.graph.fuse_sincos import fuse_sincos
from caspar.passes.graph.push_negations import push_negations
from caspar.passes.graph.scale_exponents import scale_exponents
from caspar.passes.graph.share_partial_reductions import share_partial_products, share_partial_sums
from caspar.passes.graph.share_reciprocals import share_reciprocals
from caspar.passes.graph.simplify_selects import simplify_selects
from caspar.passes.graph.use_norms import use_norms
from caspar.passes.scheduling.assign_registers import assign_registers
from caspar.passes.scheduling.schedule import schedule
from caspar.passes.scheduling.steps import Schedule

StageResult = Graph | Schedule | Program
Observer = Callable[[str, StageResult], None]
"""Called with a stage's name and its result; dumps, verifies or times."""

GRAPH_STAGES: tuple[tuple[str, Callable[[Graph, OpCosts], Graph]], ...] = (
    ("powers", decompose_powers),
    ("norms", use_norms),
    ("reciprocals", share_reciprocals),
    ("sincos", fuse_sincos),
    ("selects", simplify_selects),
    ("flatten", flatten_reductions),
    ("sums", share_partial_sums),
    ("products", share_partial_products),
    ("exponents", scale_exponents),
    ("negations", push_negations),
)
"""Graph -> graph, in order. Powers come first: they leave roots of squares and reciprocals.
Negations come last: the builder, which all others use, would undo them."""


def compile_graph(graph: Graph, costs: OpCosts, observer: Observer | None = None) -> Program:
    """Optimise, schedule and assign registers.

    The observer is called after each stage, and with ("input", graph) before the first.
    """
    observe: Observer = _ignore if observer is None else observer
    observe("input", graph)
    for name, stage in GRAPH_STAGES:
        graph = stage(graph, costs)
        observe(name, graph)
    ordered = schedule(graph)
    observe("schedule", ordered)
    program = assign_registers(ordered)
    observe("registers", program)
    return program


def _ignore(_name: str, _result: StageResult) -> None:
    pass


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
