"""Which node types are eliminated: what the factors allow, and where a factorisation gains by it.

Input: a recipe, and counts where they are known. Output: node types. Cost tier: once for a solver,
and for each structure.
"""

from collections.abc import Mapping, Sequence

from caspar.equations.solver_form import couples_reduced, eliminable_types
from caspar.frontend.factors.trace import NodeType
from caspar.options import LinearSolverChoice
from caspar.solver.choice.form import Recipe


def choose_eliminated(
    recipe: Recipe, counts: Mapping[str, int] | None = None
) -> tuple[NodeType, ...]:
    """The node types to eliminate.

    Args:
        recipe: What the user chose.
        counts: Instances of each node type, by name; None: not known yet.
    """
    if recipe.linear_solver is LinearSolverChoice.PCG:
        return ()
    if recipe.eliminate is not None:
        wanted = tuple(node for node in recipe.nodes if node.name in recipe.eliminate)
        # where some factors have no instances, nothing else may be left
        return wanted if len(wanted) < len(recipe.nodes) else ()
    allowed = eliminable_types(recipe.factors, recipe.nodes, counts)
    if counts is None or len(allowed) == 0 or not _is_sparse(recipe, allowed):
        return allowed
    return allowed if eliminating_pays(recipe, allowed, counts) else ()


def _is_sparse(recipe: Recipe, eliminated: Sequence[NodeType]) -> bool:
    """Whether a sparse factorisation is asked for, or is what `auto` mostly takes."""
    if recipe.linear_solver is not LinearSolverChoice.AUTO:
        return recipe.linear_solver is LinearSolverChoice.SPARSE
    return recipe.is_block_jacobi and couples_reduced(recipe.factors, eliminated)


def eliminating_pays(
    recipe: Recipe, eliminated: Sequence[NodeType], counts: Mapping[str, int]
) -> bool:
    """Whether a sparse factorisation gains by eliminating first.

    It takes the unknowns of most of the matrix away by blocks, and in parallel; but the nodes that
    see one eliminated node are all coupled then: a beacon that a whole path sees makes its matrix
    full, where an ordering would have kept the beacon for last.
    """

    def unknowns(nodes: Sequence[NodeType]) -> int:
        return sum(counts[node.name] * node.tangent_dim for node in nodes)

    return 2 * unknowns(eliminated) >= unknowns(recipe.nodes)
