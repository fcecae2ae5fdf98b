"""The two-level preconditioner as a linear method."""

from caspar.memory.kernel import KernelSpec
from caspar.options import LinearSolverChoice, PreconditionerChoice
from caspar.solver.linear.gradients import ConjugateGradients
from caspar.solver.linear.method import LinearMethod, LinearSystem
from caspar.solver.linear.two_level.coarse_form import coarse_form, coarse_refusal
from caspar.solver.linear.two_level.coarse_kernels import apply_name, coarse_kernels
from caspar.solver.linear.two_level.coarse_launches import CoarseLaunches
from caspar.solver.linear.two_level.coarse_space import CoarseSpace
from caspar.solver.linear.two_level.coarse_structure import build_coarse_structure

TILE_SIZE = 128
"""Items of a tile on CUDA with a coarse space: its kernels sum float64 over nodes and clusters, for
which blocks of 256 have too little shared memory."""


class TwoLevel:
    """The two-level preconditioner of the Schur complement.

    Args:
        system: What is solved; `coarse_refusal` does not refuse its factors.
    """

    is_factorized = False

    def __init__(self, system: LinearSystem) -> None:
        design, plan, binder = system.design, system.plan, system.binder
        structure = build_coarse_structure(plan, coarse_form(design.factors, design.form))

        def specs() -> list[KernelSpec]:
            return coarse_kernels(design.factors, design.types, design.form, structure.width)

        system.load(apply_name(structure.width), specs)
        backend = self._backend = plan.library.backend
        self.space = CoarseSpace(plan, binder, structure)
        self.factorization = backend.dense_factorization(structure.size, self.space.outcome)
        launches = CoarseLaunches(plan, binder, self.space)
        self.num_bytes = self.space.num_bytes + launches.num_bytes
        self.num_bytes += int(self.factorization.matrix.nbytes)
        self.start, self.apply = launches.start, launches.apply
        self._form = backend.sequence(self.space.form())
        self._entries = backend.sequence([self.space.entries(self.factorization.matrix)])

    def factorize(self) -> None:
        """Form and invert the coarse matrix."""
        self._backend.clear(self.space.sums)
        self._form.run()
        self._backend.clear(self.factorization.matrix)
        self._entries.run()
        self.factorization.factorize()
        self.factorization.invert(self.space.inverse)


def _make(system: LinearSystem, remarks: tuple[str, ...]) -> ConjugateGradients:
    return ConjugateGradients(system, TwoLevel(system), remarks)


TWO_LEVEL = LinearMethod(
    "two_level",
    _make,
    preconditioner=PreconditionerChoice.TWO_LEVEL,
    linear_solvers=(LinearSolverChoice.SCHUR_PCG, LinearSolverChoice.AUTO),
    purpose="conjugate gradients on the Schur complement",
    refusal=coarse_refusal,
    max_tile_size=TILE_SIZE,
    is_advised=True,
    has_own_steps=True,
)
