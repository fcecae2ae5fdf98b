"""Solve a problem by every method, in turn, and keep the quickest run of each.

A run counts until its cost is within 1e-5 of the lowest that any method reached, with the time
that a structure takes to set up: methods stop at different costs, after different numbers of
iterations. Compilation is left out. Methods take turns, as other work may use the cores for a
while.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import caspar
from benchmarks.linear_choice.cases import Case
from caspar.errors import CasparError
from caspar.options import BackendName

METHODS: Mapping[str, Mapping[str, str]] = {
    "auto": {},
    "pcg": {"linear_solver": "pcg"},
    "schur_pcg": {"linear_solver": "schur_pcg"},
    "schur_dense": {"linear_solver": "schur_dense"},
    "sparse": {"linear_solver": "sparse"},
}
"""Options of `Solver` by the name in the table."""

NEAR = 1e-5
"""Of the lowest cost: so far from it a run counts. Methods in mixed precision end 5e-6 apart."""


@dataclass(frozen=True)
class Run:
    """A solve.

    Attributes:
        problem: Its name.
        method: Of `METHODS`.
        linear_solver: What solved in the end.
        setup_s: Seconds before the iterations.
        solve_s: Seconds of all iterations.
        trace: Seconds since the iterations began, and cost, of each iteration.
        num_linear_iterations: Of PCG; 1 for each factorisation.
        status: Why it ended.
    """

    problem: str
    method: str
    linear_solver: str
    setup_s: float
    solve_s: float
    trace: tuple[tuple[float, float], ...]
    num_linear_iterations: int
    status: str

    @property
    def final_cost(self) -> float:
        """The lowest cost."""
        return min(cost for _, cost in self.trace)

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration on average."""
        return self.solve_s / len(self.trace)

    def reached_s(self, cost: float) -> float:
        """Seconds, with those of the set-up, until a cost was reached; infinite: it was not."""
        times = [time_s for time_s, reached in self.trace if reached <= cost]
        return self.setup_s + min(times, default=math.inf)


def runs_of(case: Case, backend: BackendName, rounds: int, seconds: float) -> list[Run]:
    """The quickest run of each method that suits the problem.

    Args:
        case: The problem.
        backend: `cpu` or `cuda`.
        rounds: Solves by each method at most.
        seconds: After which there is no further round.
    """
    solvers = dict(_prepared(case, backend))
    best: dict[str, Run] = {}
    start = time.perf_counter()
    for _ in range(rounds):
        for method, solver in solvers.items():
            solver.release()
            found = _run(case, method, solver)
            if method not in best or _total_s(found) < _total_s(best[method]):
                best[method] = found
        if time.perf_counter() - start > seconds:
            break
    return list(best.values())


def _prepared(case: Case, backend: BackendName) -> list[tuple[str, caspar.Solver]]:
    """Solvers whose kernels are compiled; those that do not suit the factors are left out."""
    solvers = []
    for method, options in METHODS.items():
        chosen: Any = options
        try:
            solver = caspar.Solver(case.factors, backend=backend, **chosen)
        except CasparError:
            continue
        # the whole way: what takes over in the middle is compiled too
        solver.solve(case.arrays)
        solvers.append((method, solver))
    return solvers


def _run(case: Case, method: str, solver: caspar.Solver) -> Run:
    result = solver.solve(case.arrays)
    return Run(
        problem=case.name,
        method=method,
        linear_solver=result.linear_solver,
        setup_s=result.setup_time_s,
        solve_s=result.solve_time_s,
        trace=tuple((record.time_s, record.cost) for record in result.iterations),
        num_linear_iterations=sum(record.linear_iterations for record in result.iterations),
        status=result.status.name,
    )


def _total_s(run: Run) -> float:
    return run.setup_s + run.solve_s


def limit(runs: Sequence[Run]) -> float:
    """The cost up to which runs of one problem count."""
    return (1.0 + NEAR) * min(run.final_cost for run in runs)
