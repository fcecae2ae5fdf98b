"""Calls and values have the states of the paper's figure, step after step."""

from itertools import pairwise

import pytest

from caspar.codegen.targets import TARGETS
from caspar.inspect.pictures.draw_program import pressure
from caspar.inspect.progress import CallState, Progress, ValueState
from caspar.ir.dtype import DType
from caspar.ir.graph import Graph
from caspar.ir.ops import OP_INFO, Op
from caspar.options import Precision
from tests.inspect.cases import fused_products, paper_figure, scheduled
from tests.ir.random_graphs import random_graph
from tests.support_problems import Way, distinct_specs, most_unlike


def calls_of(graph: Graph, op: Op) -> list[int]:
    return [number for number, call in enumerate(graph.calls) if call.op is op]


def values_in(progress: Progress, state: ValueState) -> set[int]:
    return {
        value
        for call in progress.graph.calls
        if call.op is not Op.CONST
        for value in call.outputs
        if progress.value_state(value) is state
    }


def test_the_paper_figure_from_first_to_last_step() -> None:
    case = scheduled(paper_figure())
    (read,) = calls_of(case.graph, Op.READ)
    (sincos,) = calls_of(case.graph, Op.SINCOS)
    (store,) = calls_of(case.graph, Op.STORE)
    before, first, last = case.after(0), case.after(1), case.after(case.num_steps)
    assert before.call_state(read) is CallState.REMAINING
    assert first.call_state(read) is CallState.LATEST
    assert last.call_state(read) is CallState.COMPLETED
    assert first.call_state(sincos) is CallState.REMAINING
    assert last.call_state(store) is CallState.LATEST
    inputs = set(case.graph.calls[read].outputs)
    assert values_in(first, ValueState.LIVE) == inputs
    assert values_in(last, ValueState.FINISHED) >= inputs
    assert values_in(last, ValueState.LIVE) == set()
    assert {first.register(value) for value in inputs} == {"r0", "r1"}
    assert all(before.register(value) is None for value in inputs)


def test_a_sum_takes_its_operands_one_after_the_other() -> None:
    case = scheduled(paper_figure())
    sums = calls_of(case.graph, Op.SUM)
    (wide,) = (call for call in sums if len(case.graph.calls[call].operands) == 4)
    taken = [case.after(done).contributions(wide) for done in range(case.num_steps + 1)]
    assert taken[0] == ()
    assert all(later[: len(sooner)] == sooner for sooner, later in pairwise(taken))
    assert sorted(taken[-1]) == sorted(case.graph.calls[wide].operands)
    (result,) = case.graph.calls[wide].outputs
    partial = [case.after(done) for done in range(case.num_steps) if 2 <= len(taken[done]) < 4]
    assert len(partial) > 0
    assert all(progress.value_state(result) is ValueState.LIVE for progress in partial)
    assert all(progress.register(result) is not None for progress in partial)


def test_fused_products_and_negations_are_virtual() -> None:
    case = scheduled(fused_products())
    products, negations = calls_of(case.graph, Op.PROD), calls_of(case.graph, Op.NEG)
    expected = {case.graph.calls[call].outputs[0] for call in products + negations}
    for done in range(case.num_steps + 1):
        progress = case.after(done)
        assert values_in(progress, ValueState.VIRTUAL) == expected
        assert all(progress.register(value) is None for value in expected)
    last = case.after(case.num_steps)
    assert all(last.call_state(call) is CallState.COMPLETED for call in products + negations)
    assert all(
        set(last.contributions(call)) == set(case.graph.calls[call].operands) for call in products
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(6))
def test_every_contribution_is_found_in_random_graphs(seed: int, target: str) -> None:
    check_all_found(random_graph(seed, 60, DType.FLOAT32), target)


@pytest.mark.parametrize(("problem", "way"), most_unlike())
def test_every_contribution_is_found_in_solver_kernels(problem: str, way: Way) -> None:
    for spec in distinct_specs(Precision.MIXED)[problem, way]:
        check_all_found(spec.graph, "cuda")


def check_all_found(graph: Graph, target: str) -> None:
    case = scheduled(graph, target)
    last = case.after(case.num_steps)
    for number, call in enumerate(case.graph.calls):
        if call.op is Op.CONST:
            continue
        assert last.call_state(number) is not CallState.REMAINING
        if call.op in (Op.SUM, Op.PROD):
            assert set(last.contributions(number)) == set(call.operands)
    assert values_in(last, ValueState.LIVE) == values_in(last, ValueState.REMAINING) == set()
    assert values_in(case.after(0), ValueState.LIVE) == set()


@pytest.mark.parametrize("seed", range(5))
def test_live_values_are_never_more_than_the_pressure(seed: int) -> None:
    case = scheduled(random_graph(seed, 30, DType.FLOAT32))
    for done, level in enumerate(pressure(case.program), 1):
        live = values_in(case.after(done), ValueState.LIVE)
        numbers = [v for v in live if not OP_INFO[case.graph.call_of(v).op].boolean]
        assert len(numbers) <= level
