"""Factors of the library on the device, beside the processor."""

from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.frontend.factors.trace import trace
from tests.factors.every_factor import FACTORS, random_values

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

COUNT = 50
NAMES = ("between_pose3", "bearing_range_3d", "plane_to_plane", "gravity", "reprojection", "imu")


def arrays(name: str) -> dict[str, Any]:
    """A node of its own for each instance and each argument."""
    factor, values = FACTORS[name], random_values(name, COUNT)
    made: dict[str, Any] = {factor.name: {}}
    for argument in trace(factor).arguments:
        rows = values[argument.source]
        if argument.node is None:
            is_one = argument.kind.value == "ConstUnique"
            made[factor.name][argument.source] = rows[0] if is_one else rows
            continue
        before = made.get(argument.node_type.name, np.zeros((0, rows.shape[1])))
        made[argument.node_type.name] = np.concatenate([before, rows])
        made[factor.name][argument.source] = len(before) + np.arange(COUNT)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_residuals_are_those_of_the_processor(name: str) -> None:
    given = arrays(name)
    factor = FACTORS[name]
    by_backend = [
        caspar.Solver([factor], backend=backend, precision="float64").evaluate(given)
        for backend in ("cuda", "cpu")
    ]
    device, host = (one.residuals(factor.name) for one in by_backend)
    np.testing.assert_allclose(device, host, rtol=1e-9, atol=1e-9 * abs(host).max())


def test_a_scan_is_registered() -> None:
    """CuPy arrays in, CuPy arrays out; the same solver for several rounds."""
    random = np.random.default_rng(0)
    target = random.normal(size=(1000, 3))
    normal = random.normal(size=(1000, 3))
    normal /= np.linalg.norm(normal, axis=1)[:, None]
    shift = np.array([0.1, -0.2, 0.05])
    solver = caspar.Solver(
        [caspar.factors.point_to_plane(sf.Pose3, noise="unit")], backend="cuda", precision="mixed"
    )
    pose = cupy.asarray([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    for _ in range(3):
        result = solver.solve(
            {
                "Pose3": pose,
                "point_to_plane": {
                    "target_from_source": cupy.zeros(1000, dtype=cupy.int32),
                    "source": cupy.asarray(target - shift),
                    "target": cupy.asarray(target),
                    "normal": cupy.asarray(normal),
                },
            }
        )
        pose = result.values["Pose3"]
    np.testing.assert_allclose(cupy.asnumpy(pose)[0, 4:], shift, atol=1e-6)
