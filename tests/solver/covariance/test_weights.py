"""Weights and losses in covariances: J^T W J, W the weight times the slope of the loss."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.testing import assert_allclose

import caspar
from tests.solver.covariance.covariance_cases import METHODS, Arrays, bundle, known_view, observe
from tests.solver.solving import changed

REQUEST = {"View": "all", "Mark": "all"}


def covariance(factors: Sequence[caspar.Factor], arrays: Arrays) -> caspar.Covariance:
    limits = METHODS["dense factorisation"]
    return caspar.Solver(factors, backend="cpu", limits=limits).covariance(arrays, REQUEST)


def assert_same(found: caspar.Covariance, wanted: caspar.Covariance) -> None:
    for name in REQUEST:
        assert_allclose(found[name], wanted[name], rtol=1e-7, atol=1e-16)
    assert_allclose(
        found.cross("View", 2, "Mark", 3), wanted.cross("View", 2, "Mark", 3), rtol=1e-7
    )


def test_a_weight_of_two_is_an_instance_twice() -> None:
    arrays = bundle()
    seen = arrays["observe"]
    count = len(seen["view"])
    weights = np.where(np.arange(count) % 3 == 0, 2.0, 1.0)
    index = np.repeat(np.arange(count), weights.astype(int))
    twice = {**arrays, "observe": {name: given[index] for name, given in seen.items()}}
    found = covariance((observe, known_view), changed(arrays, "observe.weight", weights))
    wanted = covariance((observe, known_view), twice)
    assert_same(found, wanted)
    assert found.num_residuals == 2 * count + 12
    factor = wanted.degrees_of_freedom / found.degrees_of_freedom
    assert_allclose(found.residual_variance, factor * wanted.residual_variance, rtol=1e-9)


def test_a_weight_of_zero_is_out_whatever_it_was_measured() -> None:
    arrays = bundle()
    seen = arrays["observe"]
    is_between = (seen["view"] > 0) & (seen["view"] < 4)
    kept = ~(is_between & (np.arange(len(is_between)) % 3 == 0))
    without = {**arrays, "observe": {name: given[kept] for name, given in seen.items()}}
    rays = np.where(kept[:, None], seen["ray"], np.nan)
    given = {**seen, "ray": rays, "weight": kept.astype(float)}
    found = covariance((observe, known_view), {**arrays, "observe": given})
    wanted = covariance((observe, known_view), without)
    assert_same(found, wanted)
    assert found.num_residuals == wanted.num_residuals
    assert_allclose(found.residual_variance, wanted.residual_variance, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.3, 1e6])
def test_a_loss_weighs_by_its_slope(scale: float) -> None:
    """Huber's is the scale over the residual's length beyond the scale, and 1 before."""
    arrays = bundle()
    robust = observe.with_loss(caspar.loss.Huber)
    solver = caspar.Solver((robust, known_view), backend="cpu", precision="float64")
    given = changed(arrays, "observe.loss_scale", scale)
    result = solver.solve(given)
    given |= result.values
    weights = np.minimum(1.0, scale / np.linalg.norm(result.residuals("observe"), axis=1))
    assert (weights < 1.0).any() is np.bool_(scale < 1.0)
    found = covariance((robust, known_view), given)
    plain = changed({**arrays, **result.values}, "observe.weight", weights)
    assert_same(found, covariance((observe, known_view), plain))
    dof = found.num_residuals - found.num_unknowns
    assert_allclose(found.residual_variance, 2.0 * result.final_cost / dof, rtol=1e-9)
