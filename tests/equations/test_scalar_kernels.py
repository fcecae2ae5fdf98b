"""The kernels of the scalars compute what their documentation says."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from caspar.equations.scalar_kernels import LinearOutcome, scalar_kernels
from tests.frontend.kernels.evaluating_kernels import FLOAT64, evaluate


class TestScalars:
    """The scalars' kernels, with sums that hold one partial."""

    def run(self, name: str, **inputs: Any) -> dict[str, float]:
        kernels = {spec.name: spec for spec in scalar_kernels(FLOAT64)}
        found = evaluate(kernels[name], **inputs)
        return {key: float(array[0, 0]) for key, array in found.items()}

    @pytest.mark.parametrize(
        ("descent", "outcome"),
        [
            (2.0, LinearOutcome.RUNNING),
            (0.0, LinearOutcome.AT_OPTIMUM),
            (np.nan, LinearOutcome.NOT_FINITE),
            (np.inf, LinearOutcome.NOT_FINITE),
        ],
    )
    def test_begin(self, descent: float, outcome: LinearOutcome) -> None:
        found = self.run("pcg_begin", descents=descent)
        assert found["done"] == outcome
        assert_array_equal([found["descent"], found["first_descent"]], [descent, descent])
        if np.isfinite(descent):
            assert found["linear_iterations"] == 0.0

    @pytest.mark.parametrize(
        ("curvature", "alpha", "outcome"),
        [
            (4.0, 0.5, LinearOutcome.RUNNING),
            (0.0, 0.0, LinearOutcome.NO_CURVATURE),
            (-1.0, 0.0, LinearOutcome.NO_CURVATURE),
            (np.nan, 0.0, LinearOutcome.NO_CURVATURE),
            (np.inf, 0.0, LinearOutcome.NO_CURVATURE),
        ],
    )
    def test_alpha(self, curvature: float, alpha: float, outcome: LinearOutcome) -> None:
        found = self.run("pcg_alpha", curvatures=curvature, descent=2.0)
        assert (found["alpha"], found["done"]) == (alpha, outcome)

    @pytest.mark.parametrize(
        ("descent", "iteration", "outcome"),
        [
            (1.0, 3, LinearOutcome.RUNNING),
            (0.01, 9, LinearOutcome.TOLERANCE),
            (0.01, 3, LinearOutcome.RUNNING),
            (0.0, 0, LinearOutcome.TOLERANCE),
            (1.0, 19, LinearOutcome.ITERATIONS),
            (0.01, 19, LinearOutcome.TOLERANCE),
            (np.nan, 3, LinearOutcome.NOT_FINITE),
            (np.inf, 19, LinearOutcome.NOT_FINITE),
        ],
    )
    def test_beta(self, descent: float, iteration: int, outcome: LinearOutcome) -> None:
        """Tolerance 0.1 on the norm is 0.01 on its square, of a first value of 4."""
        found = self.run(
            "pcg_beta",
            descents=descent,
            descent=2.0,
            first_descent=4.0,
            linear_iterations=iteration,
            linear_tolerance=0.1,
            min_linear_iterations=8,
            max_linear_iterations=20,
        )
        assert found["done"] == outcome
        assert found["linear_iterations"] == iteration + 1
        assert_array_equal([found["beta"], found["descent"]], [descent / 2.0, descent])

    def test_collect(self) -> None:
        found = self.run("collect", costs=7.0, models=[1.0, 2.0, 3.0, 4.0, 5.0])
        assert found == {
            "cost": 7.0,
            "step_gradient": 1.0,
            "step_residual": 2.0,
            "step_damping": 3.0,
            "step_norm": 4.0,
            "eliminated_descent": 5.0,
        }
