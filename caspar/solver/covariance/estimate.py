"""From arrays to a covariance.

Input: the values of a problem, and which instances are asked for. Output: a `Covariance`. Cost tier:
once for a covariance; `DerivativeKernels` and what they compile are kept by the solver.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.errors import InputError, RankDeficiencyError
from caspar.frontend.factors.trace import NodeType
from caspar.frontend.symbolic.field_types import storage_fields, tangent_fields
from caspar.memory.array import Array
from caspar.options import LinearSolverChoice, Precision
from caspar.runtime.arrays import HOST, as_library, location
from caspar.runtime.backend import Backend
from caspar.solver.choice.elimination import choose_eliminated
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.covariance import Covariance, NodeTypeInfo
from caspar.solver.covariance.free_directions import FreeDirections, find_free_directions
from caspar.solver.covariance.inverses.choice import choose_inverse
from caspar.solver.covariance.jacobians import DerivativeKernels, FactorJacobian
from caspar.solver.covariance.marginals import Marginals
from caspar.solver.covariance.normal_matrix import NormalMatrix, column_scales
from caspar.solver.covariance.request import requested_instances
from caspar.solver.input.problem import Problem, read_problem

__all__ = ["Covariance", "Covariances"]
"""`Covariance` too: whoever asks needs both."""


class Covariances:
    """Covariances of a solver's problems.

    Args:
        backend: Where the solver runs.
        recipe: Its factors and node types; its precision and linear solver do not matter.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend = backend
        self._recipe = recipe
        self._kernels = DerivativeKernels(backend)

    def estimate(
        self,
        arrays: Mapping[str, Any],
        blocks: Mapping[str, Any],
        *,
        scales_by_variance: bool,
        allows_free: bool,
    ) -> Covariance:
        """See `Solver.covariance`."""
        factors, nodes = self._recipe.factors, self._recipe.nodes
        problem = read_problem(arrays, factors, nodes, self._backend, Precision.FLOAT64)
        return estimate_covariance(
            self._backend,
            self._recipe,
            problem,
            self._kernels.evaluate(factors, problem),
            requested_instances(blocks, problem.counts),
            scales_by_variance=scales_by_variance,
            allows_free=allows_free,
        )


def estimate_covariance(
    backend: Backend,
    recipe: Recipe,
    problem: Problem,
    jacobians: Sequence[FactorJacobian],
    requested: Mapping[str, NDArray[np.int64]],
    *,
    scales_by_variance: bool,
    allows_free: bool,
) -> Covariance:
    """The covariance of some instances.

    Args:
        backend: Where the solver runs.
        recipe: Its factors and node types.
        problem: Values and constants in float64.
        jacobians: Of the factors that have instances.
        requested: Instance numbers by node type.
        scales_by_variance: Multiply by the residual variance.
        allows_free: Take the pseudo-inverse where directions are free.

    Raises:
        InputError: No factor touches a requested node type, or there are no
            degrees of freedom to estimate a variance from.
        RankDeficiencyError: Free directions that touch what was requested.
    """
    touched = {one.node for jacobian in jacobians for one in jacobian.nodes}
    for name in requested:
        if name not in touched:
            raise InputError(
                f"covariance, node type {name}: no factor that has instances touches it, so its "
                "values are not determined by anything"
            )
    nodes = [node for node in recipe.nodes if node.name in touched]
    counts = {node.name: problem.counts[node.name] for node in nodes}
    scales = column_scales(backend, jacobians, nodes, counts)

    def assemble(eliminated: Sequence[str]) -> NormalMatrix:
        return NormalMatrix(backend, jacobians, nodes, counts, eliminated, scales)

    eliminated = _eliminated(recipe, nodes, counts)
    normal, inverse = choose_inverse(recipe.limits, jacobians, assemble, eliminated)
    marginals = Marginals(normal, inverse)
    free = _free_directions(backend, nodes, normal, marginals)
    if not allows_free:
        _refuse(free, requested)
    num_unknowns = sum(node.tangent_dim * counts[node.name] for node in nodes)
    rank = num_unknowns - free.num_free
    num_residuals, variance = _residual_variance(backend, jacobians, rank)
    if scales_by_variance and not np.isfinite(variance):
        raise InputError(
            f"covariance: {num_residuals} residuals determine {rank} unknowns, so none are left to "
            "estimate a variance from; pass scale_by_residual_variance=False"
        )
    factor = variance if scales_by_variance else 1.0
    give_back = {name: _giver(backend, problem.given[name]) for name in requested}
    blocks = {
        name: give_back[name](factor * marginals.blocks(name, numbers))
        for name, numbers in requested.items()
    }

    def cross(name: str, number: int, other: str, other_number: int) -> Any:
        with backend.scope():
            found = marginals.cross(name, number, other, other_number)
            return give_back[name](backend.upload(factor * found))

    return Covariance(
        instances=dict(requested),
        num_unknowns=num_unknowns,
        rank=rank,
        free_directions=free.texts,
        num_residuals=num_residuals,
        residual_variance=variance,
        is_scaled=scales_by_variance,
        method=inverse.method,
        _blocks=blocks,
        _cross=cross,
        _info=_infos(backend, nodes, problem, requested),
    )


