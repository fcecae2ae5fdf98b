"""The linear solvers that factorise a matrix; each solve counts as one iteration."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray

from caspar.errors import OutOfMemoryError
from caspar.ir.dtype import DType
from caspar.memory.array import Array, Binding, Late
from caspar.memory.layout import row_scalars
from caspar.runtime.backend import Launch
from caspar.solver.linear.explicit.explicit_kernels import HELD_SCALE, ROWS
from caspar.solver.linear.explicit.structure import Structure
from caspar.solver.linear.explicit.system import ExplicitSystem
from caspar.solver.normal.blocks import Entries
from caspar.solver.plan.plan import FactorPlan, Plan
from caspar.solver.system.launches import Binder
from caspar.solver.system.lone_promises import (
    MOST_DIRECTIONS,
    SHOWN,
    Promises,
    direction_of,
    joint_texts,
)


class _MatrixSolver:
    """The system as a matrix that is factorised; a solve counts as one iteration.

    Where the factorisation is a launch, a solve is nothing but launches.
    """

    is_direct = True
    _kind: Any
    _factorization: Any

    def __init__(self, plan: Plan, binder: Binder, structure: Structure) -> None:
        self._backend = plan.library.backend
        self._system = ExplicitSystem(plan, binder, structure)
        self._analyze(structure)
        form = [*self._system.form(), *self._write_launches(binder)]
        self._form_launches, self._finish_launches = form, self._system.finish()
        self._form = binder.sequence(self._form_launches)
        self._finish = binder.sequence(self._finish_launches)
        self._solving: Any = None
        self.launches: Sequence[Launch] = ()
        self._place_launches()

    def renew(self, plan: Plan, structure: Structure) -> bool:
        """Solve the systems of another plan of the same kind, once launches are bound again.

        Returns:
            False: its matrix is formed by other launches, and another solver has to be made.
        """
        if structure.kind != self._kind:
            return False
        self._system.renew(plan, structure)
        self._analyze(structure)
        self._place_launches()
        return True

    def _analyze(self, structure: Structure) -> None:
        """The entries of the matrix in their order, and the factorisation of their pattern."""
        raise NotImplementedError

    def _write_launches(self, binder: Binder) -> list[Launch]:
        """The launches that write the entries."""
        raise NotImplementedError

    def _place_launches(self) -> None:
        """Place the launches of a solve if the factorisation is one; as before if possible."""
        solving = self._factorization.launch(self._system.rhs, self._system.solution)
        if solving is None:
            self.launches = ()
        elif len(self.launches) == 0 or not self._solving.replace_by(solving):
            self._solving = solving
            self.launches = (*self._form_launches, solving, *self._finish_launches)

    def begin(self) -> None:
        """Do nothing: the factorisation takes most of the time."""

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Form the matrix, factorise, solve."""
        self._form.run()
        self._factorization.probes = probes
        self._factorization.factorize()
        self._factorization.solve(self._system.rhs, self._system.solution)
        self._finish.run()


class DenseSolver(_MatrixSolver):
    """The system as a dense matrix, by Cholesky's factorisation.

    Raises:
        OutOfMemoryError: The matrix has more entries than an int32 counts, or does not fit.
    """

    def __init__(
        self, plan: Plan, binder: Binder, structure: Structure, remarks: tuple[str, ...] = ()
    ) -> None:
        self.name = "dense" if len(plan.eliminated) == 0 else "schur_dense"
        self.remarks = remarks
        super().__init__(plan, binder, structure)

    def _analyze(self, structure: Structure) -> None:
        system, tools = self._system, structure.tools
        self._kind = structure.kind
        if system.size**2 > np.iinfo(np.int32).max:
            raise OutOfMemoryError(
                f"linear_solver='schur_dense': the system has {system.size:,} unknowns, and its "
                f"matrix takes {8 * system.size**2:,} bytes; use 'auto', 'sparse' or 'schur_pcg'"
            )
        self._factorization = self._backend.dense_factorization(system.size, system.outcome)
        entries = system.entries()
        place = (entries.rows.astype(np.int64) * system.size + entries.columns).astype(np.int32)
        self._entries, self._index = _sent(structure, entries), tools.send(place)
        self.num_bytes = system.num_bytes + self._entries.num_bytes
        self.num_bytes += int(place.nbytes) + int(self._factorization.memory.nbytes)

    def _write_launches(self, binder: Binder) -> list[Launch]:
        this = proxy(self)  # which keeps launches
        target = Binding(
            Late(lambda: this._factorization.matrix.reshape(-1)),
            Late(lambda: this._system.size**2),
            fields={"index": Late(lambda: this._index)},
        )
        clear = binder.clear_array(Late(lambda: this._factorization.memory.view(np.float32)))
        return [
            clear,
            self._system.write_entries("entries_dense", lambda: this._entries, target),
        ]


