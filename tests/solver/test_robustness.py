"""At the edge a solve converges or says why: no NaN, no hang, no wrong status.

Bundle adjustment in small, with an eliminated node type; `test_degenerate` has the same without.
"""

import time
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import caspar
from caspar import SolveStatus
from caspar.options import BackendName, PrecisionName
from tests.covering import alternating, covering
from tests.harness_backend import HarnessBackend
from tests.solver import reference
from tests.solver.robust_cases import (
    ANCHORED,
    CASES,
    Case,
    assert_sound,
    depth,
    exact,
    glances,
)
from tests.solver.solving import ON_BACKENDS, Arrays, assert_same_values, changed, solver
from tests.support_cudss import require_library

PRECISIONS = pytest.mark.parametrize("precision", ["float64", "mixed"])
SOLVERS = ("auto", "pcg", "schur_pcg", "schur_dense", "sparse")
pytestmark = pytest.mark.filterwarnings("ignore:node type")


def made(
    case: Case, backend: BackendName, precision: PrecisionName, **choices: Any
) -> caspar.Solver:
    require_library(choices.get("linear_solver", "auto"), backend)
    if len(choices) == 0:
        return solver(case.factors, precision, backend)
    return caspar.Solver(case.factors, backend=backend, precision=precision, **choices)


def solved(case: Case, arrays: Arrays, used: caspar.Solver, **options: Any) -> caspar.SolveResult:
    start = time.perf_counter()
    result = used.solve(arrays, max_time_s=60.0, **options)
    assert time.perf_counter() - start < 300.0
    assert_sound(result, case.factors, arrays)
    return result


# -- structures ------------------------------------------------------------------------------------


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("linear_solver", SOLVERS)
@pytest.mark.parametrize("name", CASES)
def test_every_linear_solver_finds_a_minimum(
    name: str, linear_solver: str, precision: PrecisionName, backend: BackendName
) -> None:
    case = CASES[name]
    used = made(case, backend, precision, linear_solver=linear_solver)
    result = solved(case, case.make(), used)
    assert result.status.is_success, result


@ON_BACKENDS
@covering(
    name=["singular blocks", "free gauge", "marks seen once", "behind"],
    jacobian=["float16", "recompute"],
    precision=["float64", "mixed"],
)
def test_wherever_jacobians_are(
    name: str, jacobian: str, precision: PrecisionName, backend: BackendName
) -> None:
    case = CASES[name]
    result = solved(case, case.make(), made(case, backend, precision, jacobian=jacobian))
    assert result.status.is_success, result


@ON_BACKENDS
@pytest.mark.parametrize("name", CASES)
def test_without_inner_iterations(name: str, backend: BackendName) -> None:
    case = CASES[name]
    result = solved(case, case.make(), made(case, backend, "mixed", inner_iterations=0))
    assert result.status.is_success, result


@pytest.mark.parametrize(
    ("name", "deterministic"),
    alternating(["singular blocks", "marks seen once", "two parts"], [False, True]),
)
def test_on_cuda_texts(name: str, deterministic: bool) -> None:
    """In the harness: what a device runs, races and all."""
    case = CASES[name]
    used = caspar.Solver(
        case.factors, precision="mixed", deterministic=deterministic, backend=HarnessBackend(128)
    )
    result = used.solve(case.make(), max_iterations=4)
    assert_sound(result, case.factors, case.make())
    assert result.final_cost < result.initial_cost


@ON_BACKENDS
@PRECISIONS
def test_duplicates_weigh_more(precision: PrecisionName, backend: BackendName) -> None:
    """Every factor twice: twice the cost, the same values."""
    case, arrays = Case(ANCHORED, glances), glances()
    twice = {
        name: {key: np.concatenate([part, part]) for key, part in rows.items()}
        if isinstance(rows, dict)
        else rows
        for name, rows in arrays.items()
    }
    used = made(case, backend, precision)
    once, doubled = solved(case, arrays, used), solved(case, twice, used)
    assert doubled.final_cost == pytest.approx(2.0 * once.final_cost, rel=1e-5)
    for name in once.values:
        assert_allclose(doubled.values[name], once.values[name], atol=3e-3)


@ON_BACKENDS
@PRECISIONS
def test_parts_do_not_touch_each_other(precision: PrecisionName, backend: BackendName) -> None:
    """Each part of a disconnected problem goes where it goes alone."""
    case = CASES["two parts"]
    used = made(case, backend, precision)
    together = solved(case, case.make(), used, cost_tolerance=1e-10)
    alone = [solved(case, glances(seed=seed), used, cost_tolerance=1e-10) for seed in (1, 2)]
    assert together.final_cost == pytest.approx(sum(one.final_cost for one in alone), rel=1e-5)
    for name in together.values:
        parts = np.concatenate([one.values[name] for one in alone])
        assert_allclose(together.values[name], parts, atol=3e-3)


