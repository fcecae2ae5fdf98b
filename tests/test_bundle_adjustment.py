import numpy as np
import pytest
import symforce.symbolic as sf

from caspar.bundle_adjustment import Cam, Pixel, Point, snavely


def residual(camera: list[float], point: list[float], pixel: list[float]) -> np.ndarray:
    pose = sf.Pose3.from_storage(camera[:7])
    value = snavely(Cam(pose, sf.V3(camera[7:])), Point(point), Pixel(pixel))
    return np.array(value.to_numpy(), dtype=np.float64).ravel()


@pytest.mark.parametrize("depth", [-4.0, 4.0])
def test_projection(depth: float) -> None:
    """In front of the camera and behind it."""
    camera = [0.0, 0.0, 0.0, 1.0, 0.5, 0.25, 0.0, 500.0, 0.1, -0.02]
    plane = np.array([-1.5, -2.25]) / depth
    square = float(plane @ plane)
    expected = 500.0 * (1.0 + 0.1 * square - 0.02 * square**2) * plane - [3.0, -4.0]
    found = residual(camera, [1.0, 2.0, depth], [3.0, -4.0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_turned_camera() -> None:
    """A quarter turn about x takes y to z and z to -y."""
    half = np.sqrt(0.5)
    camera = [half, 0.0, 0.0, half, 0.0, 0.0, 0.0, 100.0, 0.0, 0.0]
    found = residual(camera, [1.0, -2.0, 3.0], [0.0, 0.0])
    np.testing.assert_allclose(found, [100.0 * 1.0 / 2.0, 100.0 * -3.0 / 2.0], rtol=1e-12)
