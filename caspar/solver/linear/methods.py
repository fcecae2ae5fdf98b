"""All linear methods, and which of them solves a system.

Another method is a module or folder beside this file, and an entry of `METHODS`.

Also here: conjugate gradients, preconditioned by the inverse of each node's diagonal block: block
Jacobi.
"""

from collections.abc import Sequence
from functools import partial

from caspar.equations.node_kernels import STEP_OF_MANY_SLOTS, step_kernel
from caspar.equations.parts import SolverPart
from caspar.equations.scalar_kernels import CURVATURE_KERNEL, MERGE, curvature_kernel, merge_kernel
from caspar.frontend.names import kernel_name
from caspar.memory.kernel import KernelSpec
from caspar.options import LinearSolverChoice
from caspar.runtime.backend import Launch
from caspar.solver.linear.explicit.explicit import (
    EXPLICIT,
    Method,
    factorizing_if_possible,
    replacement,
)
from caspar.solver.linear.explicit.solvers import can_be_orthogonal, orthogonal_work
from caspar.solver.linear.method import Declined, HandOver, LinearMethod, LinearSolver, LinearSystem
from caspar.solver.plan.plan import NodePlan


class ConjugateGradients:
    """Conjugate gradients."""

    is_direct = False
    num_bytes = 0
    launches: Sequence[Launch] = ()

    def __init__(self, system: LinearSystem, remarks: tuple[str, ...] = ()) -> None:
        phases, plan, backend = system.phases, system.plan, system.plan.library.backend
        self.name = "pcg" if len(plan.eliminated) == 0 else "schur_pcg"
        self._begin = backend.sequence([*phases.reduce(), *phases.begin_gradients()])
        self._iterate = backend.loop(
            phases.iteration(), plan.scalar("done"), plan.memory[SolverPart.SCALARS]
        )
        self.remarks = (*remarks, *self._iterate.remarks)

    def begin(self) -> None:
        """Reduce, and start."""
        self._begin.run()

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Iterate."""
        self._iterate.run(max_iterations)


def _make(system: LinearSystem, remarks: tuple[str, ...]) -> ConjugateGradients:
    for plan in system.plan.reduced:
        if plan.has_many_slots:
            _load_steps(system, plan)
    if system.plan.shard is not None:
        _load_sums(system)
    return ConjugateGradients(system, remarks)


def _load_sums(system: LinearSystem) -> None:
    """Load the kernels that sum products and curvatures of several devices."""
    types = system.design.types
    if system.plan.is_ordered:
        system.load(CURVATURE_KERNEL, lambda: [curvature_kernel(types)])
    for plan in system.plan.reduced:
        if plan.num_slots > 1:
            _load_merge(system, plan)


def _load_merge(system: LinearSystem, plan: NodePlan) -> None:
    def specs() -> list[KernelSpec]:
        many = plan.has_many_slots
        return [merge_kernel(plan.node, system.design.types, many_slots=many)]

    system.load(kernel_name(plan.node.name, MERGE), specs)


def _load_steps(system: LinearSystem, plan: NodePlan) -> None:
    """The steps of nodes whose products have many slots."""

    def specs() -> list[KernelSpec]:
        return [step_kernel(plan.node, system.design.types, many_slots=True)]

    system.load(kernel_name(plan.node.name, STEP_OF_MANY_SLOTS), specs)


GRADIENTS = LinearMethod("gradients", _make)


METHODS = (EXPLICIT, GRADIENTS)
"""Methods in the order in which they are tried; the last one declines nothing."""


def make_solvers(system: LinearSystem) -> HandOver:
    """The solver, and what may take its place where `auto` chose it."""
    linear, plan = make_linear_solver(system), system.plan
    if system.recipe.linear_solver is not LinearSolverChoice.AUTO:
        return HandOver(linear)
    take_over = partial(factorizing_if_possible, system)
    if not linear.is_direct:
        return HandOver(linear, replacement(plan, take_over))
    is_small = orthogonal_work(plan) <= plan.limits.max_orthogonal_work
    suits = can_be_orthogonal(plan) and is_small
    return HandOver(linear, orthogonal=partial(take_over, Method.ORTHOGONAL) if suits else None)


def make_linear_solver(system: LinearSystem) -> LinearSolver:
    """The solver of the first method that does not decline."""
    remarks: tuple[str, ...] = ()
    for method in METHODS:
        made = method.make(system, remarks)
        if not isinstance(made, Declined):
            return made
        remarks = (*remarks, *made.remarks)
    raise AssertionError("the last method declined")
