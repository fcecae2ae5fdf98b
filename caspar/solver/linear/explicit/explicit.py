"""The reduced system as a matrix, which a library factorises: when, and by which one.

Where the user leaves it open, sizes decide, and a model of the time of a linear solve, with
constants that were measured for each backend. Only ratios of modelled times matter. Nothing is
timed, so equal input is solved in the same way: `docs/design/0027-choice-of-linear-solver.md` has
the measurements. Cost tier: once for a structure.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.equations.solver_kernels import kernel_specs
from caspar.errors import BackendError, SizeError
from caspar.frontend.size_refusal import naming_owners
from caspar.memory.kernel import KernelSpec, check_sizes
from caspar.options import LinearSolverChoice
from caspar.solver.choice.form import FORMS_MATRIX, Recipe
from caspar.solver.limits import Limits
from caspar.solver.linear.explicit.explicit_kernels import (
    explicit_kernels,
    merge_kernels,
    row_kernels,
)
from caspar.solver.linear.explicit.solvers import DenseSolver, OrthogonalSolver, SparseSolver
from caspar.solver.linear.explicit.structure import build_structure, most_fill_pairs, num_fill_pairs
from caspar.solver.linear.method import (
    Declined,
    LinearMethod,
    LinearSolver,
    LinearSystem,
    Replacement,
    Seconds,
)
from caspar.solver.plan.plan import Plan

USUAL_ITERATIONS = 15
"""PCG iterations a step on the Schur complement if one type of nodes remains: 15 of Trafalgar-21,
16 of Ladybug-49."""

COUPLED_ITERATIONS = 70
"""The same if factors couple nodes of several types that remain, and there are about as many of
each, such as poses and lenses of cameras: block Jacobi leaves out what couples them. Trafalgar-21
with its cameras in three nodes takes 70."""

SIMILAR_COUNTS = 2
"""Times as many nodes of one type as of the other, up to which they are about as many. Two lenses
that 16 pictures share take 17 iterations a step."""

USUAL_STEPS = 10
"""Steps of a solve, over which what is done once for a structure is spread."""

MIX_PRODUCTS = 4
"""Products that take as long as computing Z of all items."""


@dataclass(frozen=True)
class LinearCosts:
    """Seconds.

    Attributes:
        iteration_s: Of a PCG iteration with hardly any factors.
        scalar_s: For each scalar of a Jacobian in a PCG iteration.
        pair_s: For each pair of items of an eliminated node, to form the matrix.
        pair_entry_s: For each entry of such a pair's block.
        listing_s: For each pair, to list it once for a structure.
        ordering_s: For everything else that a factorisation takes once for a structure.
        row_s: For each row of a dense factorisation.
        operation_s: For each of its size^3 / 3 operations.
    """

    iteration_s: float
    scalar_s: float
    pair_s: float
    pair_entry_s: float
    listing_s: float
    ordering_s: float
    row_s: float
    operation_s: float


ON_CORES = LinearCosts(2e-5, 0.65e-9, 1e-8, 4e-10, 2e-7, 0.0, 0.0, 1.0 / 3e10)
"""Two cores of an Intel Xeon."""

IN_PARALLEL = LinearCosts(8e-6, 1e-12, 3e-10, 1e-11, 1.7e-7, 0.03, 1.2e-6, 1.0 / 3e13)
"""An H100 and an H200."""


def costs_of(plan: Plan) -> LinearCosts:
    """The constants of a plan's backend."""
    in_parallel = plan.library.backend.traits.factorizes_in_parallel
    return IN_PARALLEL if in_parallel else ON_CORES


def reduced_size(plan: Plan) -> int:
    """Unknowns of the system."""
    return sum(node.count * node.node.tangent_dim for node in plan.reduced)


