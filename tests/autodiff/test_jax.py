"""`caspar.jax`: needs JAX, on the processor."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caspar
from caspar.errors import InputError
from tests.autodiff.jax_cases import wide  # noqa: F401
from tests.batch import test_batch_gradients as batches
from tests.solver import test_lookups as lookups
from tests.solver.gradients.gradient_cases import curve_fit, decay

jax = pytest.importorskip("jax", reason="JAX is not installed")

TIGHT: dict[str, Any] = {
    "cost_tolerance": 1e-30,
    "gradient_tolerance": 1e-30,
    "step_tolerance": 1e-15,
}


@pytest.fixture(scope="module")
def solver() -> caspar.Solver:
    """Fits a curve."""
    return caspar.Solver([decay], backend="cpu")


def fitted(solver: caspar.Solver, y: Any, weight: Any) -> Any:
    """The squared length of a curve's parameters."""
    arrays = curve_fit().arrays
    given = {**arrays["decay"], "y": y, "weight": weight}
    return (caspar.jax.solve(solver, {**arrays, "decay": given}, **TIGHT)["Curve"] ** 2).sum()


def test_gradients_are_those_of_the_solver_under_jit_too(solver: caspar.Solver) -> None:
    arrays = curve_fit().arrays
    y, weight = (jax.numpy.asarray(arrays["decay"][name]) for name in ("y", "weight"))
    result = solver.solve(arrays)
    expected = solver.gradient(result, {"Curve": 2.0 * result.values["Curve"]})["decay"]
    derived = jax.grad(lambda y, weight: fitted(solver, y, weight), argnums=(0, 1))
    for function in (derived, jax.jit(derived)):
        by_y, by_weight = function(y, weight)
        np.testing.assert_allclose(by_y, expected["y"], rtol=1e-6)
        np.testing.assert_allclose(by_weight, expected["weight"], rtol=1e-5, atol=1e-8)


def test_check_grads(solver: caspar.Solver) -> None:
    from jax.test_util import check_grads

    arrays = curve_fit().arrays
    y, weight = (jax.numpy.asarray(arrays["decay"][name]) for name in ("y", "weight"))
    check_grads(lambda *given: fitted(solver, *given), (y, weight), 1, ("rev",), eps=1e-3)


def test_tables_have_gradients() -> None:
    arrays = lookups.problem()
    solver = caspar.Solver([lookups.aligned], backend="cpu", precision="float64")
    cotangents = {"Shift": np.array([[1.0, -2.0]])}
    expected = solver.gradient(solver.solve(arrays), cotangents)["aligned"]["picture"]
    own = arrays["aligned"]

    def moved(values: Any) -> Any:
        given = {**own, "picture": {**own["picture"], "values": values}}
        found = caspar.jax.solve(solver, {**arrays, "aligned": given})["Shift"]
        return (found * cotangents["Shift"]).sum()

    derived = jax.grad(moved)(jax.numpy.asarray(own["picture"]["values"]))
    np.testing.assert_allclose(derived, expected, rtol=1e-12, atol=1e-15)


def test_vmap_runs_one_solve_after_the_other(solver: caspar.Solver) -> None:
    arrays = curve_fit().arrays
    y, weight = (jax.numpy.asarray(arrays["decay"][name]) for name in ("y", "weight"))
    several = jax.numpy.stack([y, y + 0.1])
    derived = jax.grad(lambda y: fitted(solver, y, weight))
    found = jax.vmap(derived)(several)
    for one, expected in zip(several, found, strict=True):
        np.testing.assert_allclose(derived(one), expected, rtol=1e-7, atol=1e-9)


def test_indices_may_be_traced_and_batches_too() -> None:
    arrays = batches.waves(np.random.default_rng(0))
    batch = caspar.BatchSolver(batches.FACTORS, backend="cpu")
    results: list[Any] = []

    def total(y: Any) -> Any:
        given = {**arrays, "sample": {**arrays["sample"], "y": y}}
        return caspar.jax.solve(batch, given, on_result=results.append)["Wave"].sum()

    found = jax.jit(jax.grad(total))(arrays["sample"]["y"])
    expected = batch.gradient(batch.solve(arrays), {"Wave": np.ones((batches.NUM, 3))})
    np.testing.assert_allclose(found, expected["sample"]["y"], rtol=1e-9, atol=1e-12)
    assert results[0].is_success.all()


@pytest.mark.parametrize("kind", [np.array, np.ndarray.tolist])
def test_numpy_arrays_may_be_written_to_before_the_backward_pass(
    solver: caspar.Solver, kind: Callable[[Any], Any]
) -> None:
    def slopes(*, writes: bool) -> Any:
        arrays = curve_fit().arrays
        own = {name: kind(array) for name, array in arrays["decay"].items()}
        held = {"Curve": np.array([[False, True, False]])}

        def first(y: Any) -> Any:
            given = {**arrays, "decay": {**own, "y": y}}
            return caspar.jax.solve(solver, given, fixed=held)["Curve"][0, 0]

        found, pull = jax.vjp(first, jax.numpy.asarray(arrays["decay"]["y"]))
        if writes:
            own["x"][3] = kind(np.array([9.0]))
            held["Curve"][:] = False
        return pull(jax.numpy.ones_like(found))[0]

    np.testing.assert_array_equal(slopes(writes=True), slopes(writes=False))


def test_float32_stays_float32(solver: caspar.Solver) -> None:
    jax.config.update("jax_enable_x64", False)
    arrays = curve_fit().arrays
    y = jax.numpy.asarray(arrays["decay"]["y"])
    start = jax.numpy.asarray(arrays["Curve"])
    given = {**arrays["decay"], "y": y}
    values = caspar.jax.solve(solver, {"Curve": start, "decay": given})
    assert values["Curve"].dtype == np.float32


def test_factors_are_no_solver() -> None:
    factors: Any = [decay]
    with pytest.raises(InputError, match=r"solver is a list; pass a caspar\.Solver"):
        caspar.jax.solve(factors, curve_fit().arrays)
