"""Bounds in batches: each problem as a `Solver` with the same bounds alone."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError
from caspar.options import BatchPrecisionName
from tests.batch.batch_cases import Case, curves, paths
from tests.covering import first
from tests.harness_backend import HarnessBackend

LOWER, UPPER = np.array([1.5, 0.8, -0.4]), np.array([3.0, 1.2, 0.4])


def _inside(case: Case) -> dict[str, Any]:
    return {**case.arrays, "Curve": np.clip(case.arrays["Curve"], LOWER, UPPER)}


def _of_all(case: Case) -> dict[str, Any]:
    shape = (case.num_problems, 1)
    return {"Curve": (np.tile(LOWER, shape), np.tile(UPPER, shape))}


def test_as_solved_one_by_one() -> None:
    case = curves(num_problems=30)
    result = caspar.BatchSolver(case.factors, backend="cpu").solve(
        _inside(case), bounds=_of_all(case)
    )
    assert result.is_success.all()
    found = result.values["Curve"]
    assert ((found >= LOWER) & (found <= UPPER)).all()
    active = result.active_bounds["Curve"]
    assert active.shape == found.shape
    assert_array_equal(active, (found == UPPER).astype(int) - (found == LOWER))
    assert 20 < np.count_nonzero(active) < 80
    solver = caspar.Solver(case.factors, backend="cpu", precision="float64")
    for number in range(case.num_problems):
        given = dict(case.single(number))
        given["Curve"] = np.clip(given["Curve"], LOWER, UPPER)
        single = solver.solve(given, bounds={"Curve": (LOWER[None], UPPER[None])})
        assert_allclose(result.final_cost[number], single.final_cost, rtol=1e-9)
        assert_allclose(found[number], single.values["Curve"][0], atol=1e-6)
        assert_array_equal(active[number], single.active_bounds["Curve"][0])


@pytest.mark.parametrize("precision", first(1, ["float64", "float32"]))
def test_cuda_text_gives_the_same(precision: BatchPrecisionName) -> None:
    case = curves(num_problems=12)
    bounds = _of_all(case)
    cpu, cuda = (
        caspar.BatchSolver(case.factors, backend=backend, precision=precision).solve(
            _inside(case), bounds=bounds
        )
        for backend in ("cpu", HarnessBackend())
    )
    assert_array_equal(cuda.status_codes, cpu.status_codes)
    assert_array_equal(cuda.active_bounds["Curve"], cpu.active_bounds["Curve"])
    assert_allclose(cuda.values["Curve"], cpu.values["Curve"], rtol=1e-6, atol=1e-6)


def test_bounds_beside_what_is_held_and_types_without() -> None:
    """Places of several nodes have a bound each; the first one of each problem is held."""
    case = paths()
    start = case.arrays["Place"]
    upper = start + 0.01
    shape = (-1, 2)
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    bounds = {"Place": (None, upper.reshape(shape))}
    result = solver.solve(case.arrays, fixed=case.fixed, bounds=bounds)
    assert result.is_success.all()
    found = result.values["Place"]
    assert (found <= upper).all()
    assert_array_equal(found[:, 0], start[:, 0])
    assert result.active_bounds["Place"].shape == found.shape
    assert (result.active_bounds["Place"][:, 1:] == 1).any()
    assert set(result.active_bounds) == {"Place"}
    free = solver.solve(case.arrays, fixed=case.fixed)
    assert (result.final_cost >= free.final_cost * (1 - 1e-12)).all()


def test_starts_outside_are_refused() -> None:
    case = curves(num_problems=5)
    arrays = {**case.arrays, "Curve": np.zeros((5, 3))}
    bounds = {"Curve": (np.ones((5, 3)), 3.0 * np.ones((5, 3)))}
    solver = caspar.BatchSolver(case.factors, backend="cpu")
    with pytest.raises(InputError, match="node 0 starts at 0, component 0, outside its bounds 1"):
        solver.solve(arrays, bounds=bounds)
