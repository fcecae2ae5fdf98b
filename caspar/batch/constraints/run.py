"""The solve of a batch with constraints: solves by the kernel, and updates between them.

Input: checked arrays. Output: the arrays of a `BatchResult`. The rules are those of
`solver.constraints.course`, for each problem; the last digits come from penalties that grow, not
from Newton's method. A problem that has ended is in no further solve. Cost tier: as many runs of
the kernel as the slowest problem needs, usually six to ten, each over the problems that are open.
"""

import time
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caspar.batch.arrays import PROBLEM
from caspar.batch.constraints.parts import Chosen, ProblemRows, on_device, part_of
from caspar.batch.constraints.problems import BatchConstraints, Look, greatest
from caspar.batch.generate import parameters as names
from caspar.batch.generate.policy_program import Option
from caspar.batch.input import Batch
from caspar.batch.options import option_numbers
from caspar.batch.result import STATUSES, BatchViolation, equal_violations, on_host
from caspar.batch.run import CompiledKernels, found_arrays, given_back
from caspar.memory.array import Array
from caspar.options import SolveOptions
from caspar.solver.constraints.course import (
    EXACT,
    FIRST_TOLERANCE,
    GIVES_UP,
    MOST_SOLVES,
    MOST_STALLS,
    NOT_FINITE,
    STALLED,
    TIGHTER,
)
from caspar.solver.constraints.penalties import Terms
from caspar.solver.result.result import SolveStatus

ENOUGH = 0.01
"""An entry whose distance has shrunk to this share keeps its penalty."""

WELL_WITHIN = 0.01
"""Share of the tolerance at which a problem ends; one that is only within the tolerance is solved
once more, for two more digits."""

_OPEN = -1
_LIMIT, _FEASIBLE, _INFEASIBLE = map(
    STATUSES.index,
    (SolveStatus.ITERATION_LIMIT, SolveStatus.FEASIBLE_NOT_OPTIMAL, SolveStatus.INFEASIBLE),
)
_IS_SUCCESS = np.array([one.is_success for one in STATUSES])
_IS_BROKEN = np.array([one in (*NOT_FINITE, SolveStatus.NO_RESIDUALS) for one in STATUSES])

Numbers = NDArray[Any]
"""(P,) on the host."""


