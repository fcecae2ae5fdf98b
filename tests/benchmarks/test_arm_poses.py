"""Exact poses of an arm: where both ends are, and the derivative that SciPy gets."""

import numpy as np
from numpy.testing import assert_allclose

from benchmarks.arm_poses import Arm, away, by_caspar, by_slsqp, drawn, with_restarts
from examples.inverse_kinematics import MIDDLE


def test_derivatives_are_exact() -> None:
    arm, joints, step = Arm(drawn(1)[0]), MIDDLE + 0.1, 1e-6
    found = arm.jacobian(joints).copy()
    for number, move in enumerate(step * np.eye(7)):
        change = arm.rows(joints + move) - arm.rows(joints - move)
        assert_allclose(found[:, number], change / (2.0 * step), atol=1e-8)


def test_poses_are_reached() -> None:
    goals = drawn(20)
    result, _ = by_caspar(goals, "cpu", "float64")
    found = result.is_success
    assert found.sum() >= 15
    assert away(np.asarray(result.values["Joints"]), goals)[found].max() < 1e-7
    joints, claims = by_slsqp(goals[2])
    assert claims == bool(away(joints[None], goals[2:3])[0] < 1e-6)


def test_other_starts_reach_the_rest() -> None:
    goals = drawn(20)
    joints, is_solved, iterations, _ = with_restarts(goals, "cpu", "float64")
    assert is_solved.all()
    assert away(joints, goals).max() < 1e-7
    assert (iterations > 0).all()
