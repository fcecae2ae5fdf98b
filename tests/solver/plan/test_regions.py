"""What shares bytes in the arena, and that no solve can tell."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import caspar
from benchmarks.synthetic import make_bal
from caspar.bundle_adjustment import snavely
from caspar.codegen.source import KernelSource
from caspar.frontend.factors.terms import with_narrow
from caspar.frontend.precision import TYPES
from caspar.options import JacobianName, LinearSolverName
from caspar.runtime.cpu.backend import CpuBackend
from caspar.solver.choice.recipe import make_recipe
from caspar.solver.input.problem_reader import read_problem
from caspar.solver.limits import Limits
from caspar.solver.plan.arena import Scratch
from caspar.solver.plan.planning import make_plan, plan_factors, plan_nodes
from caspar.solver.preparation import KeptSystem
from tests.harness import find_compiler
from tests.harness_backend import HarnessBackend, HarnessKernel
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.linear.linear_cases import MIXES, problem_of, solver_names
from tests.solver.solving import Arrays, Poisoned

NEVER = 1 << 62

CASES = [(mix, name) for mix in MIXES for name in solver_names(mix)]


APART = Limits(large_jacobian_bytes=NEVER)
SHARED = Limits(large_jacobian_bytes=0)

BOTH = pytest.mark.parametrize("limits", [SHARED, APART], ids=["shared", "apart"])


def courses(solver: caspar.Solver, arrays: Arrays, **options: Any) -> list[list[object]]:
    """Of a solve, and of one with its plan."""
    results = [solver.solve(arrays, max_iterations=12, **options) for _ in range(2)]
    return [
        [(one.cost, one.candidate_cost, one.step_accepted) for one in result.iterations]
        for result in results
    ]


def both(factors: Any, arrays: Arrays, options: Arrays, **choices: Any) -> list[list[object]]:
    """Courses with Jacobians that share their bytes, then with others."""
    found = []
    for limits in (SHARED, APART):
        made = caspar.Solver(factors, backend="cpu", limits=limits, **choices)
        found += courses(made, arrays, **options)
    return found


@pytest.mark.parametrize("linear_solver", ["schur_pcg", "pcg", "schur_dense"])
@pytest.mark.parametrize("jacobian", ["stored", "float16"])
def test_rejected_steps_leave_no_trace(jacobian: str, linear_solver: str) -> None:
    arrays = arrays_of(part_of(read("problem-49-7776"), 300))
    options = {"initial_damping": 1e-9}
    first, *others = both(snavely, arrays, options, jacobian=jacobian, linear_solver=linear_solver)
    accepted = [step[2] for step in first if isinstance(step, tuple)]
    assert any(accepted)
    assert not all(accepted)
    assert all(course == first for course in others)


@pytest.mark.parametrize(("mix", "linear_solver"), CASES)
def test_any_factors(mix: str, linear_solver: str) -> None:
    factors, arrays = problem_of(mix)
    choices = {"linear_solver": linear_solver, "jacobian": "stored"}
    first, *others = both(factors, arrays, {"initial_damping": 1e-9}, **choices)
    assert all(course == first for course in others)


@BOTH
@pytest.mark.parametrize("linear_solver", ["schur_pcg", "schur_dense"])
def test_nothing_is_read_that_was_not_written(
    linear_solver: LinearSolverName, limits: Limits
) -> None:
    factors, arrays = problem_of("everything")

    def solved(backend: CpuBackend) -> list[list[object]]:
        made = caspar.Solver(
            factors,
            backend=backend,
            linear_solver=linear_solver,
            jacobian="stored",
            limits=limits,
        )
        return courses(made, arrays)

    assert solved(Poisoned(0xFF)) == solved(CpuBackend())


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@BOTH
def test_arrays_come_to_the_device_through_the_arena(limits: Limits) -> None:
    """In the harness they are copied as they are for CUDA; the second solve has other values."""
    arrays = arrays_of(part_of(read("problem-21-11315"), 40))
    found = []
    for backend in (CpuBackend(), HarnessBackend()):
        made = caspar.Solver(
            snavely,
            jacobian="stored",
            linear_solver="schur_pcg",
            deterministic=True,
            backend=backend,
            limits=limits,
        )
        first = made.solve(arrays, max_iterations=2)
        again = made.solve({**arrays, **first.values}, max_iterations=2)
        assert again.initial_cost == pytest.approx(first.final_cost, rel=1e-12)
        found.append([record.cost for record in (*first.iterations, *again.iterations)])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


# -- bytes -----------------------------------------------------------------------------------------


class Uncompiled(HarnessBackend):
    """Plans as for CUDA."""

    def _compile(self, source: KernelSource, block_size: int | None) -> HarnessKernel:
        size = block_size if block_size in source.block_sizes else source.block_size
        module: Any = None
        return HarnessKernel(source, module, source.block_size if size is None else size)


@cache
def photos() -> Arrays:
    """A hundredth of the largest published problem."""
    made = make_bal(137, 44_561, 289_876, "photos")
    index = {"cam": made.camera_index, "point": made.point_index}
    return {"Cam": made.cameras, "Point": made.points, "snavely": {**index, "pixel": made.pixels}}


@pytest.mark.parametrize(
    ("jacobian", "narrow", "most"),
    [
        ("stored", (), 159),
        ("float16", (), 108),
        ("recompute", (), 62),
        ("stored", ("pixel",), 151),
        ("float16", ("pixel",), 100),
        ("recompute", ("pixel",), 54),
    ],
)
def test_bytes_of_an_observation(jacobian: str, narrow: tuple[str, ...], most: float) -> None:
    """Of a plan for CUDA whose Jacobians are large, all input being on the host.

    From 16 million observations on, pixels are float32.
    """
    recipe = make_recipe(
        [snavely],
        linear_solver="schur_pcg",
        jacobian=jacobian,
        limits=Limits(large_jacobian_bytes=1),
    )
    recipe = replace(recipe, factors=tuple(with_narrow(one, narrow) for one in recipe.factors))
    backend = Uncompiled()
    prepared = KeptSystem(backend, recipe)
    types = TYPES[recipe.precision]
    library, form = prepared.kernels.compile(), prepared.kernels.design().form
    problem = read_problem(photos(), recipe.factors, recipe.nodes, backend, recipe.precision)
    factors = plan_factors(library, form, recipe.factors, problem, recipe.limits)
    nodes = plan_nodes(library, form, recipe.nodes, problem.counts, factors, recipe.limits)
    plan = make_plan(library, types, factors, nodes, recipe.limits)
    num_observations = problem.factors["snavely"].count
    assert plan.num_bytes / num_observations <= most


@pytest.mark.parametrize("jacobian", ["stored", "float16", "recompute"])
def test_values_come_and_go_by_way_of_the_arena(
    jacobian: JacobianName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the points twice: as they are given, and in the order of tiles."""
    taken: list[bool] = []

    class Watched(Scratch):
        def __init__(self, backend: Any, region: Any) -> None:
            super().__init__(backend, region)
            self.region = region

        def take(self, shape: tuple[int, ...], dtype: str) -> Any:
            array = super().take(shape, dtype)
            taken.append(np.shares_memory(array, self.region))
            return array

    monkeypatch.setattr("caspar.solver.plan.plan.Scratch", Watched)
    arrays = arrays_of(part_of(read("problem-49-7776"), 2000))
    caspar.Solver(snavely, backend="cpu", jacobian=jacobian).solve(arrays, max_iterations=1)
    # points and pixels into order; cameras and points as rows; points as they were given
    assert taken == [True] * 5


