"""`python -m benchmarks.batch_sizes`: batches by the unknowns and samples of a problem.

Sums of bumps of three unknowns each. *Thread* and *warp* are who solves a problem, see design
record 0039; on the processor a warp is one thread, and the code has loops. Microseconds are those
of the kernel for each problem, the best of three solves; compiling is cold, from factors to the
first result of a process whose store does not know the kernel. Writes `batch_sizes_cpu.md` or
`batch_sizes_cuda.md` in the folder, and prints it.
"""

import argparse
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf

import caspar
from benchmarks.batches import on_device
from benchmarks.page import table
from benchmarks.report import environment
from caspar.batch.generate.shape import Team
from caspar.options import BackendName, BatchPrecisionName

UNKNOWNS = (3, 6, 9, 12, 18, 24, 39, 48)
MOST_OF_THREAD = 24
NUM_RUNS = 3
SIZES = {
    "cpu": ((200, 30), (200, 200)),
    "cuda": ((1_000, 30), (1_000, 200), (100_000, 30), (100_000, 200)),
}
"""Problems, and samples of each."""


def factor(num_unknowns: int) -> Any:
    """A sample of a sum of bumps of different widths."""
    namespace = {"SHAPE": (num_unknowns, 1), "__module__": __name__}
    bumps = type(f"Bumps{num_unknowns}", (sf.Matrix,), namespace)

    def reading(bumps: Any, at: Any, value: Any) -> sf.V1:
        found = -value
        for first in range(0, num_unknowns, 3):
            height, place, width = (bumps[first + part] for part in range(3))
            found += height * sf.exp(-(((at - place) * width) ** 2))
        return sf.V1(found)

    reading.__annotations__ = {
        "bumps": Annotated[bumps, caspar.TunableUnique],
        "at": Annotated[sf.Scalar, caspar.ConstSequential],
        "value": Annotated[sf.Scalar, caspar.ConstSequential],
        "return": sf.V1,
    }
    return caspar.factor(reading)


def arrays(num_unknowns: int, num_problems: int, num_samples: int) -> Mapping[str, Any]:
    """Starts near the truth, and readings with noise."""
    rng = np.random.default_rng(num_unknowns)
    number = num_unknowns // 3
    at = np.linspace(-1.0, 1.0, num_samples)
    true = np.zeros((num_problems, num_unknowns))
    true[:, 0::3] = rng.uniform(1.0, 2.0, (num_problems, number))
    true[:, 1::3] = (np.arange(number) + 0.5) * 2.0 / number - 1.0
    true[:, 2::3] = 1.5 * number
    value = rng.normal(0.0, 0.01, (num_problems, num_samples))
    for first in range(0, num_unknowns, 3):
        height, place, width = (true[:, first + part, None] for part in range(3))
        value += height * np.exp(-(((at - place) * width) ** 2))
    start = true + rng.normal(0.0, 0.03, true.shape)
    return {f"Bumps{num_unknowns}": start, "reading": {"at": at[None], "value": value}}


def row(
    backend: BackendName, num_unknowns: int, precision: BatchPrecisionName, team: Team
) -> list[str]:
    """Seconds of compiling, and microseconds a problem by size."""
    found: list[str] = []
    solver: Any = None
    for num_problems, num_samples in SIZES[backend]:
        given = arrays(num_unknowns, num_problems, num_samples)
        given = on_device(given, backend, precision)
        if solver is None:
            start = time.perf_counter()
            solver = caspar.BatchSolver(factor(num_unknowns), backend=backend, precision=precision)
            solver.team = team
            solver.solve(given)
            found.append(f"{time.perf_counter() - start:.1f}")
        results = [solver.solve(given) for _ in range(NUM_RUNS)]
        seconds = min(result.solve_time_s for result in results)
        found.append(f"{1e6 * seconds / num_problems:.3g}")
        found.append(f"{float(results[0].iterations.mean()):.1f}")
    return [f"{num_unknowns}", precision, team.value, *found]


def main() -> None:
    """Measure, write the page, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    backend = given.backend
    both: tuple[BatchPrecisionName, ...] = ("float64", "float32")
    precisions = both if backend == "cuda" else both[:1]
    rows = [
        row(backend, num_unknowns, precision, team)
        for num_unknowns, precision, team in product(UNKNOWNS, precisions, Team)
        if team is Team.WARP or num_unknowns <= MOST_OF_THREAD
    ]
    head = ["unknowns", "precision", "by", "cold, s"]
    for num_problems, num_samples in SIZES[backend]:
        head += [f"us a problem, {num_problems:,} of {num_samples} samples", "iterations"]
    solver = caspar.BatchSolver(factor(3), backend=backend)
    facts = ", ".join(f"{key} {value}" for key, value in environment(solver.backend.device).items())
    about = (__doc__ or "").split(chr(10), 2)[2]
    text = f"# Batches by the size of a problem\n\n{facts}.\n\n{about}\n{table(head, rows)}"
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / f"batch_sizes_{backend}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
