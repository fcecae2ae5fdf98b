"""Preconditioned conjugate gradients, and the usual preconditioner, block Jacobi.

On the full normal equations if no node type is eliminated, else on the Schur complement, which is
never formed. Cost: a pass over the factors for each iteration.
"""

from collections.abc import Sequence
from typing import Protocol

from caspar.equations.node_kernels import STEP_OF_MANY_SLOTS, step_kernel
from caspar.equations.scalar_kernels import CURVATURE_KERNEL, MERGE, curvature_kernel, merge_kernel
from caspar.frontend.names import kernel_name
from caspar.memory.kernel import KernelSpec
from caspar.runtime.backend import Launch, LaunchSequence
from caspar.solver.linear.method import LinearMethod, LinearSystem
from caspar.solver.plan.plan import NodePlan
from caspar.solver.system.phases import Iteration


class Preconditioner(Protocol):
    """M of z = M^-1 r, beside the blocks that `Phases.reduce` factorises.

    Attributes:
        num_bytes: Bytes on the device beside the plan's.
        is_factorized: Whether those blocks are all of it: `factorize` does nothing then.
    """

    num_bytes: int
    is_factorized: bool

    def factorize(self) -> None:
        """Enqueue what depends on the damping; once for a linear solve."""

    def start(self) -> list[Launch]:
        """First vectors and scalars."""

    def apply(self, iteration: Iteration) -> Iteration:
        """An iteration of block Jacobi with this preconditioner in its place."""


class BlockJacobi:
    """The inverse of each node's diagonal block: part of the kernels that advance.

    Args:
        system: What is solved.
    """

    num_bytes = 0
    is_factorized = True

    def __init__(self, system: LinearSystem) -> None:
        self._phases = system.phases

    def factorize(self) -> None:
        """Nothing."""

    def start(self) -> list[Launch]:
        """Those of the phases."""
        return self._phases.begin_gradients()

    def apply(self, iteration: Iteration) -> Iteration:
        """As it is."""
        return iteration


class ConjugateGradients:
    """Conjugate gradients.

    Args:
        system: What is solved.
        preconditioner: M.
        remarks: Why it was chosen.
    """

    is_direct = False
    launches: Sequence[Launch] = ()

    def __init__(
        self, system: LinearSystem, preconditioner: Preconditioner, remarks: tuple[str, ...] = ()
    ) -> None:
        phases, backend = system.phases, system.plan.library.backend
        self.name = system.gradients_name
        self.num_bytes = preconditioner.num_bytes
        self.preconditioner = preconditioner
        reduce, start = phases.reduce(), preconditioner.start()
        self._start: LaunchSequence | None = None
        if preconditioner.is_factorized:
            self._begin = backend.sequence([*reduce, *start])
        else:
            self._begin, self._start = backend.sequence(reduce), backend.sequence(start)
        self._iterate = phases.repeated(preconditioner.apply(phases.iteration()))
        self.remarks = (*remarks, *self._iterate.remarks)

    def begin(self) -> None:
        """Reduce; start, if that needs no more."""
        self._begin.run()

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Factorise the preconditioner, start, iterate."""
        if self._start is not None:
            self.preconditioner.factorize()
            self._start.run()
        self._iterate.run(max_iterations)


def _block_jacobi(system: LinearSystem, remarks: tuple[str, ...]) -> ConjugateGradients:
    for plan in system.plan.reduced:
        if plan.has_many_slots:
            _load_steps(system, plan)
    if system.plan.shard is not None:
        _load_sums(system)
    return ConjugateGradients(system, BlockJacobi(system), remarks)


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


BLOCK_JACOBI = LinearMethod("block_jacobi", _block_jacobi)
