"""Compute a `Gradient` from the result of a solve and a derivative by its values.

Cost tier: once for a gradient; `Adjoint` keeps what several gradients share.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from caspar.equations.adjoint import tangent_size
from caspar.errors import InputError, OptionError, meant
from caspar.frontend.factors.trace import Argument, NodeType, TracedFactor
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.arrays import HOST, as_library, location
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.estimate import without_active
from caspar.solver.gradients.adjoint import EXACT, GAUSS_NEWTON, Adjoint, Derived
from caspar.solver.gradients.gradient import Gradient
from caspar.solver.input.array_reader import ArrayReader, unblocked
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.problem import Problem, with_bare_factors
from caspar.solver.input.problem_reader import given_factors, read_problem
from caspar.solver.result.result import SolveResult
from caspar.solver.result.solved_arrays import Given


class Cotangents:
    """Reads derivatives by the values of a result.

    Attributes:
        values: (n, storage_dim) float64 of each node type, on the device.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Sequence[NodeType],
        counts: Mapping[str, int],
        values: Mapping[str, Any],
    ) -> None:
        self._backend = backend
        self._dims = {node.name: node.storage_dim for node in nodes}
        self._counts = counts
        self.values = {
            name: self._rows(f"node type {name}", values[name], name) for name in self._dims
        }

    def read(self, given: Any, *, are_partial: bool = False) -> dict[str, Array]:
        """(n, storage_dim) of each node type; zeros of those that are not named."""
        known = ", ".join(self._dims)
        if not isinstance(given, Mapping):
            raise InputError(
                f"cotangents: expected a mapping of node types ({known}) to arrays of the shape of "
                f"their values, got {type(given).__name__}"
            )
        for name in given:
            if name not in self._dims:
                hint = meant(name, self._dims)
                raise InputError(f"cotangents: {name!r} is no node type{hint}; these are {known}")
        zeros = self._backend.xp.zeros
        return {
            name: self._finite(name, given[name], are_partial=are_partial)
            if name in given
            else zeros((self._counts[name], dim))
            for name, dim in self._dims.items()
        }

    def _finite(self, name: str, given: Any, *, are_partial: bool) -> Array:
        where = f"cotangents, node type {name}"
        rows, xp = self._rows(where, given, name), self._backend.xp
        is_finite = xp.isfinite(rows)
        if bool(is_finite.all()):
            return rows
        if not are_partial:
            raise InputError(f"{where}: a number is NaN or infinite; derivatives must be finite")
        return xp.where(is_finite, rows, 0.0)

    def _rows(self, where: str, given: Any, name: str) -> Array:
        reader = ArrayReader(self._backend, Precision.FLOAT64, check_values=False)
        rows = reader.rows(where, given, self._dims[name])
        if int(rows.shape[0]) != self._counts[name]:
            raise InputError(
                f"{where}: {int(rows.shape[0])} rows; there are {self._counts[name]} nodes"
            )
        return self._backend.upload(rows)


Shape = Callable[[Argument, Array, Any], Array]
"""A function that gives the (rows, dim) of a constant argument the shape of the passed array."""


def given_back(
    backend: Backend,
    problem: Problem,
    factors: Sequence[TracedFactor],
    arrays: Mapping[str, Any],
    derived: Derived,
    shape: Shape,
) -> dict[str, Any]:
    """Everything as the kind of array that values were given as, in the shapes given."""
    arrays = with_bare_factors(arrays, factors)
    kind = arrays[next(iter(problem.values))]
    is_host = location(kind) == HOST

    def back(array: Array) -> Any:
        return as_library(backend.to_host(array) if is_host else array, kind)

    found: dict[str, Any] = {}
    for name, values in problem.values.items():
        start = derived.starts.get(name)
        array = backend.xp.zeros(values.shape) if start is None else start
        found[name] = back(array.reshape(shape_of(arrays[name])))
    for factor in factors:
        own, passed = derived.constants.get(factor.name, {}), arrays[factor.name]
        found[factor.name] = {
            one.source: back(
                (shape if one.table is None else _tables)(
                    one, _derivative(own, one, problem, factor), passed
                )
            )
            for one in factor.inputs
            if one.node is None
        }
    backend.synchronize()
    return found


def _derivative(
    own: Mapping[str, Array], one: Argument, problem: Problem, factor: TracedFactor
) -> Array:
    """Zeros for a factor without instances."""
    if one.source in own:
        return own[one.source]
    return problem.factors[factor.name].constants[one.source].rows * 0.0


def shaped(one: Argument, rows: Array, passed: Any) -> Array:
    """(rows, dim) of a constant as it was passed to a `Solver`."""
    like = passed_for(one, passed)
    shape = shape_of(like)
    return with_matrices(rows, shape, is_matrix=len(shape) == 3)


def _tables(one: Argument, rows: Array, passed: Any) -> Array:
    """The memory of tables as they were passed: without their sizes."""
    shape = shape_of(passed_for(one, passed))
    assert one.table is not None
    first = one.table.first_number()
    num_tables = (int(rows.shape[0]) - math.prod(shape)) // first
    return rows.reshape(num_tables, -1)[:, first:].reshape(shape)


def with_matrices(rows: Array, shape: tuple[int, ...], *, is_matrix: bool) -> Array:
    """Rows in a shape; SymForce stores matrices column by column."""
    if not is_matrix:
        return rows.reshape(shape)
    return rows.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)


def passed_for(one: Argument, passed: Any) -> Any:
    """Return what was passed for a constant (values of an indexed or ragged one), or a number."""
    given = passed.get(one.source, 1.0) if isinstance(passed, Mapping) else 1.0
    return given["values"] if isinstance(given, Mapping) else given


def shape_of(given: Any) -> tuple[int, ...]:
    """The shape of what a user passed, also of a list or a number."""
    given = unblocked(given)
    return tuple(given.shape) if hasattr(given, "shape") else np.shape(given)


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
    """Gradients of a solver's problems."""

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
    """`exact` or `gauss_newton`, and what is to be said of the choice."""
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
