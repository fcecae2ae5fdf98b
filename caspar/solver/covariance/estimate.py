"""From arrays to a covariance.

Input: the values of a problem, and which instances are asked for. Output: a `Covariance`. Cost
tier: kernels once for a solver, everything else once for a covariance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError
from caspar.memory.array import Array
from caspar.options import Precision
from caspar.runtime.backend import Backend
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.covariance import Covariance, giver, node_infos
from caspar.solver.covariance.free_directions import find_free_directions
from caspar.solver.covariance.inverses import choose_inverse
from caspar.solver.covariance.marginals import Marginals
from caspar.solver.covariance.request import requested_instances
from caspar.solver.covariance.solved import Solved, SolvedResults, tell
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.problem_reader import Problem, given_factors, read_problem
from caspar.solver.normal.jacobians import (
    DerivativeKernels,
    FactorJacobian,
    residual_variance,
)
from caspar.solver.normal.matrix import Linearized

__all__ = ["Covariance", "Covariances"]
"""`Covariance` too: whoever asks needs both."""


class Covariances:
    """Covariances of a solver's problems.

    Args:
        backend: Where the solver runs.
        recipe: Its factors and node types; its precision and linear solver do not matter.

    Attributes:
        results: What it has solved.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend = backend
        self._recipe = recipe
        self._kernels = DerivativeKernels(backend)
        self.results = SolvedResults()

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
        arrays, constraints, result = self.results.origin(solved, constraints)
        found = self._estimate(
            arrays,
            blocks,
            constraints,
            scales_by_variance=scales_by_variance,
            allows_free=allows_free,
        )
        if result is not None:
            tell(result, found)
        return found

    def _estimate(
        self,
        arrays: Mapping[str, Any],
        blocks: Mapping[str, Any],
        constraints: Constraints,
        *,
        scales_by_variance: bool,
        allows_free: bool,
    ) -> Covariance:
        factors, backend = self._recipe.factors, self._backend
        nodes = self._recipe.nodes
        precision = Precision.FLOAT64
        problem = read_problem(arrays, factors, nodes, backend, precision, constraints=constraints)
        requested = requested_instances(blocks, problem.counts)
        jacobians = self._kernels.evaluate(given_factors(factors, problem), problem)
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
        given = {name: giver(backend, problem.given[name]) for name in requested}

        def cross(name: str, number: int, other: str, other_number: int) -> Any:
            with backend.scope():
                found = marginals.cross(name, number, other, other_number)
                return given[name](backend.upload(factor * found))

        return Covariance(
            instances=requested,
            num_unknowns=linearized.num_unknowns,
            rank=rank,
            free_directions=directions.texts,
            num_residuals=num_residuals,
            residual_variance=variance,
            is_scaled=scales_by_variance,
            method=inverse.method,
            _blocks={
                name: given[name](factor * marginals.blocks(name, numbers))
                for name, numbers in requested.items()
            },
            _cross=cross,
            _info=node_infos(backend, linearized.nodes, problem, requested),
        )


def without_active(problem: Problem, backend: Backend) -> dict[str, Array]:
    """What moves, by node type: `Problem.free` without numbers that are at a bound."""
    free = dict(problem.free)
    for name, limits in problem.bounds.items():
        given = problem.values[name]
        rows = given if isinstance(given, np.ndarray) else backend.to_host(given)
        free[name] = np.where(limits.at_given(rows), 0.0, free[name])
    return free


def _without_held(
    jacobians: Sequence[FactorJacobian], free: Mapping[str, Array], requested: Mapping[str, Any]
) -> list[FactorJacobian]:
    """Without the derivatives by node types that are held as a whole: they are constants."""
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
