"""Compose and invert poses in storage order, many at a time.

Input and output: float64 arrays whose last axis is a pose: qx qy qz qw tx ty tz in space,
cos sin x y in the plane. Cost: a few passes over the arrays, once per file.
"""

import numpy as np

from caspar.io.rotations import FloatArray, conjugate, multiply, rotate


def compose_se3(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return a_T_c from a_T_b and b_T_c.

    Args:
        left: (..., 7) a_T_b.
        right: (..., 7) b_T_c.

    Returns:
        (..., 7) with quaternions scaled to unit length, so that rounding does not add up.
    """
    quaternion = multiply(left[..., :4], right[..., :4])
    quaternion = quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True)
    translation = left[..., 4:] + rotate(left[..., :4], right[..., 4:])
    return np.concatenate([quaternion, translation], axis=-1)


def invert_se3(pose: FloatArray) -> FloatArray:
    """Return b_T_a from a_T_b.

    Args:
        pose: (..., 7) a_T_b.

    Returns:
        (..., 7).
    """
    quaternion = conjugate(pose[..., :4])
    return np.concatenate([quaternion, -rotate(quaternion, pose[..., 4:])], axis=-1)


def compose_se2(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return a_T_c from a_T_b and b_T_c.

    Args:
        left: (..., 4) a_T_b.
        right: (..., 4) b_T_c.

    Returns:
        (..., 4) with rotations scaled to unit length, so that rounding does not add up.
    """
    rotation = _turn(left, right[..., :2])
    rotation = rotation / np.linalg.norm(rotation, axis=-1, keepdims=True)
    translation = left[..., 2:] + _turn(left, right[..., 2:])
    return np.concatenate([rotation, translation], axis=-1)


def invert_se2(pose: FloatArray) -> FloatArray:
    """Return b_T_a from a_T_b.

    Args:
        pose: (..., 4) a_T_b.

    Returns:
        (..., 4).
    """
    rotation = pose[..., :2] * np.array([1.0, -1.0])
    return np.concatenate([rotation, -_turn(rotation, pose[..., 2:])], axis=-1)


def transform(pose: FloatArray, point: FloatArray) -> FloatArray:
    """Return points in the coordinates of a from those of b.

    Args:
        pose: (..., 7) or (..., 4) a_T_b.
        point: (..., 3) or (..., 2) coordinates of b.

    Returns:
        (..., 3) or (..., 2).
    """
    if pose.shape[-1] == 4:
        return pose[..., 2:] + _turn(pose, point)
    return pose[..., 4:] + rotate(pose[..., :4], point)


def _turn(pose: FloatArray, vector: FloatArray) -> FloatArray:
    """Rotate (..., 2) vectors by the cosine and sine in the first two columns of a pose."""
    cosine, sine = pose[..., 0], pose[..., 1]
    x, y = vector[..., 0], vector[..., 1]
    return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)
