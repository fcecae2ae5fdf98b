"""Compute a `Gradient` from the result of a solve and a derivative by its values.

Cost tier: once for a gradient; `Adjoint` keeps what several gradients share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from caspar.equations.adjoint.kernels import tangent_size
from caspar.errors import InputError, OptionError
from caspar.frontend.factors.trace import TracedFactor
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.estimate import without_active
from caspar.solver.gradients.adjoint import EXACT, GAUSS_NEWTON, Adjoint
from caspar.solver.gradients.gradient import Gradient
from caspar.solver.gradients.inputs import Cotangents, given_back, shaped
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.problem_reader import Problem, given_factors, read_problem
from caspar.solver.result.given import Given
from caspar.solver.result.result import SolveResult

MAX_EXACT_TANGENT = 48
"""Components of the tangents of a factor's nodes up to which `auto` has second derivatives: their
number grows with the square, and so does the time to compile them."""

OF_A_COPY = (
    "this result is a copy or comes from a pickle, which does not hold the arrays that a gradient "
    "needs: pass {**arrays, **result.values} in its place"
)


@dataclass(frozen=True, eq=False)
class _Solved:
    """A problem, the arrays it comes from, values, and what is to be said of these."""

    problem: Problem
    arrays: Mapping[str, Any]
    values: Mapping[str, Any]
    remarks: tuple[str, ...]


class Gradients:
    """Gradients of a solver's problems.

    Args:
        backend: Where the solver runs.
        recipe: Its factors and node types; its precision and linear solver do not matter.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend = backend
        self._recipe = recipe
        self._adjoint = Adjoint(backend, recipe.nodes, recipe.factors)
        self._terms: dict[object, list[TracedFactor]] = {}
        self._working = Lock()

    def differentiate(
        self,
        solved: SolveResult | Mapping[str, Any],
        cotangents: Mapping[str, Any],
        constraints: Constraints,
        hessian: str,
    ) -> Gradient:
        """See `Solver.gradient`."""
        backend, recipe = self._backend, self._recipe
        read = self._read(solved, constraints)
        with_terms = self._with_terms(read.problem)
        factors = [one for one in with_terms if read.problem.factors[one.name].count > 0]
        role, on_role = chosen_hessian(hessian, factors)
        inputs = Cotangents(backend, recipe.nodes, read.problem.counts, read.values)
        by_values = inputs.read(cotangents)
        problem = replace(read.problem, values=inputs.values)
        moving = without_active(problem, backend)
        with self._working:
            derived = self._adjoint.derive(problem, factors, by_values, moving, role)
            arrays = given_back(backend, problem, with_terms, read.arrays, derived, shaped)
        return Gradient(
            hessian=role,
            damping=derived.damping,
            remarks=(*on_role, *derived.remarks, *read.remarks),
            arrays=arrays,
        )

    def _with_terms(self, problem: Problem) -> list[TracedFactor]:
        """All factors with their weights and parameters of losses; each way is made once."""
        key = tuple(problem.factors[one.name].by_instance for one in self._recipe.factors)
        if key not in self._terms:
            self._terms[key] = given_factors(self._recipe.factors, problem)
        return self._terms[key]

    def _read(self, solved: SolveResult | Mapping[str, Any], constraints: Constraints) -> _Solved:
        recipe, has_constraints = self._recipe, constraints != Constraints()
        if isinstance(solved, Mapping):
            problem = read_problem(
                solved,
                recipe.factors,
                recipe.nodes,
                self._backend,
                Precision.FLOAT64,
                constraints=constraints,
            )
            _refuse_parts(problem)
            return _Solved(problem, solved, solved, ())
        given, names = solved.given, {factor.name for factor in recipe.factors}
        if given is None:
            raise InputError(OF_A_COPY)
        if isinstance(given, Given) and not given.arrays.is_whole:
            raise InputError(
                "this result is of a problem that several processes share, and each knows only "
                "its part: solve it in one process for a gradient"
            )
        if not isinstance(given, Given) or {one.name for one in given.factors} != names:
            raise InputError(
                f"this result is of another solver; this one has the factors {', '.join(names)}"
            )
        if has_constraints:
            raise InputError(
                "gradient: a result knows what was fixed and bounded in its solve; pass fixed and "
                "bounds with arrays only"
            )
        problem, arrays = given.arrays.problem_with(solved.values)
        _refuse_parts(problem)
        return _Solved(problem, arrays, solved.values, on_status(solved.status))


def _refuse_parts(problem: Problem) -> None:
    """Return whether there are gradients by all arrays.

    Raises:
        InputError: Some were given in parts.
    """
    if len(problem.in_parts) > 0:
        raise InputError(
            f"gradient: {', '.join(problem.in_parts)} were given in parts, which gradients do not "
            "know; pass whole arrays, all on one device"
        )


def on_status(status: Any) -> tuple[str, ...]:
    """Return remarks on a solve that did not converge."""
    if status.is_success:
        return ()
    return (
        f"The solve ended with {status.name}: gradients hold at a minimum, so these may be wrong. "
        "Solve on until it converges.",
    )


def chosen_hessian(given: Any, factors: Sequence[TracedFactor]) -> tuple[str, tuple[str, ...]]:
    """`exact` or `gauss_newton`, and what is to be said of the choice.

    Raises:
        OptionError: An unknown choice.
    """
    if given not in ("auto", EXACT, GAUSS_NEWTON):
        raise OptionError(
            f"hessian={given!r}: must be 'auto', 'exact' or 'gauss_newton', which leaves second "
            "derivatives of residuals out"
        )
    if given != "auto":
        return str(given), ()
    large = [one.name for one in factors if tangent_size(one) > MAX_EXACT_TANGENT]
    if len(large) == 0:
        return EXACT, ()
    return GAUSS_NEWTON, (
        f"The Hessian is Gauss-Newton's, as instances of {', '.join(large)} have more than "
        f"{MAX_EXACT_TANGENT} unknowns: gradients are off by the share of the second derivatives "
        "of residuals. Pass hessian='exact' for these; their kernels take longer to compile.",
    )
