"""Priors: positions beside Ceres, GPS, gravity, intrinsics, what is said and refused."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from caspar.colmap import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    IntrinsicsPrior,
    Model,
    PosePriorOptions,
    PosePriors,
    Summary,
    TerminationType,
    bundle_adjustment,
)
from caspar.colmap.adjust.observations import TO_XYZW
from caspar.colmap.priors.arrays import (
    Similarity,
    centres,
    moved,
    quaternion_of,
    similarity_between,
    turn_between,
)
from caspar.errors import InputError, OptionError
from caspar.io.rotations import rotate
from tests.colmap.models import CERES, synthetic

ON_CPU = BundleAdjustmentOptions(backend="cpu")


def adjusted(model: Model, **given: Any) -> Summary:
    return bundle_adjustment(model, ON_CPU, **given)


def _positions() -> PosePriors:
    stored = CERES["positions"]["priors"]
    return PosePriors(stored["image_ids"], stored["positions"], stored["covariances"])


def _turned(seed: int) -> Similarity:
    rng = np.random.default_rng(seed)
    quaternion = rng.normal(size=4)
    return Similarity(3.7, quaternion / np.linalg.norm(quaternion), rng.normal(size=3) * 50)


def test_positions_beside_ceres() -> None:
    """Rigs whose sensor poses are refined; half of the cameras are not the reference sensors."""
    summary = adjusted(synthetic("positions"), pose_priors=_positions())
    ceres = CERES["positions"]
    assert summary.num_residuals == ceres["num_residuals"]
    assert summary.result.problem.num_unknowns == ceres["num_unknowns"]
    assert summary.initial_cost == pytest.approx(ceres["initial_cost"], rel=1e-12)
    assert summary.final_cost == pytest.approx(ceres["final_cost"], rel=1e-12)
    assert summary.warnings == ()


def test_a_model_elsewhere_is_aligned() -> None:
    """Where the model starts makes no difference, nor do coordinates as large as GPS has."""
    far, priors = np.array([4e6, -5e5, 3e3]), _positions()
    there = dataclasses.replace(priors, positions=priors.positions + far)
    model = moved(synthetic("positions"), _turned(1))
    summary = adjusted(model, pose_priors=there)
    assert summary.final_cost == pytest.approx(CERES["positions"]["final_cost"], rel=1e-10)
    usual = adjusted(synthetic("positions"), pose_priors=priors)
    found = centres(summary.model) - far
    np.testing.assert_allclose(found, centres(usual.model), rtol=0, atol=1e-6)
    errors = summary.model.points.errors
    np.testing.assert_allclose(errors, usual.model.points.errors, rtol=1e-5)


def test_wrong_positions_do_not_align() -> None:
    priors = _positions()
    positions = priors.positions.copy()
    positions[::4] += 30
    wrong = dataclasses.replace(priors, positions=positions)
    options = PosePriorOptions(prior_position_loss_function_type="CAUCHY")
    summary = adjusted(synthetic("positions"), pose_priors=wrong, pose_prior_options=options)
    usual = adjusted(synthetic("positions"), pose_priors=priors)
    distances = np.linalg.norm(centres(summary.model) - centres(usual.model), axis=1)
    assert distances.max() < 0.2
    assert summary.termination_type is TerminationType.CONVERGENCE


def test_unknown_covariances_count_as_the_fallback() -> None:
    priors = _positions()
    unknown = dataclasses.replace(priors, covariances=None)
    options = PosePriorOptions(prior_position_fallback_stddev=0.05)
    known = np.tile(0.05**2 * np.eye(3), (len(priors.image_ids), 1, 1))
    costs = [
        adjusted(synthetic("positions"), pose_priors=one, pose_prior_options=options).final_cost
        for one in (unknown, dataclasses.replace(priors, covariances=known))
    ]
    assert costs[0] == pytest.approx(costs[1], rel=1e-12)


def test_too_few_positions_have_no_effect() -> None:
    priors = _positions()
    few = PosePriors([*priors.image_ids[:2], 999], priors.positions[:3])
    with pytest.warns(UserWarning, match=" not "):
        summary = adjusted(synthetic("positions"), pose_priors=few)
    assert "1 pose priors are of images that the model does not have" in summary.warnings[0]
    assert "2 positions of cameras have no effect: there are not three" in summary.warnings[1]
    assert summary.final_cost == pytest.approx(adjusted(synthetic("positions")).final_cost)


def test_constant_poses_have_no_priors() -> None:
    options = dataclasses.replace(ON_CPU, refine_rig_from_world=False)
    with pytest.warns(UserWarning, match="pose priors have no effect: no pose is refined"):
        bundle_adjustment(synthetic("positions"), options, pose_priors=_positions())


def test_images_that_take_no_part_have_no_priors() -> None:
    priors, model = _positions(), synthetic("positions")
    images = frozenset(model.images.ids[:10].tolist())
    config = BundleAdjustmentConfig(images=images)
    summary = adjusted(model, config=config, pose_priors=priors)
    plain = adjusted(model, config=config)
    assert summary.num_residuals - plain.num_residuals == 3 * len(images)


def _falling(model: Model) -> Any:
    """Directions of gravity in the cameras, if the world's is 0, 1, 0."""
    poses = model.images.cam_from_world[:, TO_XYZW]
    return rotate(poses[:, :4], np.array([0.0, 1.0, 0.0]))


