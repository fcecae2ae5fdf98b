"""Gradients through a solve with constraints.

Input: its result, and a derivative by values. Output: a `Gradient`. The solve is differentiated as
one of an augmented Lagrangian whose penalties are so large that its values follow the constraints:
multipliers are data there, and what a change of them would do is of the order of one over the
penalties. Cost tier: kernels once for a solver, the rest once for a gradient.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.factor import ConstraintKind
from caspar.frontend.factors.terms import ROOT, SHIFT
from caspar.solver.constraints.penalties import Terms
from caspar.solver.constraints.problems import ConstrainedProblems
from caspar.solver.constraints.tangent import ACTIVE
from caspar.solver.constraints.violations import Linearised, Sizes
from caspar.solver.gradients.gradient import Gradient
from caspar.solver.gradients.gradients import Gradients, on_status
from caspar.solver.result.result import SolveResult
from caspar.solver.result.solved_arrays import Given


def constrained_gradient(
    problems: ConstrainedProblems,
    gradients: Gradients,
    result: SolveResult | Mapping[str, Any],
    cotangents: Mapping[str, Any],
    hessian: str,
) -> Gradient:
    """See `Solver.gradient`.

    Args:
        problems: Those of the solver.
        gradients: Of its problems with penalised constraints.
        result: Of a solve.
        cotangents: By node type the derivative by its values.
        hessian: As for `Solver.gradient`.

    Raises:
        InputError: Arrays instead of a result, or the result of another solver.
    """
    names = {one.name for one in problems.recipe.factors}
    given = result.given if isinstance(result, SolveResult) else None
    if not isinstance(result, SolveResult) or not isinstance(given, Given):
        raise InputError(
            "gradient: a solver with constraints needs the result of its solve, which has the "
            "multipliers; arrays, copies and pickles do not"
        )
    if {one.name for one in given.factors} != names:
        raise InputError(
            f"this result is of another solver; this one has the factors {', '.join(names)}"
        )
    arrays, restrictions = given.arrays.with_values(result.values), given.arrays.constraints
    problem = problems.read(arrays, restrictions)
    found, sizes = problems.constraints.at(problem), problems.sizes(problem)
    terms = problems.tangent_rows.penalties(problem, problems.factors_of(problem), found)
    data = {
        name: one.pulling(result.multipliers[name], found[name].rows).data
        for name, one in terms.items()
    }
    known = gradients.differentiate(
        problems.with_data(arrays, data), cotangents, restrictions, hessian
    )
    kept = {
        name: {key: rows for key, rows in part.items() if key not in (ROOT, SHIFT)}
        if isinstance(part, Mapping)
        else part
        for name, part in known.arrays.items()
    }
    remarks = (*on_status(result.status), *known.remarks, *_weak(found, terms, result, sizes))
    return Gradient(known.hessian, known.damping, remarks, kept)


def _weak(
    found: Mapping[str, Linearised],
    terms: Mapping[str, Terms],
    result: SolveResult,
    sizes: Sizes,
) -> tuple[str, ...]:
    """A remark on inequalities that are met with equality and hold nothing back."""
    largest = max(float(np.abs(rows).max(initial=0.0)) for rows in result.multipliers.values())
    weak = []
    for name, one in found.items():
        if one.kind is not ConstraintKind.POSITIVE:
            continue
        is_near = np.abs(one.rows) <= ACTIVE * one.scale(sizes)
        is_idle = result.multipliers[name] <= 1e-9 * largest
        instances = np.flatnonzero((is_near & is_idle).any(axis=1))
        if len(instances) > 0:
            weak.append(f"{name}[{int(instances[0])}]")
    if len(weak) == 0:
        return ()
    return (
        f"Inequalities are met with equality and hold nothing back: {', '.join(weak)}. There the "
        "values have a kink, and the gradient is that of one side.",
    )