def lies_in(blocks: Sequence[np.ndarray[Any, Any]], memory: np.ndarray[Any, Any]) -> list[bool]:
    return [np.shares_memory(block, memory) for block in blocks]


def test_scratch_gives_each_array_bytes_of_its_own_until_it_is_used_up() -> None:
    memory = np.zeros(1024, dtype=np.float32)
    scratch = Scratch(CpuBackend(), memory)
    taken = [scratch.take((100, 3), "float32"), scratch.take((7,), "int32")]
    taken += [scratch.take((1000,), "float64"), scratch.take((200,), "float64")]
    assert lies_in(taken, memory) == [True, True, False, True]
    for number, array in enumerate(taken):
        array[...] = number
    assert [int(array.max()) for array in taken] == [0, 1, 2, 3]
    assert [int(array.min()) for array in taken] == [0, 1, 2, 3]


def partial_bytes(mix: str, jacobian: JacobianName) -> dict[str, tuple[int, int]]:
    """First byte and bytes of the partial sums of a factor over views."""
    factors, arrays = problem_of(mix)
    solver = caspar.Solver(factors, backend="cpu", linear_solver="schur_pcg", jacobian=jacobian)
    found = solver.prepare(arrays).regions
    return {
        part: (found[name].first_byte, found[name].num_scalars * found[name].dtype.itemsize)
        for part in ("gradient", "diagonal", "block", "product")
        if (name := f"glance.view__{part}") in found
    }


@pytest.mark.parametrize("jacobian", ["recompute", "stored"])
def test_partial_sums_of_diagonals_and_blocks_share_bytes(jacobian: JacobianName) -> None:
    partials = partial_bytes("bundle adjustment", jacobian)
    gradient, diagonal, block = (partials[part] for part in ("gradient", "diagonal", "block"))
    assert gradient[0] + gradient[1] <= diagonal[0]
    assert diagonal[0] == block[0]
    assert partials["product"][0] == gradient[0]
