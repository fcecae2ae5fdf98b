"""A solve with constraints: by Newton's method, or by a loop of solves that it ends.

Input: what `Solver.solve` gets. Output: a `SolveResult` with multipliers. Small problems that leave
unknowns to constraints alone are tried by Newton's method first. Each solve of the loop minimises
an augmented Lagrangian (Hestenes, 1969; Powell, 1969; with inequalities Rockafellar, 1973) from
where the last one ended; then multipliers are updated, and penalties raised of what came no nearer.
From there Newton's method is tried. Cost tier: as many solves as the loop takes, usually one to
ten.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from caspar.frontend.factors.factor import ConstraintKind
from caspar.options import SolveOptions
from caspar.progress import iteration as shown_iteration
from caspar.progress import showing
from caspar.solver.constraints.lagrangian import Expansion, Point
from caspar.solver.constraints.newton import Newton, Polished
from caspar.solver.constraints.outcome import (
    is_impossible,
    redundant_text,
    violated_text,
    violation_of,
)
from caspar.solver.constraints.penalties import Terms
from caspar.solver.constraints.problems import ConstrainedProblems
from caspar.solver.constraints.restoring import restoring_step
from caspar.solver.constraints.start import without_held
from caspar.solver.constraints.violations import Floats, pushing_multipliers
from caspar.solver.input.constraints import Constraints as Restrictions
from caspar.solver.lm.interrupts import Callback
from caspar.solver.result.result import (
    IterationRecord,
    SolveResult,
    SolveStatus,
    ValuesReader,
    Violation,
)
from caspar.solver.result.solved_arrays import Given, SolvedArrays
from caspar.solver.solving import solve

MOST_SOLVES = 40
"""Of the loop."""

FIRST_TOLERANCE = 1e-4
"""Relative tolerance of the cost in the first solve, whose end is not that of the loop."""

TIGHTER = 1e-2
"""Times that in each solve that follows."""

EXACT = 1e-9
"""Tolerance of the cost from which on a solve has the tolerance that the user chose."""

NEARER = 0.1
"""Share of the distance at the last trial of Newton's method, to try it again."""

STALLED = 0.9
"""Share of a violation that is left where the loop no longer comes nearer."""

MOST_STALLS = 3
"""Solves in a row without coming nearer, with growing penalties, before the loop looks whether
constraints can be met."""

HELD = 1e-15
"""Scaled violation up to which constraints hold to rounding."""

HELPFUL = 1e-3
"""Share of what was wrong at first up to which the end of a run of Newton's method is taken that
did not converge, for example at a minimum where constraints depend on each other."""

MOST_STEPS = 1_000_000
"""Of Newton's method, if the user sets no limit."""

GIVES_UP = 10
"""Such solves before it ends in any case."""

NOT_FINITE = (
    SolveStatus.INITIAL_COST_NOT_FINITE,
    SolveStatus.DERIVATIVES_NOT_FINITE,
    SolveStatus.OUT_OF_RANGE,
)

BROKEN_OFF = (*NOT_FINITE, SolveStatus.STOPPED, SolveStatus.INTERRUPTED, SolveStatus.TIME_LIMIT)
"""Ends of a solve that end the loop."""