def expected_iterations(plan: Plan) -> int:
    """PCG iterations a step that are likely where a type is eliminated and no chains remain."""
    for factor in plan.factors:
        if factor.form.eliminated is None:
            continue
        names = {argument.node_type.name for argument in factor.reduced}
        counts = sorted(plan.node_plans[name].count for name in names)
        if any(more <= SIMILAR_COUNTS * fewer for fewer, more in pairwise(counts)):
            return COUPLED_ITERATIONS
    return USUAL_ITERATIONS


def iteration_s(plan: Plan) -> float:
    """Seconds of a PCG iteration."""
    costs = costs_of(plan)
    return costs.iteration_s + costs.scalar_s * _jacobian_scalars(plan)


def factorizing_s(plan: Plan) -> float:
    """Seconds of a dense factorisation."""
    costs, size = costs_of(plan), reduced_size(plan)
    return costs.row_s * size + costs.operation_s * size**3 / 3.0


def forming_s(plan: Plan, num_pairs: int) -> float:
    """Seconds that forming the matrix takes."""
    costs = costs_of(plan)
    pairs_s = num_pairs * (costs.pair_s + costs.pair_entry_s * _mean_dim(plan) ** 2)
    mixing_s = MIX_PRODUCTS * costs.scalar_s * _jacobian_scalars(plan)
    return pairs_s + mixing_s + listing_s(plan, num_pairs) / USUAL_STEPS


def listing_s(plan: Plan, num_pairs: int) -> float:
    """Seconds that listing the pairs takes, once for a structure."""
    return costs_of(plan).listing_s * num_pairs


def setup_s(plan: Plan, num_pairs: int) -> float:
    """Seconds that a factorisation takes once for a structure."""
    return listing_s(plan, num_pairs) + costs_of(plan).ordering_s


def _mean_dim(plan: Plan) -> float:
    """Tangent dimension of the nodes that items of eliminated nodes have."""
    dims = [
        (one.count, argument.tangent_dim)
        for one in plan.factors
        if one.form.eliminated is not None
        for argument in one.reduced
    ]
    total = sum(count for count, _ in dims)
    return sum(count * dim for count, dim in dims) / total if total > 0 else 0.0


def _jacobian_scalars(plan: Plan) -> int:
    return sum(
        one.count * len(one.factor.residual) * sum(node.tangent_dim for node in one.factor.nodes)
        for one in plan.factors
    )


MARGIN = 1.25
"""Times that PCG must take as long as a factorisation by the model, which is no better than that.
And a factorisation has more kernels to compile."""


class Method(Enum):
    """Ways to solve the system."""

    GRADIENTS = "conjugate gradients"
    DENSE = "dense factorisation"
    SPARSE = "sparse factorisation"
    ORTHOGONAL = "QR decomposition"


Choice = tuple[Method, tuple[str, ...]]
"""A way to solve the system, and remarks on it with advice."""

_BY_NAME: dict[LinearSolverChoice, Method | None] = {
    LinearSolverChoice.AUTO: None,
    LinearSolverChoice.PCG: Method.GRADIENTS,
    LinearSolverChoice.SCHUR_PCG: Method.GRADIENTS,
    LinearSolverChoice.SCHUR_DENSE: Method.DENSE,
    LinearSolverChoice.DENSE: Method.DENSE,
    LinearSolverChoice.SPARSE: Method.SPARSE,
    LinearSolverChoice.QR: Method.ORTHOGONAL,
}
"""None: sizes and costs decide."""


def where_full(chosen: Method, size: int, num_entries: int, limits: Limits) -> Method:
    """Choose a method for a matrix on the CPU that may not be sparse after all."""
    is_sparse = num_entries < limits.full_share * 0.5 * size**2
    if chosen is not Method.SPARSE or is_sparse or size <= limits.min_dense_on_one_core:
        return chosen
    return Method.DENSE if size <= limits.max_dense_on_one_core else Method.GRADIENTS


