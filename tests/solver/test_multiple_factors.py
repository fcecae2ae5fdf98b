"""Graphs of several factor and node types reach the optimum that SciPy finds."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose

import caspar
from tests.problems import EXAMPLES, Arrays, vehicle_arrays
from tests.solver import reference
from tests.solver.solving import ON_BACKENDS, solve_example, solver

TOLERANCES = {"float64": 1e-6, "mixed": 1e-5}
"""Relative to the cost. Mixed precision rounds measurements to float32."""


@cache
def example_arrays(name: str) -> Arrays:
    return EXAMPLES[name].arrays()


@cache
def optimum(name: str) -> reference.Optimum:
    return reference.minimize_with_scipy(EXAMPLES[name].factors, example_arrays(name))


@ON_BACKENDS
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_reaches_the_optimum_of_scipy(name: str, precision: str, backend: str) -> None:
    factors, arrays = EXAMPLES[name].factors, example_arrays(name)
    result = solver(factors, precision, backend).solve(arrays)
    tolerance = TOLERANCES[precision]
    assert result.status.is_success
    assert result.initial_cost == pytest.approx(reference.cost(factors, arrays), rel=tolerance)
    assert result.final_cost == pytest.approx(optimum(name).cost, rel=tolerance)
    returned = reference.cost(factors, {**arrays, **result.values})
    assert result.final_cost == pytest.approx(returned, rel=tolerance)


@pytest.mark.parametrize("name", EXAMPLES)
def test_finds_the_values_of_scipy(name: str) -> None:
    result = solve_example(name, example_arrays(name), cost_tolerance=1e-13)
    for node, expected in optimum(name).values.items():
        assert_allclose(result.values[node], expected, atol=1e-5)


def test_problem_size_is_counted() -> None:
    problem = solve_example("robot", example_arrays("robot"), max_iterations=1).problem
    assert problem.nodes == {"Pose": 24, "Landmark": 10, "Mount": 1}
    assert problem.factors == {
        "odometry": 23,
        "loop_closure": 3,
        "position_fix": 5,
        "sighting": 80,
    }
    assert problem.num_unknowns == 6 * 24 + 3 * 10 + 6
    assert problem.num_residuals == 6 * 23 + 6 * 3 + 3 * 5 + 3 * 80


def test_a_pair_is_two_shared_nodes() -> None:
    """The same measurements between neighbours as pairs and as indexed nodes."""
    arrays = example_arrays("robot")
    count = len(arrays["Pose"]) - 1
    odometry = arrays["odometry"]
    closure = arrays["loop_closure"]
    as_closures = {
        **arrays,
        "loop_closure": {
            "start": np.concatenate([closure["start"], np.arange(count)]),
            "end": np.concatenate([closure["end"], np.arange(count) + 1]),
            "motion": np.concatenate([closure["motion"], odometry["motion"]]),
            "deviation": closure["deviation"],
        },
    }
    # the pairs themselves stay, with next to no weight
    as_closures["odometry"] = {**odometry, "deviation": np.array([1e6, 1e6])}
    first, second = solve_example("robot", arrays), solve_example("robot", as_closures)
    assert second.initial_cost == pytest.approx(first.initial_cost, rel=1e-9)
    assert second.final_cost == pytest.approx(first.final_cost, rel=1e-6)


def test_order_of_instances_does_not_matter() -> None:
    """Many instances are sorted by their nodes, and what they own with them."""
    arrays = vehicle_arrays(4000)
    random = np.random.default_rng(0)
    ranging, compass = (random.permutation(count) for count in (12000, 4000))
    beacon, device = arrays["ranging"]["beacon"], arrays["compass"]["device"]
    shuffled = {
        **arrays,
        "ranging": {
            "state": arrays["ranging"]["state"][ranging],
            "beacon": {**beacon, "index": beacon["index"][ranging]},
            "distance": arrays["ranging"]["distance"][ranging],
        },
        "compass": {
            "state": arrays["compass"]["state"][compass],
            "heading": arrays["compass"]["heading"][compass],
            "device": {**device, "index": device["index"][compass]},
        },
    }
    cost = reference.cost(EXAMPLES["vehicle"].factors, arrays)
    for given in (arrays, shuffled):
        result = solve_example("vehicle", given, max_iterations=5)
        assert result.initial_cost == pytest.approx(cost, rel=1e-12)
        assert result.final_cost < 0.1 * cost
        found = reference.cost(EXAMPLES["vehicle"].factors, {**arrays, **result.values})
        assert result.final_cost == pytest.approx(found, rel=1e-9)


def test_order_of_factors_does_not_matter() -> None:
    factors = EXAMPLES["grid"].factors
    arrays = example_arrays("grid")
    first = solver(factors).solve(arrays)
    second = caspar.Solver(factors[::-1], backend="cpu", precision="float64").solve(arrays)
    assert second.final_cost == pytest.approx(first.final_cost, rel=1e-12)
