"""caspar's side of a comparison.

What of caspar's interface is used stands in `VARIANTS`, `measure`, `linear_iteration` and
`_linear_iterations`.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from benchmarks.measurement import Measurement, Setup, thinned
from caspar import Solver, SolveResult
from caspar.options import BackendName

FEW, MANY = 16, 144
"""PCG iterations of the two solves whose difference is the time of one iteration."""
SETUP_RUNS = 3


class Problem(Protocol):
    """What caspar solves: bundle adjustment or a pose graph."""

    @property
    def name(self) -> str:
        """In the tables."""

    @property
    def num_observations(self) -> int:
        """Factors."""

    @property
    def num_reduced(self) -> int:
        """Nodes that remain after elimination: cameras, poses."""

    @property
    def factors(self) -> Sequence[Any]:
        """For `Solver`."""

    @property
    def arrays(self) -> dict[str, Any]:
        """For `Solver.solve`."""

    def cost_of(self, values: Mapping[str, Any], library: ModuleType) -> float:
        """1/2 sum r^2 of the values returned, in float64, by neither solver."""


@dataclass(frozen=True)
class Variant:
    """How caspar is asked to solve.

    Attributes:
        name: In the tables and on the command line.
        solver: Arguments of `Solver` beside the backend.
        options: Of `Solver.solve`.
        max_reduced: Cameras or poses of the problems it is run on: needs grow with their square.
        max_observations: Likewise.
        details: Whether setup, memory and the time of PCG iterations are measured too.
    """

    name: str
    solver: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    max_reduced: int | None = None
    max_observations: int | None = None
    details: bool = True

    def takes(self, problem: Problem) -> bool:
        """Whether it is run on this problem."""
        reduced, observations = problem.num_reduced, problem.num_observations
        return (self.max_reduced is None or reduced <= self.max_reduced) and (
            self.max_observations is None or observations <= self.max_observations
        )

    def make(self, problem: Problem, backend: BackendName) -> Solver:
        """The solver."""
        return Solver(problem.factors, backend=backend, **self.solver)


_MATCHED = {
    "max_iterations": 50,
    "initial_damping": 1e-2,
    "linear_tolerance": 1e-3**0.5,
    "min_linear_tolerance": 1e-3**0.5,
    "min_linear_iterations": 1,
    "max_linear_iterations": 20,
    "cost_tolerance": 0.0,
}
"""The paper's settings, which the reference is measured with too; its tolerance compares squares.
"""
_LONG = {"max_iterations": 300, "max_linear_iterations": 1000, "cost_tolerance": 1e-10}

AUTO = Variant("auto")
FULL = Variant("pcg", {"linear_solver": "pcg"})
SPARSE = Variant("sparse", {"linear_solver": "sparse"}, max_observations=2_000_000)
FLOAT64 = Variant("float64", {"precision": "float64"})
SCHUR = tuple(
    Variant(f"schur_pcg, {name} Jacobians", {"linear_solver": "schur_pcg", "jacobian": jacobian})
    for name, jacobian in (
        ("stored", "stored"),
        ("float16", "float16"),
        ("recomputed", "recompute"),
    )
)

VARIANTS = (
    AUTO,
    FULL,
    *SCHUR,
    Variant("schur_dense", {"linear_solver": "schur_dense"}, max_reduced=5000),
    SPARSE,
    FLOAT64,
    Variant("float32", {"precision": "float32"}),
    Variant("deterministic", {"deterministic": True}),
    Variant("pcg, the paper's settings", {"linear_solver": "pcg"}, _MATCHED, details=False),
    Variant("float64, long", {"precision": "float64"}, _LONG, details=False),
)
"""On bundle adjustment; `float64, long` is for the best cost of problems where no one knows it."""

GRAPH_VARIANTS = (
    AUTO,
    FULL,
    SPARSE,
    FLOAT64,
)
"""On pose graphs."""


@dataclass(frozen=True)
class Budget:
    """How much is measured.

    Attributes:
        runs: Solves at most.
        seconds: Of solves, for each variant and problem; one solve stops after it.
    """

    runs: int = 5
    seconds: float = 20.0


def measure(
    variant: Variant, problem: Problem, backend: BackendName, budget: Budget
) -> Measurement:
    """Solve several times, after one solve that warms up; then what `variant.details` asks for."""
    solver = variant.make(problem, backend)
    options = {"max_time_s": budget.seconds, **variant.options}
    first = solver.solve(_fresh(problem), **options)
    results: list[SolveResult] = []
    around_s: list[float] = []
    start = time.perf_counter()
    while len(results) == 0 or (
        len(results) < budget.runs and time.perf_counter() - start < budget.seconds
    ):
        result, beside_s = timed_solve(solver, problem, options)
        results.append(result)
        around_s.append(beside_s)
    results.sort(key=lambda result: result.solve_time_s)
    chosen = results[len(results) // 2]
    timed, setup, device_bytes = None, None, None
    if variant.details:
        timed = linear_iteration(solver, problem.arrays, variant)
        reused_s = statistics.median(around_s)
        del solver
        anew_s = setup_anew_s(variant, problem, backend)
        device_bytes = _device_bytes(variant, problem, backend)
        setup = Setup(first.compile_time_s, anew_s, reused_s)
    library = array_library(backend)
    return Measurement(
        solver=f"caspar {backend} {variant.name}",
        problem=problem.name,
        num_observations=problem.num_observations,
        status=chosen.status.name.lower(),
        initial_cost=chosen.initial_cost,
        final_cost=problem.cost_of(chosen.values, library),
        reported_cost=chosen.final_cost,
        num_iterations=len(chosen.iterations),
        num_linear_iterations=_linear_iterations(chosen),
        linear_iteration_ms=None if timed is None else timed.linear_ms,
        outer_iteration_ms=None if timed is None else timed.outer_ms,
        setup=setup,
        solve_s=chosen.solve_time_s,
        runs=len(results),
        memory_bytes=chosen.peak_memory_bytes,
        device_bytes=device_bytes,
        remark=_ran(variant, chosen),
        trace=thinned(tuple((record.time_s, record.cost) for record in chosen.iterations)),
    )


def _ran(variant: Variant, result: SolveResult) -> str:
    """What ran, where it is not what was asked for."""
    asked = variant.solver.get("linear_solver", "auto")
    return "" if asked == result.linear_solver else f"ran {result.linear_solver}"


@dataclass(frozen=True)
class IterationTime:
    """Milliseconds.

    Attributes:
        linear_ms: Of one PCG iteration.
        outer_ms: Of one Levenberg-Marquardt iteration without its PCG iterations.
    """

    linear_ms: float
    outer_ms: float


def linear_iteration(
    solver: Solver, arrays: Mapping[str, Any], variant: Variant, runs: int = 5
) -> IterationTime | None:
    """Time of one PCG iteration; None where the solver has none.

    One Levenberg-Marquardt iteration is run with exactly FEW and exactly MANY PCG iterations;
    everything around PCG cancels in the difference of the medians. None also where PCG cannot do
    that many, since it has reached the solution.
    """
    medians = []
    for count in (FEW, MANY):
        times = []
        for _ in range(runs + 1):
            result = solver.solve(
                arrays,
                **{
                    **variant.options,
                    "max_iterations": 1,
                    "min_linear_iterations": count,
                    "max_linear_iterations": count,
                },
            )
            if _linear_iterations(result) != count:
                return None
            times.append(result.solve_time_s)
        medians.append(statistics.median(times[1:]))
    linear_ms = 1e3 * (medians[1] - medians[0]) / (MANY - FEW)
    return IterationTime(linear_ms, 1e3 * medians[0] - FEW * linear_ms)


def _linear_iterations(result: SolveResult) -> int:
    return sum(record.linear_iterations for record in result.iterations)


def timed_solve(
    solver: Solver, problem: Problem, options: Mapping[str, Any]
) -> tuple[SolveResult, float]:
    """A solve, and the seconds around its iterations: setup, and the download of the values."""
    arrays = _fresh(problem)
    start = time.perf_counter()
    result = solver.solve(arrays, **options)
    return result, time.perf_counter() - start - result.solve_time_s


def _fresh(problem: Problem) -> dict[str, Any]:
    """The arrays with values in new places: all that can be reused is the structure."""

    def copied(given: Any) -> Any:
        if isinstance(given, dict):
            return {name: copied(one) for name, one in given.items()}
        array = np.asarray(given)
        return array.copy() if np.issubdtype(array.dtype, np.floating) else given

    fresh: dict[str, Any] = copied(problem.arrays)
    return fresh


def setup_anew_s(variant: Variant, problem: Problem, backend: BackendName) -> float:
    """Seconds from arrays to the first iteration, kernels loaded, of a solver that knows no plan.

    The kernels are loaded by `compile`; the first solve of a process may also load libraries.
    """
    times = []
    for _ in range(SETUP_RUNS):
        gc.collect()
        solver = variant.make(problem, backend)
        solver.compile()
        times.append(timed_solve(solver, problem, {**variant.options, "max_iterations": 1})[1])
    return statistics.median(times)


def _device_bytes(variant: Variant, problem: Problem, backend: BackendName) -> int | None:
    """Device memory that a first solve takes, by the driver; None on a CPU.

    CuPy gives nothing back before it is asked, so what only the setup needs is in it.
    """
    if backend != "cuda":
        return None
    import cupy

    solver = variant.make(problem, backend)
    solver.compile()
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    free = [int(cupy.cuda.runtime.memGetInfo()[0])]

    def look(_: object) -> None:
        free.append(int(cupy.cuda.runtime.memGetInfo()[0]))

    solver.solve(problem.arrays, on_iteration=look, **{**variant.options, "max_iterations": 2})
    return free[0] - min(free)


def array_library(backend: BackendName) -> ModuleType:
    """CuPy for CUDA, NumPy for the CPU."""
    if backend != "cuda":
        return np
    import cupy

    library: ModuleType = cupy
    return library


@contextlib.contextmanager
def released(backend: BackendName) -> Iterator[None]:
    """Give back, at the end, the device memory that CuPy keeps for later."""
    try:
        yield
    finally:
        gc.collect()
        if backend == "cuda":
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
