"""Rotations, directions and differences as symbols, finite with their derivatives everywhere.

SymForce's logarithm takes an arc cosine and a minimum, which rounds at small angles; the arc
tangents here keep all digits. Divisions are guarded by epsilon in a square root: at an angle of
zero the relative error is epsilon / 3, below rounding.
"""

from dataclasses import fields, is_dataclass
from typing import Any

import symforce.symbolic as sf


def rotation_vector(rotation: Any) -> list[Any]:
    """The logarithm of a rotation: axis times angle, of length 0 to pi (`sf.Rot2`: the angle).

    At an angle of pi, where the axis may as well point the other way, the vector jumps to its
    negative; values and derivatives on both sides are finite.

    Args:
        rotation: An `sf.Rot2` or `sf.Rot3`.
    """
    if isinstance(rotation, sf.Rot2):
        return [sf.atan2(rotation.z.imag, rotation.z.real, epsilon=0)]
    x, y, z, w = rotation.to_storage()
    sine = sf.sqrt(x**2 + y**2 + z**2 + sf.epsilon())
    scale = 2 * sf.atan2(sine, sf.Abs(w), epsilon=0) / sine * sf.sign_no_zero(w)
    return [scale * x, scale * y, scale * z]


def transform_error(expected: Any, found: Any) -> list[Any]:
    """How a pose differs from another one, in the axes of the other one's body.

    Args:
        expected: An `sf.Pose2` or `sf.Pose3`, or a rotation.
        found: The same.

    Returns:
        The rotation vector of expected^-1 found, then its translation; of rotations the first only.
    """
    difference = expected.inverse() * found
    if isinstance(difference, sf.Pose2 | sf.Pose3):
        return [*rotation_vector(difference.R), *difference.t]
    return rotation_vector(difference)


def step_between(start: Any, end: Any) -> list[Any]:
    """The step that takes one value to another, in the order and axes of a solver's steps.

    Rotations: rotation vector of start^-1 end. Poses: that, then the difference of translations in
    the axes in which they are stored. Vectors: end - start. Directions: see `direction_error`.
    Dataclasses: field by field.

    Args:
        start: A value of any type with a tangent space made of these.
        end: Another one.
    """
    if isinstance(start, sf.Pose2 | sf.Pose3):
        return [*rotation_vector(start.R.inverse() * end.R), *(end.t - start.t)]
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
            for row in step_between(getattr(start, one.name), getattr(end, one.name))
        ]
    return [end - start]


def tangent_basis(direction: Any) -> tuple[Any, Any]:
    """Two unit vectors across a unit vector and across each other.

    Duff et al., *Building an Orthonormal Basis, Revisited*, JCGT 2017: no division by zero
    anywhere, one jump at z = 0 from below.

    Args:
        direction: (3,) unit vector.
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
    vector of length zero.

    Args:
        expected: (3,) unit vector.
        found: (3,) vector of any length.
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

    Zero, with derivative zero, where `found` is a vector of length zero.

    Args:
        angle: The measured direction, counterclockwise from x, in radians.
        found: (2,) vector of any length.
    """
    x, y = found
    cosine, sine = sf.cos(angle), sf.sin(angle)
    turned = sf.atan2(cosine * y - sine * x, cosine * x + sine * y, epsilon=0)
    return _if_apart(x**2 + y**2, turned)


def _if_apart(square: Any, value: Any) -> Any:
    """A value, or zero where a distance is zero to within epsilon."""
    return sf.Piecewise((value, square > sf.epsilon() ** 2), (0, True))


def length(vector: Any) -> Any:
    """The length of a vector; where it is zero, its derivative is zero too.

    Args:
        vector: A column vector.
    """
    return sf.sqrt(vector.squared_norm() + sf.epsilon() ** 2)


def rotated_covariance(rotation: Any, covariance: Any) -> Any:
    """R C R^T.

    Args:
        rotation: An `sf.Rot2` or `sf.Rot3`.
        covariance: The matrix C.
    """
    matrix = rotation.to_rotation_matrix()
    return matrix * covariance * matrix.transpose()


def whitened_by_covariance(error: Any, covariance: Any) -> list[Any]:
    """L^-1 e, where L L^T is a covariance (Cholesky): the squares sum to e^T C^-1 e.

    Args:
        error: (n,) rows.
        covariance: (n, n), positive definite.
    """
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
