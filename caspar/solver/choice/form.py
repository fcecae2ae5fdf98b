"""How a solver's kernels are made, from what the user chose and from what is eliminated.

Input: a recipe, and the eliminated types. Output: a `SolverForm`. Cost tier: once for a solver, and
again where counts have other types eliminated.

Also here: whether a product derives Jacobians again or reads them from memory, where nobody chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from caspar.codegen.targets import TARGETS, Target
from caspar.driver import cached
from caspar.equations.factor_kernels import jacobian_kernel
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
from caspar.frontend.precision import TYPES, Types
from caspar.frontend.size_refusal import naming_owners
from caspar.memory.dialect import Dialect
from caspar.options import (
    JacobianChoice,
    LinearSolverChoice,
    Precision,
)
from caspar.runtime.backend import Backend
from caspar.solver.limits import Limits


@dataclass(frozen=True)
class JacobianPrice:
    """What an instance's Jacobian takes.

    Attributes:
        multiplications: To derive it, see `passes.price`.
        num_bytes: Of its entries that are not always zero, equal ones as well.
    """

    multiplications: float
    num_bytes: int


def recomputing_pays(factors: Sequence[TracedFactor], types: Types, backend: Backend) -> bool:
    """Whether arithmetic takes no longer than moving the bytes would, both at the device's peak.

    All factors count alike: how many instances each will have is not known yet.

    Products of 5.0 M observations on an H200 (7.0 multiplications a byte, Jacobians of 96 bytes),
    us an iteration by price: 155: 120, 239: 134, 284: 155, 407: 162, 654: 198, 1144: 300; stored
    159. Around PCG recomputing takes 70 to 250 us less. So at the rule's edge, 654, storing is 2 %
    quicker where a step has eight PCG iterations, 5 % where it has twelve; at 407 recomputing is
    by 6 and 5 %. Record 0012 has all figures.
    """
    target = TARGETS[backend.traits.target]
    prices = [jacobian_price(factor, types, target) for factor in factors]
    multiplications = sum(price.multiplications for price in prices)
    num_bytes = sum(price.num_bytes for price in prices)
    return multiplications <= backend.machine_balance(types.storage) * num_bytes


def jacobian_price(factor: TracedFactor, types: Types, target: Target) -> JacobianPrice:
    """The price of a factor's Jacobian by all its nodes, or what the cache has."""
    dtype = types.storage

    def find() -> JacobianPrice:
        from caspar.passes.price import graph_price

        with naming_owners([factor], []):
            spec = jacobian_kernel(factor, types)
        num_entries = sum(arg.dim for arg in spec.args if arg.name == "jacobian")
        price = graph_price(spec.graph, target.costs[dtype])
        return JacobianPrice(price, num_entries * dtype.itemsize)

    parts = ["price", target.name, dtype.value, factor.key]
    return cached(parts, find, asdict, _price_from_json)


def _price_from_json(data: Mapping[str, Any]) -> JacobianPrice:
    return JacobianPrice(float(data["multiplications"]), int(data["num_bytes"]))


@dataclass(frozen=True)
class Recipe:
    """What the user chose.

    Attributes:
        factors: Traced factors.
        nodes: Their node types.
        precision: Which floating types are used for what.
        linear_solver: How linear systems are solved.
        jacobian: Where Jacobians are.
        deterministic: Whether equal input must give equal bits.
        inner_iterations: Steps that eliminated nodes take by themselves after each common one.
        limits: Sizes at which another way is chosen.
        eliminate: Names of the node types to eliminate; None: chosen.
        masked: Names of the node types of which a solve holds components, or bounds numbers.
        bounded: Names of the node types that have bounds.
        is_far_from_zero: Whether values are, so that Jacobians of rounded ones are inexact.
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


def usual_precision(
    factors: Sequence[TracedFactor],
    nodes: Sequence[NodeType],
    limits: Limits,
    counts: Mapping[str, int] | None = None,
) -> Precision:
    """Float64 for chains, such as pose graphs, with landmarks or without, and for fits.

    Chains are stiff: Jacobians in float32 cost them iterations. In a fit all nodes that remain are
    one of their type, and a few others may be eliminated, such as an amplitude of each data set.

    Args:
        factors: Of the solver.
        nodes: Their node types.
        limits: How many nodes of a fit are few.
        counts: Instances of each node type, by name; None: not known yet.
    """
    eliminated = eliminable_types(factors, nodes)
    is_stiff = len(eliminated) == 0 or couples_reduced(factors, eliminated)
    names = [node.name for node in eliminated]
    is_fit = all(
        argument.kind is ArgumentKind.NODE_UNIQUE
        for factor in factors
        for argument in factor.nodes
        if argument.node_type.name not in names
    )
    num_eliminated = 0 if counts is None else sum(counts[name] for name in names)
    is_small_fit = is_fit and num_eliminated <= limits.max_fit_in_float64
    return Precision.FLOAT64 if is_stiff or is_small_fit else Precision.MIXED


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
    pays = recomputing_pays(recipe.factors, TYPES[recipe.precision], backend)
    return JacobianStorage.RECOMPUTED if pays else JacobianStorage.STORED
