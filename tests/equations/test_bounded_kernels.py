"""Kernels of a node type that has bounds: what is active, where steps end."""

from typing import Any

import numpy as np
import pytest
import symforce.symbolic as sf
from numpy.testing import assert_allclose, assert_array_equal

from caspar.equations.node_kernels import (
    activate_kernel,
    clip_kernel,
    eliminated_retract_kernel,
    factorize_kernel,
    retract_kernel,
)
from caspar.equations.parts import TO_LOWER, TO_UPPER, WAS_SENT
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.precision import TYPES
from caspar.options import Precision
from tests.frontend.kernels.evaluating_kernels import FLOAT64, Array, evaluate

PLACE = NodeType("Place", sf.V3, storage_dim=3, tangent_dim=3)
POSE = NodeType("Pose", sf.Pose3, storage_dim=7, tangent_dim=6)
OPEN = np.inf
HELD = (np.inf, -np.inf)
UNIT_BLOCK = np.array([[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
"""The lower triangle of a unit matrix, by rows."""


def test_numbers_that_a_step_shifts() -> None:
    assert PLACE.shifted_places == {0: 0, 1: 1, 2: 2}
    assert POSE.shifted_places == {3: 4, 4: 5, 5: 6}
    turn = NodeType("Turn", sf.Rot2, storage_dim=2, tangent_dim=1)
    assert turn.shifted_places == {}


@pytest.mark.parametrize("eliminated", [False, True])
def test_what_is_pushed_out_at_a_bound_is_held(eliminated: bool) -> None:
    numbers = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.5, 1.5, 1.0]
    slopes = [1.0, -1.0, 0.0, -1.0, 1.0, 0.0, 1.0, -1.0, np.nan]
    moves = [0, 1, 1, 0, 1, 1, 1, 1, 1]
    found = evaluate(
        activate_kernel(PLACE, FLOAT64, eliminated=eliminated),
        nodes=np.reshape(numbers, (3, 3)),
        gradient=np.reshape(slopes, (3, 3)),
        block=np.repeat(UNIT_BLOCK, 3, axis=0),
        lower=np.ones((3, 3)),
        upper=np.full((3, 3), 2.0),
        free=np.zeros((3, 3)),
        shortening=0.0,
    )
    assert_array_equal(found["free"].ravel(), moves)


@pytest.mark.parametrize(
    ("numbers", "slopes", "free"),
    [
        # a step of its own would take the number a hundred times as far as the bound is
        ([1.01, 1.99, 1.01], [2.0, -2.0, 2.0], [TO_LOWER, TO_UPPER, TO_LOWER]),
        # its own step is not as long, or leads inwards
        ([1.01, 1.99, 1.01], [0.5, -0.5, -9.0], [1, 1, 1]),
        ([1.5, 1.01, 1.99], [9.0, -9.0, 9.0], [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("kind", ["block", "scaled", "reduced"])
def test_what_is_surely_active_goes_to_its_bound(
    numbers: list[float], slopes: list[float], free: list[float], kind: str
) -> None:
    """The curvature is that of all factors: of the block, or of D where it is summed by itself."""
    summed = kind != "block"
    squares = {"diagonal" if summed else "block": np.ones((1, 3)) if summed else UNIT_BLOCK}
    found = evaluate(
        activate_kernel(PLACE, FLOAT64, reduced=kind == "reduced", scaled=kind == "scaled"),
        nodes=np.array([numbers]),
        gradient=np.array([slopes]),
        lower=np.ones((1, 3)),
        upper=np.full((1, 3), 2.0),
        free=np.ones((1, 3)),
        shortening=0.0,
        **squares,
    )
    assert_array_equal(found["free"], [free])


def test_what_is_held_stays_so_and_open_ends_are_no_bounds() -> None:
    lower, upper = np.array([[HELD[0], -OPEN, 0.0]]), np.array([[HELD[1], OPEN, OPEN]])
    arrays: dict[str, Any] = {"nodes": np.zeros((1, 3)), "gradient": np.ones((1, 3))}
    arrays |= {"lower": lower, "upper": upper, "free": np.ones((1, 3)), "block": UNIT_BLOCK}
    found = evaluate(activate_kernel(PLACE, FLOAT64), **arrays, shortening=0.0)
    assert_array_equal(found["free"], [[0, 1, 0]])


def test_after_a_rejected_step_nothing_is_freed() -> None:
    arrays: dict[str, Any] = {"nodes": np.zeros((1, 3)), "gradient": -np.ones((1, 3))}
    arrays |= {"lower": np.zeros((1, 3)), "upper": np.ones((1, 3)), "block": UNIT_BLOCK}
    before = np.array([[0.0, 1.0, TO_UPPER]])
    for shortening, expected in ((1.0, before), (0.0, np.ones((1, 3)))):
        found = evaluate(
            activate_kernel(PLACE, FLOAT64), **arrays, free=before, shortening=shortening
        )
        assert_array_equal(found["free"], expected)


def _clip(
    step: Any, shortening: float, diagonal: Any = None, free: Any = (1.0, 1.0, 1.0)
) -> dict[str, Array]:
    """Of a place in the unit cube at (0, 0.5, 0.25), whose last number has no upper bound."""
    arrays = {} if diagonal is None else {"diagonal": np.array([diagonal], np.float64)}
    return evaluate(
        clip_kernel(PLACE, FLOAT64, scaled=diagonal is not None),
        nodes=np.array([[0.0, 0.5, 0.25]]),
        step=np.array([step], np.float64),
        lower=np.zeros((1, 3)),
        upper=np.array([[1.0, 1.0, OPEN]]),
        free=np.array([free]),
        shortening=shortening,
        **arrays,
    )


@pytest.mark.parametrize(
    ("step", "projected", "shortened", "free"),
    [
        ([0.5, 0.25, 8.0], [0.5, 0.25, 8.0], [0.5, 0.25, 8.0], [1, 1, 1]),
        ([2.0, 0.25, 8.0], [1.0, 0.25, 8.0], [1.0, 0.125, 4.0], [1, 1, 1]),
        ([2.0, 2.0, -0.5], [1.0, 0.5, -0.25], [0.5, 0.5, -0.125], [1, 1, 1]),
        # what leaves the bound that it is at stops nothing else
        ([-2.0, 0.25, 1.0], [0.0, 0.25, 1.0], [0.0, 0.25, 1.0], [0, 1, 1]),
        ([-2.0, 1.0, 1.0], [0.0, 0.5, 1.0], [0.0, 0.5, 0.5], [0, 1, 1]),
    ],
)
def test_steps_end_at_bounds(
    step: list[float], projected: list[float], shortened: list[float], free: list[float]
) -> None:
    for shortening, expected in ((0.0, projected), (1.0, shortened)):
        found = _clip(step, shortening)
        assert_allclose(found["step"], [expected], rtol=1e-15)
        assert_array_equal(found["free"], [free])
        # of scaled variables
        diagonal = np.array([4.0, 0.25, 9.0])
        scaled = _clip(np.sqrt(diagonal) * step, shortening, diagonal)
        assert_allclose(scaled["step"], [np.sqrt(diagonal) * expected], rtol=1e-15)


def test_little_room_stops_no_other_number() -> None:
    """It is a tenth of the step at most; if the step is rejected, the next one takes it there."""
    for shortening, step in ((0.0, [1.0, 0.25, -0.25]), (1.0, [1.0, 0.125, -0.25])):
        found = _clip([2.0, 0.25, -2.6], shortening)
        assert_allclose(found["step"], [step], rtol=1e-15)
        assert_array_equal(found["free"], [[1, 1, TO_LOWER]])


@pytest.mark.parametrize("diagonal", [None, (4.0, 0.25, 9.0)])
def test_a_number_that_was_sent_goes_there_once(diagonal: Any) -> None:
    """The linear solve held it. If that fails too, it is free again and stops its node."""
    roots = np.sqrt(np.ones(3) if diagonal is None else diagonal)
    sent = (1.0, TO_UPPER, TO_LOWER)
    found = _clip(roots * [0.125, 0.0, 0.0], 1.0, diagonal, sent)
    assert_allclose(found["step"], [roots * [0.125, 0.5, -0.25]], rtol=1e-15)
    assert_array_equal(found["free"], [[1, WAS_SENT, WAS_SENT]])
    found = _clip(roots * [0.125, 8.0, -0.125], 1.0, diagonal, (1.0, WAS_SENT, WAS_SENT))
    assert_allclose(found["step"], [roots * [0.125, 8.0, -0.125] / 16.0], rtol=1e-15)
    assert_array_equal(found["free"], [[1, WAS_SENT, WAS_SENT]])


def test_first_steps_keep_a_share_of_the_way() -> None:
    found = _clip([2.0, -0.4, -0.25], 0.25)
    assert_allclose(found["step"], [[0.75, -0.375, -0.1875]], rtol=1e-15)


def test_damping_knows_numbers_that_go_to_a_bound() -> None:
    """Their D is of their own derivatives, as they are part of the step; of held ones it is 1."""
    squares = [4.0, 9.0, 16.0]
    found = evaluate(
        factorize_kernel(PLACE, FLOAT64, masked=True, bounded=True),
        block=np.array([[4.0, 0.0, 9.0, 0.0, 0.0, 16.0]]),
        free=np.array([[1.0, TO_LOWER, 0.0]]),
        influence=np.zeros((1, 3)),
        damping=1e-12,
        levelling=0.0,
    )
    assert_allclose(found["diagonal"], [[*squares[:2], 1.0]], rtol=1e-6)
    assert_array_equal(found["preconditioner"][0, [2, 5]] == 0.0, [True, True])


def test_nan_is_not_hidden() -> None:
    for shortening in (0.0, 1.0):
        assert np.isnan(_clip([np.nan, 0.0, 0.0], shortening)["step"][0, 0])


def _retract(node: NodeType, step: Any, nodes: Any, lower: Any, upper: Any) -> Array:
    zero, one = np.zeros((1, node.tangent_dim)), np.ones((1, node.tangent_dim))
    found = evaluate(
        retract_kernel(node, FLOAT64, masked=True, bounded=True),
        nodes=np.array([nodes], np.float64),
        step=np.array([step], np.float64),
        lower=np.array([lower]),
        upper=np.array([upper]),
        free=one,
        gradient=zero,
        residual=zero,
        diagonal=one,
        influence=zero,
        damping=1.0,
    )
    candidate: Array = found["candidate"][0]
    return candidate


def test_rounding_does_not_miss_a_bound() -> None:
    """Left short of it by a rounding of the step, a number would never be at its bound."""
    rounding = 1.0 - 2.0**-52
    moved = _retract(
        PLACE, [-rounding, 0.7 * rounding, 0.5], [1.0, 0.3, 0.0], [0.0, 0.0, 0.0], [9.0, 1.0, 1.0]
    )
    assert_array_equal(moved, [0.0, 1.0, 0.5])
    # what does not reach it is left alone
    moved = _retract(PLACE, [-0.999999, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0] * 3, [OPEN] * 3)
    assert_allclose(moved, [1e-6, 0.5, 0.0], rtol=1e-9)


def test_a_position_has_bounds_while_its_rotation_turns() -> None:
    lower = [-OPEN] * 3 + [0.0, -OPEN, -OPEN]
    upper = [OPEN] * 3 + [1.0, OPEN, OPEN]
    moved = _retract(POSE, [0.1, 0.0, 0.0, 2.0, 2.0, 2.0], [0, 0, 0, 1, 0, 0, 0], lower, upper)
    assert_allclose(moved, [np.sin(0.05), 0, 0, np.cos(0.05), 1.0, 2.0, 2.0], atol=1e-12)


def test_eliminated_nodes_end_at_their_bounds() -> None:
    """Their step is made where it is taken; the model counts what is left of it."""
    identity = np.array([[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    found = evaluate(
        eliminated_retract_kernel(PLACE, FLOAT64, masked=True, bounded=True),
        nodes=np.zeros((1, 3)),
        gradient=np.array([[-2.0, 2.0, -0.5]]),
        inner=np.zeros((1, 3)),
        preconditioner=identity,
        diagonal=np.ones((1, 3)),
        lower=np.array([[-1.0, 0.0, -1.0]]),
        upper=np.ones((1, 3)),
        free=np.ones((1, 3)),
        shortening=0.0,
        damping=0.0,
    )
    assert_array_equal(found["candidate"], [[1.0, 0.0, 0.5]])
    assert_array_equal(found["free"], [[1.0, 0.0, 1.0]])
    assert found["model"][0, 0] == -2.0 - 0.25


def test_float32_bounds_are_met_in_float32() -> None:
    types = TYPES[Precision.FLOAT32]
    found = evaluate(
        retract_kernel(PLACE, types, masked=True, bounded=True),
        nodes=np.full((1, 3), 0.3),
        step=np.full((1, 3), -0.3 + 1e-8),
        lower=np.zeros((1, 3)),
        upper=np.ones((1, 3)),
        free=np.ones((1, 3)),
        gradient=np.zeros((1, 3)),
        residual=np.zeros((1, 3)),
        diagonal=np.ones((1, 3)),
        influence=np.zeros((1, 3)),
        damping=1.0,
    )
    assert_array_equal(found["candidate"], np.zeros((1, 3)))
