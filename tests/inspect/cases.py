"""A small factor, and graphs with their schedules and programs."""

from dataclasses import dataclass
from typing import Annotated

import symforce.symbolic as sf

import caspar
from caspar.codegen.targets import TARGETS
from caspar.inspect.pictures.draw_graph import draw_graph, draw_progress
from caspar.inspect.pictures.draw_program import draw_program
from caspar.inspect.progress import Progress
from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import Op
from caspar.ir.program import Program
from caspar.passes.pipeline import StageResult, compile_graph
from caspar.passes.scheduling.steps import Schedule
from tests.ir.random_graphs import random_graph


class Spot(sf.V2):
    """A place in the plane."""


@caspar.factor
def distance(
    start: Annotated[Spot, caspar.TunableShared],
    end: Annotated[Spot, caspar.TunableShared],
    measured: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    """Measured distance of two places."""
    return sf.V1((end - start).norm(sf.epsilon()) - measured[0])


@dataclass(frozen=True)
class Scheduled:
    """A graph after the graph passes, its schedule and its program."""

    graph: Graph
    schedule: Schedule
    program: Program

    @property
    def num_steps(self) -> int:
        return len(self.schedule.steps)

    def after(self, num_done: int) -> Progress:
        return Progress(self.graph, self.schedule, self.program, num_done)


def scheduled(graph: Graph, target: str = "cuda") -> Scheduled:
    observed: dict[str, StageResult] = {}
    costs = TARGETS[target].costs[graph.dtype]
    program = compile_graph(graph, costs, observed.__setitem__)
    graphs = [result for result in observed.values() if isinstance(result, Graph)]
    (schedule,) = (result for result in observed.values() if isinstance(result, Schedule))
    return Scheduled(graphs[-1], schedule, program)


def all_drawings(seed: int, num_calls: int) -> str:
    """A random graph, its program and the state after nine steps."""
    case = scheduled(random_graph(seed, num_calls, DType.FLOAT32))
    drawn = draw_progress(case.after(9), "a") + draw_program(case.program, "b")
    return drawn + draw_graph(case.graph, "c")


def paper_figure() -> Graph:
    """[sin(x1) + x0 + x1 + 1, cos(x1) - 1], the paper's figure of the graph."""
    builder = GraphBuilder(DType.FLOAT32)
    x0, x1 = builder.read("x", 0, 2)
    (sine,) = builder.call(Op.SIN, [x1])
    (cosine,) = builder.call(Op.COS, [x1])
    first = builder.sum([sine, x0, x1, builder.const(1.0)])
    builder.store("y", 0, [first, builder.sum([cosine, builder.const(-1.0)])])
    return builder.build()


def fused_products() -> Graph:
    """x y + z - i j k + m - k + 2: products and negations that have no register."""
    builder = GraphBuilder(DType.FLOAT32)
    x, y, z, m = builder.read("x", 0, 4)
    i, j, k = builder.read("x", 1, 3)
    product = builder.neg(builder.prod([i, j, k]))
    terms = [builder.prod([x, y]), z, product, m, builder.neg(k), builder.const(2.0)]
    builder.store("y", 0, [builder.sum(terms)])
    return builder.build()
