"""One solve, from the user's arrays to a result, and on in float64 where mixed precision fails.

Cost tier: once for each solve; what is kept between them, the session keeps.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from caspar.errors import InputError
from caspar.options import Precision, SolveOptions
from caspar.progress import log_end, showing
from caspar.runtime.arrays import HOST, as_library, location, rows_on_host
from caspar.solver.evaluation import (
    Evaluation,
    evaluation,
    final_costs,
    loss_names,
    remarks_on_lookups,
)
from caspar.solver.input.constraints import NOTHING, Constraints
from caspar.solver.input.problem import Problem
from caspar.solver.lm.course import Course
from caspar.solver.lm.interrupts import Callback, PassedOn, passing_on
from caspar.solver.lm.minimize import minimize
from caspar.solver.lm.normal_equations import NormalEquations
from caspar.solver.result.result import IterationRecord, SolveResult, SolveStatus
from caspar.solver.result.solved_arrays import Given, SolvedArrays
from caspar.solver.session import Session
from caspar.solver.shards.crew import Crew


def solve(
    session: Session,
    arrays: Mapping[str, Any] | None,
    constraints: Constraints,
    options: SolveOptions,
    verbose: bool | None,
    on_iteration: Callback | None,
    given: Given | None = None,
) -> SolveResult:
    """See `Solver.solve`. `given`: What the user gave, if several solves are made of it."""
    callback = passing_on(on_iteration)
    try:
        with showing(verbose):
            found = _run(session, arrays, constraints, options, callback, known=given)
            if found.too_narrow != "":
                known = len(found.iterations)
                second = _run(
                    session,
                    None if arrays is None else {**arrays, **found.values},
                    constraints,
                    _left(options, found),
                    None if callback is None else _counted_from(known, callback),
                    Precision.FLOAT64,
                    found.given,
                )
                found = _joined(found, second)
            if given is None:
                found.given.arrays.note_values(found.values)
            return found
    except PassedOn as carrier:
        error = carrier.error
    raise error  # here, where it gets no other context


def evaluate(session: Session, arrays: Mapping[str, Any]) -> Evaluation:
    """See `Solver.evaluate`."""
    factors = session.recipe.factors
    with showing(None), session.open_alone(arrays) as crew:
        return crew.run(
            lambda system: evaluation(factors, crew.problem, system, session.backend, session.exact)
        )


def _run(
    session: Session,
    arrays: Mapping[str, Any] | None,
    constraints: Constraints,
    options: SolveOptions,
    on_iteration: Callback | None,
    precision: Precision | None = None,
    known: Given | None = None,
) -> SolveResult:
    """A solve in one precision; `known`: what the user gave, if the arrays are not that."""
    start = time.perf_counter()
    with session.open(arrays, constraints, options, precision) as crew:
        given = _given(session, arrays, constraints, crew) if known is None else known
        compiled_s = crew.kernels.take_compile_time()
        # of two solves at the same time one may have compiled for both
        setup_time_s = max(time.perf_counter() - start - compiled_s, 0.0)
        times = compiled_s + session.take_backlog(), setup_time_s
        found: SolveResult | None = crew.run(
            lambda system: _solved(session, crew, system, options, on_iteration, times),
            partial(_for_others, session, crew),
        )
        assert found is not None
        if session.ranks is not None and session.ranks.peers.rank > 0:
            found = _received(found, crew.problem, session, times)
    return replace(found, given=given)


def _given(
    session: Session, arrays: Mapping[str, Any] | None, constraints: Constraints, crew: Crew
) -> Given:
    """Keep what results ask later; nothing of the whole problem if this is a part of it."""
    factors, backends = session.recipe.factors, session.backends
    if arrays is None:
        return Given(factors, SolvedArrays({}, NOTHING, backends), _of_no_arrays)
    problem = None if crew.reading.is_spread else crew.problem
    solved = SolvedArrays(arrays, constraints, backends, problem)
    return Given(factors, solved, partial(evaluate, session))


def _solved(
    session: Session,
    crew: Crew,
    system: NormalEquations,
    options: SolveOptions,
    on_iteration: Callback | None,
    times: tuple[float, float],
) -> SolveResult | None:
    """Iterate on one device, and describe how that went; nothing on others than the first one."""
    backend, factors = session.backend, session.recipe.factors
    problem, active = crew.problem, crew.reading.active
    start = time.perf_counter()
    course = minimize(system, options, crew.callback(system, on_iteration, backend))
    status = course.end
    if _may_be_without_pull(course, crew):
        found = evaluation(factors, problem, system, backend, session.exact)
        if system.communicator.is_first:
            is_pulled = any(
                (~found.refused(one.name)[found.weights(one.name) != 0.0]).any() for one in factors
            )
            status = status if is_pulled else SolveStatus.NO_RESIDUALS
        # the others wait until the first device has evaluated: they launch nothing meanwhile
        status = system.communicator.broadcast(status)
    final_cost = _cost_of_returned(problem, system, course.cost)
    costs, num_beyond = final_costs(factors, active.recipe.factors, final_cost, system)
    remarks = (*active.remarks, *system.remarks, *course.remarks)
    solve_time_s = time.perf_counter() - start
    device, num_bytes, moved = system.device, system.num_bytes, crew.values(system)
    if not system.communicator.is_first:
        return None
    if session.ranks is None:
        taking_part = active.recipe.factors, active.recipe.nodes
        remarks = (*remarks, *session.remarks_on_parts.of(system.plan, *taking_part, problem))
        remarks = (*remarks, *remarks_on_lookups(factors, problem, moved, session.exact))
    log_end(status.name, len(course.records), course.initial_cost, final_cost)
    return SolveResult(
        status=status,
        initial_cost=course.initial_cost,
        final_cost=final_cost,
        remaining_decrease=course.remaining_decrease,
        iterations=tuple(course.records),
        values=problem.moved(moved, backend),
        problem=crew.reading.size(factors),
        backend=backend.name,
        device=device,
        precision=active.recipe.precision.value,
        linear_solver=system.linear_solver,
        compile_time_s=times[0],
        setup_time_s=times[1],
        solve_time_s=solve_time_s,
        peak_memory_bytes=num_bytes + problem.bytes_on(backend),
        remarks=remarks,
        fields=session.fields,
        costs=costs,
        num_beyond_scale=num_beyond,
        losses=loss_names(factors),
        active_bounds=problem.active_bounds(moved, backend),
        too_narrow=course.too_narrow,
    )


def _for_others(session: Session, crew: Crew, found: SolveResult | None) -> SolveResult:
    """A result for other processes, on the host: all values, or those of remaining types."""
    assert found is not None
    assert session.ranks is not None
    gives_all = session.ranks.ranks.results == "all"
    values = {
        name: rows_on_host(rows, session.backend.to_host)
        for name, rows in found.values.items()
        if gives_all or name not in crew.eliminated
    }
    return replace(found, values=values)


def _may_be_without_pull(course: Course, crew: Crew) -> bool:
    """Return whether losses may weigh every residual by 0 at the start: no gradient is left.

    Or whether all instances may look up outside of tables that refuse that. False if this process
    has only a part of the residuals.
    """
    factors, is_spread = crew.reading.active.recipe.factors, crew.reading.is_spread
    if course.cost == 0.0 and all(one.inside for one in factors):
        return course.end.is_success and not is_spread
    if course.status is not SolveStatus.CONVERGED_GRADIENT or len(course.records) > 1:
        return False
    all_have_losses = all(one.loss is not None for one in factors)
    return all_have_losses and course.cost > 0.0 and not is_spread


def _of_no_arrays(arrays: Mapping[str, Any]) -> Evaluation:
    raise InputError("this rank passed no arrays, so it has no residuals; ask the result of rank 0")


def _received(
    found: SolveResult, problem: Problem, session: Session, times: tuple[float, float]
) -> SolveResult:
    """A result of rank 0 as this one returns it: arrays of the kind that was given here."""
    given = problem.given
    values = {}
    for name, rows in found.values.items():
        own = given.get(name, rows)
        brought = rows if location(own) == HOST else session.backend.upload(rows)
        values[name] = as_library(brought, own)
    return replace(found, values=values, compile_time_s=times[0], setup_time_s=times[1])


def _cost_of_returned(problem: Problem, system: NormalEquations, final_cost: float) -> float:
    """The cost of the values as they go back: users' arrays may be of a narrower type."""
    dtypes = problem.dtypes
    narrow = {
        plan.node.name: dtypes[plan.node.name]
        for plan in system.plan.nodes
        if np.dtype(dtypes[plan.node.name]).itemsize < system.values_type.itemsize
    }
    if len(narrow) == 0 or not math.isfinite(final_cost):
        return final_cost
    return system.round_values(narrow)


def _left(options: SolveOptions, first: SolveResult) -> SolveOptions:
    limits: dict[str, Any] = {}
    if options.max_iterations is not None:
        limits["max_iterations"] = max(options.max_iterations - len(first.iterations), 1)
    if options.max_time_s is not None:
        limits["max_time_s"] = max(options.max_time_s - first.solve_time_s, 0.0)
    return replace(options, **limits)


def _counted_from(known: int, on_iteration: Callback) -> Callback:
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
