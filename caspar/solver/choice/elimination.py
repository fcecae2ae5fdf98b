"""Choose the node types to eliminate, if factors allow it and a factorisation gains by it.

Input: a recipe, and counts if they are known. Output: node types. Cost tier: once for a solver,
and for each structure.
"""

from collections.abc import Mapping, Sequence

from caspar.equations.solver_form import couples_reduced, eliminable_types
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.options import LinearSolverChoice
from caspar.solver.choice.form import ELIMINATES_NOTHING, Recipe

MIN_REPEATS = 4
"""Instances of a factor for each pair of nodes that it may touch, from which on pairs of nodes meet
again and again, as picture and camera of a calibration do in every corner."""


def choose_eliminated(
    recipe: Recipe,
    counts: Mapping[str, int] | None = None,
    instances: Mapping[str, int] | None = None,
) -> tuple[NodeType, ...]:
    """The node types to eliminate.

    Args:
        recipe: What the user chose.
        counts: Instances of each node type, by name; None: not known yet.
        instances: Instances of each factor, by name; None: not known yet.
    """
    if recipe.linear_solver in ELIMINATES_NOTHING:
        return ()
    if recipe.eliminate is not None:
        wanted = tuple(node for node in recipe.nodes if node.name in recipe.eliminate)
        # where some factors have no instances, nothing else may be left
        return wanted if len(wanted) < len(recipe.nodes) else ()
    allowed = eliminable_types(recipe.factors, recipe.nodes, counts)
    if counts is not None and instances is not None and _is_small(recipe, counts, instances):
        return ()
    if counts is None or len(allowed) == 0 or not _is_sparse(recipe, allowed):
        return allowed
    return allowed if eliminating_pays(recipe, allowed, counts) else ()


def _is_small(recipe: Recipe, counts: Mapping[str, int], instances: Mapping[str, int]) -> bool:
    """Return whether `auto` gains by factorising all unknowns, because pairs of nodes meet often.

    The matrix of all unknowns then has far fewer entries than the Jacobians, so that a
    factorisation is next to nothing, while elimination walks the pairs of instances that share an
    eliminated node.
    """
    if recipe.linear_solver is not LinearSolverChoice.AUTO:
        return False
    if _unknowns(recipe.nodes, counts) > recipe.limits.max_dense_for_sparse:
        return False
    coupling = [factor for factor in recipe.factors if len(factor.nodes) > 1]
    return len(coupling) > 0 and all(
        instances[factor.name] >= MIN_REPEATS * _touchable_pairs(factor, counts)
        for factor in coupling
    )


def _touchable_pairs(factor: TracedFactor, counts: Mapping[str, int]) -> int:
    """Pairs of nodes that a factor can touch at most: of its two most numerous arguments."""
    numbers = sorted((counts[argument.node_type.name] for argument in factor.nodes), reverse=True)
    return numbers[0] * numbers[1]


def _unknowns(nodes: Sequence[NodeType], counts: Mapping[str, int]) -> int:
    return sum(counts[node.name] * node.tangent_dim for node in nodes)


def _is_sparse(recipe: Recipe, eliminated: Sequence[NodeType]) -> bool:
    """Return whether a sparse factorisation is asked for, or is what `auto` mostly takes."""
    if recipe.linear_solver is not LinearSolverChoice.AUTO:
        return recipe.linear_solver is LinearSolverChoice.SPARSE
    return couples_reduced(recipe.factors, eliminated)


def eliminating_pays(
    recipe: Recipe, eliminated: Sequence[NodeType], counts: Mapping[str, int]
) -> bool:
    """Return whether a sparse factorisation gains by eliminating first.

    It takes the unknowns of most of the matrix away by blocks, and in parallel; but the nodes that
    see one eliminated node are all coupled then: a beacon that a whole path sees makes its matrix
    full, where an ordering would have kept the beacon for last.
    """
    return 2 * _unknowns(eliminated, counts) >= _unknowns(recipe.nodes, counts)
