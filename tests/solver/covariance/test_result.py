"""`Solver.covariance`: instances, scales, correlations, text, errors."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar.errors import InputError, OptionError, RankDeficiencyError
from tests.problems import EXAMPLES, Place, decay_arrays
from tests.solver.covariance.covariance_cases import (
    Arrays,
    bundle,
    known_view,
    observe,
    observe_focal,
    with_focal,
    without_gauge,
)
from tests.solver.solving import changed, solver

BUNDLE = (observe, known_view)


@caspar.factor
def scaled_anchor(
    place: Annotated[Place, caspar.TunableShared],
    scale: Annotated[sf.V1, caspar.ConstUnique],
) -> sf.V2:
    """A place, in another unit."""
    return sf.V2(scale[0] * place[0], scale[0] * place[1])


def bundle_covariance(blocks: Any, **options: Any) -> caspar.Covariance:
    return solver(BUNDLE).covariance(bundle(), blocks, **options)


def test_instances_come_in_the_order_of_the_request() -> None:
    whole = bundle_covariance({"Mark": "all", "View": "all"})
    some = bundle_covariance({"Mark": [7, 3, 7], "View": np.arange(5) > 2})
    assert list(some.instances) == ["Mark", "View"]
    assert_array_equal(some.instances["Mark"], [7, 3, 7])
    assert_array_equal(some.instances["View"], [3, 4])
    assert_allclose(some["Mark"], whole["Mark"][[7, 3, 7]], rtol=1e-12)
    assert_allclose(some["View"], whole["View"][3:], rtol=1e-12)
    assert bundle_covariance({"Mark": []})["Mark"].shape == (0, 3, 3)


def test_standard_errors_and_correlations() -> None:
    cov = bundle_covariance({"Mark": [7, 3], "View": [0, 1]})
    errors = cov.standard_errors("Mark")
    assert_allclose(errors**2, np.diagonal(cov["Mark"], axis1=1, axis2=2))
    correlations = cov.correlation("Mark")
    assert_allclose(correlations * errors[:, :, None] * errors[:, None, :], cov["Mark"])
    assert_array_equal(correlations[:, [0, 1, 2], [0, 1, 2]], np.ones((2, 3)))
    assert_array_equal(cov.correlation("Mark", 3), correlations[1])
    between = cov.correlation("View", 1, "Mark", 3)
    wanted = cov.cross("View", 1, "Mark", 3)
    assert_allclose(between, wanted / np.outer(cov.standard_errors("View")[1], errors[1]))
    assert between.shape == (6, 3)
    assert 0.0 < np.abs(between).max() < 1.0
    assert_allclose(cov.cross("Mark", 3, "View", 1), wanted.T, rtol=1e-9)
    assert_allclose(cov.cross("Mark", 3, "Mark", 3), cov["Mark"][1], rtol=1e-9)


def unwrapped(cov: caspar.Covariance) -> str:
    """Its text in one line."""
    lines = str(cov).splitlines()
    assert max(map(len, lines)) <= 100
    return " ".join(line.strip() for line in lines)


def test_residual_variance() -> None:
    arrays = bundle()
    result = solver(BUNDLE).solve(arrays)
    arrays |= result.values
    cov = solver(BUNDLE).covariance(arrays, {"View": "all"})
    num_left = result.problem.num_residuals - result.problem.num_unknowns
    assert (cov.degrees_of_freedom, cov.num_unknowns) == (num_left, result.problem.num_unknowns)
    assert_allclose(cov.residual_variance, 2.0 * result.final_cost / num_left, rtol=1e-9)
    scaled = solver(BUNDLE).covariance(arrays, {"View": "all"}, scale_by_residual_variance=True)
    assert (cov.is_scaled, scaled.is_scaled) == (False, True)
    assert_allclose(scaled["View"], cov.residual_variance * cov["View"], rtol=1e-12)
    assert_allclose(
        scaled.cross("View", 0, "View", 4),
        cov.residual_variance * cov.cross("View", 0, "View", 4),
        rtol=1e-9,
    )


def test_no_degrees_of_freedom() -> None:
    arrays = decay_arrays(3)
    curve = solver(EXAMPLES["decay"].factors)
    arrays |= curve.solve(arrays).values
    cov = curve.covariance(arrays, {"Curve": "all"})
    assert cov.degrees_of_freedom == 0
    assert np.isnan(cov.residual_variance)
    assert "no degrees of freedom left" in str(cov)
    with pytest.raises(InputError, match="3 residuals determine 3 unknowns, so none are left"):
        curve.covariance(arrays, {"Curve": "all"}, scale_by_residual_variance=True)


def test_text() -> None:
    arrays = {"Curve": np.array([[3.0, 0.7, 0.5]]), "decay": decay_arrays()["decay"]}
    curve = solver(EXAMPLES["decay"].factors)
    cov = curve.covariance(arrays, {"Curve": "all"}, scale_by_residual_variance=True)
    a, b, c = cov.standard_errors("Curve")[0]
    assert unwrapped(cov) == (
        "Covariance of Curve, by singular values of the Jacobian: 1,000 residuals, 3 unknowns, "
        f"rank 3. Residual variance {cov.residual_variance:.6g} with 997 degrees of freedom. "
        "Covariances have been multiplied by it. "
        f"Curve: 3 +- {a:.2g}, 0.7 +- {b:.2g}, 0.5 +- {c:.2g}"
    )
    assert repr(cov) == str(cov)


def test_text_of_fields_and_of_what_is_free() -> None:
    free = solver((observe,)).covariance(
        without_gauge(bundle()), {"View": [1], "Mark": "all"}, gauge="minimum_norm"
    )
    text = unwrapped(free)
    assert text.startswith("Covariance of 1 of 5 View, all 30 Mark, by ")
    assert (
        "7 directions are free; covariances are those of the pseudo-inverse, which holds them: 7 "
        "directions move 5 View and 30 Mark together without changing a residual, among them View "
    ) in text
    # a rotation has four numbers and three degrees of freedom; 90 standard errors are too many
    assert " View[1]: " in text
    assert "; standard errors " in text
    assert "Mark[0]" not in text


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({}, "expected a mapping of node types to instances, such as {'View': 'all'}"),
        ("View", "expected a mapping of node types to instances"),
        ({"Views": "all"}, r"'Views' is no node type \(did you mean 'View'\?\); these are View"),
        ({"observe": "all"}, "'observe' is no node type"),
        ({"View": "first"}, "node type View: 'first'; allowed are 'all', instance numbers from 0"),
        ({"View": [0, 5]}, "instance 5 is out of range; allowed are 'all', .* 0 to 4, or a mask"),
        ({"View": [-1]}, "instance -1 is out of range"),
        ({"View": [0.5]}, r"an array \(1,\) of float64"),
        ({"View": [[0]]}, r"an array \(1, 1\) of int64"),
        ({"View": np.ones(4, bool)}, r"an array \(4,\) of bool"),
    ],
)
def test_requests_are_checked(blocks: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        bundle_covariance(blocks)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="gauge='fixed': must be None, which makes"):
        bundle_covariance({"View": "all"}, gauge="fixed")
    with pytest.raises(OptionError, match="scale_by_residual_variance='yes': must be True or Fa"):
        bundle_covariance({"View": "all"}, scale_by_residual_variance="yes")


def test_only_what_was_requested_is_there() -> None:
    cov = bundle_covariance({"View": [1, 2]})
    with pytest.raises(InputError, match="'Mark' was not requested; this covariance has View"):
        cov["Mark"]
    with pytest.raises(InputError, match="instance 0 of View was not requested"):
        cov.cross("View", 1, "View", 0)
    with pytest.raises(InputError, match="give a node type and an instance for the columns"):
        cov.correlation("View", 1, "View")
    with pytest.raises(InputError, match="give the instances of both node types, or neither"):
        cov.correlation("View", other="View", other_number=1)


def test_numbers_that_are_not_finite() -> None:
    arrays = bundle()
    views = arrays["View"].copy()
    views[2, 4] = np.nan
    with pytest.raises(InputError, match="node type View: 1 of 5 rows hold NaN"):
        solver(BUNDLE).covariance({**arrays, "View": views}, {"View": "all"})
    rays = arrays["observe"]["ray"].copy()
    rays[3] = np.inf
    with pytest.raises(InputError, match="factor observe, argument ray: 1 of"):
        solver(BUNDLE).covariance(changed(arrays, "observe.ray", rays), {"View": "all"})
    # a place in the camera itself
    marks = arrays["Mark"].copy()
    marks[0] = [0.0, 0.0, 0.0]
    views = np.tile([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], (5, 1))
    with pytest.raises(InputError, match="factor observe: the cost of instance 0 is not finite"):
        solver(BUNDLE).covariance({**arrays, "View": views, "Mark": marks}, {"View": "all"})


def test_node_types_that_nothing_touches() -> None:
    arrays = with_focal(bundle())
    empty: Arrays = {"view": [], "mark": [], "ray": []}
    factors = (observe, observe_focal, known_view)
    both = {**arrays, "observe": bundle()["observe"], "observe_focal": empty}
    cov = solver(factors).covariance(both, {"View": "all"})
    assert cov.num_unknowns == 5 * 6 + 30 * 3
    assert_allclose(cov["View"], bundle_covariance({"View": "all"})["View"], rtol=1e-9)
    with pytest.raises(InputError, match="Focal: no factor that has instances touches it"):
        solver(factors).covariance(both, {"Focal": "all"})


def test_two_maps_without_a_gauge() -> None:
    """Each has seven free directions."""
    one, two = without_gauge(bundle()), without_gauge(bundle(seed=1))
    seen = {
        name: np.concatenate([given, two["observe"][name] + shift])
        for (name, given), shift in zip(one["observe"].items(), (5, 30, 0.0), strict=True)
    }
    arrays = {
        "View": np.concatenate([one["View"], two["View"]]),
        "Mark": np.concatenate([one["Mark"], two["Mark"]]),
        "observe": seen,
    }
    with pytest.raises(RankDeficiencyError) as caught:
        solver((observe,)).covariance(arrays, {"View": "all"})
    assert caught.value.num_free == 14
    cov = solver((observe,)).covariance(arrays, {"View": "all"}, gauge="minimum_norm")
    alone = solver((observe,)).covariance(one, {"View": "all"}, gauge="minimum_norm")
    assert_allclose(cov.standard_errors("View")[:5], alone.standard_errors("View"), rtol=1e-6)
    assert_allclose(cov.cross("View", 0, "View", 7), np.zeros((6, 6)), atol=1e-12)


def test_values_in_float32_and_lists() -> None:
    arrays = bundle()
    listed = {**arrays, "View": arrays["View"].astype(np.float32), "Mark": arrays["Mark"].tolist()}
    cov = solver(BUNDLE, "mixed").covariance(listed, {"View": [0], "Mark": [0]})
    assert cov["View"].dtype == cov["Mark"].dtype == np.float64
    wanted = bundle_covariance({"View": [0], "Mark": [0]})
    assert_allclose(cov["Mark"], wanted["Mark"], rtol=1e-5)


def test_units_do_not_matter_until_squares_overflow() -> None:
    """Residuals a hundred orders of magnitude larger have a covariance as much smaller."""
    scaled = caspar.Solver(scaled_anchor, backend="cpu", precision="float64")
    for scale in (1e-100, 1e100):
        given = {"Place": np.ones((1, 2)), "scaled_anchor": {"place": [0], "scale": scale}}
        found = scaled.covariance(given, {"Place": [0]})["Place"][0]
        assert_allclose(found, np.eye(2) / scale**2, rtol=1e-12)
    given = {"Place": np.zeros((1, 2)), "scaled_anchor": {"place": [0], "scale": 1e200}}
    with pytest.raises(
        InputError, match="node type Place: squares of derivatives overflow float64"
    ):
        scaled.covariance(given, {"Place": [0]})
