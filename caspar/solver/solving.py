"""One solve, from the user's arrays to a result, and on in float64 where mixed precision fails.

Cost tier: once for each solve; what is kept between them, the opener keeps.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.frontend.factors.trace import TracedFactor
from caspar.options import Precision, SolveOptions
from caspar.progress import log_end, showing
from caspar.runtime.arrays import HOST, as_library, location, rows_on_host
from caspar.runtime.backend import Backend
from caspar.solver.evaluation import (
    Evaluation,
    Residuals,
    evaluation,
    final_costs,
    loss_names,
)
from caspar.solver.input.constraints import NOTHING, Constraints
from caspar.solver.input.separate_parts import RemarksOnParts
from caspar.solver.iterate.interrupts import Callback, PassedOn, passing_on
from caspar.solver.iterate.levenberg import WITHOUT_REMAINING, Course, minimize
from caspar.solver.iterated import System
from caspar.solver.opening import Opened, Opener
from caspar.solver.result.given import Given, SolvedArrays
from caspar.solver.result.result import (
    IterationRecord,
    SolveResult,
    SolveStatus,
    ValuesReader,
)

LONG_ENOUGH = 4
"""Iterations after which values may have run away. Solves that go on from a solution take fewer."""

MUCH_FALLEN = 0.5
"""Share of the first cost that is left after a solve that did not go on from a solution, although
it took fewer iterations: a first step without damping solves linear problems at once."""


class Solving:
    """Solves problems of a solver.

    Args:
        backend: Where it runs.
        opener: Opens them.
        factors: All factors.
        fields: By node type where its fields are in a row of its values.
        evaluate: Evaluates factors at some arrays.
        exact: Evaluates residuals that a system keeps in a narrower type than values.
    """

    def __init__(
        self,
        backend: Backend,
        opener: Opener,
        factors: tuple[TracedFactor, ...],
        fields: Mapping[str, Mapping[str, range]],
        evaluate: Callable[[Mapping[str, Any]], Evaluation],
        exact: Residuals,
    ) -> None:
        self._backend = backend
        self._opener = opener
        self._factors = factors
        self._fields = fields
        self._evaluate = evaluate
        self._exact = exact
        self._on_parts = RemarksOnParts()

    def solve(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        verbose: bool | None,
        on_iteration: Callback | None,
    ) -> SolveResult:
        """See `Solver.solve`."""
        try:
            with showing(verbose):
                return self._solved(arrays, constraints, options, passing_on(on_iteration))
        except PassedOn as carrier:
            error = carrier.error
        raise error  # here, where it gets no other context

    def _solved(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        on_iteration: Callback | None,
    ) -> SolveResult:
        """What does not fit mixed precision goes on in float64."""
        first = self._run(arrays, constraints, options, on_iteration)
        if first.too_narrow == "":
            return first
        known = len(first.iterations)
        second = self._run(
            None if arrays is None else {**arrays, **first.values},
            constraints,
            _left(options, first),
            None if on_iteration is None else _counted_from(known, on_iteration),
            Precision.FLOAT64,
            first.given,
        )
        return _joined(first, second)

    def _run(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        options: SolveOptions,
        on_iteration: Callback | None,
        precision: Precision | None = None,
        known: Given | None = None,
    ) -> SolveResult:
        """A solve in one precision; `known`: what the user gave, if the arrays are not that."""
        start = time.perf_counter()
        with self._opener.open(arrays, constraints, options, precision) as opened:
            given = self._given(arrays, constraints, opened, known)
            compiled_s = opened.active.preparation.kernels.take_compile_time()
            # of two solves at the same time one may have compiled for both
            setup_time_s = max(time.perf_counter() - start - compiled_s, 0.0)
            times = compiled_s + self._opener.preparations.take_backlog(), setup_time_s
            watched = _with_interrupts(opened, _with_values(on_iteration, opened, self._backend))
            found: SolveResult = opened.led(
                lambda: self._iterated(opened, options, watched, times),
                partial(_for_others, opened, self._backend),
            )
            if opened.is_followed:
                found = _received(found, opened, self._backend, times)
            given.arrays.note_values(found.values)
        return replace(found, given=given)

    def _given(
        self,
        arrays: Mapping[str, Any] | None,
        constraints: Constraints,
        opened: Opened,
        known: Given | None,
    ) -> Given:
        """What results ask later; nothing of the whole problem where this is a part of it."""
        if known is not None:
            return known
        backends, together = self._opener.backends, opened.together
        if arrays is None:
            return Given(self._factors, SolvedArrays({}, NOTHING, backends), _of_no_arrays)
        is_whole = together is None or not together.is_spread
        problem = opened.problem if is_whole else None
        solved = SolvedArrays(arrays, constraints, backends, problem)
        return Given(self._factors, solved, self._evaluate)

    def _iterated(
        self,
        opened: Opened,
        options: SolveOptions,
        on_iteration: Callback | None,
        times: tuple[float, float],
    ) -> SolveResult:
        """Iterate, and describe how that went; `times`: of compiling and of setting up."""
        backend, factors = self._backend, self._factors
        problem, active, system = opened.problem, opened.active, opened.system
        start = time.perf_counter()
        course = minimize(system, options, on_iteration)
        status = course.status
        if _may_be_without_pull(course, opened):
            found = evaluation(factors, problem, system, backend, self._exact)
            is_pulled = any(found.weights(one.name).any() for one in factors)
            status = status if is_pulled else SolveStatus.NO_RESIDUALS
        final_cost = _cost_of_returned(opened, course.final_cost)
        taking_part = active.recipe.factors
        costs, num_beyond = final_costs(factors, taking_part, final_cost, system)
        on_parts: tuple[str, ...] = ()
        if opened.together is None:
            on_parts = self._on_parts.of(
                system.plan, active.recipe.factors, active.recipe.nodes, problem
            )
        remarks = (
            *active.remarks,
            *system.remarks,
            *course.remarks,
            *_on_values(system, course),
            *on_parts,
        )
        solve_time_s = time.perf_counter() - start
        log_end(status.name, len(course.records), course.initial_cost, final_cost)
        moved = system.values()
        return SolveResult(
            status=status,
            initial_cost=course.initial_cost,
            final_cost=final_cost,
            remaining_decrease=course.remaining_decrease,
            iterations=course.records,
            values=problem.moved(moved, backend),
            problem=opened.size(factors),
            backend=backend.name,
            device=system.device,
            precision=active.recipe.precision.value,
            linear_solver=system.linear_solver,
            compile_time_s=times[0],
            setup_time_s=times[1],
            solve_time_s=solve_time_s,
            peak_memory_bytes=system.num_bytes + problem.bytes_on(backend),
            remarks=remarks,
            fields=self._fields,
            costs=costs,
            num_beyond_scale=num_beyond,
            losses=loss_names(factors),
            active_bounds=problem.active_bounds(moved, backend),
            too_narrow=course.too_narrow,
        )


def _may_be_without_pull(course: Course, opened: Opened) -> bool:
    """Whether losses may give every residual the weight 0 at the start, which leaves no gradient.

    Not asked if this process has only a part of the residuals.
    """
    if course.status is not SolveStatus.CONVERGED_GRADIENT or len(course.records) > 1:
        return False
    is_part = opened.together is not None and opened.together.is_spread
    all_have_losses = all(one.loss is not None for one in opened.active.recipe.factors)
    return all_have_losses and course.final_cost > 0.0 and not is_part


def _of_no_arrays(arrays: Mapping[str, Any]) -> Evaluation:
    raise InputError("this rank passed no arrays, so it has no residuals; ask the result of rank 0")


def _with_interrupts(opened: Opened, on_iteration: Callback | None) -> Callback | None:
    """A callback that Ctrl-C on another rank interrupts too."""
    if opened.together is None:
        return on_iteration

    def watched(record: IterationRecord) -> object:
        if opened.was_interrupted:
            raise KeyboardInterrupt
        return False if on_iteration is None else on_iteration(record)

    return watched


def _for_others(opened: Opened, backend: Backend, found: SolveResult) -> SolveResult:
    """A result for other ranks, on the host: with all values, or those of remaining types."""
    together = opened.together
    assert together is not None
    values = {
        name: rows_on_host(rows, backend.to_host)
        for name, rows in found.values.items()
        if together.gives_all or name not in together.eliminated
    }
    return replace(found, values=values)


def _received(
    found: SolveResult, opened: Opened, backend: Backend, times: tuple[float, float]
) -> SolveResult:
    """A result of rank 0 as this one returns it: arrays of the kind that was given here."""
    given = opened.problem.given
    values = {}
    for name, rows in found.values.items():
        own = given.get(name, rows)
        brought = rows if location(own) == HOST else backend.upload(rows)
        values[name] = as_library(brought, own)
    return replace(found, values=values, compile_time_s=times[0], setup_time_s=times[1])


def _on_values(system: System, course: Course) -> tuple[str, ...]:
    """Numbers that ran away, and nodes that nothing holds; not of solves that only went on."""
    goes_on = course.final_cost > MUCH_FALLEN * course.initial_cost
    is_short = len(course.records) < LONG_ENOUGH and goes_on
    if course.status in WITHOUT_REMAINING or is_short:
        return ()
    return system.remarks_on_values(course.final_cost, course.initial_cost)


def _cost_of_returned(opened: Opened, final_cost: float) -> float:
    """The cost of the values as they go back: users' arrays may be of a narrower type."""
    system, dtypes = opened.system, opened.problem.dtypes
    narrow = {
        plan.node.name: dtypes[plan.node.name]
        for plan in system.plan.nodes
        if np.dtype(dtypes[plan.node.name]).itemsize < system.values_type.itemsize
    }
    if len(narrow) == 0 or not math.isfinite(final_cost):
        return final_cost
    return system.round_values(narrow)


