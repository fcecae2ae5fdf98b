"""Gradients through solves with constraints, against differences of solves."""

from typing import Annotated, Any

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar.errors import InputError
from tests.solver.constraints.test_covariance import problem
from tests.solver.constraints.test_equations import apart, at_least, prior

SOLVER = caspar.Solver([prior, apart, at_least], backend="cpu")

TURN = np.array([[0.3], [-1.0], [0.7], [0.4], [1.1]])
"""Derivative of the loss function by the places."""


def changed(arrays: dict[str, Any], factor: str, argument: str, entry: int, by: float) -> Any:
    rows = np.array(arrays[factor][argument], float)
    rows[entry] += by
    return {**arrays, factor: {**arrays[factor], argument: rows}}


@pytest.mark.parametrize(
    ("factor", "argument"),
    [("prior", "measured"), ("prior", "root"), ("apart", "distance"), ("at_least", "least")],
)
def test_linear_constraints(factor: str, argument: str) -> None:
    arrays, step = problem(), 1e-5
    gradient = SOLVER.gradient(SOLVER.solve(arrays), {"Place": TURN})
    for entry in range(len(arrays[factor][argument])):
        ends = [
            float(
                (
                    TURN
                    * SOLVER.solve(changed(arrays, factor, argument, entry, by)).values["Place"]
                ).sum()
            )
            for by in (step, -step)
        ]
        expected = (ends[0] - ends[1]) / (2.0 * step)
        assert gradient[factor][argument][entry, 0] == pytest.approx(expected, rel=1e-6, abs=2e-7)
    assert set(gradient["apart"]) == {"distance"}
    assert gradient.remarks == ()


class Beacon(sf.V2): ...


@caspar.factor
def seen(
    beacon: Annotated[Beacon, caspar.TunableShared],
    position: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    return beacon - position


@caspar.constraint(kind="zero")
def rod(
    first: Annotated[Beacon, caspar.TunableShared],
    second: Annotated[Beacon, caspar.TunableShared],
    length: Annotated[sf.V1, caspar.ConstSequential],
) -> sf.V1:
    return sf.V1((first - second).norm(sf.epsilon()) - length[0])


def test_bent_constraints() -> None:
    """A rod much longer than what is seen: its bend counts as much as its slope."""
    solver = caspar.Solver([seen, rod], backend="cpu")
    positions = np.array([[0.0, 0.0], [1.0, 0.5], [0.5, 2.0]])

    def solve(positions: Any, length: float) -> caspar.SolveResult:
        arrays = {
            "Beacon": np.array([[-0.5, -0.1], [1.5, 0.4], [0.5, 2.5]]),
            "seen": {"beacon": [0, 1, 2], "position": positions},
            "rod": {"first": [0, 1], "second": [1, 2], "length": np.array([[length], [2.0]])},
        }
        return solver.solve(arrays)

    turn, step = np.array([[1.0, 0.3], [-0.5, 0.8], [0.2, -0.7]]), 1e-5
    gradient = solver.gradient(solve(positions, 2.5), {"Beacon": turn})

    def loss(positions: Any, length: float) -> float:
        return float((turn * solve(positions, length).values["Beacon"]).sum())

    by_length = (loss(positions, 2.5 + step) - loss(positions, 2.5 - step)) / (2.0 * step)
    assert gradient["rod"]["length"][0, 0] == pytest.approx(by_length, rel=1e-6)
    for place in np.ndindex(3, 2):
        moved = np.zeros((3, 2))
        moved[place] = step
        change = loss(positions + moved, 2.5) - loss(positions - moved, 2.5)
        found = gradient["seen"]["position"][place]
        assert found == pytest.approx(change / (2.0 * step), rel=1e-6, abs=1e-7)


def test_weakly_active_inequalities_are_remarked() -> None:
    arrays = problem()
    # what is measured is the limit itself
    arrays["at_least"]["least"][1] = 4.0
    gradient = SOLVER.gradient(SOLVER.solve(arrays), {"Place": TURN})
    assert any("at_least[1]" in remark for remark in gradient.remarks)


def test_arrays_have_no_multipliers() -> None:
    arrays = problem()
    result = SOLVER.solve(arrays)
    with pytest.raises(InputError, match="needs the result of its solve"):
        SOLVER.gradient({**arrays, **result.values}, {"Place": TURN})
