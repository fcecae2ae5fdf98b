"""Choose the node types to eliminate, and the form of a solver's kernels.

Types are eliminated if factors allow it and a factorisation gains by it. Input: a recipe, and
counts if they are known. Output: node types, and a `SolverForm`. Cost tier: node types once for a
structure, the form once for a solver, and again if counts change these types.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caspar.codegen.targets import TARGETS
from caspar.equations.solver_form import (
    MAX_ELIMINATED_DIM,
    SolverForm,
    couples_reduced,
    eliminable_types,
    solver_form,
    usual_storage,
    usual_sums,
)
from caspar.errors import UnsuitedError
from caspar.frontend.factors.jacobian import JacobianStorage
from caspar.frontend.factors.trace import ArgumentKind, NodeType, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.memory.kernel import Dialect
from caspar.options import JacobianChoice, LinearSolverChoice, Precision
from caspar.runtime.backend import Backend
from caspar.solver.limits import Limits


@dataclass(frozen=True)
class Recipe:
    """The user's choices.

    Attributes:
        inner_iterations: Steps that eliminated nodes take by themselves after each common one.
        masked: Names of the node types that have held or bounded components.
        is_far_from_zero: Whether values are too far from zero for Jacobians at rounded ones.
    """

    factors: tuple[TracedFactor, ...]
    nodes: tuple[NodeType, ...]
    precision: Precision
    linear_solver: LinearSolverChoice
    jacobian: JacobianChoice
    deterministic: bool
    inner_iterations: int
    limits: Limits
    eliminate: tuple[str, ...] | None = None
    masked: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    is_far_from_zero: bool = False


FORMS_MATRIX = (
    LinearSolverChoice.SCHUR_DENSE,
    LinearSolverChoice.DENSE,
    LinearSolverChoice.SPARSE,
    LinearSolverChoice.QR,
)
"""Linear solvers that decompose a matrix."""

ELIMINATES_NOTHING = (LinearSolverChoice.PCG, LinearSolverChoice.DENSE, LinearSolverChoice.QR)
"""Linear solvers of all unknowns."""

_JACOBIANS = {
    JacobianChoice.STORED: JacobianStorage.STORED,
    JacobianChoice.FLOAT16: JacobianStorage.FLOAT16,
    JacobianChoice.RECOMPUTE: JacobianStorage.RECOMPUTED,
}


@dataclass(frozen=True)
class UsualPrecision:
    """Float64 for chains, such as pose graphs, with landmarks or without, and for fits.

    Chains are stiff: Jacobians in float32 cost them iterations. In a fit all nodes that remain are
    one of their type, and a few others may be eliminated, such as an amplitude of each data set.

    Attributes:
        most_in_float64: Nodes of the eliminated types up to which it is float64.
    """

    eliminated: tuple[str, ...]
    most_in_float64: float

    def of(self, counts: Mapping[str, int] | None) -> Precision:
        """The precision, by the instances of each node type; None: not known yet."""
        number = 0 if counts is None else sum(counts[name] for name in self.eliminated)
        return Precision.FLOAT64 if number <= self.most_in_float64 else Precision.MIXED


def usual_precision(
    factors: Sequence[TracedFactor], nodes: Sequence[NodeType], limits: Limits
) -> UsualPrecision:
    """Return the usual precision for some factors."""
    eliminated = eliminable_types(factors, nodes)
    is_stiff = len(eliminated) == 0 or couples_reduced(factors, eliminated)
    names = tuple(node.name for node in eliminated)
    is_fit = all(
        argument.kind is ArgumentKind.NODE_UNIQUE
        for factor in factors
        for argument in factor.nodes
        if argument.node_type.name not in names
    )
    most = float(limits.max_fit_in_float64) if is_fit else -1.0
    return UsualPrecision(names, math.inf if is_stiff else most)


def choose_form(backend: Backend, recipe: Recipe, eliminated: Sequence[NodeType]) -> SolverForm:
    """The form of all kernels."""
    names = (LinearSolverChoice.SCHUR_PCG, LinearSolverChoice.SCHUR_DENSE)
    if recipe.linear_solver in names and len(eliminated) == 0:
        raise UnsuitedError(
            f"linear_solver={recipe.linear_solver.value!r}: no node type can be eliminated; a type "
            f"can if it has at most {MAX_ELIMINATED_DIM} degrees of freedom, every factor touches "
            "at most one of its nodes, by an index, and another type remains",
            "Use 'auto', 'pcg', 'dense' or 'sparse'.",
        )
    return solver_form(
        recipe.factors,
        eliminated,
        usual_sums(_dialect(backend), deterministic=recipe.deterministic),
        _choose_storage(backend, recipe, eliminated),
        recipe.inner_iterations,
        recipe.masked,
        recipe.bounded,
    )


def _dialect(backend: Backend) -> Dialect:
    return TARGETS[backend.traits.target].dialect


def _choose_storage(
    backend: Backend, recipe: Recipe, eliminated: Sequence[NodeType]
) -> JacobianStorage:
    if recipe.jacobian is not JacobianChoice.AUTO:
        return _JACOBIANS[recipe.jacobian]
    if recipe.linear_solver in FORMS_MATRIX:
        return JacobianStorage.STORED
    if not backend.traits.prices_are_known or recipe.is_far_from_zero:
        return JacobianStorage.STORED
    if recipe.linear_solver is LinearSolverChoice.AUTO:
        usual = usual_storage(recipe.factors, eliminated, _dialect(backend))
        if usual.is_stored:
            return usual
    from caspar.solver.choice.jacobian import recomputing_pays

    pays = recomputing_pays(recipe.factors, TYPES[recipe.precision], backend)
    return JacobianStorage.RECOMPUTED if pays else JacobianStorage.STORED


MIN_REPEATS = 4
"""Instances of a factor for each pair of nodes that it may touch, from which on pairs of nodes meet
again and again, as picture and camera of a calibration do in every corner."""


def choose_eliminated(
    recipe: Recipe,
    counts: Mapping[str, int] | None = None,
    instances: Mapping[str, int] | None = None,
) -> tuple[NodeType, ...]:
    """The node types to eliminate, by counts if they are known."""
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
