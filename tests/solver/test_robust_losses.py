"""The losses of `examples/robust_losses.py` against SciPy's."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import least_squares

import caspar
from caspar.options import BackendName, PrecisionName
from examples.robust_losses import (
    LOSSES,
    TRUE_LINE,
    Loss,
    geman_mcclure,
    point_with,
    simulate,
)
from tests.solver.solving import ON_BACKENDS

SCALE = 0.1


def geman_mcclure_of(s: Any) -> Any:
    """As SciPy takes it: the loss and its first two derivatives, (3, m)."""
    return np.array([s / (1 + s), (1 + s) ** -2.0, -2 * (1 + s) ** -3.0])


@ON_BACKENDS
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_agrees_with_scipy(loss: Loss, backend: BackendName) -> None:
    arrays = simulate()
    at, height = (arrays["point"][name].ravel() for name in ("at", "height"))
    arrays["Line"] = np.array([[1.2, 0.45]])
    expected = least_squares(
        lambda line: height - line[0] - line[1] * at,
        arrays["Line"][0],
        loss=geman_mcclure_of if loss is geman_mcclure else loss.__name__,
        f_scale=SCALE,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
    )
    solver = caspar.Solver(point_with(loss), precision="float64", backend=backend)
    result = solver.solve(arrays, cost_tolerance=1e-12)
    assert_allclose(result.values["Line"][0], expected.x, atol=1e-5)
    assert_allclose(result.final_cost, expected.cost, rtol=1e-8)


@ON_BACKENDS
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_residuals_that_are_zero(
    loss: Loss, precision: PrecisionName, backend: BackendName
) -> None:
    """At the start all but a few, then all."""
    arrays = simulate()
    at = np.round(arrays["point"]["at"])  # few bits: exact in float32
    height = TRUE_LINE[0] + TRUE_LINE[1] * at
    wrong = height.copy()
    wrong[::10] += 20.0
    arrays["Line"] = np.array([TRUE_LINE])
    arrays["point"]["at"] = at
    solver = caspar.Solver(point_with(loss), precision=precision, backend=backend)
    arrays["point"]["height"] = wrong
    assert solver.solve(arrays).status.name.startswith("CONVERGED")
    arrays["point"]["height"] = height
    exact = solver.solve(arrays)
    assert exact.status.name.startswith("CONVERGED")
    assert exact.final_cost < 1e-12
    assert_allclose(exact.values["Line"], [TRUE_LINE], atol=1e-6)