def test_gravity_turns_a_model() -> None:
    """Gravity that pixels do not contradict costs nothing, and is where it is said to be."""
    model = adjusted(synthetic("rigs")).model
    priors = PosePriors(model.images.ids, gravity=2.5 * _falling(model))
    summary = adjusted(moved(model, _turned(2)), pose_priors=priors)
    assert summary.final_cost == pytest.approx(CERES["rigs"]["final_cost"], rel=1e-9)
    np.testing.assert_allclose(_falling(summary.model), _falling(model), rtol=0, atol=1e-6)
    assert summary.num_residuals == CERES["rigs"]["num_residuals"] + 3 * len(model.images.ids)


def test_gravity_counts_by_its_deviation() -> None:
    """One camera says something else: the others hold it, the more the surer all are."""
    model = adjusted(synthetic("rigs")).model
    gravity = _falling(model)
    gravity[0] = rotate(np.array([np.sin(0.05), 0, 0, np.cos(0.05)]), gravity[0])
    priors = PosePriors(model.images.ids, gravity=gravity)
    costs = [
        adjusted(
            model,
            pose_priors=priors,
            pose_prior_options=PosePriorOptions(prior_gravity_stddev=stddev),
        ).final_cost
        for stddev in (1.0, 0.5)
    ]
    pixels = CERES["rigs"]["final_cost"]
    assert costs[0] > pixels + 1
    assert 3 * (costs[0] - pixels) < costs[1] - pixels < 4 * (costs[0] - pixels)


def test_gravity_with_positions() -> None:
    """In a world whose z is up: both are met if they agree."""
    model = adjusted(synthetic("rigs")).model
    up = turn_between(np.array([[0.0, 1.0, 0.0]]), np.array([0.0, 0.0, -1.0]))
    priors = PosePriors(model.images.ids, centres(moved(model, up)), gravity=_falling(model))
    summary = adjusted(moved(model, _turned(3)), pose_priors=priors)
    assert summary.final_cost == pytest.approx(CERES["rigs"]["final_cost"], rel=1e-9)
    found = centres(summary.model)
    np.testing.assert_allclose(found, priors.positions, rtol=0, atol=1e-6)


def test_priors_on_intrinsics() -> None:
    """Wide ones change nothing, narrow ones hold."""
    model = synthetic("single")
    plain = adjusted(model)
    camera = int(model.cameras.ids[0])
    mean = np.array([910.0, 512.0, 384.0, -0.05])
    wide = IntrinsicsPrior(mean, np.array([1e6, np.inf, np.inf, 1e6]))
    summary = adjusted(model, intrinsics_priors={camera: wide})
    assert summary.num_residuals == plain.num_residuals + 2
    assert summary.final_cost == pytest.approx(plain.final_cost, rel=1e-9)
    narrow = IntrinsicsPrior(mean, np.array([1e-4, np.inf, np.inf, np.inf]))
    held = adjusted(model, intrinsics_priors={camera: narrow})
    assert held.model.cameras.parameters[0] == pytest.approx(910, abs=1e-3)
    assert abs(plain.model.cameras.parameters[0] - 910) > 0.1
    assert held.final_cost > plain.final_cost


def test_a_prior_on_intrinsics_is_weighed() -> None:
    """At the optimum the pull of the prior is the slope of the pixels' cost, by differences."""
    model = synthetic("single")
    camera, stddev = int(model.cameras.ids[3]), 0.5
    unknown = [np.inf] * 3
    prior = IntrinsicsPrior(np.array([905, 0, 0, 0.0]), np.array([stddev, *unknown]))
    found = adjusted(model, intrinsics_priors={camera: prior})
    place = model.cameras.offsets[3]
    focal = found.model.cameras.parameters[place]
    sharp = 1e-7
    costs = []
    for step in (-0.01, 0.01):
        at = IntrinsicsPrior(np.array([focal + step, 0, 0, 0]), np.array([sharp, *unknown]))
        costs.append(adjusted(found.model, intrinsics_priors={camera: at}).final_cost)
    slope = (costs[1] - costs[0]) / 0.02
    assert slope == pytest.approx((905 - focal) / stddev**2, rel=1e-3)


