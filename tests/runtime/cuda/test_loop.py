"""Loops of launches: one kernel in the harness, launch by launch, and on the processor."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from caspar.codegen.source import KernelSource
from caspar.ir.dtype import DType
from caspar.runtime.backend import Backend, Launch
from caspar.runtime.cpu.backend import CpuBackend
from caspar.runtime.cuda.loop.loops import plan_loop
from tests.harness import find_compiler
from tests.harness.schedule import REVERSED, Schedule, shuffled
from tests.harness_backend import HarnessBackend, bound
from tests.support_loops import STEP_ARRAYS, Conjugate, conjugate, own_lines

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

MANY_RUNS = 1000
SOME_RUNS = 6
SIZES = (700, 90, 300)
BACKENDS = [CpuBackend, pytest.param(HarnessBackend, marks=needs_compiler)]
REAL = DType.FLOAT64


def system(backend: Backend, num_edges: int, num_left: int, num_right: int) -> Conjugate:
    return conjugate(backend, num_edges, num_left, num_right, tile=backend.tile_size)


def assert_same_state(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name, values in first.items():
        assert_array_equal(values, second[name], name)


@pytest.mark.parametrize("make", BACKENDS)
def test_conjugate_gradients_reach_the_solution(make: type[CpuBackend]) -> None:
    backend = make()
    problem = system(backend, *SIZES)
    problem.loop(backend).run(MANY_RUNS)
    assert problem.flag[0] == 1.0
    assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


@needs_compiler
@pytest.mark.parametrize("schedule", [REVERSED, shuffled(1)])
@pytest.mark.parametrize("sizes", [SIZES, (40, 10, 20)])
def test_one_kernel_has_the_bits_of_many(sizes: tuple[int, int, int], schedule: Schedule) -> None:
    states = []
    for fused in (False, True):
        backend = HarnessBackend(schedule=schedule)
        problem = system(backend, *sizes)
        if fused:
            problem.loop(backend).run(SOME_RUNS)
        else:
            backend.sequence(problem.launches).run_until(problem.flag, SOME_RUNS)
        states.append(problem.state(backend))
    assert_same_state(*states)


@needs_compiler
def test_races_are_looked_for_where_no_thread_is_idle() -> None:
    backend = HarnessBackend()
    problem = system(backend, 512, 256, 256)
    loop: Any = problem.loop(backend)
    assert loop.check_races
    loop.run(3)


@needs_compiler
def test_launches_that_write_no_scalars() -> None:
    """As between two large phases."""
    states = []
    for fused in (False, True):
        backend = HarnessBackend()
        problem = system(backend, *SIZES)
        phases = [problem.phases[1], problem.phases[5]]
        if fused:
            problem.loop(backend, phases).run(2)
        else:
            launches = [launch for phase in phases for launch in phase]
            backend.sequence(launches).run_until(problem.flag, 2)
        states.append(problem.state(backend))
    assert_same_state(*states)


@needs_compiler
def test_what_writes_scalars_and_more_is_no_part_of_a_loop() -> None:
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    with pytest.raises(ValueError, match="beta_of: in a loop, what writes scalars has one block"):
        backend.loop(problem.phases, problem.flag, problem.memory["scalars"][:2])


@pytest.mark.parametrize("make", BACKENDS)
def test_at_most_so_many_runs(make: type[CpuBackend]) -> None:
    backend = make()
    problem = system(backend, *SIZES)
    loop = problem.loop(backend)
    for runs in (0, 2, 5):
        loop.run(runs)
    iterations = problem.memory["scalars"][4]
    assert iterations == 7.0
    assert problem.flag[0] == 0.0


@pytest.mark.parametrize("make", BACKENDS)
def test_a_set_flag_leaves_all_as_it_is(make: type[CpuBackend]) -> None:
    backend = make()
    problem = system(backend, *SIZES)
    problem.flag[0] = 4.0
    before = problem.state(backend)
    problem.loop(backend).run(MANY_RUNS)
    assert_same_state(before, problem.state(backend))


@needs_compiler
def test_no_block_stores_scalars_before_all_have_loaded_them() -> None:
    """Of all barriers the last run's last is spared only where there is another one before it."""
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    spared = "if (run + 1u < runs_count) "
    for first, is_spared in ((-2, False), (-3, True)):
        loop: Any = problem.loop(backend, problem.phases[first:])
        assert (spared in loop.plan.source.text) == is_spared


