"""Gauss-Newton steps of a live problem.

Every step has the gradient at the current values, and a factorisation in which little has changed
since (`block_factorization`); the last one also tells whether another step would gain anything.
Cost tier: an evaluation, part of a factorisation and two sparse solves for each step; an update to
which no step promises anything solves nothing.
"""

import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from caspar.errors import OptionError, RankDeficiencyError
from caspar.live.block_factorization import MAX_BLOCK, NO_PIVOT, BlockFactorization
from caspar.live.gaussians import Gaussians
from caspar.live.linearization import FactorRows, Linearizer, Places, RowGroup
from caspar.live.tables import FactorTable, Flags, NodeTable, Rows
from caspar.options import LinearSolverChoice, Precision, SolveOptions
from caspar.runtime.backend import Backend
from caspar.solver.result.result import IterationRecord, ProblemSize, SolveResult, SolveStatus

Found = TypeVar("Found")

MIN_GAIN = 1e-3
"""Share of the promised decrease of the cost from which on a step is taken."""

MIN_LENGTH = 0.2
"""Times the step that is tried at least before there is more damping."""

MODEL_ROUNDING = 1e-6
"""A promised decrease may exceed the whole cost by this share."""

MOST_CHANGE = 0.01
"""Largest change of an instance's derivatives, relative to their length, that is not factorised
again. The root of the tolerance takes its place if that is less."""

WEAK_PIVOT = 1e-9
"""A matrix with a smaller pivot, relative to the same sizes as damping, counts as singular but for
`LEAST_DAMPING`."""

LEFT_OUT = 10.0
"""x^2 s of an unknown with step x and squared derivatives s up to which it stays where it is,
relative to the share of an unknown in what the step promises."""

MOST_GAIN = 0.5
"""Share of the promised decrease from which on a step is taken in which some nodes stay."""

MANY_BLOCKS = 1000
"""Blocks of unknowns up to which all nodes move: looking for those that stay takes as long."""

NO_COST = 1e-12
"""Cost up to which rounding may be all of it."""

LEAST_DAMPING = 1e-12
"""Damping on the diagonal of a scaled matrix that is singular: directions that no row sees, such as
the depth of a point with one sight, stay where they are."""

MAX_VARIANCE = 1e-3 / LEAST_DAMPING
"""Variance from which on an unknown of a singular problem counts as free, relative to the variance
that it would have if all other unknowns were known."""

NOTHING: Mapping[Hashable, tuple[Places, RowGroup]] = MappingProxyType({})
"""The rows that have changed if values have not."""

