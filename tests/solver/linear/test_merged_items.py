"""Items that couple the same two nodes are summed before their pairs are walked."""

from typing import Any

import numpy as np
import pytest

import caspar
from benchmarks.linear_choice.cases import calibration
from caspar.runtime.array_tools import ArrayTools
from caspar.runtime.backend import Backend
from caspar.solver.linear.explicit.structure import (
    coupled_items,
    mixed_windows,
    num_fill_pairs,
)
from tests.harness_backend import HarnessBackend

NUM_VIEWS = 13


def solver_of(case: Any, **options: Any) -> caspar.Solver:
    chosen = {"backend": "cpu", "linear_solver": "schur_dense", "precision": "float64", **options}
    return caspar.Solver(case.factors, inner_iterations=0, **chosen)


def shuffled(num_corners: int, num_lenses: int) -> Any:
    """Corners in no order; half of the views see through one of two lenses if there are two."""
    case = calibration("case", num_corners)
    arrays = {name: np.array(value) for name, value in case.arrays.items() if name != "seen_corner"}
    seen = {name: np.array(value) for name, value in case.arrays["seen_corner"].items()}
    order = np.random.default_rng(0).permutation(len(seen["view"]))
    seen = {name: value[order] for name, value in seen.items()}
    seen["intrinsics"] = (seen["view"] % num_lenses).astype(np.int32)
    arrays["Intrinsics"] = np.repeat(arrays["Intrinsics"], num_lenses, axis=0)
    return type(case)(case.name, case.factors, {**arrays, "seen_corner": seen})


def test_pairs_of_nodes_are_walked_not_pairs_of_corners() -> None:
    for num_corners in (54, 200):
        case = shuffled(num_corners, 1)
        with solver_of(case).system(case.arrays) as system:
            plan = system.plan
            assert num_fill_pairs(plan) == NUM_VIEWS
            tools = ArrayTools(plan.library.backend, 1)
            ((items,), merged) = coupled_items(plan, tools, mixed_windows(plan))
            assert len(items.owner) == NUM_VIEWS
            (one,) = merged.values()
            assert one.count == NUM_VIEWS
            np.testing.assert_array_equal(np.bincount(one.number), [num_corners] * NUM_VIEWS)
            assert len(set(one.items.tolist())) == NUM_VIEWS * num_corners


def test_memory_grows_with_the_corners_not_with_their_pairs() -> None:
    sizes = []
    for num_corners in (50, 100, 200):
        case = shuffled(num_corners, 1)
        sizes.append(solver_of(case).prepare(case.arrays).num_bytes)
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0])


@pytest.mark.parametrize("num_lenses", [1, 2])
@pytest.mark.parametrize(
    ("backend", "deterministic"),
    [
        *[("cpu", False), ("cpu", True), ("harness", False)],
        pytest.param("harness", True, marks=pytest.mark.reliability),
    ],
)
def test_the_first_step_is_that_of_all_unknowns(
    num_lenses: int, deterministic: bool, backend: str
) -> None:
    """Also through a lens that only half of the views have."""
    case = shuffled(20, num_lenses)
    where: str | Backend = HarnessBackend(128) if backend == "harness" else backend
    options = {"backend": where, "deterministic": deterministic}
    limits: Any = {"max_iterations": 1, "initial_damping": 1e-6}
    whole = solver_of(case, linear_solver="sparse", eliminate=(), backend="cpu")
    wanted = whole.solve(case.arrays, **limits)
    result = solver_of(case, **options).solve(case.arrays, **limits)
    assert result.linear_solver == "schur_dense"
    assert result.final_cost == pytest.approx(wanted.final_cost, rel=1e-9)
    for name in ("Intrinsics", "View"):
        np.testing.assert_allclose(result.values[name], wanted.values[name], rtol=1e-7, atol=1e-7)


def test_few_items_of_two_nodes_are_walked() -> None:
    """Where items hardly repeat, a sum beforehand is one kernel too many."""
    case = shuffled(30, 1)
    seen = case.arrays["seen_corner"]
    # as many lenses as corners
    seen["intrinsics"] = (np.arange(len(seen["view"])) % 30).astype(np.int32)
    case.arrays["Intrinsics"] = np.repeat(case.arrays["Intrinsics"], 30, axis=0)
    with solver_of(case).system(case.arrays) as system:
        tools = ArrayTools(system.plan.library.backend, 1)
        _, merged = coupled_items(system.plan, tools, mixed_windows(system.plan))
        assert merged == {}
