"""Rotations between angle-axis and quaternions, over the whole range of angles."""

import numpy as np
import pytest

from caspar.io.rotations import angle_axis_from_quaternion, quaternion_from_angle_axis, rotate

ANGLES = [
    *(0.0, 1e-300, 1e-20, 1e-9, 1e-8, 1e-4, 0.5, 1.0, 3.0),
    *(np.pi - 1e-4, np.pi - 1e-8, np.pi - 1e-12, np.nextafter(np.pi, 0.0)),
]


class TestRotations:
    """Angle-axis and quaternions."""

    @pytest.mark.parametrize("angle", ANGLES)
    @pytest.mark.parametrize("axis", [(1, 0, 0), (0, -1, 0), (2, -3, 6), (1e-9, 1, 0)])
    def test_there_and_back(self, angle: float, axis: tuple[float, float, float]) -> None:
        """Every shortest turn comes back to rounding, relative to its own size."""
        direction = np.array(axis, dtype=np.float64) / np.linalg.norm(axis)
        quaternion = quaternion_from_angle_axis(angle * direction)
        assert np.linalg.norm(quaternion) == pytest.approx(1.0, abs=1e-15)
        back = angle_axis_from_quaternion(quaternion)
        np.testing.assert_allclose(back, angle * direction, rtol=0, atol=8e-16 * angle)

    def test_half_turn_has_no_sign(self) -> None:
        """At pi both axes are the same rotation."""
        for axis in ([0.6, 0.0, 0.8], [-0.6, 0.0, -0.8]):
            for scalar in (0.0, -0.0):
                back = angle_axis_from_quaternion(np.array([*axis, scalar]))
                assert np.linalg.norm(back) == pytest.approx(np.pi, rel=1e-15)

    def test_long_way_round(self) -> None:
        """Beyond pi the same rotation comes back as the shorter turn."""
        quaternion = quaternion_from_angle_axis(np.array([0.0, 0.0, 2.0 * np.pi - 0.25]))
        assert quaternion[3] < 0.0
        np.testing.assert_allclose(
            angle_axis_from_quaternion(quaternion), [0.0, 0.0, -0.25], rtol=0, atol=1e-15
        )

    def test_length_does_not_matter(self) -> None:
        """A quaternion that is not of unit length gives the rotation of its direction."""
        quaternion = np.array([0.1, -0.2, 0.3, 0.9])
        np.testing.assert_allclose(
            angle_axis_from_quaternion(1e-3 * quaternion),
            angle_axis_from_quaternion(-50.0 * quaternion),
            rtol=1e-14,
        )
        np.testing.assert_array_equal(
            angle_axis_from_quaternion(np.array([0.0, 0.0, 0.0, -2.0])), np.zeros(3)
        )

    def test_rotate_is_rodrigues(self) -> None:
        """A quarter turn about z takes x to y; a general turn follows Rodrigues' formula."""
        quarter = quaternion_from_angle_axis(np.array([0.0, 0.0, np.pi / 2]))
        np.testing.assert_allclose(rotate(quarter, np.eye(3)[0]), np.eye(3)[1], atol=1e-15)
        generator = np.random.default_rng(0)
        turns, vectors = generator.normal(size=(2, 50, 3))
        angle = np.linalg.norm(turns, axis=1, keepdims=True)
        axis = turns / angle
        along = np.sum(axis * vectors, axis=1, keepdims=True)
        expected = (
            np.cos(angle) * vectors
            + np.sin(angle) * np.cross(axis, vectors)
            + (1.0 - np.cos(angle)) * along * axis
        )
        rotated = rotate(quaternion_from_angle_axis(turns), vectors)
        np.testing.assert_allclose(rotated, expected, rtol=0, atol=1e-14)
