"""Batches on a device: as on the processor, from arrays of the host and of the device."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.batch.generate.shape import Team
from caspar.options import BatchPrecisionName
from caspar.solver.result.result import SolveStatus
from tests.batch.batch_cases import CASES, Case, anchor, cameras, curves, decay, distance
from tests.batch.test_batch_large import webs
from tests.batch.test_batch_solver import ragged
from tests.batch.test_batch_teams import ALL, spectra

pytestmark = pytest.mark.gpu


def _on_device(arrays: Any) -> Any:
    cupy = pytest.importorskip("cupy")
    if isinstance(arrays, dict):
        return {name: _on_device(value) for name, value in arrays.items()}
    return cupy.asarray(arrays) if isinstance(arrays, np.ndarray) else arrays


def _solved(
    case: Case, backend: str, precision: BatchPrecisionName = "float64"
) -> caspar.BatchResult:
    solver = caspar.BatchSolver(case.factors, backend=backend, precision=precision)
    return solver.solve(case.arrays, fixed=case.fixed)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_as_on_the_processor(name: str, precision: BatchPrecisionName) -> None:
    case = CASES[name]()
    result = _solved(case, "cuda", precision)
    expected = _solved(case, "cpu", precision)
    loose = precision == "float32"
    both = result.is_success & expected.is_success
    # in float32 the last digit decides whether a step is taken, and sums differ in it
    assert both.mean() > (0.8 if loose else 0.999)
    rtol, atol = (1e-3, 5e-3) if loose else (1e-10, 1e-6)
    assert_allclose(result.final_cost[both], expected.final_cost[both], rtol=rtol)
    for node, values in expected.values.items():
        assert_allclose(result.values[node][both], values[both], rtol=0, atol=atol)


def test_bounds_and_covariances() -> None:
    case = curves(num_problems=30)
    lower, upper = np.array([1.5, 0.8, -0.4]), np.array([3.0, 1.2, 0.4])
    bounds = {"Curve": (np.tile(lower, (30, 1)), np.tile(upper, (30, 1)))}
    arrays = {**case.arrays, "Curve": np.clip(case.arrays["Curve"], lower, upper)}
    found = []
    for backend in ("cuda", "cpu"):
        solver = caspar.BatchSolver(case.factors, backend=backend)
        result = solver.solve(arrays, bounds=bounds)
        after = {**arrays, **result.values}
        covariance = solver.covariance(after, bounds=bounds, scale_by_residual_variance=True)
        found.append((result, covariance))
    (result, covariance), (expected, wanted) = found
    assert_array_equal(result.active_bounds["Curve"], expected.active_bounds["Curve"])
    assert_allclose(result.values["Curve"], expected.values["Curve"], rtol=0, atol=1e-6)
    assert_allclose(covariance, wanted, rtol=1e-4, atol=1e-12)
    on_device = _on_device(after)
    again = caspar.BatchSolver(case.factors, backend="cuda").covariance(on_device)
    assert type(again).__module__.startswith("cupy")


@pytest.mark.parametrize("make", [curves, cameras])
def test_arrays_of_the_device_stay_there(make: Any) -> None:
    case = make()
    solver = caspar.BatchSolver(case.factors, backend="cuda")
    result = solver.solve(_on_device(dict(case.arrays)))
    expected = solver.solve(case.arrays)
    for node, values in expected.values.items():
        assert type(result.values[node]).__module__.startswith("cupy")
        assert_array_equal(result.values[node].get(), values)
    for name in ("final_cost", "initial_cost", "iterations", "num_residuals", "status_codes"):
        assert_array_equal(getattr(result, name).get(), getattr(expected, name))
    assert_array_equal(result.status, expected.status)
    assert result.counts == expected.counts


def test_ragged_problems_and_bad_ones() -> None:
    lengths = [7, 0, 30, 4, 1, 12, 0]
    arrays, _, _ = ragged(lengths)
    arrays["Curve"][3] = np.nan
    expected = caspar.BatchSolver(decay, backend="cpu").solve(arrays)
    solver = caspar.BatchSolver(decay, backend="cuda")
    for given in (arrays, _on_device(arrays)):
        result = solver.solve(given)
        assert result.status[1] is SolveStatus.NO_RESIDUALS
        assert result.status[3] is SolveStatus.INITIAL_COST_NOT_FINITE
        assert_array_equal(result.is_success, expected.is_success)
        values = result.values["Curve"]
        values = values.get() if hasattr(values, "get") else values
        counted = expected.is_success & (expected.num_residuals > 3)
        assert_allclose(values[counted], expected.values["Curve"][counted], atol=1e-6)


def test_a_hundred_thousand() -> None:
    """More than one wave of blocks; each problem as the same one in another place."""
    case = curves(num_problems=500)
    arrays = {
        "Curve": np.tile(case.arrays["Curve"], (200, 1)),
        "decay": {
            "time": case.arrays["decay"]["time"],
            "value": np.tile(case.arrays["decay"]["value"], (200, 1)),
        },
        "near": case.arrays["near"],
    }
    result = caspar.BatchSolver(case.factors, backend="cuda").solve(arrays)
    values = result.values["Curve"].reshape(200, 500, 3)
    assert_array_equal(values, np.broadcast_to(values[:1], values.shape))
    assert result.is_success.all()


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", ALL)
def test_warps_find_what_threads_find(name: str, precision: BatchPrecisionName) -> None:
    case = ALL[name]()
    found = []
    for team in Team:
        solver = caspar.BatchSolver(case.factors, backend="cuda", precision=precision)
        solver.team = team
        result = solver.solve(case.arrays, fixed=case.fixed)
        again = solver.solve(case.arrays, fixed=case.fixed)
        assert_array_equal(again.final_cost, result.final_cost)
        covariance = solver.covariance({**case.arrays, **result.values}, fixed=case.fixed)
        found.append((result, covariance))
    (thread, wanted), (warp, covariance) = found
    assert warp.is_success.mean() > 0.8
    both = warp.is_success & thread.is_success
    loose = precision == "float32"
    rtol, atol = (1e-3, 5e-3) if loose else (1e-10, 1e-6)
    assert_allclose(warp.final_cost[both], thread.final_cost[both], rtol=rtol)
    for node, values in thread.values.items():
        assert_allclose(warp.values[node][both], values[both], rtol=atol, atol=atol)
    if not loose:
        assert_allclose(covariance, wanted, rtol=1e-4, atol=1e-12)


def test_a_thousand_larger_problems() -> None:
    case = spectra(num_problems=1000)
    solver = caspar.BatchSolver(case.factors, backend="cuda")
    result = solver.solve(_on_device(dict(case.arrays)))
    expected = caspar.BatchSolver(case.factors, backend="cpu").solve(case.arrays)
    both = result.is_success & expected.is_success
    assert both.mean() > 0.98
    same = np.isclose(result.final_cost.get()[both], expected.final_cost[both], rtol=1e-6)
    assert same.mean() > 0.99


@pytest.mark.parametrize("where", ["host", "device"])
def test_problems_of_a_hundred_unknowns(where: str) -> None:
    arrays = webs()
    given = arrays if where == "host" else _on_device(arrays)
    found = caspar.BatchSolver([distance, anchor], backend="cuda").solve(given)
    expected = caspar.BatchSolver([distance, anchor], backend="cpu").solve(arrays)
    assert found.is_success.all()
    values, costs = found.values["Place"], found.final_cost
    if where == "device":
        values, costs = values.get(), costs.get()
    assert_allclose(costs, expected.final_cost, rtol=1e-9)
    assert_allclose(values, expected.values["Place"], atol=1e-5)
