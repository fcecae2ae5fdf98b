"""How the inverse of a system is found: by its size and how full it is.

Cost tier: once for a covariance.
"""

from dataclasses import replace

from caspar.options import LinearSolverChoice
from caspar.solver.choice.elimination import choose_eliminated
from caspar.solver.choice.form import Recipe
from caspar.solver.covariance.inverses.dense import dense_inverse
from caspar.solver.covariance.inverses.iterative import iterative_inverse
from caspar.solver.covariance.inverses.reduced_inverse import ReducedInverse
from caspar.solver.covariance.inverses.singular_values import svd_inverse
from caspar.solver.covariance.inverses.sparse import sparse_inverse
from caspar.solver.covariance.normal_matrix import Linearized, NormalMatrix


def choose_inverse(recipe: Recipe, linearized: Linearized) -> tuple[NormalMatrix, ReducedInverse]:
    """The system and its inverse.

    Args:
        recipe: What the user chose: factors, and limits of sizes.
        linearized: All factors.
    """
    limits = recipe.limits
    work = linearized.num_residuals * linearized.num_unknowns**2
    if work <= limits.max_svd_work:
        whole = NormalMatrix(linearized, ())
        return whole, svd_inverse(whole)
    normal = NormalMatrix(linearized, _eliminated(recipe, linearized))
    size = normal.layout.num_unknowns
    if size <= limits.max_small_dense_covariance:
        return normal, dense_inverse(normal)
    if normal.num_eliminated_pairs <= limits.max_fill_pairs and size <= limits.max_sparse:
        pattern = normal.pattern()
        num_entries = pattern.num_blocks * normal.layout.width**2
        if num_entries < limits.full_share_covariance * 0.5 * size**2:
            return normal, sparse_inverse(normal, pattern)
    if size <= limits.max_dense_covariance:
        return normal, dense_inverse(normal)
    return normal, iterative_inverse(normal)


def _eliminated(recipe: Recipe, linearized: Linearized) -> tuple[str, ...]:
    """The node types to eliminate, whatever solves the linear systems of the solver."""
    names = {jacobian.name for jacobian in linearized.jacobians}
    usual = replace(
        recipe,
        factors=tuple(factor for factor in recipe.factors if factor.name in names),
        nodes=linearized.nodes,
        linear_solver=LinearSolverChoice.AUTO,
        eliminate=None,
    )
    return tuple(node.name for node in choose_eliminated(usual, linearized.counts))