class SparseSolver(_MatrixSolver):
    """The system as a sparse matrix, by a sparse factorisation.

    Raises:
        BackendError: The library that factorises is not installed, or refuses.
    """

    name = "sparse"

    def _analyze(self, structure: Structure) -> None:
        system, tools = self._system, structure.tools
        self._kind = structure.kind
        entries, starts = system.entries().by_rows(tools.xp, system.size)
        self._entries = _sent(structure, entries)
        self._factorization = self._backend.sparse_factorization(
            tools.send(starts), self._entries.columns, system.size, system.outcome
        )
        self.num_bytes = system.num_bytes + self._entries.num_bytes
        self.num_bytes += self._factorization.num_bytes

    def _write_launches(self, binder: Binder) -> list[Launch]:
        this = proxy(self)  # which keeps launches
        target = Binding(
            Late(lambda: this._factorization.values),
            Late(lambda: int(this._factorization.values.shape[0])),
        )
        return [self._system.write_entries("entries_sparse", lambda: this._entries, target)]

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks of the library, which a fork may change."""
        remarks: tuple[str, ...] = self._factorization.remarks
        return remarks


@dataclass(frozen=True)
class _FactorRows:
    """The rows that a factor adds to the matrix.

    Attributes:
        data: Output of its kernel, on the device: padded rows of float64, one an instance.
        places: (instances, width - num_rows) places of the Jacobian's entries in the matrix, which
            is stored column by column.
        is_distinct: Whether no two entries have the same place; they do if an instance touches a
            node twice.
    """

    data: Array
    width: int
    num_rows: int
    first_row: int
    places: NDArray[np.int64]
    columns: NDArray[np.int64]
    is_distinct: bool


class OrthogonalSolver:
    """The system as a least-squares problem, by a QR decomposition; counts as one iteration.

    The normal matrix J^T J has the square of the condition of J: where stiff rows meet soft ones,
    such as ties of weight 1e6 in a pose graph or a line over Unix seconds, its soft directions are
    rounding errors. Here J itself is formed, in variables scaled by D^-1/2, and
    |J s + r|^2 + damping |s|^2 is minimised. Rows of very different sizes need a decomposition that
    sorts rows and pivots columns (Powell and Reid 1968; Cox and Higham 1998). LAPACK does it on the
    host, on CUDA too, because cuSOLVER does not pivot. Each step evaluates all Jacobians, copies
    them to the host, and takes 2 m n^2 operations.

    `plan`: Memory and structure; nothing is eliminated, and all types are float64. `structure`:
    Blocks of the normal matrix, of which the diagonal ones give D.
    """

    is_direct = True
    launches: Sequence[Launch] = ()
    name = "qr"

    def __init__(
        self, plan: Plan, binder: Binder, structure: Structure, remarks: tuple[str, ...] = ()
    ) -> None:
        self.remarks = remarks
        self._plan, self._unknowns = plan, structure.unknowns
        backend = self._backend = plan.library.backend
        system = self._system = ExplicitSystem(plan, binder, structure)
        counts = [one.count * len(one.factor.residual) for one in plan.factors]
        self._num_rows, size = sum(counts) + system.size, system.size
        if self._num_rows * size > np.iinfo(np.int32).max:
            raise OutOfMemoryError(
                f"linear_solver='qr': the Jacobian of {sum(counts):,} residuals by {size:,} "
                f"unknowns takes {8 * self._num_rows * size:,} bytes as a dense matrix; use 'auto' "
                "or 'sparse'"
            )
        firsts = accumulate(counts, initial=0)
        rows = [self._rows(*one) for one in zip(plan.factors, firsts, strict=False)]
        self._factors: list[_FactorRows] = rows
        from caspar.runtime.cpu.direct import LapackQr

        self._qr = LapackQr(self._num_rows, size)
        self._damping = plan.scalar("damping")
        self.num_bytes = system.num_bytes + self._qr.num_bytes
        self.num_bytes += sum(int(one.data.nbytes) + 2 * one.places.nbytes for one in rows)
        launches = [
            binder.pair(one, ROWS, {ROWS: Binding(own.data, one.count)})
            for one, own in zip(plan.factors, rows, strict=True)
        ]
        self._form = backend.sequence([*system.form(), *launches])
        self._finish = backend.sequence(system.finish())

    def _rows(self, factor: FactorPlan, first_row: int) -> _FactorRows:
        columns = np.concatenate(list(self._columns(factor)), axis=1)
        num_rows, (count, width) = len(factor.factor.residual), columns.shape
        # entries of a node argument go row by row
        rows = [np.repeat(np.arange(num_rows), one.tangent_dim) for one in factor.factor.nodes]
        row = first_row + num_rows * np.arange(count)[:, None] + np.concatenate(rows)
        places = columns * self._num_rows + row
        width += num_rows
        data = self._backend.xp.zeros(count * row_scalars(width, DType.FLOAT64))
        nodes = [one.node_type.name for one in factor.factor.nodes]
        is_distinct = len(set(nodes)) == len(nodes) or len(np.unique(places)) == places.size
        return _FactorRows(data, width, num_rows, first_row, places, columns, is_distinct)

    def _columns(self, factor: FactorPlan) -> Iterator[NDArray[np.int64]]:
        """(instances, rows * tangent_dim) columns of the entries, of each node argument."""
        for argument in factor.factor.nodes:
            name, dim = argument.node_type.name, argument.tangent_dim
            index = factor.order.index(argument.name, self._backend.to_host)
            node = np.zeros(factor.count, np.int64) if index is None else index.astype(np.int64)
            columns = self._unknowns.numbers(np, name, node, np.arange(dim))
            yield np.tile(columns, (1, len(factor.factor.residual)))

    def begin(self) -> None:
        """Do nothing: the decomposition takes most of the time."""

    def solve(self, max_iterations: int, *, probes: bool = False) -> None:
        """Evaluate the Jacobian, decompose, solve."""
        solution, outcome = self._solved(float(self._backend.to_host(self._damping)[0]))
        self._backend.write(self._system.solution, solution)
        self._backend.write(self._system.outcome, outcome)
        self._finish.run()

    def promises(self) -> Promises | None:
        """Return the promise of a step without damping, and directions that nothing determines.

        After a linearisation at the current values; None if something is not finite.
        """
        solution, (failed, _) = self._solved(0.0)
        if failed != 0.0:
            return None
        squares, pivots = 0.5 * self._qr.explained**2, self._qr.pivots
        # curvatures, which are their squares, with half of their digits: as `lone_promises`
        least = float(np.finfo(np.float64).eps) ** 0.25
        trusted = squares[pivots >= least * pivots.max(initial=0.0)]
        shares = (self._qr.matrix @ self._qr.rhs) * solution * self._qr.lengths
        null_space = self._qr.null_space()
        moved = np.any(np.abs(null_space) > SHOWN, axis=0)
        steps = null_space[: MOST_DIRECTIONS + 1] / self._qr.lengths
        steps = steps * self._backend.to_host(self._system.scale)
        ways = [direction_of(self._plan, self._by_node(one)) for one in steps]
        return Promises(
            float(squares.sum()),
            float(trusted.sum()),
            *joint_texts(self._plan, self._by_node(shares), self._by_node(moved)),
            directions=tuple(one for one in ways if len(one) > 0),
        )

    def _by_node(self, numbers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """A vector of all unknowns as (n, tangent_dim) of each node type."""
        found = {}
        for plan in self._plan.reduced:
            count, dim = plan.count, plan.node.tangent_dim
            name = plan.node.name
            found[name] = numbers[
                self._unknowns.numbers(np, name, np.arange(count), np.arange(dim))
            ]
        return found

    def _solved(self, damping: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        self._form.run()
        to_host, system = self._backend.to_host, self._system
        scale = to_host(system.scale)
        matrix, rhs = self._qr.matrix, self._qr.rhs
        matrix[...], rhs[...] = 0.0, 0.0
        flat = matrix.reshape(-1)
        for one in self._factors:
            rows = to_host(one.data).reshape(len(one.places), -1)[:, : one.width]
            jacobian, residual = np.split(rows, [one.width - one.num_rows], axis=1)
            with np.errstate(over="ignore", invalid="ignore"):
                entries = jacobian * scale[one.columns]
            if one.is_distinct:
                flat[one.places] = entries
            else:
                np.add.at(flat, one.places, entries)
            rhs[one.first_row : one.first_row + residual.size] = -residual.reshape(-1)
        # what is held, and numbers that no unknown has, get a row of their own
        is_alone = scale == HELD_SCALE
        is_alone[list(self._unknowns.gaps)] = True
        own = np.arange(system.size)
        matrix[own, self._num_rows - system.size + own] = np.where(is_alone, 1.0, damping**0.5)
        found: tuple[NDArray[np.float64], NDArray[np.float64]] = self._qr.solve()
        return found


def _sent(structure: Structure, entries: Entries) -> Entries:
    """The same on the device."""
    return Entries(*map(structure.tools.send, entries.parts))


def orthogonal_work(plan: Plan) -> float:
    """Rows of the matrix, times unknowns squared."""
    size = sum(one.count * one.node.tangent_dim for one in plan.reduced)
    num_rows = sum(one.count * len(one.factor.residual) for one in plan.factors)
    return float(num_rows + size) * size * size


def can_be_orthogonal(plan: Plan) -> bool:
    """Return whether nothing is eliminated, and everything is in float64."""
    types = plan.types
    all_types: Sequence[DType] = (types.values, types.storage, types.sums)
    return len(plan.eliminated) == 0 and all(dtype is DType.FLOAT64 for dtype in all_types)