class Course:
    """One solve of the user's.

    Args:
        problems: Those of the solver.
        arrays: As the user passed them.
        restrictions: What is held, and bounds.
        options: As chosen.
        verbose: See `Solver.solve`.
        on_iteration: The user's callback.
    """

    def __init__(
        self,
        problems: ConstrainedProblems,
        arrays: Mapping[str, Any],
        restrictions: Restrictions,
        options: SolveOptions,
        verbose: bool | None,
        on_iteration: Callback | None,
    ) -> None:
        self._problems, self._restrictions = problems, restrictions
        self._arrays = self._user_arrays = arrays
        self._options, self._verbose, self._callback = options, verbose, on_iteration
        self._start_s = time.perf_counter()
        with problems.backend.scope():
            self._problem = problems.read(arrays, restrictions, check_values=options.check)
            self._found = problems.constraints.at(self._problem)
            self._sizes = problems.sizes(self._problem)
        backends = problems.session.backends
        solved = SolvedArrays(arrays, restrictions, backends, self._problem)
        self._given = Given(problems.recipe.factors, solved, problems.evaluate)
        self._tolerance = _tolerance(options, self._problem.dtypes)
        self._terms: dict[str, Terms] = {}
        self._records: list[IterationRecord] = []
        self._results: list[SolveResult] = []
        self._values: Mapping[str, Any] = {}
        self._initial_cost, self._promised = np.nan, np.nan
        self._costs: Mapping[str, float] = {}
        self._newton: Expansion | None = None
        self._newton_s, self._tried = 0.0, np.inf
        self._damping: float | None = None
        self._curvatures: Mapping[str, Floats] = {}

    def run(self) -> SolveResult:
        """Solve."""
        problems = self._problems
        if not all(one.is_finite for one in self._found.values()):
            # the solve itself says what is not finite
            for name, one in self._found.items():
                self._terms[name] = Terms.of(np.ones(one.rows.shape))
            return self._result(self._loop())
        factors = problems.factors_of(self._problem)
        with problems.backend.scope():
            if not problems.lagrangian.suits(factors, self._problem):
                # each solve of the loop would copy them again
                self._arrays = problems.placed(self._arrays, self._problem)
            first = problems.start.look(factors, self._problem, self._found, self._sizes)
        self._terms, self._initial_cost = first.terms, first.cost
        self._damping, self._curvatures = first.damping, first.curvatures
        is_near = len(self._found) > 0 and self._violation().scaled <= self._tolerance
        is_small = problems.lagrangian.suits_start(factors, self._problem)
        if (first.is_left_open or is_near) and is_small:
            status = self._newton_status()
            if status is not None:
                # a solve looks at what else there is to report, and moves nothing
                options = replace(self._options, max_iterations=1)
                self._results.append(self._solved(options, False, None))
                return self._result(status)
            self._tried = np.inf
        return self._result(self._loop())

    # -- the loop --------------------------------------------------------------------------------

    def _loop(self) -> SolveStatus:
        """Solve until constraints hold and the cost no longer falls; how that ended."""
        num_stalls, before = 0, np.inf
        for number in range(MOST_SOLVES):
            options = self._next_options(number)
            if options is None:
                return self._limit()
            last = self._solve(options)
            if last.status in BROKEN_OFF:
                return last.status
            penalties = {name: one.penalties for name, one in self._terms.items()}
            self._terms = {
                name: one.updated(self._found[name]) for name, one in self._terms.items()
            }
            distance = self._distance()
            if distance <= NEARER * self._tried:
                self._tried = distance
                status = self._newton_status(penalties)
                if status is not None:
                    return status
            is_met = distance <= self._tolerance
            is_exact = options.cost_tolerance == self._options.cost_tolerance
            if is_met and is_exact and last.status.is_success:
                self._restore()
                return last.status
            if is_met and number >= GIVES_UP:
                return SolveStatus.FEASIBLE_NOT_OPTIMAL
            violation = self._violation().scaled
            is_stalled = violation > max(STALLED * before, self._tolerance)
            num_stalls, before = num_stalls + 1 if is_stalled else 0, violation
            is_hopeless = num_stalls >= MOST_STALLS and self._is_impossible()
            if is_hopeless or num_stalls >= GIVES_UP:
                return SolveStatus.INFEASIBLE
        is_feasible = self._violation().scaled <= self._tolerance
        return SolveStatus.FEASIBLE_NOT_OPTIMAL if is_feasible else SolveStatus.ITERATION_LIMIT

    def _limit(self) -> SolveStatus:
        """The limit of time or of iterations that the loop ran into."""
        limit_s = self._options.max_time_s
        is_late = limit_s is not None and self._time_s() >= limit_s
        return SolveStatus.TIME_LIMIT if is_late else SolveStatus.ITERATION_LIMIT

    def _time_s(self) -> float:
        return sum(one.solve_time_s for one in self._results) + self._newton_s

    def _next_options(self, number: int) -> SolveOptions | None:
        """Return the options of a solve of the loop; None: the limits are used up."""
        given, limits = self._options, dict[str, Any]()
        tolerance = FIRST_TOLERANCE * TIGHTER**number
        if tolerance > EXACT and (given.cost_tolerance or 0.0) < tolerance:
            limits["cost_tolerance"] = tolerance
        is_open = given.initial_damping is None and given.min_damping is None
        if number == 0 and self._damping is not None and is_open:
            limits["initial_damping"] = min(self._damping, given.max_damping)
        if given.max_iterations is not None:
            limits["max_iterations"] = given.max_iterations - len(self._records)
        if given.max_time_s is not None:
            limits["max_time_s"] = given.max_time_s - self._time_s()
        if any(limits.get(name, 1) <= 0 for name in ("max_iterations", "max_time_s")):
            return None
        return replace(given, **limits)

    def _solve(self, options: SolveOptions) -> SolveResult:
        """The next solve, from the last values; constraints at its end."""
        known, elapsed_s = len(self._records), self._time_s()
        offset = sum(one.offset for one in self._terms.values())
        callback = self._callback

        def told(record: IterationRecord) -> object:
            assert callback is not None
            reader = ValuesReader(lambda: self._returned(record.values()))
            return callback(replace(_counted(record, known, offset, elapsed_s), reader=reader))

        result = self._solved(options, self._verbose, None if callback is None else told)
        self._results.append(result)
        self._records += [_counted(one, known, offset, elapsed_s) for one in result.iterations]
        self._values, self._promised = result.values, result.remaining_decrease
        kinds = self._problems.kinds
        self._costs = {name: cost for name, cost in result.costs.items() if name not in kinds}
        self._look()
        return result

    def _solved(
        self, options: SolveOptions, verbose: bool | None, on_iteration: Callback | None
    ) -> SolveResult:
        """A solve of the augmented Lagrangian."""
        problems = self._problems
        data = {name: one.data for name, one in self._terms.items()}
        arrays = problems.with_data({**self._arrays, **self._values}, data)
        session, restrictions = problems.session, self._restrictions
        given = self._given
        return solve(session, arrays, restrictions, options, verbose, on_iteration, given)

    def _returned(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values of a solve, on the host if the user's are NumPy arrays."""
        given, to_host = self._problem.given, self._problems.backend.to_host
        found = dict(values)
        for name, rows in values.items():
            if isinstance(given[name], np.ndarray) and not isinstance(rows, np.ndarray):
                found[name] = to_host(rows)
        return found

    def _restore(self) -> None:
        """Take the constraints from within the tolerance to where they hold up to rounding."""
        problems, problem, backend = self._problems, self._problem, self._problems.backend
        touched = {node.node for one in self._found.values() for node in one.nodes}
        is_narrow = any(np.dtype(problem.dtypes[name]).itemsize < 8 for name in touched)
        before = self._violation().scaled
        if is_narrow or before <= HELD or any(name in problem.bounds for name in touched):
            return
        found = without_held(self._found, problem)
        multipliers = {name: one.multipliers for name, one in self._terms.items()}
        steps = restoring_step(found, multipliers, self._curvatures)
        with backend.scope():
            rows = {
                name: problems.lagrangian.charts.moved(
                    name, backend.upload(problem.values[name]), backend.upload(step)
                )
                for name, step in steps.items()
            }
            given = problem.moved(rows, backend)
            is_placed = self._arrays is not self._user_arrays
            moved = {
                name: backend.upload(given[name]) if is_placed else given[name] for name in rows
            }
        if not self._took({**self._values, **moved}, before):
            return
        with backend.scope():
            found_costs = problems.start.costs(problems.factors_of(self._problem), self._problem)
        self._costs = {**self._costs, **found_costs}

    def _took(self, values: Mapping[str, Any], most: float) -> bool:
        """Take values at which constraints are violated by no more than this; else stay."""
        before = self._values, self._found, self._sizes, self._problem
        self._values = values
        self._look()
        if self._violation().scaled <= most:
            return True
        self._values, self._found, self._sizes, self._problem = before
        return False

    def _look(self) -> None:
        """Evaluate constraints at the values as they go back to the user."""
        problems = self._problems
        with problems.backend.scope():
            arrays = {**self._arrays, **self._values}
            self._problem = problems.moved(self._problem, arrays)
            self._found = problems.constraints.at(self._problem)
            self._sizes = problems.sizes(self._problem)

    def _violation(self) -> Violation:
        return violation_of(self._found, self._sizes)

    def _distance(self) -> float:
        """Return how far constraints are from holding, and idle multipliers from 0."""
        distance = self._violation().scaled
        for name, one in self._found.items():
            relative = self._terms[name].distance / one.scale(self._sizes)
            distance = max(distance, float(relative.max(initial=0.0)))
        return distance

    def _is_impossible(self) -> bool:
        found = without_held(self._found, self._problem)
        return is_impossible(found, self._terms, self._sizes)

    # -- Newton's method -------------------------------------------------------------------------

    def _newton_status(self, penalties: Mapping[str, Floats] | None = None) -> SolveStatus | None:
        """Try Newton's method; None: it did not converge.

        A run that did not converge changes nothing, unless it has left next to nothing of what was
        wrong: then the loop goes on from its end.

        Args:
            penalties: By constraint; None: those of the first solve.
        """
        problems, problem = self._problems, self._problem
        factors = problems.factors_of(problem)
        if not problems.lagrangian.suits(factors, problem):
            return None
        start_s, before_s = time.perf_counter(), self._time_s()
        if penalties is None:
            penalties = {name: one.penalties for name, one in self._terms.items()}
        with problems.backend.scope():
            if self._newton is None:
                self._newton = Expansion(problems.lagrangian, factors, problem)
            newton = Newton(self._newton, penalties, self._sizes)
            multipliers = {name: one.multipliers for name, one in self._terms.items()}
            values = problems.on_host(problem)
            start = self._newton.at(values, multipliers, penalties)
            if len(self._records) == 0 and self._violation().scaled <= self._tolerance:
                start = self._newton.at(values, newton.estimated(start), penalties)
            limit = self._options.max_iterations
            most = MOST_STEPS if limit is None else limit - len(self._records)
            polished = newton.run(start, most)
        self._newton_s += time.perf_counter() - start_s
        if not polished.has_converged:
            if polished.errors[-1] > HELPFUL * polished.errors[0]:
                return None
            # the multipliers of constraints that depend on each other may have run away
            *points, last = polished.points
            last = replace(last, multipliers=newton.estimated(last))
            polished = replace(polished, points=(*points, last))
        if not self._took(self._as_given(polished.points[-1]), self._tolerance):
            return None
        status = self._take(polished, before_s)
        return status if polished.has_converged or status is SolveStatus.STOPPED else None

    def _as_given(self, point: Point) -> dict[str, Any]:
        """Values of the kind that the user gave."""
        backend, problem = self._problems.backend, self._problem
        with backend.scope():
            moved = {name: backend.upload(rows) for name, rows in point.values.items()}
            return problem.moved(moved, backend)

    def _take(self, polished: Polished, before_s: float) -> SolveStatus:
        """Take the result of Newton's method: its steps as iterations, which the user may end."""
        points, known = polished.points, len(self._records)
        step_s = (self._time_s() - before_s) / max(len(points) - 1, 1)
        taken, status = 0, SolveStatus.CONVERGED_GRADIENT
        for taken, point in enumerate(points[1:], 1):
            record = IterationRecord(
                iteration=known + taken,
                cost=point.cost,
                candidate_cost=point.cost,
                damping=0.0,
                gain_ratio=np.nan,
                linear_iterations=1,
                step_accepted=True,
                reason="",
                time_s=before_s + taken * step_s,
            )
            self._records.append(record)
            with showing(self._verbose):
                shown_iteration(record.__str__)
            if self._callback is None:
                continue
            reader = ValuesReader(partial(self._as_given, point))
            is_stopped = self._callback(replace(record, reader=reader))
            reader.close()
            if is_stopped:
                self._values, status = self._as_given(point), SolveStatus.STOPPED
                self._look()
                break
        point, error = points[taken], polished.errors[taken]
        for name, one in self._terms.items():
            pushing = pushing_multipliers(self._problems.kinds[name], point.multipliers[name])
            self._terms[name] = replace(one, multipliers=np.array(pushing))
        self._costs = {**self._costs, **point.costs}
        self._promised = 0.5 * error**2 / point.cost if point.cost > 0.0 else 0.0
        return status

    # -- the result ------------------------------------------------------------------------------

    def _result(self, status: SolveStatus) -> SolveResult:
        problems, last = self._problems, self._results[-1]
        solve_s, num_rows = self._time_s(), sum(one.rows.size for one in self._found.values())
        size = replace(last.problem, num_residuals=last.problem.num_residuals - num_rows)
        compile_s = sum(one.compile_time_s for one in self._results)
        values = self._returned(self._values)
        self._given.arrays.note_values(values)
        return replace(
            last,
            status=status,
            initial_cost=self._initial_cost,
            final_cost=sum(self._costs.values()),
            costs=dict(self._costs),
            remaining_decrease=self._promised,
            iterations=tuple(self._records),
            values=values,
            problem=size,
            compile_time_s=compile_s,
            solve_time_s=solve_s,
            setup_time_s=max(time.perf_counter() - self._start_s - solve_s - compile_s, 0.0),
            peak_memory_bytes=max(one.peak_memory_bytes for one in self._results),
            remarks=self._remarks(status),
            active_bounds=self._problem.active_bounds({}, problems.backend),
            multipliers={
                one.name: self._terms[one.name].multipliers
                if one.name in self._terms
                else np.zeros((0, len(one.residual)))
                for one in problems.constraints.factors
            },
            violation=self._violation(),
            given=self._given,
        )

    def _remarks(self, status: SolveStatus) -> tuple[str, ...]:
        """On constraints that do not hold or depend on others; those of the last solve."""
        violated = violated_text(self._found, self._sizes, self._tolerance)
        first, last = self._results[0].remarks, self._results[-1].remarks
        if status in NOT_FINITE:
            return last
        idle = [one for one in first if one.startswith("No instances of")]
        if violated != "":
            return tuple(dict.fromkeys([f"At these values {violated}", *idle, *last]))
        if not status.is_success:
            return last
        active = {
            name: np.ones(one.rows.shape, bool)
            if one.kind is ConstraintKind.ZERO
            else self._terms[name].multipliers > 0.0
            for name, one in self._found.items()
        }
        found = without_held(self._found, self._problem)
        own = redundant_text(found, active, self._sizes)
        return (*([own] if own != "" else []), *idle)


def _counted(
    record: IterationRecord, known: int, offset: float, elapsed_s: float
) -> IterationRecord:
    """A record of a solve as one of the loop, without what multipliers add to every cost."""
    return replace(
        record,
        iteration=known + record.iteration,
        cost=record.cost - offset,
        candidate_cost=record.candidate_cost - offset,
        time_s=elapsed_s + record.time_s,
    )


def _tolerance(options: SolveOptions, dtypes: Mapping[str, Any]) -> float:
    if options.constraint_tolerance is not None:
        return options.constraint_tolerance
    is_narrow = any(np.dtype(one).itemsize < 8 for one in dtypes.values())
    return 1e-5 if is_narrow else 1e-8