LOADS = re.compile(r"void (load_\w+?)\(\n.*?\) \{\n(.*?)\n\}", re.S)


def loads_of(text: str) -> dict[str, set[str]]:
    """By function that loads ahead: which arguments."""
    return {name: set(re.findall(r"\b(\w+)_data\b", body)) for name, body in LOADS.findall(text)}


@needs_compiler
def test_what_nobody_writes_meanwhile_is_loaded_before_the_barrier() -> None:
    """Steps come behind the sums that write products, turns behind steps."""
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    loop: Any = problem.loop(backend)
    text = loop.plan.source.text
    assert loads_of(text) == {
        "load_alpha_of": {"curvatures"},
        "load_early_step": {"solution", "residual", "direction"},
        "load_step": {"product"},
        "load_beta_of": {"descents"},
        "load_early_turn": {"direction"},
        "load_turn": {"residual"},
    }
    assert loop.plan.source.early is None
    # behind the barrier first what is summed first
    calls = re.findall(r" (?:(load_\w+|run_(?:alpha|beta)_of)\(u|(grid_barrier))", own_lines(text))
    found = [function or barrier for function, barrier in calls]
    for sums, kernel in (("alpha_of", "step"), ("beta_of", "turn")):
        first, last = found.index(f"load_{sums}"), found.index(f"run_{sums}")
        wanted = ["grid_barrier", f"load_{sums}", *2 * [f"load_{kernel}"]]
        assert found[first - 1 : last] == wanted


@needs_compiler
def test_items_are_shared_once_and_warps_without_any_load_nothing() -> None:
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    loop: Any = problem.loop(backend)
    text = loop.plan.source.text
    few = [one for phase in problem.phases for one in phase if bound(one).source.few_items]
    assert len(re.findall(r"const u32 k\d+_share = ", own_lines(text))) == len(few) > 0
    assert "_share = " not in text.replace(own_lines(text), "")
    assert "count + gridDim.x" not in text
    for name, body in LOADS.findall(text):
        assert ("if (!active) return;" in body) == name.startswith("load_early")


@needs_compiler
def test_between_launches_it_reads_nothing_that_the_one_ahead_writes() -> None:
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    phases = [[bound(launch) for launch in phase] for phase in problem.phases]
    ahead = [launch for phase in phases[:2] for launch in phase]

    def planned(room: int) -> KernelSource:
        def address(array: Any) -> int:
            return int(array.ctypes.data)

        scalars = problem.memory["scalars"]
        return plan_loop(
            phases[2:], problem.flag, scalars, address, ahead=ahead, roomy_blocks=room
        ).source

    early = planned(1000).early
    assert early is not None
    assert sorted(early) == sorted(
        ["scalars", *(f"k{k}_{name}" for k in (1, 2) for name in STEP_ARRAYS if name != "product")]
    )
    narrow = planned(0)
    assert narrow.early == ("scalars",)
    assert loads_of(narrow.text) == {}


@needs_compiler
def test_nothing_to_repeat_is_an_error() -> None:
    backend, flag = HarnessBackend(), np.zeros(1)
    nothing: list[list[list[Launch]]] = [[], [[], []]]
    for phases in nothing:
        with pytest.raises(ValueError, match="one launch"):
            backend.loop(phases, flag, flag)


@needs_compiler
def test_an_empty_phase_is_left_out() -> None:
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    plain: Any = problem.loop(backend)
    first, *others = problem.phases
    loop: Any = problem.loop(backend, [[], first, [], *others, []])
    assert loop.plan.source == plain.plan.source


@needs_compiler
def test_blocks_of_several_sizes_are_an_error() -> None:
    problems = [conjugate(HarnessBackend(), *SIZES, tile=tile) for tile in (128, 256)]
    mixed = [problems[0].phases[0], problems[1].phases[3]]
    with pytest.raises(ValueError, match=r"product 128 \(6 blocks\), step 256 \(1 blocks\)"):
        problems[0].loop(HarnessBackend(), mixed)
