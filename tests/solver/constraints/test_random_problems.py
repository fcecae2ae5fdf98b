"""Random problems end no higher than SciPy's SLSQP; contradicting ones are never a success."""

import numpy as np
import pytest

import caspar
from benchmarks.constrained_random import (
    by_slsqp,
    contradicting,
    drawn,
    equation,
    inequality,
    repeating,
    residual,
)
from caspar import SolveStatus

SOLVER = caspar.Solver([residual, equation, inequality], backend="cpu")


@pytest.mark.parametrize("seed", range(10))
def test_beside_slsqp(seed: int) -> None:
    problem = drawn(seed)
    result = SOLVER.solve(problem.arrays)
    values = np.asarray(result.values["Values"])[0]
    assert result.status.is_success
    assert problem.violation(values) <= 1e-10
    assert result.final_cost == pytest.approx(problem.cost(values), rel=1e-9)
    other, claims = by_slsqp(problem)
    if claims and problem.violation(other) <= 1e-6:
        assert result.final_cost <= problem.cost(other) * (1.0 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_contradictions(seed: int) -> None:
    result = SOLVER.solve(contradicting(seed).arrays)
    assert result.status is SolveStatus.INFEASIBLE
    assert "does not hold" in result.remarks[0]


@pytest.mark.parametrize("seed", [seed for seed in range(8) if len(drawn(seed).equations) > 0])
def test_repetitions(seed: int) -> None:
    result = SOLVER.solve(repeating(seed).arrays)
    alone = SOLVER.solve(drawn(seed).arrays)
    assert result.status.is_success
    assert result.final_cost == pytest.approx(alone.final_cost, rel=1e-6)
    assert any("active entries of constraints depend" in remark for remark in result.remarks)


@pytest.mark.parametrize("seed", [607, 679, 841])
def test_minima_are_kept(seed: int) -> None:
    """A start at a minimum ends there, although a solve from elsewhere finds another one."""
    problem = drawn(seed)
    other, _ = by_slsqp(problem)
    result = SOLVER.solve({**problem.arrays, "Values": other[None]})
    assert result.status.is_success
    assert result.final_cost == pytest.approx(problem.cost(other), rel=1e-6)
    assert len(result.iterations) <= 6
    assert result.final_cost < 0.999 * SOLVER.solve(problem.arrays).final_cost


def test_values_in_float32() -> None:
    problem = drawn(1)
    arrays = {**problem.arrays, "Values": problem.start[None].astype(np.float32)}
    result = SOLVER.solve(arrays)
    assert result.status.is_success
    assert result.values["Values"].dtype == np.float32
    assert result.violation is not None
    assert result.violation.scaled <= 1e-5
