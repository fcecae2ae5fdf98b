"""The reference's side of a comparison: symforce.caspar, generated and built here with nvcc."""

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.caspar_side import Budget, array_library
from benchmarks.measurement import Measurement, Setup, thinned
from benchmarks.problems import Bundle
from benchmarks.reference.build import MANIFEST_NAME, ReferenceLibrary, extension_path, load
from benchmarks.reference.solve import (
    EXAMPLE,
    LONG,
    LONG_PCG,
    PAPER,
    PreparedReference,
    ReferenceRun,
    ReferenceSettings,
    pcg_iteration_ms,
    prepare,
    solve,
)

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "its example's settings": EXAMPLE,
    "the paper's settings": PAPER,
    "long": LONG,
    "long, tight PCG": LONG_PCG,
}
"""What the reference is asked for, by the name in the tables."""
FEW, MANY = 10, 60
"""PCG iterations of the two solves whose difference is the time of one iteration."""


def build_reference(
    directory: Path | None = None,
    generator: str = "benchmarks.reference.generate",
    architecture: str = "90",
) -> ReferenceLibrary:
    """Run a module that generates and compiles in float32; by default, for the same factor.

    A `directory` that holds the extension already is loaded as it is.
    """
    folder = Path(tempfile.mkdtemp()) if directory is None else directory
    if not (extension_path(folder).exists() and (folder / MANIFEST_NAME).exists()):
        # a process of its own: SymForce's epsilon is set before anything else uses it
        command = [sys.executable, "-m", generator, str(folder), "--architecture", architecture]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return load(folder)


def measure_all(library: ReferenceLibrary, problem: Bundle, budget: Budget) -> list[Measurement]:
    """Measure a problem with each of `SETTINGS`."""
    prepare(library, problem)  # loads what the process has not loaded yet
    prepared = prepare(library, problem)
    solve(prepared, replace(EXAMPLE, solver_iter_max=2))
    linear_ms = pcg_iteration_ms(prepared, few=FEW, many=MANY)
    one = solve(prepared, replace(EXAMPLE, solver_iter_max=2, pcg_iter_max=FEW))
    outer_ms = 1e3 * one.total_time_s / len(one.iterations) - linear_ms * (
        one.num_pcg_iterations / len(one.iterations)
    )
    measured = []
    for name, settings in SETTINGS.items():
        limited = within(settings, linear_ms, outer_ms, budget.seconds)
        measured.append(_measure(prepared, problem, name, limited, linear_ms, outer_ms, budget))
    return measured


def within(
    settings: ReferenceSettings, linear_ms: float, outer_ms: float, seconds: float
) -> ReferenceSettings:
    """Fewer iterations where all would take longer: the reference has no limit of time."""
    iteration_s = 1e-3 * (outer_ms + settings.pcg_iter_max * linear_ms)
    most = max(int(seconds / max(iteration_s, 1e-6)), 10)
    return replace(settings, solver_iter_max=min(settings.solver_iter_max, most))


def _measure(
    prepared: PreparedReference,
    problem: Bundle,
    name: str,
    settings: ReferenceSettings,
    linear_ms: float,
    outer_ms: float,
    budget: Budget,
) -> Measurement:
    runs: list[ReferenceRun] = []
    start = time.perf_counter()
    while len(runs) == 0 or (
        len(runs) < budget.runs and time.perf_counter() - start < budget.seconds
    ):
        runs.append(solve(prepared, settings))
    runs.sort(key=lambda run: run.total_time_s)
    chosen = runs[len(runs) // 2]
    shortened = settings.solver_iter_max < SETTINGS[name].solver_iter_max
    return Measurement(
        solver=f"reference float32, {name}",
        problem=problem.name,
        num_observations=problem.num_observations,
        status=chosen.exit_reason.lower(),
        initial_cost=chosen.initial_cost,
        final_cost=problem.cost(chosen.cameras, chosen.points, array_library("cuda")),
        reported_cost=chosen.final_cost,
        num_iterations=len(chosen.iterations),
        num_linear_iterations=chosen.num_pcg_iterations,
        linear_iteration_ms=linear_ms,
        outer_iteration_ms=outer_ms,
        setup=Setup(None, chosen.setup_time_s, chosen.upload_time_s),
        solve_s=chosen.total_time_s,
        runs=len(runs),
        memory_bytes=chosen.allocation_bytes,
        device_bytes=chosen.device_bytes,
        remark=f"cut to {settings.solver_iter_max} iterations for time" if shortened else "",
        trace=thinned(tuple((one.total_time_s, one.best_cost) for one in chosen.iterations)),
    )
