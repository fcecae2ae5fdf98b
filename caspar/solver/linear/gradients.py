"""Conjugate gradients, preconditioned by the inverse of each node's diagonal block: block Jacobi.

On the full normal equations if no node type is eliminated, else on the Schur complement, which is
never formed. Cost: a pass over the factors for each iteration.
"""

from collections.abc import Sequence

from caspar.equations.node_kernels import STEP_OF_MANY_SLOTS, step_kernel
from caspar.equations.parts import SolverPart
from caspar.equations.scalar_kernels import CURVATURE_KERNEL, MERGE, curvature_kernel, merge_kernel
from caspar.frontend.names import kernel_name
from caspar.memory.kernel import KernelSpec
from caspar.runtime.backend import Launch
from caspar.solver.linear.method import LinearMethod, LinearSystem
from caspar.solver.plan.plan import NodePlan


class ConjugateGradients:
    """Conjugate gradients.

    Args:
        system: What is solved.
        remarks: Why they were chosen.
    """

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
    """What several devices make of products and curvatures before they add them up."""
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
