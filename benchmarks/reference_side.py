"""The reference's side of a comparison: symforce.caspar, generated and built here with nvcc."""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measurement import Measurement
from benchmarks.problems import Bundle
from benchmarks.reference.build import ReferenceLibrary, load
from benchmarks.reference.solve import (
    EXAMPLE,
    LONG,
    LONG_PCG,
    PAPER,
    PreparedReference,
    ReferenceSettings,
    pcg_iteration_ms,
    prepare,
    solve,
)

ROOT = Path(__file__).parents[1]
RUNS = 5
SETTINGS = {
    "its example's settings": EXAMPLE,
    "the paper's settings": PAPER,
    "long": LONG,
    "long, tight PCG": LONG_PCG,
}
"""What the reference is asked for, by the name in the tables."""


def build_reference(
    directory: Path | None = None,
    generator: str = "benchmarks.reference.generate",
    architecture: str = "90",
) -> ReferenceLibrary:
    """Run a module that generates and compiles in float32; by default, for the same factor."""
    folder = Path(tempfile.mkdtemp()) if directory is None else directory
    # a process of its own: SymForce's epsilon is set before anything else uses it
    command = [sys.executable, "-m", generator, str(folder), "--architecture", architecture]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return load(folder)


def measure_all(library: ReferenceLibrary, problem: Bundle) -> list[Measurement]:
    """Measure a problem with each of `SETTINGS`."""
    prepared = prepare(library, problem)
    solve(prepared, EXAMPLE)
    linear_iteration_ms = pcg_iteration_ms(prepared)
    return [
        _measure(prepared, problem, name, settings, linear_iteration_ms)
        for name, settings in SETTINGS.items()
    ]


def _measure(
    prepared: PreparedReference,
    problem: Bundle,
    name: str,
    settings: ReferenceSettings,
    linear_iteration_ms: float,
) -> Measurement:
    runs = sorted(
        (solve(prepared, settings) for _ in range(RUNS)), key=lambda run: run.total_time_s
    )
    chosen = runs[RUNS // 2]
    return Measurement(
        solver=f"reference float32, {name}",
        problem=problem.name,
        status=chosen.exit_reason.lower(),
        initial_cost=chosen.initial_cost,
        final_cost=problem.cost(chosen.cameras, chosen.points),
        reported_cost=chosen.final_cost,
        num_iterations=len(chosen.iterations),
        num_linear_iterations=chosen.num_pcg_iterations,
        linear_iteration_ms=linear_iteration_ms,
        setup_s=chosen.setup_time_s,
        solve_s=chosen.total_time_s,
        memory_bytes=chosen.allocation_bytes,
        trace=tuple((one.total_time_s, one.best_cost) for one in chosen.iterations),
    )
