"""Loops between launches whose blocks are one thread block cluster."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

import caspar
from caspar.codegen.cuda.loop.fuse import CLUSTER_BLOCKS, CLUSTER_OPTION
from caspar.runtime.cuda.launch.bound_kernel import BoundKernel
from caspar.runtime.cuda.loop.loops import LoopPlan, plan_loop
from caspar.runtime.nvidia.nvrtc import compile_text
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend, bound
from tests.solver.linear.linear_cases import glimpse, hold, make_arrays, pin
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
        ahead=ahead,
        roomy_blocks=1000,
        cluster_blocks=most,
    )


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
    """Between launches there is one barrier: steps are stored, and all blocks sum them."""
    plan = planned(problem, phases)
    assert plan.is_cluster
    compiled = compile_text(plan.source.text, "sm_90", (CLUSTER_OPTION.format(plan.max_blocks),))
    assert compiled.warnings == ()
    assert compiled.ptx.count("barrier.cluster.arrive.release") == 1
    assert "atom.add.release.gpu" not in compiled.ptx


def test_too_many_blocks_are_no_cluster(problem: Conjugate, phases: Phases) -> None:
    most = planned(problem, phases).max_blocks
    assert planned(problem, phases, most).is_cluster
    assert not planned(problem, phases, most - 1).is_cluster


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
        [glimpse, hold, pin], backend=HarnessBackend(128), linear_solver="schur_pcg"
    )
    solver.solve(arrays, max_iterations=1)
    (text,) = texts
    loads = re.findall(r"void load_\w+\(\n.*?\) \{\n(.*?)\n\}", text, re.S)
    clears = [line for body in loads for line in body.splitlines() if "clear_slots" in line]
    assert len(clears) > 0
    assert all(line.startswith("  if (blockIdx.x < gridDim.x) clear_slots") for line in clears)
    # they are nowhere else
    assert text.count("clear_slots<BLOCK_SIZE>(") == len(clears)
