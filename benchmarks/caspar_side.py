"""caspar's side of a comparison."""

import statistics

from benchmarks.measurement import Measurement
from benchmarks.problems import Bundle
from caspar import Solver, SolveResult
from caspar.frontend.bundle_adjustment import snavely

RUNS = 5
FEW, MANY = 16, 144
"""PCG iterations of the two solves whose difference is the time of one iteration."""


def measure(problem: Bundle, backend: str, precision: str) -> Measurement:
    """Solve a problem several times with default options, after one solve that warms up."""
    solver = Solver([snavely], backend=backend, precision=precision)
    solver.solve(problem.arrays)
    results = [solver.solve(problem.arrays) for _ in range(RUNS)]
    results.sort(key=lambda result: result.solve_time_s)
    chosen = results[RUNS // 2]
    return Measurement(
        solver=f"caspar {backend} {precision}",
        problem=problem.name,
        status=chosen.status.name.lower(),
        initial_cost=chosen.initial_cost,
        final_cost=problem.cost(chosen.values["Cam"], chosen.values["Point"]),
        reported_cost=chosen.final_cost,
        num_iterations=len(chosen.iterations),
        num_linear_iterations=_linear_iterations(chosen),
        linear_iteration_ms=linear_iteration_ms(solver, problem),
        setup_s=statistics.median(result.setup_time_s for result in results),
        solve_s=chosen.solve_time_s,
        memory_bytes=chosen.peak_memory_bytes,
        trace=tuple((record.time_s, record.cost) for record in chosen.iterations),
    )


def linear_iteration_ms(solver: Solver, problem: Bundle) -> float:
    """Milliseconds of one PCG iteration.

    One Levenberg-Marquardt iteration is run with exactly FEW and exactly MANY PCG iterations;
    everything around PCG cancels in the difference of the medians.
    """
    medians = []
    for count in (FEW, MANY):
        times = []
        for _ in range(RUNS + 1):
            result = solver.solve(
                problem.arrays,
                max_iterations=1,
                min_linear_iterations=count,
                max_linear_iterations=count,
            )
            assert _linear_iterations(result) == count, "PCG stopped early"
            times.append(result.solve_time_s)
        medians.append(statistics.median(times[1:]))
    return 1e3 * (medians[1] - medians[0]) / (MANY - FEW)


def _linear_iterations(result: SolveResult) -> int:
    return sum(record.linear_iterations for record in result.iterations)
