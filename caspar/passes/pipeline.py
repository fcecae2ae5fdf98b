"""The compiler's middle end as one flat list of stages: expression graph -> program.

Cost tier: once per kernel. Each stage is a pure function; `GRAPH_STAGES` run in order, then the
graph is scheduled and its values get registers.
"""

from collections.abc import Callable

from caspar.ir.graph import Graph
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

    Args:
        graph: What one item computes.
        costs: Prices of the target.
        observer: Called after each stage, and with ("input", graph) before the first.

    Returns:
        The program.
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
