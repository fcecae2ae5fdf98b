"""Rotations, directions and differences as symbols, finite with their derivatives everywhere.

SymForce's logarithm takes an arc cosine and a minimum, which rounds at small angles; the arc
tangents here keep all digits. Divisions are guarded by epsilon in a square root: at an angle of
zero the relative error is epsilon / 3, below rounding.
"""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias

import symforce.symbolic as sf

from caspar.factors.projective import SL4
from caspar.factors.similarity import Sim3

# Squared sine of half an angle below which a power series replaces a quotient: derivatives of the
# quotient lose digits there. The first term that is left out is below the rounding of float64.
_SERIES_BELOW = 1.0 / 32.0
_SERIES_TERMS = 10


class Chart(Enum):
    """Vector form of the difference of two poses."""

    PRODUCT = "product"
    """Rotation vector and translation, each by itself."""
    LOGARITHM = "logarithm"
    """The logarithm of SE(2) or SE(3), as in GTSAM: the constant angular and linear velocity that
    makes the motion in one unit of time. Rotations and vectors are the same in both charts."""


ChartChoice: TypeAlias = Chart | Literal["product", "logarithm"]


def rotation_vector(rotation: Any) -> list[Any]:
    """The logarithm of a rotation: axis times angle, of length 0 to pi (`sf.Rot2`: the angle).

    At an angle of pi, where the axis may as well point the other way, the vector jumps to its
    negative; values and derivatives on both sides are finite.
    """
    if isinstance(rotation, sf.Rot2):
        return [sf.atan2(rotation.z.imag, rotation.z.real, epsilon=0)]
    x, y, z, w = rotation.to_storage()
    sine = sf.sqrt(x**2 + y**2 + z**2 + sf.epsilon())
    scale = 2 * sf.atan2(sine, sf.Abs(w), epsilon=0) / sine * sf.sign_no_zero(w)
    return [scale * x, scale * y, scale * z]


def pose_logarithm(pose: Any) -> list[Any]:
    """Return the logarithm of SE(2) or SE(3): the rotation vector, then the linear velocity.

    With angle a, axis n and h = a/2 cot(a/2), the inverse of the left Jacobian takes the
    translation t to h t - a/2 n x t + (1 - h) n (n . t) (Sola, Deray, Atchuthan, *A micro Lie
    theory*, 2018, equations 146 and 158).
    """
    turn, t = rotation_vector(pose.R), pose.t
    if isinstance(pose, sf.Pose2):
        (angle,), cosine, sine = turn, pose.R.z.real, pose.R.z.imag
        square = (1 - cosine) / 2
        # angle and sine vanish together: epsilon^2 only prevents 0 / 0 in the branch not taken
        far = angle * sine / (1 - cosine + sf.epsilon() ** 2) / 2
        h = 1 - square * _rest_of_cotangent(square, far)
        return [angle, h * t[0] + angle / 2 * t[1], h * t[1] - angle / 2 * t[0]]
    v = sf.V3(pose.R.to_storage()[:3])
    square, w = v.squared_norm(), sf.Abs(pose.R.to_storage()[3])
    half_sine = sf.sqrt(square + sf.epsilon())
    rest = _rest_of_cotangent(square, sf.atan2(half_sine, w, epsilon=0) * w / half_sine)
    moved = (1 - square * rest) * t - sf.V3(turn).cross(t) / 2 + rest * v.dot(t) * v
    return [*turn, *moved.to_flat_list()]


def _rest_of_cotangent(square: Any, far: Any) -> Any:
    """Return (1 - h) / x for h = a/2 cot(a/2) and x = sin(a/2)^2; 1/3 at an angle of zero.

    The series is sum_k b_k x^k with b_0 = 1/3 and b_k = b_(k-1) 2k / (2k + 3), from that of
    arcsin(z) / sqrt(1 - z^2). `far` is h, used if x is not small.
    """
    coefficients = [sf.S(1) / 3]
    for k in range(1, _SERIES_TERMS):
        coefficients.append(coefficients[-1] * 2 * k / (2 * k + 3))
    series = sf.S(0)
    for coefficient in reversed(coefficients):
        series = series * square + coefficient
    quotient = (1 - far) / (square + sf.epsilon() ** 2)
    return sf.Piecewise((series, square < _SERIES_BELOW), (quotient, True))


def transform_error(expected: Any, found: Any, chart: Chart = Chart.PRODUCT) -> list[Any]:
    """Return how a pose differs from another one, in the axes of the other one's body.

    Also rotations, a `Sim3` and an `SL4`. The rows are the rotation vector of expected^-1 found,
    then its translation or, with the logarithm, the linear velocity; of rotations the first only.
    Of similarities the logarithm of the scale comes last; of projective transformations the step
    from the identity.
    """
    difference = expected.inverse() * found
    if isinstance(difference, SL4):
        return difference.to_tangent()
    if isinstance(difference, Sim3):
        return [*transform_error(sf.Pose3(), difference.pose), difference.log_scale[0]]
    if not isinstance(difference, sf.Pose2 | sf.Pose3):
        return rotation_vector(difference)
    if chart is Chart.LOGARITHM:
        return pose_logarithm(difference)
    return [*rotation_vector(difference.R), *difference.t]


