"""How the time of a PCG iteration and the memory grow with the problem."""

import gc
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.caspar_side import Variant, linear_iteration
from benchmarks.problems import Bundle
from benchmarks.reference.build import ReferenceLibrary
from benchmarks.reference.solve import pcg_iteration_ms, prepare
from benchmarks.reference_side import FEW, MANY

VARIANTS = (
    Variant("schur_pcg", {"linear_solver": "schur_pcg", "jacobian": "float32"}),
    Variant("schur_pcg, float16 Jacobians", {"linear_solver": "schur_pcg", "jacobian": "float16"}),
    Variant("pcg", {"linear_solver": "pcg"}),
)
SETUPS = 3


@dataclass(frozen=True)
class Growth:
    """One solver at one size.

    Attributes:
        solver: Name in the tables.
        num_observations: Size.
        num_cameras: Size.
        linear_iteration_ms: Milliseconds of one PCG iteration.
        setup_s: Seconds from host arrays to the first iteration, kernels loaded, median.
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


def measure(
    problem: Bundle, backend: str, library: ReferenceLibrary | None, variants: tuple[str, ...]
) -> Iterator[Growth]:
    """All solvers on one problem, one after the other: each needs the whole device."""
    for variant in VARIANTS:
        if variant.name in variants:
            yield _caspar(variant, problem, backend)
            gc.collect()
    if library is not None:
        setups = []
        for _ in range(2):
            prepared = prepare(library, problem)
            setups.append(prepared.setup_time_s)
        yield Growth(
            "reference float32",
            problem.num_observations,
            len(problem.cameras),
            pcg_iteration_ms(prepared, few=FEW, many=MANY, repeats=3),
            setups[-1],
            prepared.allocation_bytes,
        )


def _caspar(variant: Variant, problem: Bundle, backend: str) -> Growth:
    setups = []
    for _ in range(SETUPS):
        solver = variant.make(problem, backend)
        solver.compile()
        result = solver.solve(problem.arrays, max_iterations=1)
        setups.append(result.setup_time_s)
    timed = linear_iteration(solver, problem, variant, runs=3)
    return Growth(
        f"caspar {backend} {variant.name}",
        problem.num_observations,
        len(problem.cameras),
        None if timed is None else timed.linear_ms,
        statistics.median(setups),
        result.peak_memory_bytes,
    )
