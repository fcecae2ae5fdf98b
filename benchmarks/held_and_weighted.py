"""`python -m benchmarks.held_and_weighted PROBLEM ...`: what masks, weights and losses cost.

One solver for each way of passing the same bundle adjustment: as usual, with parts held, with
weights, with a loss. All take turns in one run. Prints, and writes to a folder, the microseconds of
a PCG iteration and of a solve of three steps, as medians, and their ratios to the usual ones. On a
processor they are those of all threads together, set-up included, which other load changes less.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import caspar
from benchmarks.problems import Bundle, make
from benchmarks.report import environment
from caspar.bundle_adjustment import snavely
from caspar.options import BackendName

NUM_ITERATIONS = {"cuda": (20, 200), "cpu": (10, 40)}
"""PCG iterations of each of the steps of two solves, whose difference is that of iterations. A
processor takes several times as long for the denormal numbers of a solve far beyond convergence."""

DAMPING = 1e-3
"""First damping of all; with a loss a solve would begin with another one."""

NUM_STEPS = 3


@dataclass(frozen=True)
class Way:
    """A way of passing a problem.

    Attributes:
        name: In the table.
        factor: The factor.
        more: Passed beside its arguments.
        fixed: What is held.
    """

    name: str
    factor: Any
    more: Mapping[str, Any]
    fixed: Mapping[str, Any] | None = None


def ways(bundle: Bundle) -> list[Way]:
    """The usual one first."""
    cameras = np.zeros((len(bundle.cameras), 9), dtype=np.bool_)
    cameras[0], cameras[:, 7:] = True, True
    points = np.zeros(len(bundle.points), dtype=np.bool_)
    points[::50] = True
    held = {"Cam": cameras, "Point": points}
    weights = {"weight": np.ones(len(bundle.pixels))}
    robust = snavely.with_loss(caspar.loss.Huber)
    return [
        Way("usual", snavely, {}),
        Way("parts of both types held", snavely, {}, held),
        Way("weights", snavely, weights),
        Way("Huber's loss", robust, {"loss_scale": 1.0}),
    ]


class _Measured:
    """A solver of one way, and its times so far in seconds."""

    def __init__(self, bundle: Bundle, way: Way, backend: BackendName) -> None:
        self.way = way
        self.iteration: list[float] = []
        self.solve: list[float] = []
        self._solver = caspar.Solver(
            way.factor, backend=backend, precision="mixed", linear_solver="schur_pcg"
        )
        observed = {"cam": bundle.camera_index, "point": bundle.point_index, "pixel": bundle.pixels}
        self._arrays = {
            "Cam": bundle.cameras,
            "Point": bundle.points,
            "snavely": {**observed, **way.more},
        }

    def take(self) -> None:
        """Two solves."""
        (few_s, few), (many_s, many) = map(self._run, NUM_ITERATIONS[self._solver.backend.name])
        self.solve.append(few_s)
        if many > few:
            self.iteration.append((many_s - few_s) / (many - few))

    def _run(self, iterations: int) -> tuple[float, int]:
        start_s = time.process_time()
        result = self._solver.solve(
            self._arrays,
            fixed=self.way.fixed,
            max_iterations=NUM_STEPS,
            initial_damping=DAMPING,
            min_linear_iterations=iterations,
            max_linear_iterations=iterations,
            verbose=False,
        )
        is_on_host = self._solver.backend.name == "cpu"
        spent_s = time.process_time() - start_s if is_on_host else result.solve_time_s
        return spent_s, sum(one.linear_iterations for one in result.iterations)


def rows(name: str, backend: BackendName, turns: int) -> list[str]:
    """Lines of the table for a problem."""
    bundle = make(name)
    measured = [_Measured(bundle, way, backend) for way in ways(bundle)]
    for one in measured:
        one.take()
        one.iteration.clear()
        one.solve.clear()
    for _ in range(turns):
        for one in measured:
            one.take()
    usual = measured[0]
    lines = []
    for one in measured:
        cells = []
        for times, others in ((one.iteration, usual.iteration), (one.solve, usual.solve)):
            time_s = statistics.median(times)
            cells += [f"{1e6 * time_s:.1f}", f"{time_s / statistics.median(others):.3f}"]
        lines.append(f"| {name} | {one.way.name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_and_weighted")
    parser.add_argument("problems", nargs="+", metavar="PROBLEM", help="as `problems.make` takes")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    device = caspar.Solver(snavely, backend=arguments.backend).backend.device
    lines = ["# What masks, weights and losses cost", ""]
    lines += [f"* {key}: {text}" for key, text in environment(device).items()]
    lines += [
        "",
        f"Medians of {arguments.turns} turns, mixed precision, `schur_pcg`; solves of {NUM_STEPS} "
        f"steps of {NUM_ITERATIONS[arguments.backend][0]} PCG iterations.",
        "",
        "| problem | passed | PCG iteration, us | ratio | solve, us | ratio |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name in arguments.problems:
        lines += rows(name, arguments.backend, arguments.turns)
    print("\n".join(lines))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / f"held_and_weighted_{arguments.backend}.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
