"""Choose the form of a solver's kernels from the user's choices and the eliminated types.

Input: a recipe, and the eliminated types. Output: a `SolverForm`. Cost tier: once for a solver, and
again if counts change the eliminated types.
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
from caspar.memory.dialect import Dialect
from caspar.options import (
    JacobianChoice,
    LinearSolverChoice,
    Precision,
)
from caspar.runtime.backend import Backend
from caspar.solver.limits import Limits


@dataclass(frozen=True)
class Recipe:
    """The user's choices.

    Attributes:
        factors: Traced factors.
        nodes: Their node types.
        precision: Which floating types are used for what.
        linear_solver: How linear systems are solved.
        jacobian: Whether Jacobians are stored or recomputed.
        deterministic: Whether equal input must give equal bits.
        inner_iterations: Steps that eliminated nodes take by themselves after each common one.
        limits: Sizes at which another way is chosen.
        eliminate: Names of the node types to eliminate; None: chosen.
        masked: Names of the node types that have held or bounded components.
        bounded: Names of the node types that have bounds.
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
        eliminated: Names of the node types that can be.
        most_in_float64: Nodes of these types up to which it is float64.
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
    """Return the usual precision for some factors.

    Args:
        factors: Of the solver.
        nodes: Their node types.
        limits: How many nodes of a fit are few.
    """
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
    """The form of all kernels.

    Raises:
        UnsuitedError: The linear solver is not for such factors.
    """
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
