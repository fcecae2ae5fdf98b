"""All linear methods, and which of them solves a system.

Another method is a module or folder beside this file, and an entry of `METHODS`.
"""

from functools import partial

from caspar.options import LinearSolverChoice
from caspar.solver.linear.explicit.explicit import EXPLICIT, factorization_for, orthogonal_for
from caspar.solver.linear.explicit.solvers import can_be_orthogonal, orthogonal_work
from caspar.solver.linear.gradients import GRADIENTS
from caspar.solver.linear.hand_over import HandOver
from caspar.solver.linear.method import Declined, LinearSolver, LinearSystem

METHODS = (EXPLICIT, GRADIENTS)
"""In the order in which they are tried; the last one declines nothing."""


def make_solvers(system: LinearSystem) -> HandOver:
    """The solver, and what may take its place where `auto` chose it.

    Raises:
        OutOfMemoryError, BackendError: As `make_linear_solver`.
    """
    linear, plan = make_linear_solver(system), system.plan
    if system.recipe.linear_solver is not LinearSolverChoice.AUTO:
        return HandOver(linear)
    if not linear.is_direct:
        return HandOver(linear, factorization_for(system))
    is_small = orthogonal_work(plan) <= plan.limits.max_orthogonal_work
    suits = can_be_orthogonal(plan) and is_small
    return HandOver(linear, orthogonal=partial(orthogonal_for, system) if suits else None)


def make_linear_solver(system: LinearSystem) -> LinearSolver:
    """The solver of the first method that does not decline.

    Raises:
        OutOfMemoryError: The matrix that the user asked for does not fit.
        BackendError: A library that the user's choice needs is not there.
    """
    remarks: tuple[str, ...] = ()
    for method in METHODS:
        made = method.make(system, remarks)
        if not isinstance(made, Declined):
            return made
        remarks = (*remarks, *made.remarks)
    raise AssertionError("the last method declined")
