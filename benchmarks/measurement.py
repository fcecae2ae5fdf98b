"""One solver on one problem: what both sides of a comparison report."""

from dataclasses import dataclass

Trace = tuple[tuple[float, float], ...]
"""(seconds since the start, cost of the values kept), one pair for each iteration."""


@dataclass(frozen=True)
class Measurement:
    """A solve, timed.

    Attributes:
        solver: Name in the tables.
        problem: Name in the tables.
        status: How the solver says it ended.
        initial_cost: As reported.
        final_cost: Recomputed in float64 from the returned values.
        reported_cost: As reported by the solver.
        num_iterations: Levenberg-Marquardt iterations.
        num_linear_iterations: PCG iterations.
        linear_iteration_ms: Milliseconds of one PCG iteration; None where not measured.
        setup_s: Seconds from host arrays to the first iteration, kernels loaded.
        solve_s: Seconds of the iterations, median of the runs.
        memory_bytes: Device memory of the solver and its input; None where not known.
        trace: Of the median run.
    """

    solver: str
    problem: str
    status: str
    initial_cost: float
    final_cost: float
    reported_cost: float
    num_iterations: int
    num_linear_iterations: int
    linear_iteration_ms: float | None
    setup_s: float
    solve_s: float
    memory_bytes: int | None
    trace: Trace

    def time_to(self, cost: float) -> float | None:
        """Seconds until the reported cost is at most `cost`; None if it never is."""
        return next((time_s for time_s, reached in self.trace if reached <= cost), None)
