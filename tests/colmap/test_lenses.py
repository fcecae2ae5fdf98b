"""Several camera models in one factor, and principal points that are no parts of nodes."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from benchmarks.colmap_cases import made_from
from benchmarks.synthetic import make_bal
from caspar.cameras import MODELS
from caspar.colmap import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    IntrinsicsPrior,
    Model,
    bundle_adjustment,
    covariance,
)
from caspar.colmap.adjust import solve_arrays
from caspar.colmap.adjust.factors import NO_PARAMETER, LensForm, lens_type
from caspar.colmap.arguments import request_given
from caspar.colmap.prepare import prepare

ON_CPU = BundleAdjustmentOptions(backend="cpu")
MIX = ("SIMPLE_RADIAL", "PINHOLE", "OPENCV")
"""One focal length or two, no distortion or four coefficients."""


@cache
def mixed() -> Model:
    """A street of 12 images with 6 lenses of three models."""
    return made_from(make_bal(12, 300, 1500, "street"), MIX, 6)


def test_columns() -> None:
    """Models with fewer parameters leave columns out."""
    lens = LensForm(MIX, has_principal=False)
    assert lens.sizes == {"focal": 2, "extra": 4}
    columns = [lens.columns(MODELS[name]) for name in MIX]
    none = NO_PARAMETER
    assert columns == [
        [0, none, 3, none, none, none],
        [0, 1, none, none, none, none],
        [0, 1, 4, 5, 6, 7],
    ]
    assert lens.parameters(MODELS["SIMPLE_RADIAL"], [5, 6, 7, 8, 9, 10]) == [5, 0, 0, 7]
    whole = LensForm(("OPENCV",), has_principal=True)
    assert whole.columns(MODELS["OPENCV"]) == list(range(8))
    assert lens_type(LensForm(("EQUIRECTANGULAR",), has_principal=False)) is None


def test_one_factor_and_one_node_type() -> None:
    parts = prepare(mixed(), request_given(ON_CPU, None)).parts
    (factor,) = parts.factors
    assert factor.name == "PINHOLE_SIMPLE_RADIAL_OPENCV"
    held = parts.fixed["Lens_PINHOLE_SIMPLE_RADIAL_OPENCV"]
    wanted = [[0, 1, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(held, np.array(wanted * 2, bool))
    numbers = parts.arrays[factor.name]["model"]
    assert np.unique(numbers).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "refines_principal", [False, pytest.param(True, marks=pytest.mark.reliability)]
)
def test_values_are_those_of_a_factor_for_each_model(
    refines_principal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs, unknowns and optimum; what no camera has does not come back."""
    options = dataclasses.replace(ON_CPU, refine_principal_point=refines_principal)
    config = BundleAdjustmentConfig(constant_cam_intrinsics=frozenset([3]))
    joint = bundle_adjustment(mixed(), options, config)
    monkeypatch.setattr(solve_arrays, "MAX_JOINT", 1)
    apart = bundle_adjustment(mixed(), options, config)
    assert len(joint.result.costs) == 1
    assert len(apart.result.costs) == 3
    assert joint.initial_cost == pytest.approx(apart.initial_cost, rel=1e-13)
    assert joint.num_residuals == apart.num_residuals
    assert joint.result.problem.num_unknowns == apart.result.problem.num_unknowns
    # without inner iterations, which points of several factors do not have, it takes longer
    assert joint.final_cost == pytest.approx(apart.final_cost, rel=1e-6)
    assert joint.final_cost <= apart.final_cost * (1 + 1e-9)
    before, after = mixed().cameras, joint.model.cameras
    assert len(after.parameters) == len(before.parameters)
    of_held = slice(*before.offsets[2:4])
    np.testing.assert_array_equal(after.parameters[of_held], before.parameters[of_held])
    for row, number in enumerate(before.model_ids.tolist()):
        own = slice(*before.offsets[row : row + 2])
        moved = after.parameters[own] != before.parameters[own]
        model = next(one for one in MODELS.values() if one.model_id == number)
        is_held = row == 2
        assert moved[list(model.focal)].all() != is_held
        assert moved[list(model.principal)].any() == (refines_principal and not is_held)


def test_costs_are_those_of_plain_arithmetic() -> None:
    """The cost at the start, by the camera models on NumPy arrays."""
    model = mixed()
    cost = 0.0
    poses = model.images.cam_from_world
    for image in range(len(model.images.ids)):
        own = slice(*model.images.offsets[image : image + 2])
        points = model.points.xyz[model.images.point_ids[own] - 1]
        w, vector, shift = poses[image, 0], poses[image, 1:4], poses[image, 4:]
        turned = points + 2 * np.cross(vector, np.cross(vector, points) + w * points)
        row = int(model.images.camera_ids[image]) - 1
        parameters = model.cameras.parameters[slice(*model.cameras.offsets[row : row + 2])]
        lens = MODELS[MIX[row % len(MIX)]]
        found = lens.project_points(parameters, turned + shift)
        cost += 0.5 * float(((found - model.images.keypoints[own]) ** 2).sum())
    summary = bundle_adjustment(model, ON_CPU)
    assert summary.initial_cost == pytest.approx(cost, rel=1e-12)


def test_priors_on_intrinsics_have_plain_lenses() -> None:
    """They name every parameter of a camera, the principal point among them."""
    mean = mixed().cameras.parameters[:4]
    priors = {1: IntrinsicsPrior(mean, np.array([1.0, 2.0, np.inf, 0.1]))}
    summary = bundle_adjustment(mixed(), ON_CPU, intrinsics_priors=priors)
    assert {*MIX} < set(summary.result.costs)
    assert summary.num_residuals == bundle_adjustment(mixed(), ON_CPU).num_residuals + 3


def test_covariances_are_in_the_order_of_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    adjusted = bundle_adjustment(mixed(), ON_CPU).model
    joint = covariance(adjusted, ON_CPU)
    monkeypatch.setattr(solve_arrays, "MAX_JOINT", 1)
    apart = covariance(adjusted, ON_CPU)
    for camera_id, size in ((1, 4), (2, 4), (3, 8)):
        found, wanted = (one.intrinsics(camera_id) for one in (joint, apart))
        assert found.shape == (size, size)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9 * np.abs(wanted).max())
        principal = list(MODELS[MIX[camera_id - 1]].principal)
        assert not found[principal].any()
        assert (np.diag(found)[list(MODELS[MIX[camera_id - 1]].focal)] > 0).all()
