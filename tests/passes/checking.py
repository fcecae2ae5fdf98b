"""Helpers of the pass tests: parse, run, compare evaluations, schedules and their pressure."""

from collections.abc import Callable, Mapping, Sequence
from textwrap import dedent

import numpy as np
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from caspar.ir.builder import GraphBuilder
from caspar.ir.dtype import DType
from caspar.ir.evaluate import evaluate_graph, evaluate_program
from caspar.ir.graph import Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.ir.program import Program
from caspar.ir.text import print_graph, print_program
from caspar.passes.scheduling.priority import Policy
from caspar.passes.scheduling.schedule import OperandOrder, TraversalSpec, schedule_once
from caspar.passes.scheduling.steps import Schedule, last_readers

Inputs = Mapping[str, NDArray[np.float64]]


def graph_of(
    write: Callable[..., Sequence[int]], num_inputs: int, dtype: DType = DType.FLOAT32
) -> Graph:
    """A graph that reads one chunk "x" and stores what `write(builder, *inputs)` returns."""
    builder = GraphBuilder(dtype)
    outputs = write(builder, *builder.read("x", 0, num_inputs))
    builder.store("y", 0, outputs)
    return builder.build()


def assert_graph(graph: Graph, expected: str) -> None:
    """The graph prints as the given lines, below its header."""
    assert _body(print_graph(graph)) == dedent(expected).strip()


def assert_program(program: Program, expected: str) -> None:
    """The program prints as the given lines, below its header."""
    assert _body(print_program(program)) == dedent(expected).strip()


def _body(text: str) -> str:
    return dedent(text.split("\n", 1)[1]).strip()


def ops_of(code: Graph | Program) -> list[Op]:
    """The ops in order, without reads, stores and constants."""
    memory = (Op.READ, Op.STORE, Op.CONST)
    calls = code.calls if isinstance(code, Graph) else code.instructions
    return [call.op for call in calls if call.op not in memory]


def assert_same_evaluation(before: Graph, after: Graph | Program, inputs: Inputs) -> None:
    """Both store the same numbers, to rounding; NaN and infinity where the other has them."""
    expected = evaluate_graph(before, inputs)
    found = (
        evaluate_graph(after, inputs)
        if isinstance(after, Graph)
        else evaluate_program(after, inputs)
    )
    assert set(found) == set(expected)
    for argument, array in expected.items():
        assert_allclose(found[argument], array, rtol=1e-9, atol=1e-9)


def all_schedules(graph: Graph) -> list[Schedule]:
    """By every policy and every kind of depth-first order."""
    return [
        schedule_once(graph, policy, TraversalSpec(seed, operands))
        for policy in Policy
        for seed in (0, 1)
        for operands in OperandOrder
    ]


def peak_pressure(schedule: Schedule) -> int:
    """Greatest number of numbers (not truth values) that are live at once."""
    last_step = last_readers(schedule)
    live = peak = 0
    boolean: dict[int, bool] = {}
    for number, step in enumerate(schedule.steps):
        for value in dict.fromkeys(step.operands):
            is_number = value not in schedule.literals and not boolean[value]
            live -= is_number and last_step[value] == number
        is_boolean = OP_INFO[step.op].boolean
        boolean.update(dict.fromkeys(step.outputs, is_boolean))
        live += 0 if is_boolean else len(step.outputs)
        peak = max(peak, live)
        unread = sum(last_step[value] == number for value in step.outputs)
        live -= 0 if is_boolean else unread
    return peak
