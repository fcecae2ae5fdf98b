"""Weights, and what is passed beside a factor's arguments: data, not structure; errors by name."""

import pickle
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import FactorError, InputError
from caspar.options import BackendName, PrecisionName
from tests.solver.losses.loss_cases import (
    ROBUST,
    Arrays,
    Line,
    bounded_point,
    cauchy_point,
    line_arrays,
    point,
    view_arrays,
)
from tests.solver.solving import ON_BACKENDS, assert_same_values, changed


def kept_rows(arrays: Arrays, name: str, is_kept: Any) -> Arrays:
    """With some of the instances of a factor only."""
    factor = {
        key: rows[is_kept] if np.ndim(rows) > 0 else rows for key, rows in arrays[name].items()
    }
    return {**arrays, name: factor}


@pytest.mark.filterwarnings("ignore:node type Mark")  # some are left without instances
@ON_BACKENDS
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_weight_zero_is_leaving_out(precision: PrecisionName, backend: BackendName) -> None:
    """Also where the data are not numbers."""
    arrays = view_arrays()
    weight = np.ones(len(arrays["glance"]["seen"]))
    weight[1::4] = 0.0
    arrays["glance"]["weight"] = weight
    arrays["glance"]["seen"][1::4] = np.nan
    less = kept_rows(kept_rows(arrays, "glance", weight > 0.0), "pin", arrays["pin"]["weight"] > 0)
    solver = caspar.Solver(ROBUST, precision=precision, backend=backend)
    options: dict[str, Any] = {"cost_tolerance": 1e-12} if precision == "float64" else {}
    found, expected = (solver.solve(one, **options) for one in (arrays, less))
    assert found.status.is_success
    tolerance = 1e-12 if precision == "float64" else 1e-6
    assert_allclose(found.initial_cost, expected.initial_cost, rtol=tolerance)
    assert_allclose(found.final_cost, expected.final_cost, rtol=max(tolerance, 1e-10))
    assert found.problem == replace(expected.problem, left_out=found.problem.left_out)
    assert found.problem.left_out == {"glance": sum(weight == 0.0), "pin": 5}


def test_weights_of_two_are_instances_twice() -> None:
    arrays = line_arrays()
    twice = np.repeat(np.arange(90), 1 + np.arange(90) % 2)
    weighted = changed(arrays, "point.weight", 1.0 + np.arange(90) % 2)
    solver = caspar.Solver(point, precision="float64", backend="cpu")
    found, expected = solver.solve(weighted), solver.solve(kept_rows(arrays, "point", twice))
    assert_allclose(found.final_cost, expected.final_cost, rtol=1e-12)
    assert_allclose(found.values["Line"], expected.values["Line"], rtol=1e-10)


def test_values_are_data() -> None:
    """New weights and scales keep the plan and compile nothing."""
    solver = caspar.Solver(cauchy_point, precision="float64", backend="cpu")
    arrays = line_arrays()
    given = {**arrays["point"], "weight": np.ones(90), "loss_scale": np.full(90, 0.1)}
    first = {"Line": arrays["Line"], "cauchy_point": given}
    solver.solve(first)
    with solver.system(first) as system:
        kept = system
    second = changed(changed(first, "cauchy_point.weight", np.arange(90.0)), "Line", [[0.0, 0.0]])
    second["cauchy_point"]["loss_scale"] = np.linspace(0.1, 2.0, 90)
    result = solver.solve(second)
    assert result.compile_time_s == 0.0
    with solver.system(second) as system:
        assert system is kept


def test_a_factor_without_weights_has_the_kernels_it_had() -> None:
    """And gets them back after a solve with weights."""
    solver = caspar.Solver(point, precision="float64", backend="cpu")
    arrays = line_arrays()
    before = solver.solve(arrays)
    solver.solve(changed(arrays, "point.weight", np.full(90, 2.0)))
    after = solver.solve(arrays)
    assert_same_values(before.values, after.values)
    assert "correction" not in str(solver.memory_table())


def test_scale_by_default_is_one() -> None:
    solver = caspar.Solver(point.with_loss(caspar.loss.Huber), backend="cpu")
    arrays = line_arrays()
    found = [solver.solve(one) for one in (arrays, changed(arrays, "point.loss_scale", 1))]
    assert found[0].final_cost == found[1].final_cost


def test_scales_by_instance() -> None:
    solver = caspar.Solver(point.with_loss(caspar.loss.Huber), precision="float64", backend="cpu")
    arrays = line_arrays()
    one = solver.solve(changed(arrays, "point.loss_scale", 0.3))
    many = solver.solve(changed(arrays, "point.loss_scale", np.full((90, 1), 0.3)))
    assert_allclose(many.final_cost, one.final_cost, rtol=1e-13)


