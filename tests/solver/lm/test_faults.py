"""Factors whose residuals or derivatives are not finite are named, and so are the instances."""

import math
from typing import Annotated

import numpy as np
import pytest
import symforce.symbolic as sf

import caspar
from caspar import SolveStatus
from caspar.options import BackendName, LinearSolverName
from tests.solver.linear.linear_cases import MIX, View, fresh, hold, problem_of, solver_names
from tests.solver.lm.scripted import REJECTED, run, steps
from tests.solver.solving import ON_BACKENDS, changed
from tests.support_cudss import require_library


@caspar.factor
def bend(
    view: Annotated[View, caspar.TunableShared], known: Annotated[sf.V1, caspar.ConstSequential]
) -> sf.V1:
    """Its derivative at zero is not finite."""
    return sf.V1(sf.sqrt(view[2] ** 2) - known[0])


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", solver_names(MIX))
@pytest.mark.parametrize("precision", ["float64", "mixed"])
def test_instances_have_the_numbers_that_the_user_gave(
    linear_solver: str, precision: str, backend: BackendName
) -> None:
    """In whichever order they are kept, and with holes between them."""
    require_library(linear_solver, backend)
    _, arrays = problem_of(MIX)
    seen = np.array(arrays["glance"]["seen"])
    seen[[3, 11, 5], 1] = math.nan, math.inf, -math.inf
    known = np.array(arrays["hold"]["known"])
    known[4, 1] = math.nan
    wrong = changed(changed(arrays, "glance.seen", seen), "hold.known", known)
    made = fresh(backend=backend, linear_solver=linear_solver, precision=precision)
    result = made.solve(wrong, check=False)
    assert result.status is SolveStatus.INITIAL_COST_NOT_FINITE
    assert result.remarks[-1] == (
        "The residuals of these factors are not finite: "
        "glance (3 instances, first 3), hold (1 instance, first 4)."
    )


@ON_BACKENDS
@pytest.mark.parametrize("linear_solver", ["pcg", "sparse"])
def test_derivatives(linear_solver: LinearSolverName, backend: BackendName) -> None:
    require_library(linear_solver, backend)
    arrays = {name: problem_of(MIX)[1][name] for name in ("View", "hold")}
    views = np.array(arrays["View"])
    views[1, 2] = 0.0
    arrays = {**arrays, "View": views, "bend": {"view": [0, 1], "known": [[1.0], [1.0]]}}
    made = caspar.Solver((hold, bend), backend=backend, linear_solver=linear_solver)
    for _ in range(2):
        result = made.solve(arrays)
        assert result.status is SolveStatus.DERIVATIVES_NOT_FINITE
        named = "bend (1 instance, first 1)"
        assert result.remarks[-1] == f"The derivatives of these factors are not finite: {named}."
    # nothing of it stays
    views[1, 2] = 0.1
    assert made.solve(arrays).status.is_success


def test_candidates_without_a_cost() -> None:
    """All since the last accepted step: else something else is at fault too."""
    jump = REJECTED._replace(cost=math.inf)
    for script, is_told in (
        ([*steps(1.0), *[jump] * 9], True),
        ([*steps(1.0), REJECTED, *[jump] * 9], False),
    ):
        course, _ = run(script, initial_damping=0.1, max_damping=6.0)
        assert course.status is SolveStatus.DAMPING_LIMIT
        assert any("had a finite cost" in remark for remark in course.remarks) is is_told
