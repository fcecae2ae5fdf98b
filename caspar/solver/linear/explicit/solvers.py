"""The linear solvers that factorise a matrix; each solve counts as one iteration."""

import numpy as np

from caspar.errors import OutOfMemoryError
from caspar.memory.binding import Binding
from caspar.solver.linear.explicit.matrix import Entries
from caspar.solver.linear.explicit.structure import Structure
from caspar.solver.linear.explicit.system import ExplicitSystem
from caspar.solver.plan.plan import Plan
from caspar.solver.system.launches import Binder


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
                f"matrix takes {8 * system.size**2:,} bytes; use 'auto', 'sparse' or 'schur_pcg'"
            )
        self._factorization = backend.dense_factorization(system.size, system.outcome)
        matrix = self._factorization.matrix
        entries = system.entries()
        place = (entries.rows.astype(np.int64) * system.size + entries.columns).astype(np.int32)
        entries, place = entries.sent(structure.tools), structure.tools.send(place)
        self.num_bytes = system.num_bytes + entries.num_bytes
        self.num_bytes += int(place.nbytes) + int(matrix.nbytes)
        target = Binding(matrix.reshape(-1), system.size**2, fields={"index": place})
        self._form = backend.sequence(system.form())
        self._entries = backend.sequence([system.write_entries("entries_dense", entries, target)])
        self._finish = backend.sequence(system.finish())

    def begin(self) -> None:
        """Nothing: the factorisation takes most of the time."""

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Form the matrix, factorise, solve."""
        self._form.run()
        self._backend.clear(self._factorization.matrix)
        self._entries.run()
        self._factorization.factorize()
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
        backend = plan.library.backend
        tools = structure.tools
        xp = tools.xp
        system = self._system = ExplicitSystem(plan, binder, structure)
        unsorted = system.entries()
        order = xp.argsort(unsorted.rows.astype(np.int64) * system.size + unsorted.columns)
        entries = Entries(*(part[order] for part in unsorted.parts))
        numbers = xp.arange(system.size + 1, dtype=np.int32)
        starts = tools.send(xp.searchsorted(entries.rows, numbers).astype(np.int32))
        entries = entries.sent(tools)
        self._factorization = backend.sparse_factorization(
            starts, entries.columns, system.size, system.outcome
        )
        self.remarks = self._factorization.remarks
        values = self._factorization.values
        self.num_bytes = system.num_bytes + entries.num_bytes
        self.num_bytes += self._factorization.num_bytes
        target = Binding(values, int(values.shape[0]))
        self._form = backend.sequence(
            [*system.form(), system.write_entries("entries_sparse", entries, target)]
        )
        self._finish = backend.sequence(system.finish())

    def begin(self) -> None:
        """Nothing: the factorisation takes most of the time."""

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Form the matrix, factorise, solve."""
        self._form.run()
        self._factorization.probes = probes
        self._factorization.factorize()
        self._factorization.solve(self._system.rhs, self._system.solution)
        self._finish.run()
