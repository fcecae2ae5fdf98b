"""The logarithms of SE(2) and SE(3) against 50 digits: values, derivatives, angles 0 to pi."""

from typing import Any

import mpmath
import numpy as np
import pytest
import symforce.symbolic as sf
from mpmath import mpf
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import caspar
from caspar.errors import OptionError
from caspar.ir.dtype import DType
from tests.factors.evaluating import residuals

Array = NDArray[np.float64]
factors = caspar.factors

NEAR_PI = [np.pi - gap for gap in (1e-1, 1e-3, 1e-5, 1e-7)]
# between 0.35 and 0.36 the power series ends
ANGLES = [0.0, 1e-12, 1e-9, 1e-8, 1e-7, 1e-5, 1e-3, 0.1, 0.35, 0.36, 0.7, 2.0, *NEAR_PI]
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(DType.FLOAT64, 4e-14), (DType.FLOAT32, 2e-5)], ids=["f64", "f32"]
)
STEP = mpf(10) ** -20


def logarithm(turn: Any, place: Any) -> Any:
    """The rotation vector, and the inverse of its left Jacobian times a translation."""
    angle = mpmath.norm(turn)
    if angle == 0:
        return [*turn, *place]
    rest = (1 - angle / 2 * mpmath.cot(angle / 2)) / angle**2
    once = cross(turn, place)
    twice = cross(turn, once)
    return [*turn, *(place[i] - once[i] / 2 + rest * twice[i] for i in range(3))]


def cross(a: Any, b: Any) -> Any:
    """The cross product."""
    pairs = ((1, 2), (2, 0), (0, 1))
    return mpmath.matrix([a[i] * b[j] - a[j] * b[i] for i, j in pairs])


def product(p: Any, q: Any) -> Any:
    """The product of quaternions x y z w."""
    x = cross(p[:3], q[:3])
    return [*(p[3] * q[i] + q[3] * p[i] + x[i] for i in range(3)), p[3] * q[3] - dot(p[:3], q[:3])]


def dot(a: Any, b: Any) -> Any:
    """The scalar product."""
    return sum(one * other for one, other in zip(a, b, strict=True))


def quaternion(turn: Any) -> Any:
    """The exponential of a rotation vector."""
    angle = mpmath.norm(turn)
    scale = mpmath.sin(angle / 2) / angle if angle != 0 else mpf(1) / 2
    return [*(scale * one for one in turn), mpmath.cos(angle / 2)]


def rotation_vector(q: Any) -> Any:
    """The logarithm of a quaternion."""
    sine = mpmath.norm(q[:3])
    if sine == 0:
        return mpmath.matrix(3, 1)
    scale = 2 * mpmath.atan2(sine, q[3]) / sine
    return mpmath.matrix([scale * one for one in q[:3]])


def exact(storage: Array) -> tuple[Array, Array]:
    """(6,) logarithm of a pose and its (6, 6) derivative by the solver's steps."""
    with mpmath.workdps(50):
        numbers = [mpf(float(one)) for one in storage]
        size = mpmath.norm(numbers[:4]) * (1 if numbers[3] >= 0 else -1)
        q, place = [one / size for one in numbers[:4]], numbers[4:]

        def stepped(row: int, step: Any) -> Any:
            turn, moved = [mpf(0)] * 3, list(place)
            if row < 3:
                turn[row] = step
            else:
                moved[row - 3] += step
            return logarithm(rotation_vector(product(q, quaternion(turn))), mpmath.matrix(moved))

        at = np.array(stepped(0, mpf(0)), float)
        ends = [[stepped(row, sign * STEP) for sign in (1, -1)] for row in range(6)]
        columns = [
            [(one - other) / (2 * STEP) for one, other in zip(*pair, strict=True)] for pair in ends
        ]
        return at, np.array(columns, float).T


@PRECISIONS
@pytest.mark.parametrize("angle", ANGLES)
def test_in_space(angle: float, dtype: DType, tolerance: float) -> None:
    random = np.random.default_rng(7)
    axes = random.normal(size=(3, 3))
    axes /= np.linalg.norm(axes, axis=1)[:, None]
    poses = np.concatenate(
        [
            np.sin(angle / 2.0) * axes,
            np.full((3, 1), np.cos(angle / 2.0)),
            random.normal(size=(3, 3)),
        ],
        axis=1,
    )
    if dtype is DType.FLOAT32:
        poses = poses.astype(np.float32).astype(np.float64)
    poses[1, :4] *= -1.0  # the same rotation
    values = {"value": poses, "expected": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]}
    factor = factors.prior(chart="logarithm", noise="unit")
    found, jacobians = residuals(factor, values, 3, dtype)
    for pose, row, jacobian in zip(poses, found, jacobians["value"], strict=True):
        wanted, slope = exact(pose)
        assert_allclose(row, wanted, atol=tolerance)
        assert_allclose(jacobian, slope, atol=4.0 * tolerance)


@PRECISIONS
@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("angle", ANGLES)
def test_in_the_plane(angle: float, sign: float, dtype: DType, tolerance: float) -> None:
    """A motion in the plane of space, of which angle, x and y are compared."""
    half, place = sign * angle / 2.0, [0.7, -1.3]
    turned = np.array([np.cos(2.0 * half), np.sin(2.0 * half)])
    if dtype is DType.FLOAT32:
        turned = turned.astype(np.float32).astype(np.float64)
        half = float(np.arctan2(turned[1], turned[0])) / 2.0
    wanted, slope = exact(np.array([0.0, 0.0, np.sin(half), np.cos(half), *place, 0.0]))
    values = {"value": [*turned, *place], "expected": [1.0, 0.0, 0.0, 0.0]}
    factor = factors.prior(sf.Pose2, chart="logarithm", noise="unit")
    found, jacobians = residuals(factor, values, 1, dtype)
    rows = [2, 3, 4]
    assert_allclose(found[0], wanted[rows], atol=tolerance)
    assert_allclose(jacobians["value"][0], slope[np.ix_(rows, rows)], atol=4.0 * tolerance)


def test_the_error_of_gtsams_documentation() -> None:
    """Half of the squares at Pose2(1, 2, 0.7): GTSAM's wheel says 2.849633853866417."""
    values = {"value": [np.cos(0.7), np.sin(0.7), 1.0, 2.0], "expected": [1.0, 0.0, 0.0, 0.0]}
    costs = {factors.Chart.LOGARITHM: 2.849633853866417, factors.Chart.PRODUCT: 2.745}
    for chart, cost in costs.items():
        found, _ = residuals(factors.prior(sf.Pose2, chart=chart, noise="unit"), values, 1)
        assert 0.5 * (found**2).sum() == pytest.approx(cost, rel=1e-13)


@pytest.mark.parametrize("maker", [factors.prior, factors.between])
def test_a_chart_that_does_not_exist(maker: Any) -> None:
    with pytest.raises(OptionError, match=r"chart='log': must be one of 'product', 'logarithm'"):
        maker(chart="log")
