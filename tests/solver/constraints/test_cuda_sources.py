"""Kernels of constraints as CUDA sources, in the harness, give what those of the processor do."""

from typing import Any

import numpy as np
import pytest

import caspar
from tests.harness_backend import HarnessBackend
from tests.solver.constraints.test_covariance import problem
from tests.solver.constraints.test_equations import apart, at_least, prior


@pytest.mark.reliability
def test_solve_and_gradient() -> None:
    arrays, turn = problem(), {"Place": np.ones((5, 1))}
    backends: list[Any] = [HarnessBackend(), "cpu"]
    solvers = [caspar.Solver([prior, apart, at_least], backend=one) for one in backends]
    results = [solver.solve(arrays) for solver in solvers]
    assert results[0].backend == "cuda"
    for result, solver in zip(results, solvers, strict=True):
        assert result.status.is_success
        assert result.values["Place"] == pytest.approx(results[1].values["Place"], rel=1e-12)
        for name, rows in result.multipliers.items():
            assert rows == pytest.approx(results[1].multipliers[name], rel=1e-9, abs=1e-12)
        gradient = solver.gradient(result, turn)
        expected = solvers[1].gradient(results[1], turn)
        found = gradient["apart"]["distance"]
        assert found == pytest.approx(expected["apart"]["distance"], rel=1e-9)
