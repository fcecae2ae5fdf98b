"""Constraints of batches on a device: as on the processor, from arrays of the host and device."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar import SolveStatus
from caspar.batch.result import on_host
from tests.batch.test_batch_constraints import (
    LIMITS,
    above,
    arms,
    as_ragged,
    folded,
    hand,
    near,
    rest,
    rod,
    webs,
)
from tests.gpu.test_batches import _on_device

pytestmark = pytest.mark.gpu


def compare(factors: list[Any], arrays: dict[str, Any], **restrictions: Any) -> caspar.BatchResult:
    """Solve on the processor, and on a device with arrays of the host and of the device."""
    cpu = caspar.BatchSolver(factors, backend="cpu").solve(arrays, **restrictions)
    solver = caspar.BatchSolver(factors, backend="cuda")
    cuda = solver.solve(arrays, **restrictions)
    there = solver.solve(_on_device(arrays), **restrictions)
    assert_array_equal(cuda.is_success, cpu.is_success)
    own = cpu.is_success
    assert cuda.violation.scaled[own].max() < 1e-9
    for name, rows in cuda.values.items():
        assert_allclose(rows[own], cpu.values[name][own], atol=1e-6)
        assert not isinstance(there.values[name], np.ndarray)
        assert_array_equal(on_host(there.values[name]), rows)
    for name, rows in cuda.multipliers.items():
        assert rows.shape == cpu.multipliers[name].shape
        assert not isinstance(there.multipliers[name], np.ndarray)
        assert_array_equal(on_host(there.multipliers[name]), rows)
    assert_array_equal(cuda.num_residuals, cpu.num_residuals)
    return cuda


def test_arms_within_limits() -> None:
    arrays = {**arms(60), "folded": {"most": np.array([[1.05]])}}
    arrays["hand"]["pose"][7] = [9.0, 9.0, 1.0]
    found = compare([rest, hand, folded], arrays, bounds={"Arm": LIMITS})
    assert found.status[7] is SolveStatus.INFEASIBLE
    assert found.is_success.sum() > 50


def test_ragged_constraints_held_and_spoilt_problems() -> None:
    arrays, held = webs(20), np.zeros((20, 4), np.bool_)
    arrays["near"]["place"][6, 0, 0] = np.nan
    held[4], held[5, 0] = True, True
    keeps = np.random.default_rng(5).uniform(size=(20, 4)) < 0.7
    found = compare([near, rod, above], as_ragged(arrays, keeps), fixed={"Spot": held.ravel()})
    assert found.status[4] is SolveStatus.INFEASIBLE
    assert found.status[6] is SolveStatus.INITIAL_COST_NOT_FINITE
    assert np.delete(found.is_success, [4, 6]).all()