GIVEN: dict[str, tuple[str, Any, str]] = {
    "negative": ("weight", -np.ones(90), "entry 0 is -1; weights are 0 or more"),
    "NaN": ("weight", np.full(90, np.nan), "90 of 90 rows hold NaN"),
    "one number": ("weight", 2.0, "expected one weight for each instance"),
    "too few": ("weight", np.ones(89), "has 89 entries, but the factor has 90 instances"),
    "two columns": ("weight", np.ones((90, 2)), "shape (90, 2)"),
    "text": ("weight", ["a"] * 90, "dtype"),
    "zero scale": ("loss_scale", 0.0, "it is 0; it must be greater than 0"),
    "negative scale": ("loss_scale", [-1.0] * 90, "entry 0 is -1; it must be greater than 0"),
    "infinite scale": ("loss_scale", float("inf"), "inf is not a finite number"),
    "scales": ("loss_scale", np.ones(3), "has 3 entries, but the factor has 90 instances"),
    "another loss's": ("loss_alpha", 1.0, "its loss Tukey has loss_scale only"),
    "misspelt": ("wieght", np.ones(90), "did you mean 'weight'?"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_bad_input(case: str) -> None:
    name, value, message = GIVEN[case]
    solver = caspar.Solver(bounded_point, backend="cpu")
    with pytest.raises(InputError) as caught:
        solver.solve(changed(line_arrays(), f"point.{name}", value))
    assert str(caught.value).startswith("factor point")
    assert name in str(caught.value)
    assert message in str(caught.value)
    # nothing is lost
    assert solver.solve(line_arrays()).status.is_success


def test_parameters_without_a_loss() -> None:
    solver = caspar.Solver(point, backend="cpu")
    with pytest.raises(InputError, match="'loss_scale' is given, but the factor has no loss"):
        solver.solve(changed(line_arrays(), "point.loss_scale", 1.0))
    with pytest.raises(InputError, match="'loss_alpha' is missing"):
        caspar.Solver(point.with_loss(caspar.loss.Barron), backend="cpu").solve(line_arrays())


def test_all_weights_zero() -> None:
    solver = caspar.Solver(point, backend="cpu")
    with pytest.raises(InputError, match="no factor has instances with a weight above 0"):
        solver.solve(changed(line_arrays(), "point.weight", np.zeros(90)))


@caspar.factor
def own_weight(
    line: Annotated[Line, caspar.TunableUnique],
    weight: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V2:
    return weight[0] * (line - sf.V2(1.0, 2.0))


def test_an_argument_called_weight() -> None:
    """It is the user's, unless the factor has a loss."""
    arrays = {"Line": np.zeros((1, 2)), "own_weight": {"weight": np.array([[2.0]])}}
    result = caspar.Solver(own_weight, precision="float64", backend="cpu").solve(arrays)
    assert_allclose(result.initial_cost, 0.5 * 4.0 * 5.0)
    with pytest.raises(FactorError, match="argument weight: a factor with a loss is passed"):
        caspar.Solver(own_weight.with_loss(caspar.loss.Huber), backend="cpu")


# -- results ---------------------------------------------------------------------------------------


@ON_BACKENDS
def test_costs_residuals_and_weights(backend: BackendName) -> None:
    arrays = view_arrays()
    solver = caspar.Solver(ROBUST, precision="float64", backend=backend)
    result = solver.solve(arrays)
    assert_allclose(sum(result.costs.values()), result.final_cost, rtol=1e-12)
    residuals = result.residuals("pin")
    mark, known = arrays["pin"]["mark"], arrays["pin"]["known"]
    assert_allclose(residuals, 0.3 * (result.values["Mark"][mark] - known), atol=1e-14)
    square = (residuals**2).sum(axis=1)
    assert_allclose(result.costs["pin"], 0.5 * arrays["pin"]["weight"] @ square, rtol=1e-12)
    assert_array_equal(result.weights("pin"), arrays["pin"]["weight"])
    scale = arrays["glance"]["loss_scale"]
    length = np.linalg.norm(result.residuals("glance"), axis=1)
    expected = scale / np.maximum(length, scale)
    assert_allclose(result.weights("glance"), expected, rtol=1e-12)
    assert result.num_beyond_scale["glance"] == np.count_nonzero(length > scale)
    assert result.losses == {"glance": "Huber", "hold": "SoftL1"}
    known = r"'glances' is no factor \(did you mean 'glance'\?\); these are glance, hold, pin"
    with pytest.raises(InputError, match=known):
        result.residuals("glances")


def test_report() -> None:
    text = str(caspar.Solver(ROBUST, precision="float64", backend="cpu").solve(view_arrays()))
    assert "Huber of glance:" in text
    assert "beyond its scale" in text
    assert "left out by weight 0: 5 pin" in text
    assert "cost by factor" in text
    assert "RMS" not in text


def test_arrays_that_have_changed() -> None:
    arrays = line_arrays()
    result = caspar.Solver(point, precision="float64", backend="cpu").solve(arrays)
    arrays["point"]["height"] += 1.0
    with pytest.raises(InputError, match="the arrays have changed since the solve"):
        result.residuals("point")


def test_pickled_result() -> None:
    result = caspar.Solver(point, precision="float64", backend="cpu").solve(line_arrays())
    assert result.weights("point").shape == (90,)
    copy = pickle.loads(pickle.dumps(result))
    assert copy.costs == result.costs
    with pytest.raises(InputError, match=r"Solver.evaluate\(\{\*\*arrays, \*\*result.values\}\)"):
        copy.weights("point")


def test_evaluate() -> None:
    solver = caspar.Solver([cauchy_point, bounded_point], precision="float64", backend="cpu")
    arrays = line_arrays()
    arrays["cauchy_point"] = {"at": [], "height": []}
    found = solver.evaluate(arrays)
    assert found.costs["cauchy_point"] == 0.0
    assert found.residuals("cauchy_point").shape == (0, 1)
    assert found.weights("point")[0] == 0.0  # far beyond the scale
    assert found.cost == found.costs["point"]
    assert_array_equal(arrays["Line"], [[1.2, 0.45]])


def test_factors_with_losses_can_be_pickled() -> None:
    for factor in (cauchy_point, bounded_point):
        again = pickle.loads(pickle.dumps(factor))
        assert again.loss is factor.loss
        assert again == factor
