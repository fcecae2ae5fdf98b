"""Linear solvers: from linearised sums to the steps of the reduced node types.

Input, on the device: gradients and diagonal blocks, damping, Jacobians. Output, on the device:
`step` and `residual` of the reduced node types, and the scalars that say how it went. Nothing is
read by the host.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from caspar.errors import BackendError, OutOfMemoryError, SizeError
from caspar.memory.binding import Binding
from caspar.options import LinearSolverChoice
from caspar.solver.linear.explicit.choice import Method, choose_method, where_full
from caspar.solver.linear.explicit.matrix import Entries
from caspar.solver.linear.explicit.structure import Structure, build_structure
from caspar.solver.linear.explicit.system import ExplicitSystem
from caspar.solver.plan.plan import Plan
from caspar.solver.system.launches import Binder
from caspar.solver.system.phases import Phases


class LinearSolver(Protocol):
    """Solves the damped system.

    Attributes:
        name: As users choose it.
        remarks: Why another one than it seems was not chosen.
        num_bytes: Bytes on the device beside the plan's.
        is_direct: Whether it forms a matrix, from Jacobians in float64 where none are stored.
    """

    name: str
    remarks: tuple[str, ...]
    num_bytes: int
    is_direct: bool

    def begin(self) -> None:
        """Enqueue what depends on the linearisation and the damping alone, where that is quick.

        It may be done again, with another damping.
        """

    def solve(self, max_iterations: int) -> None:
        """Enqueue all that is left from the linearised sums to the steps.

        Args:
            max_iterations: Iterations at most, of an iterative solver.
        """


def make_linear_solver(
    choice: LinearSolverChoice,
    plan: Plan,
    binder: Binder,
    phases: Phases,
    load_explicit: Callable[[], None],
    load_steps: Callable[[], None],
    preconditioned: Callable[[tuple[str, ...]], LinearSolver] | None,
) -> LinearSolver:
    """The linear solver that a user chose, or that suits the sizes.

    What nobody asked for by name gives way where a library for it, or memory, is not there.

    Args:
        choice: What the user chose.
        plan: Memory and structure.
        binder: Binds its kernels.
        phases: Its launches.
        load_explicit: Compiles the kernels that form the system as a matrix.
        load_steps: Compiles the steps of nodes whose products have many slots.
        preconditioned: Makes conjugate gradients with another preconditioner than block Jacobi
            and its remarks; None: block Jacobi.

    Raises:
        OutOfMemoryError: The matrix that the user asked for does not fit.
        BackendError: A library that the user's choice needs is not there.
    """

    def gradients(remarks: tuple[str, ...]) -> LinearSolver:
        load_steps()
        return ConjugateGradients(plan, phases, remarks)

    chosen = choose_method(choice, plan)
    if chosen.method is Method.GRADIENTS:
        return (gradients if preconditioned is None else preconditioned)(chosen.remarks)
    try:
        made = _factorization(choice, chosen.method, plan, binder, load_explicit)
    except (BackendError, MemoryError, SizeError) as error:
        if choice is not LinearSolverChoice.AUTO:
            raise
        # the error itself would keep what has been made so far
        refusal = str(error).rstrip(".")
    else:
        return gradients(chosen.remarks) if made is None else made
    plan.library.backend.trim()
    advice = (
        f"PCG solves the linear systems, where a direct solver is quicker and exact: {refusal}."
    )
    return gradients((*chosen.remarks, advice))


def _factorization(
    choice: LinearSolverChoice,
    method: Method,
    plan: Plan,
    binder: Binder,
    load_explicit: Callable[[], None],
) -> LinearSolver | None:
    """The direct solver; None where the matrix, now that it is known, suits PCG better."""
    is_open = choice is LinearSolverChoice.AUTO
    traits, most_dense = plan.library.backend.traits, plan.limits.max_dense_for_sparse
    structure = build_structure(plan)
    size = sum(node.count * node.node.tangent_dim for node in plan.reduced)
    if is_open and not traits.factorizes_in_parallel:
        num_entries = sum(blocks.num_blocks * blocks.dim for blocks in structure.blocks.values())
        method = where_full(method, size, num_entries, plan.limits)
    if method is Method.GRADIENTS:
        return None
    load_explicit()
    if method is Method.DENSE:
        return DenseSolver(plan, binder, structure)
    try:
        return SparseSolver(plan, binder, structure)
    except BackendError as error:
        if not (is_open and traits.dense_replaces_sparse and size <= most_dense):
            raise
        remark = f"A dense matrix is factorised, where a sparse one is quicker: {error}."
    return DenseSolver(plan, binder, structure, (remark,))


class ConjugateGradients:
    """Preconditioned conjugate gradients, block Jacobi.

    On the full normal equations where no node type is eliminated, else on the Schur complement,
    which is never formed. Cost: a pass over the factors for each iteration.

    Args:
        plan: Memory and structure.
        phases: Its launches.
        remarks: Why it was chosen.
    """

    is_direct = False

    def __init__(self, plan: Plan, phases: Phases, remarks: tuple[str, ...] = ()) -> None:
        backend = plan.library.backend
        self.name = "pcg" if len(plan.eliminated) == 0 else "schur_pcg"
        self.num_bytes = 0
        self._begin = backend.sequence([*phases.reduce(), *phases.begin_gradients()])
        self._iterate = phases.repeated(phases.iterate_gradients())
        self.remarks = (*remarks, *self._iterate.remarks)

    def begin(self) -> None:
        """Reduce, start."""
        self._begin.run()

    def solve(self, max_iterations: int) -> None:
        """Iterate."""
        self._iterate.run(max_iterations)


class DenseSolver:
    """The system as a dense matrix, by Cholesky's factorisation; counts as one iteration.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: Blocks of the matrix.
        remarks: Why it was chosen.

    Raises:
        OutOfMemoryError: The matrix has more entries than an int32 counts, or does not fit.
    """

    is_direct = True

    def __init__(
        self, plan: Plan, binder: Binder, structure: Structure, remarks: tuple[str, ...] = ()
    ) -> None:
        self.name = "dense" if len(plan.eliminated) == 0 else "schur_dense"
        self.remarks = remarks
        backend = self._backend = plan.library.backend
        system = self._system = ExplicitSystem(plan, binder, structure)
        if system.size**2 > np.iinfo(np.int32).max:
            raise OutOfMemoryError(
                f"linear_solver='schur_dense': the system has {system.size:,} unknowns, and its "
                f"matrix {8 * system.size**2:,} bytes; use 'auto', 'sparse' or 'schur_pcg'"
            )
        self._factorization = backend.dense_factorization(system.size, system.failed)
        matrix = self._factorization.matrix
        entries = system.entries()
        place = (entries.rows.astype(np.int64) * system.size + entries.columns).astype(np.int32)
        self.num_bytes = system.num_bytes + entries.num_bytes
        self.num_bytes += int(place.nbytes) + int(matrix.nbytes)
        target = Binding(matrix.reshape(-1), system.size**2, fields={"index": place})
        self._form = backend.sequence(system.form())
        self._entries = backend.sequence([system.write_entries("entries_dense", entries, target)])
        self._finish = backend.sequence(system.finish())

    def begin(self) -> None:
        """Nothing: the factorisation takes most of the time."""

    def solve(self, max_iterations: int) -> None:
        """Form the matrix, factorise, solve."""
        self._form.run()
        self._backend.clear(self._factorization.matrix)
        self._entries.run()
        self._factorization.solve(self._system.rhs, self._system.solution)
        self._finish.run()


class SparseSolver:
    """The system as a sparse matrix, by a sparse factorisation; counts as one iteration.

    Args:
        plan: Memory and structure.
        binder: Binds its kernels.
        structure: Blocks of the matrix.

    Raises:
        BackendError: The library that factorises is not installed, or refuses.
    """

    is_direct = True

    def __init__(self, plan: Plan, binder: Binder, structure: Structure) -> None:
        self.name = "sparse"
        self.remarks: tuple[str, ...] = ()
        backend = plan.library.backend
        xp = backend.xp
        system = self._system = ExplicitSystem(plan, binder, structure)
        unsorted = system.entries()
        order = xp.argsort(unsorted.rows.astype(np.int64) * system.size + unsorted.columns)
        entries = Entries(*(part[order] for part in unsorted.parts))
        numbers = xp.arange(system.size + 1, dtype=np.int32)
        starts = xp.searchsorted(entries.rows, numbers).astype(np.int32)
        self._factorization = backend.sparse_factorization(
            starts, entries.columns, system.size, system.failed
        )
        values = self._factorization.values
        self.num_bytes = system.num_bytes + entries.num_bytes
        self.num_bytes += int(starts.nbytes) + int(values.nbytes)
        target = Binding(values, int(values.shape[0]))
        self._form = backend.sequence(
            [*system.form(), system.write_entries("entries_sparse", entries, target)]
        )
        self._finish = backend.sequence(system.finish())

    def begin(self) -> None:
        """Nothing: the factorisation takes most of the time."""

    def solve(self, max_iterations: int) -> None:
        """Form the matrix, factorise, solve."""
        self._form.run()
        self._factorization.solve(self._system.rhs, self._system.solution)
        self._finish.run()
