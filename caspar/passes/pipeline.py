"""The compiler's middle end as one flat list of stages: expression graph -> program.

Cost tier: once per kernel. Each stage is a pure function; `GRAPH_STAGES` run in order, then the
graph is scheduled and its values get registers.
"""

from collections.abc import Callable

from caspar.ir.graph import Graph
from caspar.ir.program import Program
from caspar.passes.context import fuse_sincos, share_reciprocals
from caspar.passes.cost import OpCosts
from caspar.passes.powers import decompose_powers
from caspar.passes.registers import assign_registers
from caspar.passes.schedule import schedule
from caspar.passes.steps import Schedule

StageResult = Graph | Schedule | Program
Observer = Callable[[str, StageResult], None]
"""Called with a stage's name and its result; dumps, verifies or times."""

GRAPH_STAGES: tuple[tuple[str, Callable[[Graph, OpCosts], Graph]], ...] = (
    ("powers", decompose_powers),
    ("reciprocals", share_reciprocals),
    ("sincos", fuse_sincos),
)
"""Graph -> graph, in order. Powers come first: they may leave a reciprocal to share."""


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
