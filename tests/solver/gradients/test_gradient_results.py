"""What a gradient says, refuses, and leaves alone."""

import copy
from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError, OptionError
from tests.solver.gradients.gradient_cases import Curve, curve_fit, decay, plane_graph, ranging


class Dot(sf.V2):
    """A place in the plane."""


@caspar.factor
def apart(
    first: Annotated[Dot, caspar.TunableShared],
    second: Annotated[Dot, caspar.TunableShared],
    measured: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A measured difference."""
    return second - first - measured


@caspar.factor
def at(
    dot: Annotated[Dot, caspar.TunableShared],
    expected: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A measured place."""
    return dot - expected


def dots(**given: Any) -> dict[str, Any]:
    """Three places in a row; without `at` nothing says where."""
    edges = {"first": [0, 1], "second": [1, 2], "measured": np.ones((2, 2))}
    return {"Dot": np.zeros((3, 2)), "apart": edges, **given}


@pytest.fixture(scope="module")
def curve() -> Any:
    """A solver, arrays, and the result of a solve."""
    arrays = curve_fit().arrays
    solver = caspar.Solver([decay], backend="cpu")
    return solver, arrays, solver.solve(arrays)


def test_linear_problem_has_the_derivative_that_is_known() -> None:
    solver = caspar.Solver([at], backend="cpu")
    expected = np.array([[1.0, 2.0], [4.0, 0.0]])
    given = {"dot": [0, 0], "expected": expected, "weight": np.array([1.0, 3.0])}
    result = solver.solve({"Dot": np.zeros((1, 2)), "at": given})
    found = solver.gradient(result, {"Dot": np.array([[1.0, 10.0]])})
    # the mean weighted by 1 and 3
    np.testing.assert_allclose(found["at"]["expected"], [[0.25, 2.5], [0.75, 7.5]], rtol=1e-12)
    by_weight = (expected - result.values["Dot"]) @ [1.0, 10.0] / 4.0
    np.testing.assert_allclose(found["at"]["weight"], by_weight, rtol=1e-9)
    np.testing.assert_array_equal(found["Dot"], np.zeros((1, 2)))


def test_shapes_are_those_that_were_passed() -> None:
    case = ranging()
    solver = caspar.Solver(case.factors, backend="cpu")
    result = solver.solve(case.arrays, fixed=case.fixed)
    found = solver.gradient(result, {"Place": np.ones((6, 2))})
    assert found["Place"].shape == (6, 2)
    assert {name: np.shape(one) for name, one in found["distance"].items()} == {
        "beacon": (3, 2),
        "measured": (18,),
        "loss_scale": (),
    }
    assert {name: np.shape(one) for name, one in found["motion"].items()} == {
        "measured": (5, 2),
        "weight": (5,),
    }
    moved = np.flatnonzero(found["Place"].any(axis=1))
    assert moved.tolist() == [2]


def test_arrays_with_values_do_as_well_as_a_result(curve: Any) -> None:
    solver, arrays, result = curve
    cotangents = {"Curve": np.ones((1, 3))}
    one = solver.gradient(result, cotangents)
    other = solver.gradient({**arrays, **result.values}, cotangents)
    for name, expected in one["decay"].items():
        np.testing.assert_array_equal(other["decay"][name], expected)


def test_gauss_newton_leaves_second_derivatives_out(curve: Any) -> None:
    solver, _, result = curve
    cotangents = {"Curve": np.ones((1, 3))}
    exact = solver.gradient(result, cotangents)
    coarse = solver.gradient(result, cotangents, hessian="gauss_newton")
    assert (exact.hessian, coarse.hessian) == ("exact", "gauss_newton")
    y, other = exact["decay"]["y"], coarse["decay"]["y"]
    difference = np.abs(y - other).max() / np.abs(y).max()
    assert 1e-6 < difference < 0.1


def test_instances_of_weight_zero_have_no_influence() -> None:
    solver = caspar.Solver([at], backend="cpu")
    given = {
        "dot": [0, 0],
        "expected": np.array([[1.0, 2.0], [np.nan, 0.0]]),
        "weight": np.array([1.0, 0.0]),
    }
    result = solver.solve({"Dot": np.zeros((1, 2)), "at": given})
    found = solver.gradient(result, {"Dot": np.ones((1, 2))})
    np.testing.assert_array_equal(found["at"]["expected"][1], [0.0, 0.0])
    assert np.isfinite(found["at"]["weight"]).all()
    given["expected"] = np.array([[1.0, 2.0], [3.0, 2.0]])
    result = solver.solve({"Dot": np.zeros((1, 2)), "at": given})
    by_weight = solver.gradient(result, {"Dot": np.array([[1.0, 0.0]])})["at"]["weight"]
    # what it would pull by if it weighed something
    np.testing.assert_allclose(by_weight, [0.0, 2.0], atol=1e-12)


def test_what_nothing_determines_is_damped_and_said() -> None:
    solver = caspar.Solver([apart], backend="cpu")
    result = solver.solve(dots())
    cotangents = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    found = solver.gradient(result, {"Dot": cotangents})
    assert found.damping > 0.0
    assert any("singular" in remark for remark in found.remarks)
    # a difference does not depend on where all is
    np.testing.assert_allclose(found["apart"]["measured"], [[1.0, 0.0], [1.0, 0.0]], atol=1e-6)
    where = solver.gradient(result, {"Dot": np.ones((3, 2))})
    assert all(np.isfinite(one).all() for one in where["apart"].values())


def test_a_node_that_no_factor_touches_is_what_it_was() -> None:
    solver = caspar.Solver([at], backend="cpu")
    given = {"dot": [0], "expected": np.ones((1, 2))}
    with pytest.warns(UserWarning, match="touched by no factor"):
        result = solver.solve({"Dot": np.zeros((2, 2)), "at": given})
    found = solver.gradient(result, {"Dot": np.array([[1.0, 2.0], [3.0, 4.0]])})
    np.testing.assert_array_equal(found["Dot"], [[0.0, 0.0], [3.0, 4.0]])
    assert found.damping == 0.0


def test_an_instance_may_touch_a_node_twice() -> None:
    solver = caspar.Solver([apart, at], backend="cpu")
    edges = {"first": [0, 1], "second": [1, 1], "measured": np.ones((2, 2))}
    near = {"dot": [0, 1], "expected": np.zeros((2, 2))}
    result = solver.solve({"Dot": np.zeros((2, 2)), "apart": edges, "at": near})
    found = solver.gradient(result, {"Dot": np.array([[1.0, 0.0], [0.0, 0.0]])})
    # H of one axis is [[2, -1], [-1, 2]]
    np.testing.assert_allclose(found["apart"]["measured"], [[-1 / 3, 0.0], [0.0, 0.0]], atol=1e-12)
    np.testing.assert_allclose(found["at"]["expected"], [[2 / 3, 0.0], [1 / 3, 0.0]], atol=1e-12)


def test_a_value_at_its_bound_depends_on_nothing() -> None:
    solver = caspar.Solver([at], backend="cpu")
    given = {"dot": [0], "expected": np.array([[5.0, 5.0]])}
    arrays = {"Dot": np.zeros((1, 2)), "at": given}
    result = solver.solve(arrays, bounds={"Dot": ([-1.0, -np.inf], [1.0, np.inf])})
    found = solver.gradient(result, {"Dot": np.ones((1, 2))})
    np.testing.assert_allclose(found["at"]["expected"], [[0.0, 1.0]], atol=1e-12)
    np.testing.assert_array_equal(found["Dot"], np.zeros((1, 2)))


def test_factors_without_instances_have_empty_derivatives() -> None:
    solver = caspar.Solver([apart, at], backend="cpu")
    arrays = dots(at={"dot": [], "expected": np.zeros((0, 2))})
    result = solver.solve(arrays, fixed={"Dot": [0]})
    found = solver.gradient(result, {"Dot": np.ones((3, 2))})
    assert found["at"]["expected"].shape == (0, 2)
    # all follow the one that is held
    np.testing.assert_allclose(found["Dot"], [[3.0, 3.0], [0.0, 0.0], [0.0, 0.0]], atol=1e-12)


def test_derivatives_by_rotations_are_along_the_sphere() -> None:
    case = plane_graph()
    solver = caspar.Solver(case.factors, backend="cpu")
    result = solver.solve(case.arrays, fixed=case.fixed)
    found = solver.gradient(result, {"Pose2": np.ones((7, 4))})
    measured = case.arrays["between"]["a_from_b"]
    along = (found["between"]["a_from_b"][:, :2] * measured[:, :2]).sum(axis=1)
    np.testing.assert_allclose(along, 0.0, atol=1e-12)


def test_float32_and_mixed_solves_have_gradients(curve: Any) -> None:
    _, arrays, result = curve
    expected = curve[0].gradient(result, {"Curve": np.ones((1, 3))})["decay"]["y"]
    for precision in ("float32", "mixed"):
        solver = caspar.Solver([decay], backend="cpu", precision=precision)
        found = solver.gradient(solver.solve(arrays), {"Curve": np.ones((1, 3))})
        np.testing.assert_allclose(found["decay"]["y"], expected, rtol=1e-3, atol=1e-5)


def test_a_solve_that_has_not_converged_is_said(curve: Any) -> None:
    solver, arrays, _ = curve
    result = solver.solve({**arrays, "Curve": np.array([[1.0, 3.0, 0.0]])}, max_iterations=1)
    found = solver.gradient(result, {"Curve": np.ones((1, 3))})
    assert any("ITERATION_LIMIT" in remark for remark in found.remarks)


def test_copies_of_results_are_refused(curve: Any) -> None:
    solver, _, result = curve
    with pytest.raises(InputError, match=r"copy or comes from a pickle.*result\.values"):
        solver.gradient(copy.copy(result), {"Curve": np.ones((1, 3))})
    other = caspar.Solver([at], backend="cpu")
    with pytest.raises(InputError, match="of another solver"):
        other.gradient(result, {"Dot": np.ones((1, 2))})


@pytest.mark.parametrize(
    ("cotangents", "message"),
    [
        ({"Curv": np.ones((1, 3))}, "'Curv' is no node type.*did you mean 'Curve'"),
        ({"Curve": np.ones((2, 3))}, "node type Curve: 2 rows; there are 1"),
        ({"Curve": np.ones((1, 4))}, r"cotangents, node type Curve: shape \(1, 4\)"),
        ({"Curve": np.full((1, 3), np.nan)}, "NaN or infinite"),
        (np.ones((1, 3)), "expected a mapping of node types"),
    ],
)
def test_cotangents_that_do_not_fit_are_refused(curve: Any, cotangents: Any, message: str) -> None:
    solver, _, result = curve
    with pytest.raises(InputError, match=message):
        solver.gradient(result, cotangents)


def test_other_choices_are_refused(curve: Any) -> None:
    solver, _, result = curve
    with pytest.raises(OptionError, match="'auto', 'exact' or 'gauss_newton'"):
        solver.gradient(result, {"Curve": np.ones((1, 3))}, hessian="newton")
    with pytest.raises(InputError, match="a result knows what was fixed"):
        solver.gradient(result, {"Curve": np.ones((1, 3))}, fixed={"Curve": [0]})


def test_an_infinite_second_derivative_is_refused() -> None:
    @caspar.factor
    def root(curve: Annotated[Curve, caspar.TunableUnique]) -> sf.V3:
        """A power whose slope is finite at zero, and whose curvature is not."""
        return sf.V3(curve[0] ** 1.5 + 1.0, curve[1], curve[2])

    solver = caspar.Solver([root], backend="cpu")
    with pytest.raises(InputError, match="factor root: a second derivative of instance 0"):
        solver.gradient({"Curve": np.zeros((1, 3)), "root": {}}, {"Curve": np.ones((1, 3))})