def _eliminated(
    recipe: Recipe, nodes: Sequence[NodeType], counts: Mapping[str, int]
) -> tuple[str, ...]:
    """What is eliminated, whatever solves the linear systems of the solver."""
    factors = tuple(
        factor
        for factor in recipe.factors
        if all(argument.node in nodes for argument in factor.nodes)
    )
    usual = replace(
        recipe,
        factors=factors,
        nodes=tuple(nodes),
        linear_solver=LinearSolverChoice.AUTO,
        eliminate=None,
    )
    return tuple(node.name for node in choose_eliminated(usual, counts))


def _free_directions(
    backend: Backend, nodes: Sequence[NodeType], normal: NormalMatrix, marginals: Marginals
) -> FreeDirections:
    absent = {name: backend.to_host(array) == 0.0 for name, array in normal.scales.items()}
    alone = {name: one.free for name, one in normal.eliminations.items()}
    return find_free_directions(nodes, absent, alone, marginals.scaled_free)


def _refuse(free: FreeDirections, requested: Mapping[str, NDArray[np.int64]]) -> None:
    """Raise if something free touches what was requested."""
    if not any(free.touched[name][numbers].any() for name, numbers in requested.items()):
        return
    directions = "1 direction is" if free.num_free == 1 else f"{free.num_free:,} directions are"
    raise RankDeficiencyError(
        f"covariance: the residuals do not determine all unknowns: {directions} free. "
        f"{'. '.join(text[0].upper() + text[1:] for text in free.texts)}. Add factors that "
        "determine them, such as a prior on one pose, leave such instances out of what you ask "
        "for, or pass gauge='minimum_norm', which takes the pseudo-inverse",
        free.num_free,
    )


def _residual_variance(
    backend: Backend, jacobians: Sequence[FactorJacobian], rank: int
) -> tuple[int, float]:
    """Rows of residuals, and their sum of squares over the degrees of freedom."""
    num_rows, squares = 0, 0.0
    for jacobian in jacobians:
        count, dim = (int(size) for size in jacobian.residual.shape)
        num_rows += count * dim
        squares += float((jacobian.residual**2).sum())
    num_left = num_rows - rank
    return num_rows, squares / num_left if num_left > 0 else float("nan")


def _giver(backend: Backend, given: Any) -> Callable[[Array], Any]:
    """Turns arrays of the device into what the values of a node type were given as."""

    def give(array: Array) -> Any:
        backend.synchronize()
        return as_library(backend.to_host(array) if location(given) == HOST else array, given)

    return give


def _infos(
    backend: Backend,
    nodes: Sequence[NodeType],
    problem: Problem,
    requested: Mapping[str, NDArray[np.int64]],
) -> dict[str, NodeTypeInfo]:
    """What printing needs of the node types that were asked for."""
    by_name = {node.name: node for node in nodes}
    infos = {}
    for name, numbers in requested.items():
        kind = by_name[name].python_type
        values = backend.to_host(backend.upload(problem.values[name]))[numbers]
        fields = storage_fields(kind), tangent_fields(kind)
        infos[name] = NodeTypeInfo(problem.counts[name], values, *fields)
    return infos
