"""Examples on real data against independent answers."""

import re
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

from examples import (
    hand_eye,
    scan_registration,
    uwb_ranges,
    victoria_park,
    walking_robot,
)


def says_converged(printed: str) -> bool:
    """Whether the report of a solve says so."""
    return re.search(r"^status +CONVERGED", printed, re.MULTILINE) is not None


def test_hand_eye(capsys: pytest.CaptureFixture[str]) -> None:
    """SciPy's optimum of the same robust cost, written with matrices."""
    result = hand_eye.main([])
    A, B = hand_eye.read()
    start = hand_eye.closed_form(A, B)

    def moved(matrix: Any, step: Any) -> Any:
        turned = matrix.copy()
        turned[:3, :3] = matrix[:3, :3] @ Rotation.from_rotvec(step[:3]).as_matrix()
        turned[:3, 3] += step[3:]
        return turned

    def residuals(step: Any) -> Any:
        X, Y = moved(start[0], step[:6]), moved(start[1], step[6:])
        off = np.linalg.inv(Y @ B) @ A @ X
        turns = Rotation.from_matrix(off[:, :3, :3]).as_rotvec()
        rows = np.concatenate([turns, off[:, :3, 3]], axis=1) / hand_eye.SIGMA
        square = (rows**2).sum(axis=1)
        huber = np.where(square < 1.0, square, 2.0 * np.sqrt(square) - 1.0)
        return (rows * np.sqrt(huber / square)[:, None]).ravel()

    wanted = least_squares(residuals, np.zeros(12), xtol=1e-14, ftol=1e-14, gtol=1e-14)
    assert result.final_cost == pytest.approx(wanted.cost, rel=1e-7)
    printed = capsys.readouterr().out
    assert "caspar       median 0.089 degrees, 4.19 mm" in printed
    assert says_converged(printed)


@pytest.mark.parametrize("name", scan_registration.FACTORS)
def test_scans(name: str) -> None:
    """The transform that comes with the scans, which were thinned."""
    source, target, truth = scan_registration.read()
    found = scan_registration.register(name, source, target)
    degrees, metres = scan_registration.error(found.poses[-1], truth)
    assert degrees < 0.35
    assert metres < 0.015
    assert len(found.poses) < 12


def test_normals() -> None:
    """Of points on a plane, across it."""
    random = np.random.default_rng(0)
    points = random.normal(size=(100, 3)) * [1.0, 1.0, 0.0]
    normals = scan_registration.make_scan(points).normals
    assert_allclose(abs(normals), np.tile([0.0, 0.0, 1.0], (100, 1)), atol=1e-7)


def test_uwb_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    """The survey of the beacons, and the ranges that were spoiled."""
    drive = uwb_ranges.read()
    solutions = uwb_ranges.main([])
    assert says_converged(capsys.readouterr().out)
    maps = solutions.maps(drive)
    assert maps["least squares"].error_m < 0.08
    assert maps["least squares, spoiled"].error_m > 1.0
    assert maps["GNC, spoiled"].error_m < 0.08
    left_out = solutions.robust.weights["range"] < 0.5
    assert left_out[solutions.is_wrong].all()
    assert left_out[~solutions.is_wrong].sum() < 10


def test_victoria_park(capsys: pytest.CaptureFixture[str]) -> None:
    """GTSAM's optimum; its error of a motion differs in the second order."""
    result = victoria_park.main([])
    assert says_converged(capsys.readouterr().out)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(victoria_park.GTSAM_COST, rel=2e-6)


def test_walking_robot(capsys: pytest.CaptureFixture[str]) -> None:
    """The bias that was added, and the sensor's own attitude after shocks of 140 m/s^2."""
    result = walking_robot.main([])
    printed = capsys.readouterr().out
    assert says_converged(printed)
    recording = walking_robot.read()
    start = walking_robot.arrays(recording)["NavState"]
    found = walking_robot.compare(recording, result.values["NavState"])
    assert f"bias estimated       at the end {found.degrees[-1]:.3f} degrees" in printed
    assert result.status.is_success
    assert_allclose(result.values["ImuBias"][0], walking_robot.ADDED_BIAS, atol=1e-3)
    assert found.degrees.max() < 0.2
    assert found.metres.max() < 0.02
    assert walking_robot.compare(recording, start).metres[-1] > 2.0