def choose_method(choice: LinearSolverChoice, plan: Plan) -> Choice:
    """Return the method that the user chose, or one that suits the sizes."""
    chosen = _BY_NAME[choice]
    if chosen is not None:
        return chosen, ()
    limits, size = plan.limits, reduced_size(plan)
    is_eliminated = len(plan.eliminated) > 0
    if is_eliminated and not plan.is_chained and size > limits.max_matrix_quick_pcg:
        return _by_cost(plan), ()
    in_parallel = plan.library.backend.traits.factorizes_in_parallel
    takes_more = in_parallel or plan.is_chained
    most_pairs = limits.max_auto_pairs if takes_more else limits.max_pairs_quick_pcg
    # counting them takes a tenth of the setup of a small problem
    num_pairs = num_fill_pairs(plan) if most_fill_pairs(plan) > most_pairs else 0
    if num_pairs > most_pairs:
        reason = f"{num_pairs:,} pairs of factors that share an eliminated node"
        return _gradients(reason) if plan.is_chained else (Method.GRADIENTS, ())
    if in_parallel and size <= limits.max_dense:
        return Method.DENSE, ()
    if size <= (limits.max_sparse_eliminated if is_eliminated else limits.max_sparse):
        return Method.SPARSE, ()
    return _gradients(f"{size:,} unknowns")


def _by_cost(plan: Plan) -> Method:
    """A factorisation, if a step by it is likely to take less time than by PCG."""
    limits = plan.limits
    gradients_s = expected_iterations(plan) * iteration_s(plan)
    least_s = factorizing_s(plan) + forming_s(plan, 0)
    if reduced_size(plan) > limits.max_matrix_by_cost or gradients_s <= MARGIN * least_s:
        return Method.GRADIENTS
    num_pairs = num_fill_pairs(plan)
    factorised_s = factorizing_s(plan) + forming_s(plan, num_pairs)
    if num_pairs > limits.max_pairs_quick_pcg or gradients_s <= MARGIN * factorised_s:
        return Method.GRADIENTS
    return _factorization(plan)


def _factorization(plan: Plan) -> Method:
    """Return the method for a matrix that may be full: one core looks at it if it is large."""
    in_parallel, limits = plan.library.backend.traits.factorizes_in_parallel, plan.limits
    most = limits.max_dense if in_parallel else limits.min_dense_on_one_core
    return Method.DENSE if reduced_size(plan) <= most else Method.SPARSE


def replacement(plan: Plan, make: Callable[[Method], LinearSolver | None]) -> Replacement:
    """Return the factorisation that takes over if PCG is slow and its matrix is small enough.

    It needs an eliminated type: without one, all unknowns are factorised from the start if they are
    not too many.
    """

    @cache
    def method() -> Method:
        limits = plan.limits
        if len(plan.eliminated) == 0 or reduced_size(plan) > limits.max_sparse_eliminated:
            return Method.GRADIENTS
        if num_fill_pairs(plan) > limits.max_auto_pairs:
            return Method.GRADIENTS
        return _factorization(plan)

    def model() -> Seconds:
        if method() is Method.GRADIENTS:
            return Seconds(math.inf, setup_s(plan, 0))
        pairs = num_fill_pairs(plan)
        return Seconds(factorizing_s(plan) + forming_s(plan, pairs), setup_s(plan, pairs))

    return Replacement(iteration_s(plan), setup_s(plan, 0), model, lambda: make(method()))


def _gradients(too_many: str) -> Choice:
    """Choose PCG, with advice, as chains may need more."""
    remark = (
        f"PCG solved the linear systems: with {too_many} a factorisation may take too much memory. "
        "Long chains, such as pose graphs, may need one: try linear_solver='sparse'."
    )
    return Method.GRADIENTS, (remark,)


def _specs(design: SolverDesign) -> list[KernelSpec]:
    otherwise = "; or use linear_solver='pcg' or 'schur_pcg', which form no matrix"
    with naming_owners(design.factors, design.nodes, otherwise):
        made = explicit_kernels(design.factors, design.nodes, design.types, design.form)
        # they are compiled on top of those that every solver has
        usual, _ = kernel_specs(design.factors, design.nodes, design.types, design.form)
        check_sizes([*made, *usual])
    return made


