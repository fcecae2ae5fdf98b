"""Covariances: COLMAP's own numbers, rigs by differences, what is constant, what is refused."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

from caspar.colmap import (
    BundleAdjustmentConfig,
    BundleAdjustmentOptions,
    PosePriors,
    bundle_adjustment,
    covariance,
)
from caspar.errors import InputError, RankDeficiencyError
from caspar.io.rotations import conjugate, multiply, quaternion_from_angle_axis
from tests.colmap.models import CERES, ROOT, packed, synthetic

ON_CPU = BundleAdjustmentOptions(backend="cpu")

CRANE_MAST_STDS = {  # rotation in half angles, then translation
    3: (
        *(7.028115608693869e-05, 0.00017877319733535418, 0.00010078896821038377),
        *(0.000818219416138998, 0.0009527089585388444, 0.0026100080059258033),
    ),
    8: (
        *(0.00010552590312437517, 0.0007123491506783402, 0.00012601930261626047),
        *(0.007698893991497629, 0.0010589499461671687, 0.0047949313871575635),
    ),
}
"""Of two images, from `estimate_ba_covariance` of pycolmap 4.2.1."""

CRANE_MAST_INTRINSICS = [
    [6.182702674540382, 0.0005789007110259976],
    [0.0005789007110259976, 1.8232876046705097e-07],
]


@cache
def _solved(name: str) -> Any:
    model = packed(ROOT / "data/crane_mast.tar.xz") if name == "crane_mast" else synthetic(name)
    return bundle_adjustment(model, ON_CPU).model


def test_covariances_of_colmap() -> None:
    found = covariance(_solved("crane_mast"), ON_CPU)
    for image_id, wanted in CRANE_MAST_STDS.items():
        stds = np.sqrt(np.diag(found.cam_from_world(image_id)))
        stds[:3] /= 2  # COLMAP steps in the entries of the quaternion
        np.testing.assert_allclose(stds, wanted, rtol=1e-7)
    intrinsics = found.intrinsics(1)
    np.testing.assert_allclose(intrinsics[np.ix_([0, 3], [0, 3])], CRANE_MAST_INTRINSICS, rtol=1e-7)
    assert (intrinsics[[1, 2]] == 0).all()  # the principal point


def test_the_gauge_is_known_exactly() -> None:
    found = covariance(_solved("crane_mast"), ON_CPU)
    assert (found.cam_from_world(1) == 0).all()
    held = np.diag(found.cam_from_world(2)) == 0
    assert np.count_nonzero(held) == 1
    assert held[3:].any()


def test_poses_of_cameras_in_rigs() -> None:
    """cam_from_world from those of frame and sensor, by differences of composed poses."""
    model = _solved("rigs")
    found = covariance(model, ON_CPU)
    problem, estimate = found._prepared.problem, found.estimate
    structure = problem.structure
    row = int(np.flatnonzero(structure.sensors >= 0)[-1])
    frame, sensor = int(structure.frames[row]), int(structure.sensors[row])
    places = [
        int(np.flatnonzero(found._prepared.parts.rows(kind) == one)[0])
        for kind, one in (("Frame", frame), ("Sensor", sensor))
    ]
    joint = np.zeros((12, 12))
    joint[:6, :6], joint[6:, 6:] = estimate["Frame"][places[0]], estimate["Sensor"][places[1]]
    joint[:6, 6:] = estimate.cross("Frame", places[0], "Sensor", places[1])
    joint[6:, :6] = joint[:6, 6:].T
    poses = problem.frame_poses[frame], problem.sensor_poses[sensor]
    columns, step = [], 1e-6
    for number in range(12):
        ends = []
        for sign in (-1, 1):
            tangent = np.zeros((2, 6))
            tangent[number // 6, number % 6] = sign * step
            stepped = [_retracted(*both) for both in zip(poses, tangent, strict=True)]
            frames, sensors = problem.frame_poses.copy(), problem.sensor_poses.copy()
            frames[frame], sensors[sensor] = stepped
            ends.append(structure.cam_from_world(frames, sensors)[row])
        turn = 2 * multiply(ends[1][:4], conjugate(ends[0][:4]))[:3]
        columns.append(np.concatenate([turn, ends[1][4:] - ends[0][4:]]) / (2 * step))
    jacobian = np.stack(columns, axis=1)
    wanted = jacobian @ joint @ jacobian.T
    image_id = int(model.images.ids[row])
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found.cam_from_world(image_id), wanted, rtol=0, atol=1e-8 * scale)
    own = found.sensor_from_rig(int(structure.sensor_cameras[sensor]))
    assert np.trace(own) == pytest.approx(np.trace(joint[6:, 6:]), rel=1e-12)
    reference = int(structure.sensor_cameras[structure.sensor_references[sensor]])
    assert (found.sensor_from_rig(reference) == 0).all()


def _retracted(pose: Any, tangent: Any) -> Any:
    """As caspar's nodes step: turns in the axes of the source."""
    turn = quaternion_from_angle_axis(tangent[:3])
    return np.concatenate([multiply(pose[:4], turn), pose[4:] + tangent[3:]])


def test_only_what_is_asked_for() -> None:
    model = _solved("rigs")
    some = model.points.ids[:2].tolist()
    found = covariance(model, ON_CPU, images=[1], cameras=[2], points=some)
    assert found.point(some[0]).shape == (3, 3)
    assert (np.linalg.eigvalsh(found.point(some[1])) > 0).all()
    assert found.intrinsics(2).shape == (8, 8)
    for call, message in (
        (lambda: found.point(int(model.points.ids[5])), "its covariance was not asked for"),
        (lambda: found.intrinsics(1), "camera 1: it takes no part, or"),
        (lambda: found.cam_from_world(99), "the model has no image 99"),
        (lambda: covariance(model, ON_CPU, points=[10**9]), "the model has no point"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_what_is_constant_has_none() -> None:
    model = synthetic("rigs")
    options = dataclasses.replace(ON_CPU, refine_rig_from_world=False, refine_sensor_from_rig=False)
    found = covariance(bundle_adjustment(model, options).model, options)
    for image_id in model.images.ids.tolist():
        assert (found.cam_from_world(image_id) == 0).all()
    assert np.trace(found.intrinsics(1)) > 0


def test_spherical_cameras() -> None:
    found = covariance(_solved("sphere"), ON_CPU)
    assert (found.intrinsics(1) == np.zeros((2, 2))).all()
    assert np.trace(found.cam_from_world(5)) > 0


def test_a_free_gauge_is_refused_or_spread() -> None:
    model = _solved("single")
    config = BundleAdjustmentConfig(fixed_gauge="UNSPECIFIED")
    with pytest.raises(RankDeficiencyError):
        covariance(model, ON_CPU, config)
    found = covariance(model, ON_CPU, config, gauge="minimum_norm")
    first = int(model.images.ids[0])
    assert np.trace(found.cam_from_world(first)) > 0


def test_priors_hold_the_gauge() -> None:
    """Positions alone make poses certain; the surer they are, the surer are the poses."""
    stored = CERES["positions"]["priors"]
    traces = []
    for factor in (1.0, 0.01):
        given = factor * np.array(stored["covariances"])
        priors = PosePriors(stored["image_ids"], stored["positions"], given)
        model = bundle_adjustment(synthetic("positions"), ON_CPU, pose_priors=priors).model
        found = covariance(model, ON_CPU, pose_priors=priors)
        traces.append(np.trace(found.cam_from_world(int(stored["image_ids"][0]))))
    assert 0 < traces[1] < traces[0]
