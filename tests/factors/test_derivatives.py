"""Derivatives of every factor against differences, and finite where they are singular."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose
from symforce.ops import StorageOps

from caspar.frontend.factors.trace import trace
from caspar.ir.dtype import DType
from tests.covering import alternating
from tests.factors.evaluating import difference_jacobians, residuals
from tests.factors.every_factor import FACTORS, factors, random_values

COUNT = 3
IDENTITY = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
both_types = pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32], ids=["f64", "f32"])


KEPT = ("lens", "line", "motion", "sigma", "sqrt_information")
"""Arguments whose numbers have a meaning of their own."""


def identity(kind: Any, argument: str) -> Any:
    """The value of a type that does nothing; a direction along x."""
    if kind is factors.NavState:
        return np.append(IDENTITY, np.zeros(3))
    if kind is sf.Unit3 or argument in ("direction", "normal", "reference"):
        return np.array([1.0, 0.0, 0.0])
    if issubclass(kind, sf.Matrix):
        return np.zeros(StorageOps.storage_dim(kind))
    return np.array(StorageOps.to_storage(kind.identity()), float)


def test_every_factor_is_here() -> None:
    """Those that the package offers, which is what their makers return."""
    makers = set()
    for path in Path(factors.__file__).parent.glob("*.py"):
        makers |= set(re.findall(r"^@library\ndef (\w+)", path.read_text("utf-8"), re.MULTILINE))
    assert makers <= set(factors.__all__)
    assert {factor.name for factor in FACTORS.values()} == makers


@pytest.mark.parametrize("name", FACTORS)
def test_equal_differences(name: str) -> None:
    values = random_values(name, COUNT)
    _, found = residuals(FACTORS[name], values, COUNT)
    for argument, wanted in difference_jacobians(FACTORS[name], values, COUNT).items():
        scale = 1.0 + np.abs(wanted).max()
        # of 2e7 m one unit in the last place is 4e-9 m
        tolerance = 1e-3 if name in ("pseudorange", "doppler") else 1e-7
        assert_allclose(found[argument] / scale, wanted / scale, atol=tolerance, err_msg=argument)


@pytest.mark.parametrize(("name", "dtype"), alternating(FACTORS, [DType.FLOAT64, DType.FLOAT32]))
def test_finite_where_all_poses_and_points_are_the_same(name: str, dtype: DType) -> None:
    """Zero distances, points in the camera's centre, rotations that agree, lines through it."""
    values = random_values(name, COUNT)
    for argument in trace(FACTORS[name]).arguments:
        if argument.source not in KEPT and "covariance" not in argument.source:
            at = identity(type(argument.symbolic), argument.source)
            values[argument.source] = np.tile(at, (COUNT, 1))
    found, jacobians = residuals(FACTORS[name], values, COUNT, dtype)
    assert np.isfinite(found).all()
    for node, jacobian in jacobians.items():
        assert np.isfinite(jacobian).all(), node


@both_types
@pytest.mark.parametrize("name", ["prior_pose3", "between_pose3", "prior_rot3", "between_rot3"])
@pytest.mark.parametrize("axis", range(3))
def test_half_turns(name: str, axis: int, dtype: DType) -> None:
    """The length of the rotation vector is pi, values and derivatives are finite."""
    values = random_values(name, COUNT)
    for argument in values:
        if argument != "sigma":
            values[argument] = np.tile(IDENTITY[: values[argument].shape[1]], (COUNT, 1))
    last = next(one for one in ("b", "value") if one in values)
    values[last] = np.zeros_like(values[last])
    values[last][:, axis] = 1.0
    values["sigma"] = np.ones_like(values["sigma"])
    found, jacobians = residuals(FACTORS[name], values, COUNT, dtype)
    tolerance = 1e-7 if dtype is DType.FLOAT64 else 4e-3
    assert_allclose(np.linalg.norm(found[:, :3], axis=1), np.pi, atol=tolerance)
    assert all(np.isfinite(jacobian).all() for jacobian in jacobians.values())


@both_types
@pytest.mark.parametrize(
    "direction", [*np.eye(3), *-np.eye(3)], ids=["x", "y", "z", "-x", "-y", "-z"]
)
def test_opposite_directions(direction: Any, dtype: DType) -> None:
    """Seen where it is measured, opposite to it, and nearly opposite."""
    points = np.stack([direction, -direction, -direction + 0.05])
    values = {"pose": IDENTITY, "point": points, "direction": direction, "sigma": np.ones(2)}
    found, jacobians = residuals(factors.bearing(), values, 3, dtype)
    near = np.arccos(np.dot(points[2], direction) / np.linalg.norm(points[2]))
    assert_allclose(np.linalg.norm(found[2]), near, atol=1e-2)
    assert_allclose(found[0], 0.0, atol=1e-6)
    assert np.isfinite(found).all()
    assert all(np.isfinite(jacobian).all() for jacobian in jacobians.values())


@both_types
def test_small_rotations_keep_their_digits(dtype: DType) -> None:
    """To rounding, also where epsilon is larger than the square of the angle."""
    angles = np.array([1e-3, 1e-5, 1e-7])
    turned = np.zeros((3, 4))
    turned[:, 0], turned[:, 3] = np.sin(angles / 2.0), np.cos(angles / 2.0)
    values = {"value": turned, "expected": IDENTITY[:4]}
    found, jacobians = residuals(factors.prior(sf.Rot3, noise="unit"), values, 3, dtype)
    precision = 1e-14 if dtype is DType.FLOAT64 else 1e-5
    assert_allclose(found[:, 0], angles, rtol=precision)
    assert_allclose(jacobians["value"], np.tile(np.eye(3), (3, 1, 1)), atol=max(1e-3, precision))


def test_bearings_at_the_seam() -> None:
    """From -pi to pi: a direction backwards is close to one measured on the other side."""
    values = {
        "pose": np.array([1.0, 0.0, 0.0, 0.0]),
        "point": np.array([[-1.0, -0.01]]),
        "angle": np.array([[np.pi - 0.01]]),
        "sigma": np.ones(1),
    }
    found, _ = residuals(factors.bearing(sf.Pose2, sf.V2), values, 1)
    assert found[0, 0] == pytest.approx(0.02, abs=1e-5)


@both_types
def test_points_behind_the_camera(dtype: DType) -> None:
    """By default they drop out."""
    values = {"cam_from_world": IDENTITY, "point": np.array([[0.1, 0.2, -1.0], [0.1, 0.2, 0.0]])}
    lens = np.array([500.0, 480.0, 320.0, 240.0])
    pixel = {"pixel": np.zeros(2), "sigma": np.ones(2), "lens": lens}
    found, jacobians = residuals(factors.reprojection("PINHOLE"), {**values, **pixel}, 2, dtype)
    assert_allclose(found, 0.0)
    assert_allclose(jacobians["point"], 0.0)
    stereo = {"pixel": np.zeros(3), "sigma": np.ones(3), "lens": np.append(lens, 0.2)}
    found, jacobians = residuals(factors.stereo(), {**values, **stereo}, 2, dtype)
    assert_allclose(found, 0.0)
    assert_allclose(jacobians["cam_from_world"], 0.0)
    projected = factors.stereo(behind="project")
    assert abs(residuals(projected, {**values, **stereo}, 2, dtype)[0][0]).min() > 1.0
