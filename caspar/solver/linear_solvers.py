"""Linear solvers: from linearised sums to the steps of the reduced node types.

Input, on the device: gradients and diagonal blocks, damping, Jacobians. Output, on the device:
`step` and `residual` of the reduced node types, and the scalars that say how it went. Nothing is
read by the host.
"""

from typing import Protocol

from caspar.options import LinearSolverChoice
from caspar.runtime.backend import Backend
from caspar.solver.phases import Phases
from caspar.solver.plan import Plan


class LinearSolver(Protocol):
    """Solves the damped system.

    Attributes:
        name: As users choose it.
    """

    name: str

    def solve(self, max_iterations: int) -> None:
        """Enqueue everything from the linearised sums to the steps.

        Args:
            max_iterations: Iterations at most, of an iterative solver.
        """


def make_linear_solver(
    choice: LinearSolverChoice, backend: Backend, plan: Plan, phases: Phases
) -> LinearSolver:
    """The linear solver that a user chose, or that suits the sizes."""
    return ConjugateGradients(backend, plan, phases)


class ConjugateGradients:
    """Preconditioned conjugate gradients, block Jacobi.

    On the full normal equations where no node type is eliminated, else on the Schur complement,
    which is never formed. Cost: a pass over the factors for each iteration.

    Args:
        backend: Where it runs.
        plan: Memory and structure.
        phases: Its launches.
    """

    def __init__(self, backend: Backend, plan: Plan, phases: Phases) -> None:
        self.name = "pcg" if len(plan.eliminated) == 0 else "schur_pcg"
        self._begin = backend.sequence([*phases.reduce(), *phases.begin_gradients()])
        self._iterate = backend.loop(phases.iterate_gradients(), plan.scalar("done"))

    def solve(self, max_iterations: int) -> None:
        """Reduce, start, iterate."""
        self._begin.run()
        self._iterate.run(max_iterations)