class ConstrainedRun:
    """The problems of one batch, whose shape has constraints as their functions are.

    Attributes:
        compile_time_s: Seconds of compiling in the run.
    """

    def __init__(
        self,
        constraints: BatchConstraints,
        kernels: CompiledKernels,
        batch: Batch,
        options: SolveOptions,
    ) -> None:
        start_s, self.compile_time_s = time.perf_counter(), 0.0
        constraints.load(batch.shape)
        kernels.backlog_s += time.perf_counter() - start_s
        backend, count = constraints.backend, batch.num_problems
        self._backend, self._constraints, self._kernels = backend, constraints, kernels
        self._given, self._batch = batch, on_device(batch, backend)
        shape = constraints.shape(batch.shape)
        self._kernel, self._numbers = kernels.solving(shape), option_numbers(options, shape)
        types = (shape.storage.value, *batch.dtypes.values())
        usual = 1e-5 if any(np.dtype(one).itemsize < 8 for one in types) else 1e-8
        chosen, most = options.constraint_tolerance, options.max_iterations
        self._tolerance = usual if chosen is None else chosen
        self._most = np.inf if most is None else most
        self._rows = constraints.rows(self._batch)
        self._terms: dict[str, Terms] = {}
        # by problem: how it ended, how the solve ended that met the tolerance; -1: not yet
        self._codes, self._met = np.full((2, count), _OPEN, np.int32)
        self._iterations, self._stalls = np.zeros((2, count), np.int32)
        self._costs = np.zeros((2, count))
        self._violation = equal_violations(count, np.inf)

    def launch(self) -> None:
        """Solve until each problem has ended."""
        for number in range(MOST_SOLVES):
            chosen = np.flatnonzero(self._codes == _OPEN)
            if len(chosen) == 0:
                return
            self._solve(number, chosen)
        is_met = self._violation.scaled <= self._tolerance
        ends = np.where(is_met, _FEASIBLE, _LIMIT)
        self._codes = np.where(self._codes == _OPEN, ends, self._codes).astype(np.int32)

    # -- a solve of the loop ---------------------------------------------------------------------

    def _solve(self, number: int, chosen: Chosen) -> None:
        """Solve the open problems once, and update those that are within their limit."""
        backend, constraints = self._backend, self._constraints
        part = part_of(self._batch, backend, chosen)
        if number == 0:
            look = constraints.look(part)
            self._terms = constraints.first_terms(part, look)
        numbers = self._numbers.copy()
        numbers[Option.COST_TOLERANCE] = self._cost_tolerance(number)
        if np.isfinite(self._most):
            numbers[Option.MAX_ITERATIONS] = self._most - self._iterations[chosen].min()
        solved = constraints.with_terms(part, self._terms_of(chosen))
        run = self._kernels.run(self._kernel, solved, numbers)
        run.launch()
        self.compile_time_s += run.compile_time_s
        found = {name: np.asarray(backend.to_host(one)) for name, one in run.outputs.items()}
        if number == 0:
            self._costs[0] = found[names.INITIAL_COST] - self._added_costs(self._terms, look)
        # another problem may have had more iterations left
        iterations = self._iterations[chosen] + found[names.ITERATIONS]
        within = np.flatnonzero(iterations <= self._most)
        self._codes[chosen] = np.where(self._met[chosen] != _OPEN, self._met[chosen], _LIMIT)
        if len(within) == 0:
            return
        ends = dict(zip(part.starts, run.ends, strict=True))
        part, chosen = part_of(replace(part, starts=ends), backend, within), chosen[within]
        look, before = constraints.look(part), self._terms_of(chosen)
        self._iterations[chosen] = iterations[within]
        added = self._added_costs(before, look)
        self._costs[1, chosen] = found[names.FINAL_COST][within] - added
        terms = {name: one.updated(look.found[name], ENOUGH) for name, one in before.items()}
        self._codes[chosen] = self._ends(number, chosen, found[names.STATUS][within], look, terms)
        self._keep(chosen, part, terms)

    def _ends(
        self, number: int, chosen: Chosen, status: Numbers, look: Look, terms: Mapping[str, Terms]
    ) -> Numbers:
        """The status of chosen problems that have ended, or -1.

        `status` is the kernel's, `look` at its values, `terms` are those after the update.
        """
        backend, tolerance = self._backend, self._tolerance
        before, violation = self._violation.scaled[chosen], self._constraints.violation(look)
        for field in fields(BatchViolation):
            getattr(self._violation, field.name)[chosen] = getattr(violation, field.name)
        is_stalled = violation.scaled > np.maximum(STALLED * before, tolerance)
        stalls = self._stalls[chosen] = np.where(is_stalled, self._stalls[chosen] + 1, 0)
        distance = violation.scaled
        for name, one in terms.items():
            moved = look.rows[name].by_problem(one.distance / look.scales[name])
            distance = np.maximum(distance, backend.to_host(greatest(backend.xp, moved)))
        is_hopeless = stalls >= MOST_STALLS
        if is_hopeless.any():
            impossible = self._constraints.are_impossible(look, terms)
            is_hopeless &= np.asarray(backend.to_host(impossible))
        is_exact = self._cost_tolerance(number) == self._numbers[Option.COST_TOLERANCE]
        is_met, was_met = distance <= tolerance, self._met[chosen] != _OPEN
        is_met = is_met & is_exact & _IS_SUCCESS[status]
        self._met[chosen] = np.where(is_met, status, _OPEN)
        is_last = self._iterations[chosen] >= self._most
        codes = np.full(len(chosen), _OPEN, np.int32)
        codes[is_last] = _LIMIT
        codes[is_hopeless | (stalls >= GIVES_UP)] = _INFEASIBLE
        if number >= GIVES_UP:
            codes[(distance <= tolerance) & ~is_met] = _FEASIBLE
        has_ended = is_met & (was_met | is_last | (distance <= WELL_WITHIN * tolerance))
        return np.where(has_ended | _IS_BROKEN[status], status, codes)

    def _cost_tolerance(self, number: int) -> float:
        """Relative tolerance of the cost in a solve of the loop."""
        own, tolerance = float(self._numbers[Option.COST_TOLERANCE]), FIRST_TOLERANCE
        tolerance *= TIGHTER**number
        return max(own, tolerance) if tolerance > EXACT else own

    def _added_costs(self, terms: Mapping[str, Terms], look: Look) -> Numbers:
        """(P,) the costs of terms: 1/2 p (l / p - c)^2, of inequalities the positive part."""
        added = np.zeros(look.num_problems)
        for name, one in terms.items():
            pull = one.updated(look.found[name]).multipliers
            own = look.rows[name].by_problem(pull**2 / one.penalties).sum(axis=1)
            added += 0.5 * np.asarray(self._backend.to_host(own))
        return added

    def _terms_of(self, chosen: Chosen) -> dict[str, Terms]:
        """Multipliers and penalties of chosen problems."""
        found = {}
        for name, one in self._terms.items():
            rows = self._rows[name].chosen(self._backend.upload(chosen))[0]
            found[name] = Terms(*(getattr(one, field.name)[rows] for field in fields(Terms)))
        return found

    def _keep(self, chosen: Chosen, part: Batch, terms: Mapping[str, Terms]) -> None:
        """Take over values, multipliers and penalties of chosen problems."""
        problems = self._backend.upload(chosen)
        for name, rows in part.starts.items():
            whole = self._batch.starts[name].reshape(self._batch.num_problems, -1)
            whole[problems] = rows.reshape(len(chosen), -1)
        for name, one in terms.items():
            own = self._rows[name].chosen(problems)[0]
            for field in fields(Terms):
                getattr(self._terms[name], field.name)[own] = getattr(one, field.name)

    # -- the result ------------------------------------------------------------------------------

    def found(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `BatchResult`, as the kind of arrays that were given."""
        backend, given = self._backend, self._given
        # differences of costs are rounded
        outputs = {
            names.INITIAL_COST: np.maximum(self._costs[0], 0.0),
            names.FINAL_COST: np.maximum(self._costs[1], 0.0),
            names.ITERATIONS: self._iterations,
            names.STATUS: self._codes,
        }
        found = found_arrays(
            backend,
            given,
            arrays,
            [backend.upload(rows) for rows in given.starts.values()],
            list(self._batch.starts.values()),
            {name: backend.upload(array) for name, array in outputs.items()},
        )
        like = arrays[given.shape.nodes[0].node.name]
        num_residuals, multipliers = self._batch.num_residuals, {}
        for name, rows in self._rows.items():
            dim = self._constraints.dims[name]
            num_residuals = num_residuals - rows.counts * dim
            own = backend.xp.zeros((0, dim))
            own = self._terms[name].multipliers if name in self._terms else own
            multipliers[name] = given_back(
                self._as_passed(own, rows, arrays.get(name)), like, backend
            )
        return {
            **found,
            "num_residuals": given_back(num_residuals, like, backend),
            "multipliers": multipliers,
            "violation": self._violation,
        }

    def _as_passed(self, own: Array, rows: ProblemRows, passed: Any) -> Array:
        """(P, m, dim) of instances, or (n, dim) in the order in which ragged ones were passed."""
        if rows.length is not None:
            return own.reshape(len(rows.starts) - 1, rows.length, own.shape[1])
        ordered = own.copy()
        order = np.argsort(problem_of_each(passed), kind="stable")
        ordered[self._backend.upload(order)] = own
        return ordered


def problem_of_each(passed: Mapping[str, Any]) -> Numbers:
    """(m,) the problem of each instance of a factor whose arguments were passed ragged."""
    nested = [one.get("index") for one in passed.values() if isinstance(one, Mapping)]
    ragged = [one for one in (*passed.values(), *nested) if isinstance(one, Mapping)]
    return on_host(next(one[PROBLEM] for one in ragged if PROBLEM in one))
