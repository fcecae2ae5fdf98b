"""Rotations between the ways files write them, and poses composed and inverted, many at a time.

Accurate to rounding for every angle. Input and output: float64 arrays whose last axis holds one
rotation, quaternions as x y z w, or one pose: qx qy qz qw tx ty tz in space, cos sin x y in the
plane. Cost: a few passes over the arrays, once per file.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def quaternion_from_angle_axis(angle_axis: FloatArray) -> FloatArray:
    """Convert (..., 3) rotation vectors, in radians, to (..., 4) unit quaternions x y z w.

    The fourth is negative for angles between pi and 3 pi.
    """
    angle = _length(angle_axis)
    is_zero = angle == 0.0
    # Both parts of the same rounded half, so that the length is 1 for every angle; a sinc of
    # angle / (2 pi) is that of another angle if there are many turns.
    scale = np.where(is_zero, 0.5, np.sin(0.5 * angle) / np.where(is_zero, 1.0, angle))
    return np.concatenate([scale[..., None] * angle_axis, np.cos(0.5 * angle)[..., None]], axis=-1)


def angle_axis_from_quaternion(quaternion: FloatArray) -> FloatArray:
    """Convert quaternions x y z w, of any length but zero, to vectors of the shortest turn.

    The length of a vector, (..., 3), is the angle in radians, from 0 to pi.
    """
    scaled = scaled_quaternion(quaternion)
    vector, scalar = scaled[..., :3], scaled[..., 3]
    vector_length = _length(vector)
    # The arc tangent of both parts is accurate everywhere; the arc cosine of w is not near 0,
    # nor the arc sine of the vector near pi. q and -q are one rotation: take the one with w >= 0.
    angle = 2.0 * np.arctan2(vector_length, np.abs(scalar))
    is_zero = vector_length == 0.0
    scale = np.where(is_zero, 0.0, angle / np.where(is_zero, 1.0, vector_length))
    return np.copysign(scale, scalar)[..., None] * vector


def scaled_quaternion(quaternion: FloatArray) -> FloatArray:
    """Scale quaternions by powers of two, so that squares neither overflow nor vanish.

    The rotations are exactly the same; the largest component is between 0.5 and 1.
    """
    _, exponent = np.frexp(np.max(np.abs(quaternion), axis=-1, keepdims=True))
    scaled: FloatArray = np.ldexp(quaternion, -exponent)
    return scaled


def rotate(quaternion: FloatArray, vector: FloatArray) -> FloatArray:
    """Rotate (..., 3) vectors by (..., 4) unit quaternions x y z w."""
    axis, scalar = quaternion[..., :3], quaternion[..., 3:]
    twice_cross = 2.0 * np.cross(axis, vector)
    rotated: FloatArray = vector + scalar * twice_cross + np.cross(axis, twice_cross)
    return rotated


def conjugate(quaternion: FloatArray) -> FloatArray:
    """Return the opposite rotations of (..., 4) unit quaternions x y z w."""
    opposite: FloatArray = quaternion * np.array([-1.0, -1.0, -1.0, 1.0])
    return opposite


def multiply(left: FloatArray, right: FloatArray) -> FloatArray:
    """Compose rotations, (..., 4) quaternions x y z w: the right one first, then the left one."""
    left_vector, left_scalar = left[..., :3], left[..., 3:]
    right_vector, right_scalar = right[..., :3], right[..., 3:]
    vector = (
        left_scalar * right_vector
        + right_scalar * left_vector
        + np.cross(left_vector, right_vector)
    )
    scalar = left_scalar * right_scalar - np.sum(left_vector * right_vector, -1, keepdims=True)
    return np.concatenate([vector, scalar], axis=-1)


def _length(vector: FloatArray) -> FloatArray:
    """Return the length of (..., 3) vectors without overflow or underflow of the squares."""
    length: FloatArray = np.hypot(np.hypot(vector[..., 0], vector[..., 1]), vector[..., 2])
    return length


def compose_se3(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return a_T_c from a_T_b and b_T_c, (..., 7) each, with quaternions of unit length again."""
    quaternion = multiply(left[..., :4], right[..., :4])
    quaternion = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
    translation = left[..., 4:] + rotate(left[..., :4], right[..., 4:])
    return np.concatenate([quaternion, translation], axis=-1)


def invert_se3(pose: FloatArray) -> FloatArray:
    """Return b_T_a from a_T_b, (..., 7)."""
    quaternion = conjugate(pose[..., :4])
    return np.concatenate([quaternion, -rotate(quaternion, pose[..., 4:])], axis=-1)


def compose_se2(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return a_T_c from a_T_b and b_T_c, (..., 4) each, with rotations of unit length again."""
    rotation = _turn(left, right[..., :2])
    rotation = rotation / np.linalg.norm(rotation, axis=-1, keepdims=True)
    translation = left[..., 2:] + _turn(left, right[..., 2:])
    return np.concatenate([rotation, translation], axis=-1)


def invert_se2(pose: FloatArray) -> FloatArray:
    """Return b_T_a from a_T_b, (..., 4)."""
    rotation = pose[..., :2] * np.array([1.0, -1.0])
    return np.concatenate([rotation, -_turn(rotation, pose[..., 2:])], axis=-1)


def transform(pose: FloatArray, point: FloatArray) -> FloatArray:
    """Return (..., 3) or (..., 2) points in the coordinates of a from those of b, by a_T_b."""
    if pose.shape[-1] == 4:
        return pose[..., 2:] + _turn(pose, point)
    return pose[..., 4:] + rotate(pose[..., :4], point)


def _turn(pose: FloatArray, vector: FloatArray) -> FloatArray:
    cosine, sine = pose[..., 0], pose[..., 1]
    x, y = vector[..., 0], vector[..., 1]
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)
