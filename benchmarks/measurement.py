"""One solver on one problem: what all sides of a comparison report."""

from dataclasses import dataclass

Trace = tuple[tuple[float, float], ...]
"""(seconds since the start, cost of the values kept), one pair for each iteration."""

NEARLY = 1e-5
"""How near a cost counts as the best of its solver."""

TRACE_LENGTH = 400
"""Pairs kept of a longer trace."""


@dataclass(frozen=True)
class Setup:
    """Seconds of a solve from arrays on the host to values there, without its iterations.

    Attributes:
        compile_s: To generate and load the kernels, the first time in this process.
        anew_s: With kernels loaded and nothing known about the problem.
        reused_s: With the plan of a problem of the same structure at hand; None: not offered.
    """

    compile_s: float | None
    anew_s: float
    reused_s: float | None


@dataclass(frozen=True)
class Measurement:
    """A solve, timed.

    Attributes:
        solver: Name in the tables.
        problem: Name in the tables.
        num_observations: Factors.
        status: How the solver says it ended.
        initial_cost: As reported.
        final_cost: Recomputed in float64 from the returned values.
        reported_cost: As reported by the solver.
        num_iterations: Levenberg-Marquardt iterations.
        num_linear_iterations: PCG iterations; None where the solver does not say.
        linear_iteration_ms: Milliseconds of one PCG iteration; None where not measured.
        outer_iteration_ms: Milliseconds of one Levenberg-Marquardt iteration without its PCG
            iterations; None where not measured.
        setup: Seconds before the first iteration; None where not measured.
        solve_s: Seconds of the iterations, median of the runs.
        runs: Solves of which this is the median.
        memory_bytes: Device memory of solver and input by the solver's account; None: not known.
        device_bytes: Free device memory lost, by the driver's account; None: not known.
        remark: What a reader must know to compare it; empty for nothing.
        trace: Of the median run.
    """

    solver: str
    problem: str
    num_observations: int
    status: str
    initial_cost: float
    final_cost: float
    reported_cost: float
    num_iterations: int
    num_linear_iterations: int | None
    linear_iteration_ms: float | None
    outer_iteration_ms: float | None
    setup: Setup | None
    solve_s: float
    runs: int
    memory_bytes: int | None
    device_bytes: int | None
    remark: str
    trace: Trace

    @property
    def same_cost(self) -> bool:
        """Whether the cost it reports is the one that is recomputed, to 0.1 %."""
        return abs(self.reported_cost - self.final_cost) <= 1e-3 * abs(self.final_cost)

    def time_to(self, cost: float) -> float | None:
        """Seconds until the reported cost is at most `cost`; None if it never is."""
        if not self.same_cost:
            return None
        return next((time_s for time_s, reached in self.trace if reached <= cost), None)

    @property
    def time_to_own_best(self) -> float | None:
        """Seconds until the reported cost is within NEARLY of the lowest; None without a trace."""
        costs = [cost for _, cost in self.trace]
        return self.time_to(min(costs) * (1.0 + NEARLY)) if len(costs) > 0 else None

    @property
    def iteration_ms(self) -> float:
        """Milliseconds of one Levenberg-Marquardt iteration, all included."""
        return 1e3 * self.solve_s / max(self.num_iterations, 1)


@dataclass(frozen=True)
class Growth:
    """One solver at one size.

    Attributes:
        solver: Name in the tables.
        num_observations: Size.
        num_cameras: Size.
        linear_iteration_ms: Milliseconds of one PCG iteration.
        setup_s: As `Setup.anew_s`.
        memory_bytes: Device memory of solver and input, by the solver's account.
    """

    solver: str
    num_observations: int
    num_cameras: int
    linear_iteration_ms: float | None
    setup_s: float
    memory_bytes: int

    @property
    def nanoseconds(self) -> float | None:
        """Of one PCG iteration, for each observation."""
        if self.linear_iteration_ms is None:
            return None
        return 1e6 * self.linear_iteration_ms / self.num_observations


def thinned(trace: Trace) -> Trace:
    """At most TRACE_LENGTH pairs: all that lower the cost, or evenly chosen ones of them."""
    lowering, best = [], float("inf")
    for pair in trace:
        if pair[1] < best:
            best = pair[1]
            lowering.append(pair)
    step = -(-len(lowering) // TRACE_LENGTH)
    return tuple(lowering[::step] if step <= 1 else [*lowering[:-1:step], lowering[-1]])
