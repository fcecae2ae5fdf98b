"""How the time of a PCG iteration and the memory grow with the problem."""

import gc
from collections.abc import Iterator

from benchmarks.caspar_side import FULL, SCHUR, Variant, linear_iteration, setup_anew_s
from benchmarks.measurement import Growth
from benchmarks.problems import Bundle
from benchmarks.reference.build import ReferenceLibrary
from benchmarks.reference.solve import pcg_iteration_ms, prepare
from benchmarks.reference_side import FEW, MANY
from caspar.options import BackendName

VARIANTS = (*SCHUR, FULL)


def measure(
    problem: Bundle,
    backend: BackendName,
    library: ReferenceLibrary | None,
    variants: tuple[str, ...],
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


def _caspar(variant: Variant, problem: Bundle, backend: BackendName) -> Growth:
    anew_s = setup_anew_s(variant, problem, backend)
    solver = variant.make(problem, backend)
    result = solver.solve(problem.arrays, max_iterations=1)
    timed = linear_iteration(solver, problem.arrays, variant, runs=3)
    return Growth(
        f"caspar {backend} {variant.name}",
        problem.num_observations,
        len(problem.cameras),
        None if timed is None else timed.linear_ms,
        anew_s,
        result.peak_memory_bytes,
    )
