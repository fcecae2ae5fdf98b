"""Loops of launches: one kernel in the harness, launch by launch, and on the processor."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from caspar.codegen.source import KernelSource
from caspar.codegen.targets import TARGETS
from caspar.driver import compile_kernel
from caspar.ir.dtype import DType
from caspar.memory.binding import Binding
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_builder import KernelBuilder
from caspar.memory.patterns import ReadSequential, ReadUnique, WriteSequential, WriteUnique
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


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", BACKENDS)
def test_conjugate_gradients_reach_the_solution(make: type[CpuBackend], shared: bool) -> None:
    backend = make()
    problem = system(backend, *SIZES)
    problem.loop(backend, shared=shared).run(MANY_RUNS)
    assert problem.flag[0] == 1.0
    assert_allclose(problem.solution(backend), problem.expected, atol=1e-8)


@needs_compiler
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("schedule", [REVERSED, shuffled(1)])
@pytest.mark.parametrize("sizes", [SIZES, (40, 10, 20)])
def test_one_kernel_has_the_bits_of_many(
    sizes: tuple[int, int, int], schedule: Schedule, shared: bool
) -> None:
    states = []
    for fused in (False, True):
        backend = HarnessBackend(schedule=schedule)
        problem = system(backend, *sizes)
        if fused:
            problem.loop(backend, shared=shared).run(SOME_RUNS)
        else:
            backend.sequence(problem.launches).run_until(problem.flag, SOME_RUNS)
        states.append(problem.state(backend))
    assert_same_state(*states)


@needs_compiler
def test_races_are_looked_for_where_no_thread_is_idle() -> None:
    backend = HarnessBackend()
    problem = system(backend, 512, 256, 256)
    loop: Any = backend.loop(problem.phases, problem.flag)
    assert loop.check_races
    loop.run(3)


@needs_compiler
def test_every_block_has_a_copy_of_the_scalars_that_the_loop_knows() -> None:
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    own, plain = (problem.loop(backend, shared=shared).plan for shared in (True, False))
    assert own.state is problem.memory["scalars"]
    assert plain.state is problem.flag
    assert own.source.text.count("grid_barrier(reinterpret") < plain.source.text.count(
        "grid_barrier(reinterpret"
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", BACKENDS)
def test_at_most_so_many_runs(make: type[CpuBackend], shared: bool) -> None:
    backend = make()
    problem = system(backend, *SIZES)
    loop = problem.loop(backend, shared=shared)
    for runs in (0, 2, 5):
        loop.run(runs)
    iterations = problem.memory["scalars"][4]
    assert iterations == 7.0
    assert problem.flag[0] == 0.0


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("make", BACKENDS)
def test_a_set_flag_leaves_all_as_it_is(make: type[CpuBackend], shared: bool) -> None:
    backend = make()
    problem = system(backend, *SIZES)
    problem.flag[0] = 4.0
    before = problem.state(backend)
    problem.loop(backend, shared=shared).run(MANY_RUNS)
    assert_same_state(before, problem.state(backend))


def count_up() -> KernelSpec:
    kernel = KernelBuilder("count_up", REAL)
    kernel.guard("done")
    (old,) = kernel.read("counts", 1, REAL, ReadSequential())
    kernel.write("counts", [old + 1.0], REAL, WriteSequential())
    return kernel.build()


def stop_at(limit: float, name: str) -> KernelSpec:
    kernel = KernelBuilder(name, REAL)
    kernel.guard("done")
    (old,) = kernel.read("runs", 1, REAL, ReadUnique())
    kernel.write("runs", [old + 1.0], REAL, WriteUnique())
    kernel.write("done", [(limit - 0.5 < old + 1.0).where(1.0, 0.0)], REAL, WriteUnique())
    return kernel.build()


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("apart", [False, True])
def test_a_phase_that_sets_the_flag_is_done_in_full(make: type[CpuBackend], apart: bool) -> None:
    """One phase, or two that follow each other and both set the flag."""
    backend = make()
    target = TARGETS[backend.name]
    specs = [count_up(), stop_at(4.0, "early"), stop_at(7.0, "late")]
    kernels = backend.load([compile_kernel(spec, target) for spec in specs], backend.tile_size)
    counts, scalars = np.zeros(1000), np.zeros(3)
    flag = scalars[:1]
    bound = {"done": Binding(flag, 1), "counts": Binding(counts, 1000)}
    counting = backend.bind(kernels["count_up"], bound, 1000)
    early, late = (
        backend.bind(kernels[name], {**bound, "runs": Binding(scalars[place : place + 1], 1)}, 1)
        for place, name in ((1, "early"), (2, "late"))
    )
    phases = [[counting, early], [late]] if apart else [[counting, early]]
    backend.loop(phases, flag).run(MANY_RUNS)
    assert_array_equal(counts, 4.0)
    assert scalars.tolist() == [1.0, 4.0, 3.0 if apart else 0.0]


@needs_compiler
def test_no_block_stores_scalars_before_all_have_loaded_them() -> None:
    """Of all barriers the last run's last is spared only where there is another one before it."""
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    scalars = problem.memory["scalars"]
    spared = "if (run + 1u < runs_count) "
    for first, is_spared in ((-2, False), (-3, True)):
        loop: Any = backend.loop(problem.phases[first:], problem.flag, scalars)
        assert loop.plan.state is scalars
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
    loop: Any = backend.loop(problem.phases, problem.flag, problem.memory["scalars"])
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
    loop: Any = backend.loop(problem.phases, problem.flag, problem.memory["scalars"])
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
            backend.loop(phases, flag)


@needs_compiler
def test_an_empty_phase_is_left_out() -> None:
    backend = HarnessBackend()
    problem = system(backend, *SIZES)
    plain: Any = backend.loop(problem.phases, problem.flag)
    first, *others = problem.phases
    loop: Any = backend.loop([[], first, [], *others, []], problem.flag)
    assert loop.plan.source == plain.plan.source


@needs_compiler
def test_blocks_of_several_sizes_are_an_error() -> None:
    problems = [conjugate(HarnessBackend(), *SIZES, tile=tile) for tile in (128, 256)]
    mixed = [problems[0].phases[0], problems[1].phases[3]]
    with pytest.raises(ValueError, match=r"product 128 \(6 blocks\), step 256 \(1 blocks\)"):
        HarnessBackend().loop(mixed, problems[0].flag)
