"""Loops between launches whose blocks are a cluster: partials instead of a barrier."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import caspar
from caspar.codegen.cuda.loop.barriers import CLUSTER_BLOCKS, CLUSTER_OPTION
from caspar.codegen.source import DATA, LENGTH
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel
from caspar.runtime.cuda.loop.loops import LoopPlan, plan_loop
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend, bound
from tests.solver.linear_cases import glimpse, hold, make_arrays, pin
from tests.support_loops import Conjugate, conjugate, own_lines

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")

SIZES = (700, 90, 300)
Phases = list[list[BoundKernel]]


@pytest.fixture(scope="module")
def problem() -> Conjugate:
    backend = HarnessBackend()
    return conjugate(backend, *SIZES, tile=backend.tile_size)


@pytest.fixture
def phases(problem: Conjugate) -> Phases:
    """Alpha, steps, beta, and turns."""
    return [[bound(launch) for launch in phase] for phase in problem.phases[2:]]


def planned(
    problem: Conjugate,
    phases: Sequence[Sequence[BoundKernel]],
    most: int = CLUSTER_BLOCKS,
    *,
    more_ahead: Sequence[BoundKernel] = (),
) -> LoopPlan:
    """Behind products and their sums."""
    ahead = [bound(launch) for phase in problem.phases[:2] for launch in phase]

    def address(array: Any) -> int:
        return int(array.ctypes.data)

    scalars = problem.memory["scalars"]
    return plan_loop(
        phases,
        problem.flag,
        scalars,
        address,
        ahead=[*ahead, *more_ahead],
        roomy_blocks=1000,
        cluster_blocks=most,
    )


def with_value(launch: BoundKernel, arg: str, field: str, value: Any) -> BoundKernel:
    """The same with something else for one parameter."""
    (place,) = [
        place
        for place, param in enumerate(launch.source.params)
        if (param.arg, param.field) == (arg, field)
    ]
    values = [*launch.values[:place], value, *launch.values[place + 1 :]]
    return replace(launch, values=values)


def value_at(launch: BoundKernel, arg: str, field: str) -> Any:
    bound_to = zip(launch.source.params, launch.values, strict=True)
    return next(value for param, value in bound_to if (param.arg, param.field) == (arg, field))


def value_of(launch: BoundKernel, arg: str) -> Any:
    return value_at(launch, arg, DATA)


def exchanges(plan: LoopPlan) -> bool:
    return "Exchange exchange;" in own_lines(plan.source.text)


def test_a_cluster_exchanges_partials(problem: Conjugate, phases: Phases) -> None:
    plan = planned(problem, phases)
    assert plan.is_cluster
    assert exchanges(plan)
    entry = own_lines(plan.source.text)
    assert entry.count("grid_barrier") == 0
    assert entry.index("await_begin()") < entry.index("await_launch()")
    # blocks without a step send as well
    steps = sum(launch.all_blocks for launch in phases[1])
    assert plan.max_blocks >= steps
    assert entry.count("SentPartials{&exchange}[blockIdx.x] = 0.0;") == 1
    assert entry.index("__syncthreads();\n      if (threadIdx.x == 0u) Sent") > 0


def test_an_item_has_the_same_block_in_both_phases(problem: Conjugate, phases: Phases) -> None:
    entry = own_lines(planned(problem, phases).source.text)
    firsts = dict(re.findall(r"const u32 k(\d+)_first = blockIdx\.x(.*?);", entry))
    steps = [
        number for number in firsts if f"run_step(uint3{{turn, 0u, 0u}}, uint3{{k{number}_" in entry
    ]
    turns = [
        number for number in firsts if f"run_turn(uint3{{turn, 0u, 0u}}, uint3{{k{number}_" in entry
    ]
    assert len(steps) == len(turns) == 2
    assert [firsts[number].count("-") for number in steps] == [
        firsts[number].count("-") for number in turns
    ]


def test_nvrtc_compiles_it(problem: Conjugate, phases: Phases) -> None:
    plan = planned(problem, phases)
    compiled = compile_text(plan.source.text, "sm_90", (CLUSTER_OPTION.format(plan.max_blocks),))
    assert compiled.warnings == ()
    assert compiled.ptx.count("st.async.shared::cluster") >= plan.max_blocks
    assert compiled.ptx.count("mbarrier.try_wait.parity.acquire.cluster") == 1
    assert compiled.ptx.count("barrier.cluster.arrive.relaxed") == 1
    assert compiled.ptx.count("barrier.cluster.arrive.release") == 0


def test_too_many_blocks_are_no_cluster(problem: Conjugate, phases: Phases) -> None:
    most = planned(problem, phases).max_blocks
    plan = planned(problem, phases, most - 1)
    assert not plan.is_cluster
    assert not exchanges(plan)
    assert exchanges(planned(problem, phases, most))


def test_objects_of_other_items_need_a_barrier(problem: Conjugate, phases: Phases) -> None:
    """A turn that reads what the other nodes' step has written."""
    first, second, *others = phases[3]
    strange = with_value(first, "residual", DATA, value_of(second, "residual"))
    plan = planned(problem, [*phases[:3], [strange, second, *others]])
    assert plan.is_cluster
    assert not exchanges(plan)


