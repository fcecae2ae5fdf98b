"""The example of paths in a distance field, against its residuals by NumPy and SciPy's optimum."""

import numpy as np
from numpy.testing import assert_allclose
from scipy.optimize import least_squares

import caspar
from benchmarks.field_paths import OnePath
from caspar.runtime.nvidia.nvrtc import compile_text
from examples import field_paths
from tests.harness_backend import HarnessBackend

FACTORS = [field_paths.clear, field_paths.straight, field_paths.ends]
WORLD = field_paths.simulate(24)
ARRAYS = field_paths.arrays_of(WORLD)
PATHS = [OnePath(ARRAYS["clear"]["field"], one) for one in WORLD.targets]


def test_jacobians_of_the_loop_are_derivatives() -> None:
    knots = ARRAYS["Way"][3].ravel() + 0.01
    one = PATHS[3]
    steps = 1e-6 * np.eye(len(knots))
    numeric = [(one.residuals(knots + s) - one.residuals(knots - s)) / 2e-6 for s in steps]
    assert_allclose(one.jacobian(knots), np.stack(numeric, axis=1), atol=1e-6)


def test_paths_keep_their_distance() -> None:
    solver = caspar.BatchSolver(FACTORS, backend="cpu")
    result = solver.solve(ARRAYS, **field_paths.OPTIONS)
    values = result.values["Way"]
    costs = [one.cost(knots) for one, knots in zip(PATHS, values, strict=True)]
    assert_allclose(result.final_cost, costs, rtol=1e-9)
    starts = [one.cost(knots) for one, knots in zip(PATHS, ARRAYS["Way"], strict=True)]
    assert_allclose(result.initial_cost, starts, rtol=1e-9)
    points = field_paths.points_of(values)
    assert_allclose(points[:, [0, -1]], WORLD.targets, atol=1e-3)
    free, were_free = (
        np.mean(WORLD.distances(one).min(axis=1) > 0)
        for one in (points, field_paths.points_of(ARRAYS["Way"]))
    )
    assert free > 0.8
    assert free > were_free + 0.3


def test_optima_are_those_of_scipy() -> None:
    solver = caspar.BatchSolver(FACTORS, backend="cpu")
    result = solver.solve(ARRAYS, cost_tolerance=1e-9, max_iterations=100)
    # paths that no kink of the field is near, where two obstacles are equally far
    for number in (2, 6, 14, 16, 19, 22, 23):
        assert result.is_success[number]
        one, mine = PATHS[number], result.values["Way"][number]
        best = least_squares(one.residuals, mine.ravel(), one.jacobian, xtol=1e-14, ftol=1e-14)
        assert_allclose(result.final_cost[number], best.cost, rtol=1e-6)


def test_the_kernel_compiles_for_cuda() -> None:
    source = caspar.BatchSolver(FACTORS, backend=HarnessBackend(), precision="float32").source(
        ARRAYS
    )
    assert compile_text(source, "sm_90").warnings == ()
