"""The reduced system as a matrix, which a library factorises: when, and by which one."""

from functools import partial

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.equations.solver_kernels import kernel_specs
from caspar.errors import BackendError, SizeError
from caspar.frontend.size_refusal import naming_owners
from caspar.memory.kernel import KernelSpec
from caspar.memory.kernel_size import check_sizes
from caspar.options import LinearSolverChoice
from caspar.solver.choice.form import FORMS_MATRIX, Recipe
from caspar.solver.linear.explicit.choice import Method, choose_method, replacement, where_full
from caspar.solver.linear.explicit.explicit_kernels import (
    explicit_kernels,
    merge_kernels,
    row_kernels,
)
from caspar.solver.linear.explicit.solvers import DenseSolver, OrthogonalSolver, SparseSolver
from caspar.solver.linear.explicit.structure import build_structure
from caspar.solver.linear.hand_over import Replacement
from caspar.solver.linear.method import Declined, LinearMethod, LinearSolver, LinearSystem


def _specs(design: SolverDesign) -> list[KernelSpec]:
    """The kernels that form the system as a matrix."""
    otherwise = "; or use linear_solver='pcg' or 'schur_pcg', which form no matrix"
    with naming_owners(design.factors, design.nodes, otherwise):
        made = explicit_kernels(design.factors, design.nodes, design.types, design.form)
        # they are compiled on top of those that every solver has
        usual, _ = kernel_specs(design.factors, design.nodes, design.types, design.form)
        check_sizes([*made, *usual])
    return made


def _is_likely(recipe: Recipe, form: SolverForm) -> bool:
    """Whether a matrix will be formed, as far as is known without counts.

    Who names what is eliminated wants no compilation in mid-run: a factorisation may take over.
    """
    if recipe.linear_solver is LinearSolverChoice.AUTO:
        return len(form.eliminated) == 0 or recipe.eliminate is not None
    return recipe.linear_solver in FORMS_MATRIX


def _make(system: LinearSystem, _: tuple[str, ...]) -> LinearSolver | Declined:
    """What the user chose, or what suits the sizes.

    What nobody asked for by name gives way if a library for it, or memory, is not there.
    """
    choice, plan = system.recipe.linear_solver, system.plan
    chosen = choose_method(choice, plan)
    if chosen.method is Method.GRADIENTS:
        return Declined(chosen.remarks)
    try:
        made = factorizing(system, chosen.method)
    except (BackendError, MemoryError, SizeError) as error:
        if choice is not LinearSolverChoice.AUTO:
            raise
        # the error itself would keep what has been made so far
        refusal = str(error).rstrip(".")
    else:
        return Declined(chosen.remarks) if made is None else made
    plan.library.backend.trim()
    advice = (
        "PCG solved the linear systems, although a direct solver is faster and exact. The reason: "
        f"{refusal}."
    )
    return Declined((*chosen.remarks, advice))


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


# -- direct solvers that take over in the middle of a solve: see `linear.hand_over` ---------------


def factorization_for(system: LinearSystem) -> Replacement:
    """The factorisation that takes over where PCG proves to be slow."""
    return replacement(system.plan, partial(_made, system))


def orthogonal_for(system: LinearSystem) -> LinearSolver | None:
    """The QR decomposition that takes over from a factorisation; None if memory lacks."""
    return _made(system, Method.ORTHOGONAL)


def _made(system: LinearSystem, method: Method) -> LinearSolver | None:
    try:
        return factorizing(system, method)
    except (BackendError, MemoryError, SizeError):
        system.plan.library.backend.trim()
        return None