def test_priors_without_lenses() -> None:
    prior = IntrinsicsPrior(np.array([1024.0, 512.0]), np.array([1.0, 1.0]))
    with pytest.warns(UserWarning, match="1 priors on intrinsics have no effect"):
        adjusted(synthetic("sphere"), intrinsics_priors={1: prior})


def test_gps() -> None:
    """On the equator east is along the circle; up is up everywhere."""
    priors = PosePriors.from_gps([1, 2, 3], [0, 0, 0], [10, 10.01, 10], [20, 20, 120])
    angle = np.radians(0.01)
    radius = 6378137.0 + 20
    wanted = [[0, 0, 0], [radius * np.sin(angle), 0, radius * (np.cos(angle) - 1)], [0, 0, 100]]
    np.testing.assert_allclose(priors.positions, wanted, rtol=0, atol=1e-8)
    # a meridian at 45 degrees: the radius of curvature of WGS84
    north = PosePriors.from_gps([1], [45.001], [7], [0], origin=(45.0, 7.0, 0.0)).positions[0]
    assert north[1] == pytest.approx(np.radians(0.001) * 6367381.8156, rel=1e-6)
    assert abs(north[0]) < 1e-9


def test_alignment() -> None:
    rng = np.random.default_rng(7)
    source = rng.normal(size=(30, 3))
    wanted = _turned(4)
    target = wanted.points(source)
    target[:12] += rng.normal(size=(12, 3)) * 20
    found = similarity_between(source, target, 1e-6)
    assert found is not None
    assert found.scale == pytest.approx(wanted.scale, rel=1e-12)
    np.testing.assert_allclose(found.points(source), wanted.points(source), atol=1e-9)
    assert similarity_between(source[:2], target[:2], 1.0) is None
    assert similarity_between(np.ones((5, 3)), target[:5], 1.0) is None
    assert similarity_between(source, rng.normal(size=(30, 3)) * 1e3, 1e-9) is None


@pytest.mark.parametrize("seed", range(5))
def test_quaternions_of_matrices(seed: int) -> None:
    quaternion = _turned(seed).rotation
    matrix = np.stack([rotate(quaternion, axis) for axis in np.eye(3)], axis=1)
    found = quaternion_of(matrix)
    np.testing.assert_allclose(found * np.sign(found @ quaternion), quaternion, atol=1e-14)


def test_opposite_directions_are_turned() -> None:
    up = np.array([0.0, 0.0, 1.0])
    turn = turn_between(np.array([up]), -up)
    np.testing.assert_allclose(rotate(turn.rotation, up), -up, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PosePriors([1, 1]), "an id is there twice"),
        (lambda: PosePriors([1.5]), "it must be ids"),
        (lambda: PosePriors([1], [[1, 2]]), r"positions: shape \(1, 2\); it must be \(1, 3\)"),
        (
            lambda: PosePriors([1], [[1, 2, 3]], -np.eye(3)[None]),
            "covariances: one is not symmetric and positive definite",
        ),
        (lambda: PosePriors([1], gravity=[[0, 0, 0]]), "gravity: one is zero"),
        (lambda: IntrinsicsPrior(np.ones(2), np.ones(3)), r"mean of shape \(2,\)"),
        (lambda: IntrinsicsPrior(np.ones(2), np.zeros(2)), "stddev must be positive"),
        (
            lambda: adjusted(
                synthetic("single"), intrinsics_priors={99: IntrinsicsPrior(*np.ones((2, 4)))}
            ),
            "the model has no camera 99",
        ),
        (
            lambda: adjusted(
                synthetic("single"), intrinsics_priors={1: IntrinsicsPrior(*np.ones((2, 3)))}
            ),
            "of camera 1: 3 parameters; its model has 4",
        ),
        (lambda: adjusted(synthetic("single"), intrinsics_priors={1: 900}), "is a int"),
        (lambda: adjusted(synthetic("single"), pose_priors=3), "pose_priors is a int"),
    ],
)
def test_wrong_priors(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("prior_gravity_stddev", 0.0, "must be positive and finite"),
        ("alignment_max_error", np.inf, "must be positive and finite"),
        ("gravity_in_world", (0, 0, 0), "it must be a direction"),
        ("prior_position_loss_function_type", "TUKEY", "must be one of"),
    ],
)
def test_wrong_options(name: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        PosePriorOptions(**{name: value})
    if name == "gravity_in_world":
        with pytest.raises(OptionError, match="pose_prior_options is a int"):
            adjusted(synthetic("single"), pose_priors=_positions(), pose_prior_options=3)
