"""The swing-up of a pole on a cart ends at the cost that fatrop and Ipopt find."""

import copy
import pickle

import numpy as np
import pytest

import caspar
from benchmarks import cart_pole
from caspar import SolveStatus

SOLVER = caspar.Solver([cart_pole.effort, cart_pole.dynamics], backend="cpu")


@pytest.mark.parametrize("num_steps", cart_pole.COSTS)
def test_known_costs(num_steps: int) -> None:
    result = cart_pole.solve(SOLVER, num_steps)
    assert result.status.is_success
    assert 2.0 * result.final_cost == pytest.approx(cart_pole.COSTS[num_steps], rel=1e-10)
    assert len(result.iterations) <= 30
    assert result.violation is not None
    assert result.violation.unscaled <= 1e-13
    ends = cart_pole.arrays(num_steps)["State"][[0, -1]]
    assert np.array_equal(result.values["State"][[0, -1]], ends)
    assert result.multipliers["dynamics"].shape == (num_steps, 4)
    assert [record.iteration for record in result.iterations] == list(
        range(1, len(result.iterations) + 1)
    )


def test_bounds_that_bind() -> None:
    """Less force than the swing-up would like: its first steps are at the bound."""
    num_steps = 50
    limits = cart_pole.limits(num_steps)
    limits["bounds"]["Force"] = (-9.0, 9.0)
    result = SOLVER.solve(cart_pole.arrays(num_steps), **limits)
    assert result.status.is_success
    assert result.violation is not None
    assert result.violation.unscaled <= 1e-12
    assert np.abs(result.values["Force"]).max() <= 9.0
    assert np.count_nonzero(result.active_bounds["Force"]) > 0
    assert 2.0 * result.final_cost > cart_pole.COSTS[num_steps]


def test_callbacks_get_the_steps_of_newtons_method() -> None:
    recording = caspar.Recording()
    result = cart_pole.solve(SOLVER, 50, on_iteration=recording)
    assert result.status.is_success
    records: list[caspar.IterationRecord] = []

    def stops(record: caspar.IterationRecord) -> bool:
        records.append(record)
        assert set(record.values()) == {"State", "Force"}
        return record.iteration == 3

    stopped = cart_pole.solve(SOLVER, 50, on_iteration=stops)
    assert stopped.status is SolveStatus.STOPPED
    assert [record.iteration for record in records] == [1, 2, 3]
    assert len(stopped.iterations) == 3


def test_steps_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    result = cart_pole.solve(SOLVER, 50, verbose=True)
    captured = capsys.readouterr()
    printed = (captured.out + captured.err).count("iteration ")
    assert printed == len(result.iterations)


def test_solvers_of_constraints_are_copied_and_pickled() -> None:
    for again in (copy.copy(SOLVER), pickle.loads(pickle.dumps(SOLVER))):
        result = cart_pole.solve(again, 50)
        assert 2.0 * result.final_cost == pytest.approx(cart_pole.COSTS[50], rel=1e-10)


def test_reports_have_a_line() -> None:
    text = " ".join(str(cart_pole.solve(SOLVER, 50)).split())
    assert "constraints hold to " in text
    assert "with a multiplier: 200 of 200 entries of dynamics" in text