def _is_likely(recipe: Recipe, form: SolverForm) -> bool:
    """Return whether a matrix will be formed, as far as is known without counts.

    Who names what is eliminated wants no compilation in mid-run: a factorisation may take over.
    """
    if recipe.linear_solver is LinearSolverChoice.AUTO:
        return len(form.eliminated) == 0 or recipe.eliminate is not None
    return recipe.linear_solver in FORMS_MATRIX


def _make(system: LinearSystem, _: tuple[str, ...]) -> LinearSolver | Declined:
    """Make the solver that the user chose, or one that suits the sizes.

    What nobody asked for by name gives way if a library for it, or memory, is not there.
    """
    choice, plan = system.recipe.linear_solver, system.plan
    method, remarks = choose_method(choice, plan)
    if method is Method.GRADIENTS:
        return Declined(remarks)
    try:
        made = factorizing(system, method)
    except (BackendError, MemoryError, SizeError) as error:
        if choice is not LinearSolverChoice.AUTO:
            raise
        # the error itself would keep what has been made so far
        refusal = str(error).rstrip(".")
    else:
        return Declined(remarks) if made is None else made
    plan.library.backend.trim()
    advice = (
        "PCG solved the linear systems, although a direct solver is faster and exact. The reason: "
        f"{refusal}."
    )
    return Declined((*remarks, advice))


def factorizing(system: LinearSystem, method: Method) -> LinearSolver | None:
    """The direct solver; None where the matrix, now that it is known, suits PCG better."""
    plan = system.plan
    is_open = system.recipe.linear_solver is LinearSolverChoice.AUTO
    traits = plan.library.backend.traits
    structure = build_structure(plan)
    size = sum(node.count * node.node.tangent_dim for node in plan.reduced)
    if is_open and method is not Method.ORTHOGONAL and not traits.factorizes_in_parallel:
        num_entries = sum(blocks.num_blocks * blocks.dim for blocks in structure.blocks.values())
        method = where_full(method, size, num_entries, plan.limits)
    if method is Method.GRADIENTS:
        return None
    design = system.design
    system.load(EXPLICIT.name, lambda: _specs(design))
    if len(structure.merged) > 0:
        names = [".".join(types) for types in sorted(structure.merged)]
        name = f"{EXPLICIT.name} merging {' '.join(names)}"
        system.load(
            name,
            lambda: merge_kernels(
                design.factors, design.nodes, design.types, design.form, structure.merged
            ),
        )
    if method is Method.ORTHOGONAL:
        system.load("rows", lambda: row_kernels(design.factors, design.types, design.form))
        return OrthogonalSolver(plan, system.binder, structure)
    earlier, made = system.earlier, DenseSolver if method is Method.DENSE else SparseSolver
    if type(earlier) is made and earlier.renew(plan, structure):
        return earlier
    if method is Method.DENSE:
        return DenseSolver(plan, system.binder, structure)
    try:
        return SparseSolver(plan, system.binder, structure)
    except BackendError as error:
        if not (
            is_open and traits.dense_replaces_sparse and size <= plan.limits.max_dense_for_sparse
        ):
            raise
        remark = f"A dense matrix was factorised, which takes longer: {error}."
    return DenseSolver(plan, system.binder, structure, (remark,))


EXPLICIT = LinearMethod("explicit", _make, specs=_specs, is_likely=_is_likely)


# -- direct solvers that take over in the middle of a solve: see `linear.method` ------------------


def factorizing_if_possible(system: LinearSystem, method: Method) -> LinearSolver | None:
    """The direct solver; None if a library or memory lacks."""
    try:
        return factorizing(system, method)
    except (BackendError, MemoryError, SizeError):
        system.plan.library.backend.trim()
        return None
