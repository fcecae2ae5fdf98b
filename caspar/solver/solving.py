"""One solve, from the user's arrays to a result.

Cost tier: once for each solve; what is kept between them, the opener keeps.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from caspar.frontend.factors.trace import TracedFactor
from caspar.options import SolveOptions
from caspar.progress import log_end, showing
from caspar.runtime.backend import Backend
from caspar.solver.evaluation import (
    Evaluation,
    final_costs,
    loss_names,
    without_later_entries,
)
from caspar.solver.input.constraints import Constraints
from caspar.solver.input.separate_parts import remarks_on_parts
from caspar.solver.iterate.interrupts import Callback, PassedOn, passing_on
from caspar.solver.iterate.levenberg import WITHOUT_REMAINING, Course, minimize
from caspar.solver.iterated import System
from caspar.solver.opening import Opened, Opener
from caspar.solver.result.result import SolveResult

LONG_ENOUGH = 4
"""Iterations after which values may have run away. Solves that go on from a solution take fewer."""


class Solving:
    """Solves problems of a solver.

    Args:
        backend: Where it runs.
        opener: Opens them.
        factors: All factors.
        fields: By node type where its fields are in a row of its values.
        evaluate: Evaluates factors at some arrays.
    """

    def __init__(
        self,
        backend: Backend,
        opener: Opener,
        factors: tuple[TracedFactor, ...],
        fields: Mapping[str, Mapping[str, range]],
        evaluate: Callable[[Mapping[str, Any]], Evaluation],
    ) -> None:
        self._backend = backend
        self._opener = opener
        self._factors = factors
        self._fields = fields
        self._evaluate = evaluate

    def solve(
        self,
        arrays: Mapping[str, Any],
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
        arrays: Mapping[str, Any],
        constraints: Constraints,
        options: SolveOptions,
        on_iteration: Callback | None,
    ) -> SolveResult:
        backend, factors, start = self._backend, self._factors, time.perf_counter()
        with self._opener.open(arrays, constraints, options) as opened:
            problem, active, system = opened.problem, opened.active, opened.system
            compiled_s = active.preparation.kernels.take_compile_time()
            # of two solves at the same time one may have compiled for both
            setup_time_s = max(time.perf_counter() - start - compiled_s, 0.0)
            start = time.perf_counter()
            course = minimize(system, options, on_iteration)
            taking_part = active.recipe.factors
            costs, num_beyond = final_costs(factors, taking_part, course.final_cost, system)
            remarks = (
                *active.remarks,
                *system.remarks,
                *course.remarks,
                *_on_values(system, course),
                *remarks_on_parts(active.recipe.factors, active.recipe.nodes, problem),
            )
            solve_time_s = time.perf_counter() - start
            log_end(course.status.name, len(course.records), course.initial_cost, course.final_cost)
            moved = system.values()
            values = problem.moved(moved, backend)
            active_bounds = _active_bounds(opened, moved, backend)
        return SolveResult(
            status=course.status,
            initial_cost=course.initial_cost,
            final_cost=course.final_cost,
            remaining_decrease=course.remaining_decrease,
            iterations=course.records,
            values=values,
            problem=opened.size(factors),
            backend=backend.name,
            device=system.device,
            precision=active.recipe.precision.value,
            linear_solver=system.linear_solver,
            compile_time_s=compiled_s + self._opener.preparations.take_backlog(),
            setup_time_s=setup_time_s,
            solve_time_s=solve_time_s,
            peak_memory_bytes=system.num_bytes + problem.bytes_on(backend),
            remarks=remarks,
            fields=self._fields,
            costs=costs,
            num_beyond_scale=num_beyond,
            losses=loss_names(factors),
            active_bounds=active_bounds,
            evaluator=partial(self._evaluated, without_later_entries(arrays), values),
        )

    def _evaluated(self, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> Evaluation:
        return self._evaluate({**arrays, **values})


def _on_values(system: System, course: Course) -> tuple[str, ...]:
    """Numbers that ran away, and nodes that nothing holds; not of solves that only went on."""
    if course.status in WITHOUT_REMAINING or len(course.records) < LONG_ENOUGH:
        return ()
    return system.remarks_on_values(course.final_cost, course.initial_cost)


def _active_bounds(opened: Opened, moved: Mapping[str, Any], backend: Backend) -> dict[str, Any]:
    """See `SolveResult.active_bounds`.

    Args:
        opened: The problem.
        moved: By node type the values after the solve, on the backend's device.
        backend: Where they are.
    """
    problem = opened.problem
    return {
        name: limits.active(backend.to_host(moved.get(name, problem.values[name])))
        for name, limits in problem.bounds.items()
    }
