"""Conjugate gradients with the two-level preconditioner, as a linear solver."""

from caspar.solver.coarse_space import CoarseSpace
from caspar.solver.coarse_structure import CoarseStructure
from caspar.solver.launches import Binder
from caspar.solver.phases import Phases
from caspar.solver.plan import Plan


class TwoLevelGradients:
    """Conjugate gradients on the Schur complement with the two-level preconditioner.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        phases: Its launches.
        structure: Of the coarse space; the kernels for its `width` are loaded.
        remarks: Why it was chosen.
    """

    def __init__(
        self,
        plan: Plan,
        binder: Binder,
        phases: Phases,
        structure: CoarseStructure,
        remarks: tuple[str, ...] = (),
    ) -> None:
        self.name = "schur_pcg"
        self.remarks = remarks
        backend = self._backend = plan.library.backend
        coarse = self._coarse = CoarseSpace(plan, binder, structure)
        self._factorization = backend.dense_factorization(structure.size, "float64", coarse.failed)
        matrix = self._factorization.matrix
        self.num_bytes = coarse.num_bytes + int(matrix.nbytes)
        self._reduce = backend.sequence(phases.reduce())
        self._form = backend.sequence(coarse.form())
        self._entries = backend.sequence([coarse.entries(matrix)])
        self._begin = backend.sequence(coarse.begin())
        self._iterate = backend.loop(coarse.iteration(phases), plan.scalar("done"))

    def solve(self, max_iterations: int) -> None:
        """Reduce, form and invert the coarse matrix, start, iterate."""
        self._reduce.run()
        self._backend.clear(self._coarse.sums)
        self._form.run()
        self._backend.clear(self._factorization.matrix)
        self._entries.run()
        self._factorization.invert(self._coarse.inverse)
        self._begin.run()
        self._iterate.run(max_iterations)
