"""How a solver's kernels are made, from what the user chose and from what is eliminated.

Input: a recipe, and the eliminated types. Output: a `SolverForm`. Cost tier: once for a solver, and
again where counts have other types eliminated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
from caspar.frontend.factors.trace import NodeType, TracedFactor
from caspar.frontend.precision import TYPES
from caspar.options import (
    JacobianChoice,
    LinearSolverChoice,
    Precision,
    PreconditionerChoice,
)
from caspar.runtime.backend import Backend
from caspar.solver.choice.jacobian import recomputing_pays
from caspar.solver.limits import Limits


@dataclass(frozen=True)
class Recipe:
    """What the user chose.

    Attributes:
        factors: Traced factors.
        nodes: Their node types.
        precision: Which floating types are used for what.
        linear_solver: How linear systems are solved.
        preconditioner: Of conjugate gradients.
        jacobian: Where Jacobians are.
        deterministic: Whether equal input must give equal bits.
        inner_iterations: Steps that eliminated nodes take by themselves after each common one.
        limits: Sizes at which another way is chosen.
        eliminate: Names of the node types to eliminate; None: chosen.
        masked: Names of the node types of which a solve holds components, or bounds numbers.
        bounded: Names of the node types that have bounds.
    """

    factors: tuple[TracedFactor, ...]
    nodes: tuple[NodeType, ...]
    precision: Precision
    linear_solver: LinearSolverChoice
    preconditioner: PreconditionerChoice
    jacobian: JacobianChoice
    deterministic: bool
    inner_iterations: int
    limits: Limits
    eliminate: tuple[str, ...] | None = None
    masked: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()

    @property
    def is_block_jacobi(self) -> bool:
        """Whether the user did not ask for a preconditioner that has kernels of its own."""
        return self.preconditioner in (
            PreconditionerChoice.AUTO,
            PreconditionerChoice.BLOCK_JACOBI,
        )


_JACOBIANS = {
    JacobianChoice.STORED: JacobianStorage.STORED,
    JacobianChoice.FLOAT16: JacobianStorage.FLOAT16,
    JacobianChoice.RECOMPUTE: JacobianStorage.RECOMPUTED,
}


def usual_precision(factors: Sequence[TracedFactor], nodes: Sequence[NodeType]) -> Precision:
    """Float64 for chains, such as pose graphs, with landmarks or without: they are stiff.

    Values in float32 cost digits: parking-garage ends 4.4e-5 from its optimum in mixed precision,
    and of 2,000 poses with 20,000 landmarks 1.5e-3, after four times as many iterations.
    """
    eliminated = eliminable_types(factors, nodes)
    is_stiff = len(eliminated) == 0 or couples_reduced(factors, eliminated)
    return Precision.FLOAT64 if is_stiff else Precision.MIXED


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
            "Use 'auto', 'pcg' or 'sparse'.",
        )
    return solver_form(
        recipe.factors,
        eliminated,
        usual_sums(backend.traits.target, deterministic=recipe.deterministic),
        _choose_storage(backend, recipe, eliminated),
        recipe.inner_iterations,
        recipe.masked,
        recipe.bounded,
    )


def _choose_storage(
    backend: Backend, recipe: Recipe, eliminated: Sequence[NodeType]
) -> JacobianStorage:
    if recipe.jacobian is not JacobianChoice.AUTO:
        return _JACOBIANS[recipe.jacobian]
    if recipe.linear_solver in (LinearSolverChoice.SCHUR_DENSE, LinearSolverChoice.SPARSE):
        return JacobianStorage.STORED
    if not backend.traits.prices_are_known:
        return JacobianStorage.STORED
    if recipe.linear_solver is LinearSolverChoice.AUTO:
        usual = usual_storage(recipe.factors, eliminated, backend.traits.target)
        if usual.is_stored:
            return usual
    pays = recomputing_pays(recipe.factors, TYPES[recipe.precision], backend)
    return JacobianStorage.RECOMPUTED if pays else JacobianStorage.STORED
