"""Estimate a covariance from arrays.

Input: the values of a problem, or the result of a solve, and which instances are asked for, such as
`{"Cam": "all", "Point": [3, 7]}`. Output: a `Covariance`. Cost tier: kernels once for a solver,
everything else once for a covariance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError, meant
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.arrays import to_numpy
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.covariance import Covariance, giver, node_infos, note_standard_errors
from caspar.solver.covariance.inverses import choose_inverse
from caspar.solver.covariance.marginals import Marginals, find_free_directions
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.problem_reader import Problem, given_factors, read_problem
from caspar.solver.normal.instance_kernels import (
    DerivativeKernels,
    FactorJacobian,
    residual_variance,
)
from caspar.solver.normal.matrix import Linearized
from caspar.solver.result.solved_arrays import Solved, SolvedResults


class HeldRows(Protocol):
    """Constraints, which hold some directions."""

    @property
    def names(self) -> frozenset[str]:
        """Names of kernels in the recipe that are no factors."""

    def of(self, problem: Problem, jacobians: Sequence[FactorJacobian]) -> list[FactorJacobian]:
        """Return their rows, with a large weight, to go beside the factors' Jacobians."""


class Covariances:
    """Covariances of a solver's problems."""

    def __init__(
        self, backend: Backend, recipe: Recipe, results: SolvedResults, held: HeldRows | None = None
    ) -> None:
        self._held = held
        self._backend = backend
        self._recipe = recipe
        self._kernels = DerivativeKernels(backend)
        self._results = results

    def estimate(
        self,
        solved: Solved,
        blocks: Mapping[str, Any],
        *,
        constraints: Constraints,
        scales_by_variance: bool,
        allows_free: bool,
    ) -> Covariance:
        """See `Solver.covariance`."""
        arrays, constraints, result = self._results.origin(solved, constraints)
        factors, backend = self._recipe.factors, self._backend
        nodes = self._recipe.nodes
        precision = Precision.FLOAT64
        problem = read_problem(arrays, factors, nodes, backend, precision, constraints=constraints)
        requested = requested_instances(blocks, problem.counts)
        given = given_factors(factors, problem)
        if self._held is not None:
            given = [one for one in given if one.name not in self._held.names]
        jacobians = self._kernels.evaluate(given, problem)
        if self._held is not None:
            jacobians += self._held.of(problem, jacobians)
        free = without_active(problem, backend)
        jacobians = _without_held(jacobians, free, requested)
        linearized = Linearized(backend, jacobians, nodes, problem.counts, free)
        _check_touched(requested, linearized)
        normal, inverse = choose_inverse(self._recipe, linearized)
        marginals = Marginals(normal, inverse)
        directions = find_free_directions(normal, marginals.scaled_free)
        if not allows_free:
            directions.refuse(requested)
        rank = linearized.num_unknowns - directions.num_free
        num_residuals, variance = residual_variance(jacobians, rank)
        if scales_by_variance and not np.isfinite(variance):
            raise InputError(
                f"covariance: {num_residuals} residuals determine {rank} unknowns, so none are "
                "left to estimate a variance from; pass scale_by_residual_variance=False"
            )
        factor = variance if scales_by_variance else 1.0
        givers = {name: giver(backend, problem.given[name]) for name in requested}

        def cross(name: str, number: int, other: str, other_number: int) -> Any:
            with backend.scope():
                found = marginals.cross(name, number, other, other_number)
                return givers[name](backend.upload(factor * found))

        found = Covariance(
            instances=requested,
            num_unknowns=linearized.num_unknowns,
            rank=rank,
            free_directions=directions.texts,
            num_residuals=num_residuals,
            residual_variance=variance,
            is_scaled=scales_by_variance,
            method=inverse.method,
            _blocks={
                name: givers[name](factor * marginals.blocks(name, numbers))
                for name, numbers in requested.items()
            },
            _cross=cross,
            _info=node_infos(backend, linearized.nodes, problem, requested),
        )
        if result is not None:
            note_standard_errors(result, found)
        return found


def without_active(problem: Problem, backend: Backend) -> dict[str, Array]:
    """Return `Problem.free` by node type, without numbers that are at a bound."""
    free = dict(problem.free)
    for name, limits in problem.bounds.items():
        given = problem.values[name]
        rows = given if isinstance(given, np.ndarray) else backend.to_host(given)
        free[name] = np.where(limits.at_given(rows), 0.0, free[name])
    return free


def _without_held(
    jacobians: Sequence[FactorJacobian], free: Mapping[str, Array], requested: Mapping[str, Any]
) -> list[FactorJacobian]:
    """Drop derivatives by node types that are held as a whole, unless they are requested."""
    held = {name for name, moves in free.items() if not np.any(moves)} - set(requested)
    return [
        replace(one, nodes=tuple(node for node in one.nodes if node.node not in held))
        for one in jacobians
    ]


def _check_touched(requested: Mapping[str, NDArray[np.int64]], linearized: Linearized) -> None:
    for name in requested:
        if name not in linearized.counts:
            raise InputError(
                f"covariance, node type {name}: no factor that has instances touches it, so "
                "nothing determines its values"
            )


def requested_instances(given: Any, counts: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """The instance numbers of each node type that is asked for, see `Solver.covariance`."""
    if not isinstance(given, Mapping) or len(given) == 0:
        raise InputError(
            "covariance, blocks: expected a mapping of node types to instances, such as "
            f"{{{next(iter(counts))!r}: 'all'}}, got {given!r}"
        )
    found = {}
    for name, chosen in given.items():
        if name not in counts:
            hint = meant(name, counts)
            raise InputError(
                f"covariance, blocks: {name!r} is no node type{hint}; these are {', '.join(counts)}"
            )
        found[name] = _instances(name, chosen, counts[name])
    return found


def _instances(name: str, given: Any, count: int) -> NDArray[np.int64]:
    where = f"covariance, node type {name}"
    allowed = f"allowed are 'all', instance numbers from 0 to {count - 1}, or a mask of {count}"
    if isinstance(given, str):
        if given != "all":
            raise InputError(f"{where}: {given!r}; {allowed}")
        return np.arange(count)
    try:
        array = np.asarray(to_numpy(given.get() if hasattr(given, "get") else given))
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"{where}: {error}; {allowed}") from error
    if array.dtype.kind == "b" and array.shape == (count,):
        return np.flatnonzero(array)
    if array.shape == (0,):
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputError(f"{where}: an array {array.shape} of {array.dtype}; {allowed}")
    outside = np.flatnonzero((array < 0) | (array >= count))
    if len(outside) > 0:
        raise InputError(f"{where}: instance {int(array[outside[0]])} is out of range; {allowed}")
    return array.astype(np.int64)
