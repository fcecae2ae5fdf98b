"""What every pass keeps, on random graphs: evaluation, order, registers, pressure, work.

`tests/codegen/test_determinism.py` has their bytes.

Exact graphs are computed to the bit in any order, so that whatever a pass loses, repeats or negates
shows; mixed graphs have every op and agree to a bound on the rounding (`tests/ir/graph_cases.py`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from caspar.ir.evaluate import OP_FUNCTIONS
from caspar.ir.graph import Graph
from caspar.ir.ops import GRAPH_ONLY, OP_INFO, PROGRAM_ONLY, Op
from caspar.ir.program import Operand, Program
from caspar.passes import cost
from caspar.passes.cost import OpCosts
from caspar.passes.graph.rewrite import rebuild
from caspar.passes.pipeline import GRAPH_STAGES, StageResult, compile_graph
from caspar.passes.scheduling.assign_registers import assign_registers
from caspar.passes.scheduling.schedule import schedule
from caspar.passes.scheduling.steps import Schedule
from tests.ir.graph_cases import GraphCase
from tests.ir.graph_strategies import exact_cases, mixed_cases, special_cases
from tests.ir.random_graphs import NORMS, random_graph
from tests.passes.checking import all_schedules, peak_pressure
from tests.support_verify import verify_graph, verify_program

Array = NDArray[np.float64]
Stage = Callable[[Graph, OpCosts], Graph]

STAGES: dict[str, Stage] = dict(GRAPH_STAGES)

ROUNDS_OTHERWISE = {"powers", "norms", "reciprocals", "flatten", "sums", "products"}
"""Stages after which sums, products and powers are rounded elsewhere; all others are exact."""

# Every op native at the same price, so that each pass finds something to do.
ALL_NATIVE = OpCosts("all native", {**dict.fromkeys(OP_INFO, 1.0), Op.LDEXP: 0.5})
TABLES = {
    table.name: table for table in (*vars(cost).values(), ALL_NATIVE) if isinstance(table, OpCosts)
}

HALF = settings(max_examples=settings().max_examples // 2)
THIRD = settings(max_examples=settings().max_examples // 3)


@pytest.fixture(autouse=True, scope="module")
def few_orders() -> Iterator[None]:
    """Three orders instead of 32, for speed; `test_every_schedule` has every kind of order."""
    with patch("caspar.passes.scheduling.schedule.MAX_TRIALS", 3):
        yield


# -- evaluation ------------------------------------------------------------------------------------


# All stages in one test: drawing a graph takes longer than any of them.


@THIRD
@given(case=mixed_cases())
def test_a_stage_keeps_the_evaluation(case: GraphCase) -> None:
    for stage in STAGES:
        for after in results(stage, case.graph):
            verify_graph(after)
            case.check(after)


@THIRD
@given(case=exact_cases())
def test_a_stage_keeps_sums_and_products(case: GraphCase) -> None:
    for stage in STAGES:
        for after in results(stage, case.graph):
            verify_graph(after)
            case.check(after)


@THIRD
@given(case=mixed_cases())
def test_a_stage_that_rounds_as_before(case: GraphCase) -> None:
    # making a graph again folds what it has of literals side by side, which rounds
    folded = replace(case, graph=rebuild(case.graph, lambda *_: None))
    for stage in [one for one in STAGES if one not in ROUNDS_OTHERWISE]:
        for after in results(stage, folded.graph):
            with order_free():
                folded.check_exactly(after)


def results(stage: str, graph: Graph) -> Iterator[Graph]:
    """What a stage makes for each cost table, equal ones once."""
    found: list[Graph] = []
    for name, costs in TABLES.items():
        after = STAGES[stage](graph, costs)
        if after not in found:
            note(f"{stage}, costs: {name}")
            found.append(after)
            yield after


def test_the_stages_that_round_otherwise_exist() -> None:
    assert set(STAGES) >= ROUNDS_OTHERWISE


@contextmanager
def order_free() -> Iterator[None]:
    """Sums, products and norms whose rounding does not depend on the order of their operands."""

    def exact_sum(*terms: Array) -> Array:
        rows = np.broadcast_arrays(*terms)
        total = [math.fsum(column) for column in np.stack(rows, axis=-1).reshape(-1, len(rows))]
        return np.array(total, np.result_type(*terms)).reshape(rows[0].shape)

    def product(*factors: Array) -> Array:
        magnitude: Array = np.prod(ascending_magnitudes(*factors), axis=0)
        num_negative = np.sum(np.signbit(np.broadcast_arrays(*factors)), axis=0)
        return np.where(num_negative % 2 == 1, -magnitude, magnitude)

    def ordered(norm: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *components: norm(*ascending_magnitudes(*components))

    norms = {op: ordered(OP_FUNCTIONS[op]) for ops in NORMS.values() for op in ops}
    with patch.dict(OP_FUNCTIONS, {Op.SUM: exact_sum, Op.PROD: product, **norms}):
        yield


def ascending_magnitudes(*operands: Array) -> Array:
    """Magnitudes, the smallest of each lane first."""
    magnitudes: Array = np.sort(np.abs(np.broadcast_arrays(*operands)), axis=0)
    return magnitudes


@HALF
@given(table=st.sampled_from(list(TABLES)), case=st.one_of(mixed_cases(), exact_cases()))
def test_the_pipeline(table: str, case: GraphCase) -> None:
    """Every stage, on what the stages before it leave."""
    schedules = []

    def check(_stage: str, result: StageResult) -> None:
        if isinstance(result, Graph):
            verify_graph(result)
            case.check(result)
        elif isinstance(result, Schedule):
            schedules.append(result)

    program = compile_graph(case.graph, TABLES[table], check)
    verify_program(program)
    case.check(program)
    check_registers(schedules[0], program)


# -- schedules and registers -----------------------------------------------------------------------


@THIRD
@given(case=st.one_of(mixed_cases(), exact_cases()))
def test_every_schedule(case: GraphCase) -> None:
    """Whatever the order: every call once, after what it reads; the numbers of the graph."""
    for found in all_schedules(case.graph):
        check_order(case.graph, found)
        program = assign_registers(found)
        verify_program(program)
        check_registers(found, program)
        case.check(program)


@THIRD
@given(case=special_cases())
def test_special_literals(case: GraphCase) -> None:
    """Minus zero, infinities and NaN go through every pass and schedule."""
    verify_program(compile_graph(case.graph, ALL_NATIVE))
    for found in all_schedules(case.graph):
        check_order(case.graph, found)
        check_registers(found, assign_registers(found))


def check_order(graph: Graph, found: Schedule) -> None:
    """Every call that is no reduction once; everything after what it reads; reads before stores."""
    made = set(found.literals)
    stored = set()
    for step in found.steps:
        assert step.op not in GRAPH_ONLY
        assert made.issuperset(step.operands)
        assert made.isdisjoint(step.outputs)
        made.update(step.outputs)
        if step.op is Op.STORE:
            stored.add(step.data)
        assert step.op is not Op.READ or step.data not in stored
    reducing = {Op.NEG, *GRAPH_ONLY, *PROGRAM_ONLY}
    expected = Counter(
        (call.op, call.outputs, call.operands, call.data)
        for call in graph.calls
        if call.op not in reducing
    )
    steps = (s for s in found.steps if s.op not in reducing)
    assert Counter((s.op, s.outputs, s.operands, s.data) for s in steps) == expected


def check_registers(found: Schedule, program: Program) -> None:
    """Every register holds what is read from it; as many are used as values are live."""
    holds: dict[Operand, int] = {}
    live = live_values(found)
    for step, instruction, alive in zip(found.steps, program.instructions, live, strict=True):
        assert (step.op, step.data) == (instruction.op, instruction.data)
        for value, operand in zip(step.operands, instruction.operands, strict=True):
            if value in found.literals:
                assert repr(operand) == repr(found.literals[value])
            else:
                assert holds[operand] == value
        for value, register in zip(step.outputs, instruction.outputs, strict=True):
            holds[register] = value
        assert alive <= set(holds.values())
    truths = {v for step in found.steps if OP_INFO[step.op].boolean for v in step.outputs}
    pressure = max(len(alive - truths) for alive in live)
    assert program.num_registers == peak_pressure(found) == pressure
    assert program.num_predicates == max(len(alive & truths) for alive in live)


def live_values(found: Schedule) -> list[set[int]]:
    """After each step: what it made, and what was made before and is read later."""
    later: set[int] = set()
    live: list[set[int]] = []
    for step in reversed(found.steps):
        live.append(later | set(step.outputs))
        later = (later - set(step.outputs)) | (set(step.operands) - set(found.literals))
    return live[::-1]


# -- work ------------------------------------------------------------------------------------------


@THIRD
@given(
    table=st.sampled_from([name for name in TABLES if name != ALL_NATIVE.name]),
    case=exact_cases(),
)
def test_no_work_is_added(table: str, case: GraphCase) -> None:
    """Of sums, products and negations there are no more than if each were made by itself."""
    program = compile_graph(case.graph, TABLES[table])
    before, after = work(case.graph), work(program)
    assert after["additions"] <= before["additions"]
    assert after["instructions"] <= before["instructions"]
    as_it_is = work(assign_registers(schedule(case.graph)))
    assert after["instructions"] <= as_it_is["instructions"]


def work(code: Graph | Program) -> Counter[str]:
    """Additions, and instructions but for memory: a reduction of n takes n - 1."""
    calls = code.calls if isinstance(code, Graph) else code.instructions
    counts: Counter[str] = Counter()
    for call in calls:
        if call.op in (Op.CONST, Op.READ, Op.STORE):
            continue
        number = len(call.operands) - 1 if OP_INFO[call.op].associative else 1
        counts["instructions"] += number
        if call.op in (Op.SUM, Op.ADD, Op.SUB, Op.FMA, Op.FNMA):
            counts["additions"] += number
    return counts


# -- coverage --------------------------------------------------------------------------------------


def test_every_op_is_drawn() -> None:
    """But the one that needs node tiles: `tests.codegen.test_node_sums` has it."""
    graphs = [random_graph(seed) for seed in range(100)]
    drawn = {call.op for graph in graphs for call in graph.calls}
    assert drawn == set(OP_INFO) - PROGRAM_ONLY - {Op.EXCHANGE, Op.GATHER}