def _left(options: SolveOptions, first: SolveResult) -> SolveOptions:
    """The options, with what is left of the limits."""
    limits: dict[str, Any] = {}
    if options.max_iterations is not None:
        limits["max_iterations"] = max(options.max_iterations - len(first.iterations), 1)
    if options.max_time_s is not None:
        limits["max_time_s"] = max(options.max_time_s - first.solve_time_s, 0.0)
    return replace(options, **limits)


def _with_values(
    on_iteration: Callback | None, opened: Opened, backend: Backend
) -> Callback | None:
    """A callback whose records read the values while it runs."""
    if on_iteration is None:
        return None

    def call(record: IterationRecord) -> object:
        reader = ValuesReader(lambda: opened.problem.moved(opened.system.copied_values(), backend))
        try:
            return on_iteration(replace(record, reader=reader))
        finally:
            reader.close()

    return call


def _counted_from(known: int, on_iteration: Callback) -> Callback:
    """A callback that gets records counted on."""
    return lambda record: on_iteration(replace(record, iteration=record.iteration + known))


def _joined(first: SolveResult, second: SolveResult) -> SolveResult:
    """The result of a solve that went on in float64."""
    known = len(first.iterations)
    later = tuple(
        replace(one, iteration=one.iteration + known, time_s=one.time_s + first.solve_time_s)
        for one in second.iterations
    )
    iterations: tuple[IterationRecord, ...] = (*first.iterations, *later)
    why = "".join(f" {remark}" for remark in first.remarks if remark not in second.remarks)
    remark = (
        f"The solve went on in float64 after iteration {known}, as it does from the start with "
        f"precision='float64': {first.too_narrow}.{why}"
    )
    return replace(
        second,
        initial_cost=first.initial_cost,
        iterations=iterations,
        compile_time_s=first.compile_time_s + second.compile_time_s,
        setup_time_s=first.setup_time_s + second.setup_time_s,
        solve_time_s=first.solve_time_s + second.solve_time_s,
        peak_memory_bytes=max(first.peak_memory_bytes, second.peak_memory_bytes),
        remarks=(*second.remarks, remark),
    )