def step_between(start: Any, end: Any, chart: Chart = Chart.PRODUCT) -> list[Any]:
    """The step that takes one value to another, in the order and axes of a solver's steps.

    Rotations: rotation vector of start^-1 end. Poses: that, then the difference of translations in
    the axes in which they are stored; with `LOGARITHM` the logarithm of start^-1 end, in the axes
    of the start. Vectors: end - start. Directions: see `direction_error`. Dataclasses: field by
    field.
    """
    if isinstance(start, sf.Pose2 | sf.Pose3):
        if chart is Chart.LOGARITHM:
            return transform_error(start, end, chart)
        return [*rotation_vector(start.R.inverse() * end.R), *(end.t - start.t)]
    if isinstance(start, SL4):
        return transform_error(start, end)
    if isinstance(start, sf.Rot2 | sf.Rot3):
        return rotation_vector(start.inverse() * end)
    if isinstance(start, sf.Unit3):
        return direction_error(start.to_unit_vector(), end.to_unit_vector())
    if isinstance(start, sf.Matrix):
        return list((end - start).to_flat_list())
    if is_dataclass(start):
        return [
            row
            for one in fields(start)
            for row in step_between(getattr(start, one.name), getattr(end, one.name), chart)
        ]
    return [end - start]


def tangent_basis(direction: Any) -> tuple[Any, Any]:
    """Two unit vectors across a unit vector and across each other.

    Duff et al., *Building an Orthonormal Basis, Revisited*, JCGT 2017: no division by zero
    anywhere, one jump at z = 0 from below.
    """
    x, y, z = direction
    sign = sf.sign_no_zero(z)
    a = -1 / (sign + z)
    b = x * y * a
    first = sf.V3(1 + sign * x**2 * a, sign * b, -sign * x)
    return first, sf.V3(b, sign + y**2 * a, -y)


def direction_error(expected: Any, found: Any) -> list[Any]:
    """The turn from one direction to another: angles along two directions across the first.

    Its length is the angle between them, 0 to pi. Zero, with derivative zero, where `found` is a
    vector of length zero; else it may have any length.
    """
    square = found.squared_norm()
    unit = found / sf.sqrt(square + sf.epsilon() ** 2)
    first, second = tangent_basis(expected)
    across = [first.dot(unit), second.dot(unit)]
    sine = sf.sqrt(across[0] ** 2 + across[1] ** 2 + sf.epsilon())
    scale = sf.atan2(sine, expected.dot(unit), epsilon=0) / sine
    return [_if_apart(square, scale * row) for row in across]


def angle_error(angle: Any, found: Any) -> Any:
    """The angle from a measured direction in the plane to another one, from -pi to pi.

    Zero, with derivative zero, where `found` is a vector of length zero. The measured one is
    counterclockwise from x, in radians.
    """
    x, y = found
    cosine, sine = sf.cos(angle), sf.sin(angle)
    turned = sf.atan2(cosine * y - sine * x, cosine * x + sine * y, epsilon=0)
    return _if_apart(x**2 + y**2, turned)


def _if_apart(square: Any, value: Any) -> Any:
    """A value, or zero where a distance is zero to within epsilon."""
    return sf.Piecewise((value, square > sf.epsilon() ** 2), (0, True))


def length(vector: Any) -> Any:
    """The length of a column vector; where it is zero, its derivative is zero too."""
    return sf.sqrt(vector.squared_norm() + sf.epsilon() ** 2)


def rotated_covariance(rotation: Any, covariance: Any) -> Any:
    """R C R^T of an `sf.Rot2` or `sf.Rot3` and a matrix C."""
    matrix = rotation.to_rotation_matrix()
    return matrix * covariance * matrix.transpose()


def whitened_by_covariance(error: Any, covariance: Any) -> list[Any]:
    """L^-1 e, where L L^T is a covariance (Cholesky): the squares sum to e^T C^-1 e."""
    size = covariance.shape[0]
    lower: list[list[Any]] = []
    rows: list[Any] = []
    for i in range(size):
        row: list[Any] = []
        for j in range(i):
            known = sum((row[k] * lower[j][k] for k in range(j)), sf.S(0))
            row.append((covariance[i, j] - known) / lower[j][j])
        pivot = sf.sqrt(covariance[i, i] - sum((one**2 for one in row), sf.S(0)))
        rows.append((error[i] - sum((row[k] * rows[k] for k in range(i)), sf.S(0))) / pivot)
        lower.append([*row, pivot])
    return rows