@ON_BACKENDS
@PRECISIONS
def test_nodes_that_no_factor_touches_stay(precision: PrecisionName, backend: BackendName) -> None:
    arrays = glances()
    views, marks = np.array([[1e30, -7.0, 3e-30]]), np.array([[-0.0, 123.456]])
    views, marks = (rows.astype(np.float32).astype(float) for rows in (views, marks))
    more = changed(arrays, "View", np.concatenate([arrays["View"], views]))
    more = changed(more, "Mark", np.concatenate([arrays["Mark"], marks]))
    case = Case(ANCHORED, glances)
    result = solved(case, more, made(case, backend, precision))
    assert result.status.is_success
    assert_array_equal(result.values["View"][-1:], views)
    assert_array_equal(result.values["Mark"][-1:], marks)


# -- numbers ---------------------------------------------------------------------------------------


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("linear_solver", SOLVERS)
def test_zero_residuals_at_the_start(
    linear_solver: str, precision: PrecisionName, backend: BackendName
) -> None:
    arrays, case = exact(), Case(ANCHORED, exact)
    assert reference.cost(ANCHORED, arrays) == 0.0
    result = solved(case, arrays, made(case, backend, precision, linear_solver=linear_solver))
    assert result.status is SolveStatus.CONVERGED_GRADIENT
    assert result.initial_cost == result.final_cost == 0.0
    assert_same_values(result.values, {name: arrays[name] for name in result.values})


@ON_BACKENDS
@PRECISIONS
def test_zero_residuals_at_the_end(precision: PrecisionName, backend: BackendName) -> None:
    """No relative test of the cost ever holds: it falls until it is rounding."""
    arrays, case = exact(), Case(ANCHORED, exact)
    random = np.random.default_rng(7)
    shaken = {
        name: arrays[name] + 0.1 * random.standard_normal(arrays[name].shape)
        for name in ("View", "Mark")
    }
    result = solved(case, {**arrays, **shaken}, made(case, backend, precision))
    assert result.status.is_success
    assert result.final_cost <= 1e-11 * result.initial_cost
    for name in shaken:
        assert_allclose(result.values[name], arrays[name], atol=1e-5)


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("linear_solver", ["auto", "pcg", "schur_pcg"])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_weights_of_all_factors_do_not_matter(
    scale: float, linear_solver: str, precision: PrecisionName, backend: BackendName
) -> None:
    """Every quantity of a linear problem a million times smaller or larger."""
    case = CASES["singular blocks"]
    arrays = case.make()
    scaled: Arrays = {
        "View": scale * arrays["View"],
        "Mark": scale * arrays["Mark"],
        "level": {**arrays["level"], "seen": scale * arrays["level"]["seen"]},
    }
    used = made(case, backend, precision, linear_solver=linear_solver)
    usual = solved(case, arrays, used)
    result = used.solve(scaled)
    back = {name: np.asarray(rows) / scale for name, rows in result.values.items()}
    assert result.status.is_success
    assert result.final_cost == pytest.approx(scale**2 * usual.final_cost, rel=1e-5)
    assert reference.largest_cosine(case.factors, {**arrays, **back}) < 3e-3


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("path", ["glance.seen", "pin.known"])
def test_constants_that_are_no_numbers(
    path: str, number: float, precision: PrecisionName, backend: BackendName
) -> None:
    """1e200 is one, but not its square, nor in float32."""
    arrays, case = glances(), Case(ANCHORED, glances)
    factor, argument = path.split(".")
    rows = arrays[factor][argument].copy()
    rows[3, 0] = number
    wrong = changed(arrays, path, rows)
    used = made(case, backend, precision)
    result = used.solve(wrong, check=False)
    assert result.status is SolveStatus.INITIAL_COST_NOT_FINITE
    assert not result.status.is_success
    assert result.iterations == ()
    assert_same_values(result.values, {name: arrays[name] for name in result.values})
    # and nothing of it is left
    assert solved(case, arrays, used).status.is_success


@ON_BACKENDS
@PRECISIONS
@pytest.mark.parametrize("linear_solver", SOLVERS)
def test_steps_out_of_the_domain_are_rejected(
    linear_solver: str, precision: PrecisionName, backend: BackendName
) -> None:
    """A logarithm: of the undamped steps most end where the cost is no number."""
    random = np.random.default_rng(8)
    count = 60
    arrays: Arrays = {
        "View": 0.1 * random.normal(size=(4, 3)),
        "Mark": np.column_stack([np.full(20, 30.0), random.normal(size=20)]),
        "depth": {
            "view": random.integers(0, 4, count),
            "mark": np.arange(count) % 20,
            "seen": random.normal(-4.0, 0.5, (count, 1)),
        },
    }
    case = Case((depth,), dict)
    used = made(case, backend, precision, linear_solver=linear_solver)
    result = solved(case, arrays, used)
    assert result.final_cost < 0.1 * result.initial_cost


@ON_BACKENDS
@PRECISIONS
def test_starts_out_of_the_domain(precision: PrecisionName, backend: BackendName) -> None:
    arrays: Arrays = {
        "View": np.zeros((2, 3)),
        "Mark": np.array([[1.0, 0.0], [-1.0, 0.0]]),
        "depth": {"view": [0, 1], "mark": [0, 1], "seen": [[0.0], [0.0]]},
    }
    result = made(Case((depth,), dict), backend, precision).solve(arrays)
    assert result.status is SolveStatus.INITIAL_COST_NOT_FINITE
    assert_same_values(result.values, {name: arrays[name] for name in result.values})
