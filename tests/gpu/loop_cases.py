"""What tests of loops on a device share: backends that repeat, and solves in a fixed order."""

from typing import Any

import numpy as np
import pytest

import caspar
from caspar.bundle_adjustment import snavely
from caspar.options import JacobianName
from caspar.runtime.nvidia.probe import graph_loop_problem

cuda = pytest.importorskip("caspar.runtime.cuda.backend")
cuda_loop = pytest.importorskip("caspar.runtime.cuda.loop.loop")


def repeating_backend() -> Any:
    """A backend whose device repeats graphs by itself; else the test is skipped."""
    problem = graph_loop_problem()
    if problem is not None:
        pytest.skip(problem)
    return cuda.CudaBackend()


def ordered_solver(jacobian: JacobianName = "auto") -> caspar.Solver:
    """All sums in a fixed order."""
    return caspar.Solver(
        [snavely],
        backend="cuda",
        deterministic=True,
        linear_solver="schur_pcg",
        jacobian=jacobian,
    )


def assert_same_bits(first: Any, second: Any) -> None:
    """Of two results."""
    assert second.final_cost == first.final_cost
    for name, values in second.values.items():
        np.testing.assert_array_equal(values, first.values[name], name)


def keeps_products_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a large problem: products are launches, all else is one kernel."""
    fits = cuda_loop._is_resident

    def is_small(phase: Any) -> bool:
        return bool(fits(phase)) and sum(launch.call[1] for launch in phase) < 100

    monkeypatch.setattr(cuda, "fits_device", lambda phases: False)
    monkeypatch.setattr(cuda_loop, "_is_resident", is_small)