def test_other_shares_of_items_need_a_barrier(problem: Conjugate, phases: Phases) -> None:
    """The same objects, in other blocks: turns in another order than steps."""
    first, second, *others = phases[3]
    plan = planned(problem, [*phases[:3], [second, first, *others]])
    assert plan.is_cluster
    assert not exchanges(plan)


def test_partials_of_others_need_a_barrier(problem: Conjugate, phases: Phases) -> None:
    """More partials are summed than blocks have written."""
    (beta,) = phases[2]
    length = len(value_of(beta, "descents")) + 1
    plan = planned(
        problem, [*phases[:2], [with_value(beta, "descents", LENGTH, length)], phases[3]]
    )
    assert plan.is_cluster
    assert not exchanges(plan)


def test_scalars_of_the_same_phase_need_a_barrier(problem: Conjugate, phases: Phases) -> None:
    """They may end the loop where others still send."""
    alpha, steps, beta, turns = phases
    plan = planned(problem, [[*alpha, *steps], beta, turns])
    assert plan.is_cluster
    assert not exchanges(plan)


def test_what_may_end_the_loop_ahead_of_the_sum_needs_a_barrier(
    problem: Conjugate, phases: Phases
) -> None:
    alpha, steps, beta, turns = phases
    plan = planned(problem, [steps, alpha, beta, turns])
    assert plan.is_cluster
    assert not exchanges(plan)


def test_partials_that_others_read_need_a_barrier(problem: Conjugate, phases: Phases) -> None:
    """In memory there are none."""
    (alpha,), steps, (beta,), turns = phases
    reader = with_value(alpha, "curvatures", DATA, value_of(beta, "descents"))
    reader = with_value(reader, "curvatures", LENGTH, len(value_of(beta, "descents")))
    for plan in (
        planned(problem, [[reader], steps, [beta], turns]),
        planned(problem, phases, more_ahead=[reader]),
    ):
        assert plan.is_cluster
        assert not exchanges(plan)


def test_objects_at_other_places_need_a_barrier(problem: Conjugate, phases: Phases) -> None:
    """An array of the same address with chunks of another length."""
    first, *others = phases[3]
    length = value_at(first, "residual", LENGTH) - 1
    strange = with_value(first, "residual", LENGTH, length)
    plan = planned(problem, [*phases[:3], [strange, *others]])
    assert plan.is_cluster
    assert not exchanges(plan)


def test_more_phases_need_barriers(problem: Conjugate, phases: Phases) -> None:
    plan = planned(problem, [*phases, phases[0], phases[1]])
    assert not exchanges(plan)


def test_blocks_without_a_turn_clear_no_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number of a block wraps around, and so may those of its items."""
    texts: list[str] = []

    def noted(*args: Any, **options: Any) -> LoopPlan:
        plan = plan_loop(*args, **options)
        texts.append(plan.source.text)
        return plan

    arrays = make_arrays(num_views=60, num_marks=700)
    arrays = {name: arrays[name] for name in ("View", "Mark", "Glass", "glimpse", "hold", "pin")}
    monkeypatch.setattr("tests.harness_backend.plan_loop", noted)
    solver = caspar.Solver(
        [glimpse, hold, pin], linear_solver="schur_pcg", backend=HarnessBackend(128)
    )
    solver.solve(arrays, max_iterations=1)
    (text,) = texts
    loads = re.findall(r"void load_\w+\(\n.*?\) \{\n(.*?)\n\}", text, re.S)
    clears = [line for body in loads for line in body.splitlines() if "clear_slots" in line]
    assert len(clears) > 0
    assert all(line.startswith("  if (blockIdx.x < gridDim.x) clear_slots") for line in clears)
    # they are nowhere else
    assert text.count("clear_slots<BLOCK_SIZE>(") == len(clears)