FIRST_DAMPING = 1e-8
DAMPING_GROWTH = 100.0
MAX_DAMPING = 1e8
"""Damping is tried if a step does not lower the cost: the first, its growth, and the largest."""


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Attributes:
        cost: The cost after the update: 1/2 the sum of w rho(|r|^2) of all factors and Gaussians.
        status: `CONVERGED_COST` if no step promises more than the tolerance; `ITERATION_LIMIT` if
            another update would go on.
        iterations: Steps that were tried.
        relinearised: Nodes of factors whose derivatives had changed enough to be factorised
            again; a node counts each time.
        time_s: Seconds that the update took.
        promised: Decrease of the cost that the next step promises.

    Example:
        >>> import caspar
        >>> import symforce.symbolic as sf
        >>> class Length(sf.V1): ...
        >>> problem = caspar.Problem(caspar.factors.prior(Length, noise="unit", name="measured"))
        >>> ids = problem.add_nodes("Length", [[0.0]])
        >>> values = {"value": [ids[0], ids[0]], "expected": [[1.0], [1.5]]}
        >>> handles = problem.add_factors("measured", values)
        >>> updated = problem.update()
        >>> round(updated.cost, 4), updated.iterations
        (0.0625, 1)
    """

    cost: float
    status: SolveStatus
    iterations: int
    relinearised: int
    time_s: float
    promised: float


@dataclass(frozen=True)
class Evaluated:
    """All factors at some values.

    Attributes:
        factors: The instances of each factor that has some.
        gaussians: The rows of each Gaussian, by handle.
        constant: The constants of all Gaussians.
    """

    factors: dict[str, FactorRows]
    gaussians: Mapping[int, RowGroup]
    constant: float

    @property
    def cost(self) -> float:
        """Cost of all factors and Gaussians."""
        squares = sum(float((one.residual**2).sum()) for one in self.gaussians.values())
        return sum(self.costs().values()) + 0.5 * squares + self.constant

    @property
    def rows(self) -> dict[Hashable, RowGroup]:
        """The rows of each factor by its name, and those of each Gaussian by its handle."""
        rows: dict[Hashable, RowGroup] = {name: one.group for name, one in self.factors.items()}
        return {**rows, **{handle: group for handle, group in self.gaussians.items()}}

    def costs(self) -> dict[str, float]:
        """Return the cost of each factor."""
        return {name: one.total for name, one in self.factors.items()}

    def touching(self, touched: Mapping[str, Flags], gaussians: Sequence[int]) -> list[RowGroup]:
        """The rows of some instances, flags by factor, and of some Gaussians."""
        factors = [one.group.chosen(touched[name]) for name, one in self.factors.items()]
        return [*factors, *(self.gaussians[handle] for handle in gaussians)]


@dataclass(frozen=True)
class Change:
    """Some instances of factors at other values.

    Attributes:
        places: By factor which instances.
        found: By factor their costs and rows.
    """

    places: Mapping[str, Places]
    found: Mapping[str, tuple[Rows, RowGroup]]

    def decrease(self, evaluated: Evaluated) -> float:
        """How much less all factors cost than before."""
        return sum(
            float((evaluated.factors[name].costs[self.places[name]] - costs).sum())
            for name, (costs, _) in self.found.items()
        )

    def write(self, evaluated: Evaluated) -> dict[Hashable, tuple[Places, RowGroup]]:
        """Put them in the place of those before, which are returned."""
        before: dict[Hashable, tuple[Places, RowGroup]] = {}
        for name, (costs, group) in self.found.items():
            places, rows = self.places[name], evaluated.factors[name]
            before[name] = places, rows.group.chosen(places)
            rows.write(places, costs, group)
        return before


@dataclass(frozen=True)
class Trial:
    """A step that was tried.

    Attributes:
        gain: The decrease of the cost, relative to what was promised.
        cost: Of all factors and Gaussians.
        moved: By node type the values.
        found: All factors at these, or those that have changed.
    """

    gain: float
    cost: float
    moved: Mapping[str, Rows]
    found: Evaluated | Change


class Incremental:
    """Steps of one problem.

    Args:
        backend: The processor.
        nodes: Tables of the node types, by name.
        factors: Tables of the factors, by name.
        gaussians: Of the problem.

    Attributes:
        num_unknowns: Of all nodes.
        records: One for each step of the last run.
    """

    def __init__(
        self,
        backend: Backend,
        nodes: Mapping[str, NodeTable],
        factors: Mapping[str, FactorTable],
        gaussians: Gaussians,
    ) -> None:
        self._backend = backend
        self._nodes, self._factors, self._gaussians = nodes, factors, gaussians
        self.num_unknowns = 0
        self.records: list[IterationRecord] = []
        self._at: Evaluated | None = None
        self._promised, self._damping, self._least_damping = math.inf, 0.0, 0.0
        dim = math.gcd(*(table.dim for table in nodes.values()))
        sizes = range(min(dim, MAX_BLOCK), 0, -1)
        self._block_size = next((size for size in sizes if dim % size == 0), 1)
        self._factorization = BlockFactorization(self._block_size)
        self._linearizer = Linearizer(backend, nodes, factors, self._block_size)
        self._num_changed, self._is_weak = 0, True

    def forget(self) -> None:
        """Rows were removed or written, or nodes are held: begin anew."""
        self._at = None
        self._promised, self._least_damping = math.inf, 0.0
        self._linearizer.forget()
        first, size = 0, self._block_size
        kept = [np.zeros(0, np.int64)]
        for table in self._nodes.values():
            firsts = table.unknowns.column
            kept.append((firsts[:, None] // size + np.arange(table.dim // size)).ravel())
            firsts[...] = first + table.dim * np.arange(table.count)
            first += table.dim * table.count
        self.num_unknowns = first
        self._factorization.keep(np.concatenate(kept))

    # -- evaluation ----------------------------------------------------------------------------

    def values(self) -> dict[str, Rows]:
        """The current values, by node type."""
        return {name: table.values.rows for name, table in self._nodes.items() if table.count > 0}

    def evaluate(self, values: Mapping[str, Rows]) -> Evaluated:
        """All factors at some values."""
        found = self._linearizer.evaluate(values)
        factors = {name: FactorRows(*one) for name, one in found.items()}
        return Evaluated(factors, self._gaussians.evaluate(values), self._gaussians.constant)

    def current(self) -> Evaluated:
        """All factors at the current values; what is known is not evaluated again."""
        if self._at is None:
            self._at = self.evaluate(self.values())
        known = {name: len(one.costs) for name, one in self._at.factors.items()}
        places = {
            name: np.arange(known.get(name, 0), table.count)
            for name, table in self._factors.items()
            if table.count > known.get(name, 0)
        }
        if len(places) > 0:
            for name, new in self._linearizer.evaluate(self.values(), places).items():
                if name in known:
                    self._at.factors[name].append(*new)
                else:
                    self._at.factors[name] = FactorRows(*new)
        return self._at

    # -- steps ---------------------------------------------------------------------------------

    def run(self, max_iterations: int, tolerance: float) -> UpdateResult:
        """Take steps until none promises more than the tolerance, relative to the cost."""
        self.records = []
        return self.alone(lambda: self._run(max_iterations, tolerance), is_dense=False)

    def solve(self, options: SolveOptions, named: Collection[str]) -> SolveResult:
        """Steps until rounding ends them, each with a matrix of its own.

        Args:
            options: As for `caspar.Solver.solve`.
            named: Names of those that the user gave.

        Raises:
            OptionError: One that does not apply.
        """
        for name in named:
            if name not in ("max_iterations", "cost_tolerance"):
                raise OptionError(
                    f"{name!r}: a problem with Gaussians takes max_iterations and cost_tolerance "
                    "only"
                )
        most = 100 if options.max_iterations is None else options.max_iterations
        tolerance = 1e-13 if options.cost_tolerance is None else options.cost_tolerance
        initial_cost = self.current().cost
        found = self.run(most, tolerance)
        evaluated, tables = self.current(), self._nodes.values()
        return SolveResult(
            status=found.status,
            initial_cost=initial_cost,
            final_cost=found.cost,
            remaining_decrease=found.promised / found.cost if found.cost > 0.0 else 0.0,
            iterations=tuple(self.records),
            values={table.node.name: table.values.rows.copy() for table in tables},
            problem=ProblemSize(
                nodes={table.node.name: table.count for table in tables},
                factors={name: table.count for name, table in self._factors.items()},
                num_residuals=sum(one.residual.size for one in evaluated.rows.values()),
                num_unknowns=sum(int(table.free.rows.sum()) for table in tables),
            ),
            backend=self._backend.name,
            device=self._backend.device,
            precision=Precision.FLOAT64.value,
            linear_solver=LinearSolverChoice.SPARSE.value,
            compile_time_s=0.0,
            setup_time_s=0.0,
            solve_time_s=found.time_s,
            peak_memory_bytes=0,
            costs=evaluated.costs(),
        )

    def alone(self, work: Callable[[], Found], *, is_dense: bool) -> Found:
        """Call a function; if it has dense matrices, while BLAS has one thread.

        Matrices are small, and threads that wait for each other take the time of others.
        """
        from caspar.runtime.cpu.direct import on_one_thread

        found: list[Found] = []
        try:
            if is_dense or len(self._gaussians.by_handle) > 0:
                on_one_thread(lambda: found.append(work()))
            else:
                found.append(work())
        except BaseException:
            # what is kept may be half done
            self.forget()
            raise
        return found[0]

    def _run(self, max_iterations: int, tolerance: float) -> UpdateResult:
        start_s = time.perf_counter()
        cost_before = math.nan if self._at is None else self._at.cost
        evaluated = self.current()
        cost, self._num_changed = evaluated.cost, 0
        # rows that came can lower the cost by no more than what they add to it
        promised = self._promised + cost - cost_before
        if not math.isfinite(cost):
            status, promised = SolveStatus.INITIAL_COST_NOT_FINITE, math.nan
        elif promised <= tolerance * cost:
            status = SolveStatus.CONVERGED_COST
        else:
            status, promised = self._iterate(evaluated, max_iterations, tolerance, start_s)
        if status is SolveStatus.DAMPING_LIMIT:
            # the next run tries steps without damping again
            self._damping = self._least_damping = 0.0
        self._promised = promised
        elapsed_s = time.perf_counter() - start_s
        num_steps, cost = len(self.records), self.current().cost
        return UpdateResult(cost, status, num_steps, self._num_changed, elapsed_s, promised)

    def _iterate(
        self, evaluated: Evaluated, max_iterations: int, tolerance: float, start_s: float
    ) -> tuple[SolveStatus, float]:
        """Take steps; how that ended, and what the next one promises."""
        self._linearize(evaluated, tolerance)
        self._factorize()
        is_current = True
        while True:
            promised = self._promise(evaluated)
            if promised is None and is_current:
                if not self._renew(evaluated):
                    if not self._damp():
                        return SolveStatus.DAMPING_LIMIT, math.nan
                    # with less the matrix is singular again
                    self._least_damping = self._damping
            elif promised is not None:
                if promised <= max(tolerance * evaluated.cost, self._rounding(evaluated)):
                    if self._damping <= self._least_damping:
                        return SolveStatus.CONVERGED_COST, promised
                    self._damping = 0.0
                elif len(self.records) >= max_iterations:
                    return SolveStatus.ITERATION_LIMIT, promised
                elif is_current:
                    trial = self._tried(promised, evaluated)
                    self._note(evaluated.cost, trial, start_s)
                    if trial.gain >= MIN_GAIN:
                        evaluated, before = self._move(trial)
                        self._linearize(evaluated, tolerance, before)
                        # what the former matrix says of the next step is enough to end by
                        is_current = False
                        continue
                    if not self._renew(evaluated) and not self._damp():
                        return SolveStatus.DAMPING_LIMIT, promised
            self._factorize()
            is_current = True

    def _move(
        self, trial: Trial
    ) -> tuple[Evaluated, Mapping[Hashable, tuple[Places, RowGroup]] | None]:
        """Accept a step: all factors then, and rows that have changed as they were before."""
        for name, rows in trial.moved.items():
            self._nodes[name].values.rows[...] = rows
        relieved = self._damping / DAMPING_GROWTH
        self._damping = relieved if relieved >= FIRST_DAMPING else 0.0
        if isinstance(trial.found, Change):
            evaluated = self.current()
            return evaluated, trial.found.write(evaluated)
        self._at = trial.found
        return trial.found, None

    def _linearize(
        self,
        evaluated: Evaluated,
        tolerance: float,
        before: Mapping[Hashable, tuple[Places, RowGroup]] | None = NOTHING,
    ) -> None:
        """Take derivatives and gradient; `before`: rows that have changed, None: all.

        If the last matrix is singular but for damping, all derivatives are taken as they are: a
        direction that old derivatives do not see is one along which the gradient may point, and
        a step along it has no bound.
        """
        most_change = 0.0 if self._is_weak else min(MOST_CHANGE, math.sqrt(tolerance))
        factorization = self._factorization
        if most_change == 0.0 and not factorization.is_exact:
            before = None
        factorization.linearize(
            evaluated.rows, self.num_unknowns, most_change=most_change, changed=before
        )

    def _factorize(self) -> None:
        """Factorise the matrix that was linearised last, with as much damping as it needs."""
        damping = max(self._damping, self._least_damping, LEAST_DAMPING)
        factorization, size = self._factorization, self._block_size
        for table in self._nodes.values():
            blocks = table.unknowns.column[:, None] // size + np.arange(table.dim // size)
            self._num_changed += int(factorization.changed[blocks].any(axis=1).sum())
        sizes = self._sizes()
        factorization.factorize(damping * sizes)
        self._is_weak = factorization.weakest(sizes)[0] < WEAK_PIVOT

    def _renew(self, evaluated: Evaluated) -> bool:
        """Take all derivatives as they are now for the next factorisation; False: they were."""
        if self._factorization.is_exact:
            return False
        self._linearize(evaluated, 0.0, None)
        return True

    def _sizes(self) -> Rows:
        """(num_unknowns,) the squared derivatives by each, or by another of its node in its unit.

        The largest one of a unit, so that a point with one sight moves across the ray, and not
        along it, whatever axes it has.
        """
        sizes = self._factorization.squares.copy()
        for table in self._nodes.values():
            for part in table.node.tangent_parts:
                unknowns = table.unknowns.column[:, None] + np.array(part)
                sizes[unknowns] = sizes[unknowns].max(axis=1, keepdims=True)
        return np.where(sizes > 0.0, sizes, 1.0)

    def _promise(self, evaluated: Evaluated) -> float | None:
        """Return what a step by the last factorisation promises; None: there is no such step."""
        factorization = self._factorization
        if not factorization.is_definite:
            return None
        promised = 0.5 * factorization.forward(-factorization.gradient)
        # linearised residuals have no more to lose, unless the matrix is singular to rounding
        most = 0.5 * sum(float((one.residual**2).sum()) for one in evaluated.rows.values())
        return promised if 0.0 <= promised <= (1.0 + MODEL_ROUNDING) * most else None

    def _tried(self, promised: float, evaluated: Evaluated) -> Trial:
        """Go along the step that was begun, by less if all of it does not lower the cost."""
        factorization = self._factorization
        if self.num_unknowns > MANY_BLOCKS * self._block_size and len(evaluated.gaussians) == 0:
            least = math.sqrt(LEFT_OUT * promised / self.num_unknowns)
            direction = factorization.backward(least)
            moving = self._moving(direction)
            if moving is not None:
                moved = self._linearizer.moved(direction, moving)
                places = self._touching(moving)
                change = Change(places, self._linearizer.evaluate(moved, places))
                decrease = change.decrease(evaluated)
                if decrease >= MOST_GAIN * promised:
                    return Trial(decrease / promised, evaluated.cost - decrease, moved, change)
            factorization.forward(-factorization.gradient)
        direction, length = factorization.backward(), 1.0
        while True:
            moved = self._linearizer.moved(length * direction)
            candidate = self.evaluate(moved)
            expected = (2.0 - length) * length * promised
            gain = (evaluated.cost - candidate.cost) / expected
            if gain >= MIN_GAIN or length < MIN_LENGTH:
                return Trial(gain, candidate.cost, moved, candidate)
            length *= 0.5

    def _moving(self, direction: Rows) -> dict[str, Places] | None:
        """By type the nodes that a step moves; None: more than half of all."""
        moving, num_moving, num_nodes = {}, 0, 0
        for name, table in self._nodes.items():
            unknowns = table.unknowns.column[:, None] + np.arange(table.dim)
            moving[name] = np.flatnonzero(direction[unknowns].any(axis=1))
            num_moving, num_nodes = num_moving + len(moving[name]), num_nodes + table.count
        return moving if 2 * num_moving < num_nodes else None

    def _touching(self, moving: Mapping[str, Places]) -> dict[str, Places]:
        """By factor the instances that touch some nodes."""
        flags = {}
        for name, places in moving.items():
            flags[name] = np.zeros(self._nodes[name].count, np.bool_)
            flags[name][places] = True
        return {name: np.flatnonzero(one.touching(flags)) for name, one in self._factors.items()}

    def _rounding(self, evaluated: Evaluated) -> float:
        """A promise that rounding of the residuals explains, if the cost is next to nothing."""
        if evaluated.cost > NO_COST:
            return 0.0
        sizes = [float(np.abs(rows).max()) for rows in self.values().values()]
        largest = max(sizes, default=0.0)
        squares = sum(float((one.entries**2).sum()) for one in evaluated.rows.values())
        return (float(np.finfo(np.float64).eps) * largest) ** 2 * squares

    def _damp(self) -> bool:
        """After a step that does not help: more damping; False: there is too much."""
        self._damping = max(DAMPING_GROWTH * self._damping, FIRST_DAMPING)
        return self._damping <= MAX_DAMPING

    def _note(self, cost: float, trial: Trial, start_s: float) -> None:
        accepted = trial.gain >= MIN_GAIN
        reason = "" if accepted else "the cost did not decrease as promised"
        self.records.append(
            IterationRecord(
                iteration=len(self.records) + 1,
                cost=trial.cost if accepted else cost,
                candidate_cost=trial.cost,
                damping=self._damping,
                gain_ratio=trial.gain,
                linear_iterations=1,
                step_accepted=accepted,
                reason=reason,
                time_s=time.perf_counter() - start_s,
            )
        )

    def _is_singular(self, sizes: Rows) -> bool:
        """Factorise with the least damping; whether the matrix without it is singular.

        It is if v^T J^T J v is next to nothing, relative to v^T `sizes` v, where v is the solution
        for the unknown with the least pivot.
        """
        factorization = self._factorization
        factorization.factorize(LEAST_DAMPING * sizes)
        if not factorization.is_definite:
            return False
        _, unknown = factorization.weakest(sizes)
        chosen = np.zeros(self.num_unknowns)
        chosen[unknown] = 1.0
        solution = factorization.solve(chosen)
        length = float((sizes * solution**2).sum())
        return float(solution[unknown]) - LEAST_DAMPING * length <= NO_PIVOT * length

    def covariances(self, chosen: Mapping[str, NDArray[np.int64]]) -> dict[str, Rows]:
        """Return (k, dim, dim) blocks of the inverse of J^T J for nodes, by type and place.

        Raises:
            RankDeficiencyError: A node that is asked for is free in some direction.
        """
        factorization = self._factorization
        self._linearize(self.current(), 0.0)
        sizes = self._sizes()
        is_singular = self._is_weak and self._is_singular(sizes)
        if not is_singular:
            factorization.factorize()
            is_singular = not factorization.is_definite
            if is_singular:
                factorization.factorize(LEAST_DAMPING * sizes)
        found = {}
        for name, places in chosen.items():
            table = self._nodes[name]
            unknowns = table.unknowns.column[places, None] + np.arange(table.dim)
            rows = factorization.inverse_rows(unknowns.ravel())
            rows = rows.reshape(len(places), table.dim, -1)
            blocks = np.take_along_axis(rows, unknowns[:, None, :], axis=2)
            scaled = blocks.diagonal(axis1=1, axis2=2) * sizes[unknowns]
            moves = table.free.rows[places]
            is_free = (moves > 0.0) & ~(scaled < MAX_VARIANCE)
            if is_singular and is_free.any():
                number = int(table.numbers[places[is_free.any(axis=1)][0]])
                raise RankDeficiencyError(
                    f"covariance, {table.title}: the factors leave id {number} free in some "
                    "direction; hold a node by set_fixed, or add a prior",
                    int(is_free.sum()),
                )
            found[name] = blocks * moves[:, :, None] * moves[:, None, :]
        return found
