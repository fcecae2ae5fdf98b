"""`python -m benchmarks.batch_curves`: curves of 3 to 8 parameters, by a batch and one by one.

Each curve has 10 to 50 samples at times of its own, with noise of a hundredth. *Costs* and *values*
are the largest relative differences between the batch and `Solver`, of curves that both solve; a
curve counts as *equal* if all of its values are to 1e-9. The minimum of each is found again by
Gauss-Newton steps in NumPy, with derivatives by complex steps: *apart from it* are the largest
distances of both, relative to the norm of the parameters. Writes `batch_curves_cpu.md` or
`batch_curves_cuda.md` in the folder, and prints it.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from numpy.typing import NDArray

import caspar
from benchmarks.page import table
from benchmarks.report import environment
from caspar.options import BackendName

Floats = NDArray[np.float64]

NOISE, MOST_TIME = 0.01, 3.0
EQUAL = 1e-9
NUM_POLISHING = 8

TRUE = (2.0, 1.5, 0.5, 0.2, 1.0, 1.5, 0.4, 0.05)
"""Amplitude, rate, offset; slope; height, place, width of a bump; curvature."""

SPREAD = 0.1
"""Of true and start values, relative."""

PARTS: Mapping[int, tuple[int, ...]] = {
    3: (0, 1, 2),
    4: (0, 1, 2, 3),
    5: (0, 1, 4, 5, 6),
    6: (0, 1, 2, 4, 5, 6),
    7: (0, 1, 2, 3, 4, 5, 6),
    8: (0, 1, 2, 3, 4, 5, 6, 7),
}
"""Which of these the curves of a number of parameters have."""


def curve(parts: tuple[int, ...], given: Any, time: Any, exp: Callable[[Any], Any]) -> Any:
    """A curve, of numbers or of symbols."""
    own = {part: given[place] for place, part in enumerate(parts)}
    found = own[0] * exp(-own[1] * time)
    if 2 in own:
        found = found + own[2]
    if 3 in own:
        found = found + own[3] * time
    if 4 in own:
        found = found + own[4] * exp(-(((time - own[5]) / own[6]) ** 2))
    if 7 in own:
        found = found + own[7] * time * time
    return found


def factor(parts: tuple[int, ...]) -> Any:
    """A sample of a curve."""
    size = len(parts)
    namespace = {"SHAPE": (size, 1), "__module__": __name__}
    node = type(f"Curve{size}", (sf.Matrix,), namespace)

    def sample(curve_: Any, time: Any, value: Any) -> sf.V1:
        return sf.V1(curve(parts, curve_, time, sf.exp) - value)

    sample.__annotations__ = {
        "curve_": Annotated[node, caspar.TunableUnique],
        "time": Annotated[sf.Scalar, caspar.ConstSequential],
        "value": Annotated[sf.Scalar, caspar.ConstSequential],
        "return": sf.V1,
    }
    return caspar.factor(sample)


def polished(parts: tuple[int, ...], start: Floats, time: Floats, value: Floats) -> Floats:
    """The minimum near a start, by Gauss-Newton steps."""
    found = start.copy()
    for _ in range(NUM_POLISHING):
        steps = found[:, None] + 1e-30j * np.eye(len(parts))
        columns = [curve(parts, step, time, np.exp).imag / 1e-30 for step in steps.T]
        residual = curve(parts, found, time, np.exp) - value
        if not np.isfinite(columns).all():
            return np.full_like(start, np.nan)
        found -= np.linalg.lstsq(np.stack(columns, axis=1), residual, rcond=None)[0]
    return found


def row(backend: BackendName, size: int, num_problems: int, num_single: int) -> list[str]:
    """Curves of a number of parameters."""
    parts, rng = PARTS[size], np.random.default_rng(size)
    typical = np.array([TRUE[part] for part in parts])
    true = typical * rng.uniform(1 - SPREAD, 1 + SPREAD, (num_problems, size))
    start = typical * rng.uniform(1 - SPREAD, 1 + SPREAD, (num_problems, size))
    lengths = rng.integers(10, 51, num_problems)
    problem = np.repeat(np.arange(num_problems), lengths)
    time = rng.uniform(0.0, MOST_TIME, len(problem))
    value = curve(parts, true[problem].T, time, np.exp) + rng.normal(0.0, NOISE, len(time))
    batch = caspar.BatchSolver(factor(parts), backend=backend)
    name = f"Curve{size}"
    ragged = {
        key: {"values": values, "problem": problem}
        for key, values in (("time", time), ("value", value))
    }
    result = batch.solve({name: start, "sample": ragged})
    single = caspar.Solver(factor(parts), backend=backend, precision="float64")
    first = np.concatenate([[0], np.cumsum(lengths)])
    costs, values, ours, theirs, same = [], [], [], [], 0
    for number in range(num_single):
        own = slice(first[number], first[number + 1])
        found = single.solve(
            {name: start[number : number + 1], "sample": {"time": time[own], "value": value[own]}}
        )
        same += found.status is result.status[number]
        if not (found.status.is_success and result.is_success[number]):
            continue
        ends = found.values[name][0], result.values[name][number]
        costs.append(abs(found.final_cost / result.final_cost[number] - 1.0))
        values.append(float((np.abs(ends[0] - ends[1]) / np.abs(ends[0])).max()))
        best = polished(parts, ends[1], time[own], value[own])
        scale = np.linalg.norm(best)
        if not np.linalg.norm(ends[1] - best) <= 1e-3 * scale:
            continue  # these steps are not those of a damped method
        theirs.append(float(np.linalg.norm(ends[0] - best) / scale))
        ours.append(float(np.linalg.norm(ends[1] - best) / scale))
    return [
        *(f"{size}", f"{num_problems:,}", f"{100 * result.is_success.mean():.2f} %"),
        *(f"{num_single:,}", f"{same:,}", f"{max(costs):.1e}", f"{np.median(values):.1e}"),
        *(f"{int((np.array(values) <= EQUAL).sum()):,}", f"{max(values):.1e}"),
        *(f"{max(ours):.1e}", f"{max(theirs):.1e}"),
    ]


def main() -> None:
    """Measure, write the page, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--problems", type=int, default=100_000)
    parser.add_argument("--single", type=int, default=350, help="solved one by one, of each size")
    given = parser.parse_args()
    rows = [row(given.backend, size, given.problems, given.single) for size in PARTS]
    solver = caspar.BatchSolver(factor(PARTS[3]), backend=given.backend)
    facts = ", ".join(f"{key} {value}" for key, value in environment(solver.backend.device).items())
    head = ["parameters", "curves", "converged", "one by one", "same status", "costs"]
    head += ["values, median", "equal", "values, worst", "batch apart from it", "single apart"]
    about = (__doc__ or "").split(chr(10), 2)[2]
    text = f"# Curves by a batch and one by one\n\n{facts}.\n\n{about}\n{table(head, rows)}"
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / f"batch_curves_{given.backend}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
