"""All linear methods, and which of them solves a system.

Another preconditioner is a folder beside this file, a member of `PreconditionerChoice` and an entry
of `METHODS`.
"""

from functools import partial

from caspar.driver import SolverDesign
from caspar.equations.solver_form import SolverForm
from caspar.errors import OptionError, UnsuitedError
from caspar.options import LinearSolverChoice
from caspar.solver.choice.form import Recipe
from caspar.solver.linear.costs import iteration_s, setup_s
from caspar.solver.linear.explicit.explicit import EXPLICIT
from caspar.solver.linear.explicit.replacement import factorization_for, orthogonal_for
from caspar.solver.linear.explicit.solvers import can_be_orthogonal, orthogonal_work
from caspar.solver.linear.gradients import BLOCK_JACOBI
from caspar.solver.linear.hand_over import HandOver, Outlook
from caspar.solver.linear.method import Declined, LinearMethod, LinearSolver, LinearSystem
from caspar.solver.linear.two_level.two_level import TWO_LEVEL

METHODS = (TWO_LEVEL, EXPLICIT, BLOCK_JACOBI)
"""In the order in which they are tried; the last one declines nothing."""


def methods_for(recipe: Recipe) -> tuple[LinearMethod, ...]:
    """The methods that may solve a user's systems, in the order in which they are tried."""
    asked = tuple(one for one in METHODS if one.preconditioner is recipe.preconditioner)
    if len(asked) > 0:
        return asked
    return tuple(one for one in METHODS if one.preconditioner is None)


def check_preconditioner(recipe: Recipe, form: SolverForm) -> None:
    """Refuse a preconditioner that the user asked for and that cannot be used.

    Raises:
        OptionError: It is not for that linear solver.
        UnsuitedError: It is not for such factors.
    """
    for method in METHODS:
        if method.preconditioner is not recipe.preconditioner:
            continue
        asked = f"preconditioner={recipe.preconditioner.value!r}"
        if recipe.linear_solver not in method.linear_solvers:
            allowed = " or ".join(repr(choice.value) for choice in method.linear_solvers)
            raise OptionError(
                f"{asked} with linear_solver={recipe.linear_solver.value!r}: it is for "
                f"{method.purpose}; use linear_solver={allowed}"
            )
        refusal = method.refusal(recipe.factors, form)
        if refusal != "":
            raise UnsuitedError(
                f"{asked}: {refusal}", "Use preconditioner='block_jacobi' or 'auto'."
            )


def suggested_preconditioner(recipe: Recipe, design: SolverDesign, linear_solver: str) -> str:
    """A stronger preconditioner than the user chose, as users ask for it; empty: there is none.

    Args:
        recipe: What the user chose.
        design: What the kernels depend on.
        linear_solver: Name of the linear solver that was made.
    """
    for method in METHODS if recipe.is_block_jacobi else ():
        named = [choice.value for choice in method.linear_solvers if method.is_advised]
        if linear_solver in named and method.refusal(design.factors, design.form) == "":
            assert method.preconditioner is not None
            return f"preconditioner={method.preconditioner.value!r}"
    return ""


def solvers_for(system: LinearSystem) -> tuple[HandOver, str]:
    """What solves a system, and the stronger preconditioner that users may ask for, if any.

    Raises:
        OutOfMemoryError, BackendError: As `make_linear_solver`.
    """
    made = make_solvers(system)
    return made, suggested_preconditioner(system.recipe, system.design, made.current.name)


def make_solvers(system: LinearSystem) -> HandOver:
    """The solver, and the factorisation that may take its place where `auto` chose it.

    Raises:
        OutOfMemoryError, BackendError: As `make_linear_solver`.
    """
    linear = make_linear_solver(system)
    recipe = system.recipe
    is_open = recipe.linear_solver is LinearSolverChoice.AUTO and EXPLICIT in methods_for(recipe)
    plan = system.plan
    if not is_open:
        return HandOver(linear)
    if linear.is_direct:
        is_small = orthogonal_work(plan) <= plan.limits.max_orthogonal_work
        suits = can_be_orthogonal(plan) and is_small
        return HandOver(linear, orthogonal=partial(orthogonal_for, system) if suits else None)
    outlook = Outlook(iteration_s(plan), setup_s(plan, 0), lambda: factorization_for(system))
    return HandOver(linear, outlook)


def make_linear_solver(system: LinearSystem) -> LinearSolver:
    """The solver of the first method that does not decline.

    Raises:
        OutOfMemoryError: The matrix that the user asked for does not fit.
        BackendError: A library that the user's choice needs is not there.
    """
    remarks: tuple[str, ...] = ()
    for method in methods_for(system.recipe):
        made = method.make(system, remarks)
        if not isinstance(made, Declined):
            return made
        remarks = (*remarks, *made.remarks)
    raise AssertionError("the last method declined")
