"""Solves that go ahead, and what must be the same as if they did not."""

from collections.abc import Mapping
from typing import Any

import caspar
from caspar.bundle_adjustment import snavely
from caspar.solver.limits import Limits
from tests.solver import chain_cases
from tests.solver.bundles import arrays_of, part_of, read
from tests.solver.linear.linear_cases import problem_of

NEVER_AHEAD = Limits(max_factors_ahead=0)

VIEWS = "views alone"
CHAIN = "chain"
BUNDLE = "bundle"
"""275 observations; some steps are rejected."""

CASES: tuple[tuple[str, Mapping[str, str]], ...] = (
    (BUNDLE, {"linear_solver": "schur_pcg", "jacobian": "recompute"}),
    (BUNDLE, {"linear_solver": "schur_pcg", "jacobian": "float16"}),
    (BUNDLE, {"linear_solver": "schur_dense"}),
    (VIEWS, {"linear_solver": "pcg"}),
    (CHAIN, {"linear_solver": "pcg", "jacobian": "recompute"}),
)
"""Problems, and options of a solver."""


def made(name: str) -> tuple[Any, Any]:
    if name == BUNDLE:
        return snavely, arrays_of(part_of(read("problem-49-7776"), 20))
    if name == CHAIN:
        return chain_cases.CHAIN, chain_cases.chain_arrays(23)
    return problem_of(name)


def course(result: caspar.SolveResult) -> list[tuple[float, float, bool]]:
    return [(one.cost, one.candidate_cost, one.step_accepted) for one in result.iterations]
