"""`python -m benchmarks.field_paths`: paths in a distance field, in a batch and one by one.

The paths of `examples/field_paths.py`, solved by a `BatchSolver`; and some of them in a Python loop
by SciPy's `least_squares`, from the same starts, with the same interpolant and its derivatives by
NumPy, a path's 50 points at once. Both end by the same tolerance of the cost, but SciPy's steps
are others, so the costs are compared by their mean. Writes `field_paths_cpu.md` or
`field_paths_cuda.md` in the folder, and prints it.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

import caspar
from benchmarks.page import table
from benchmarks.report import environment
from caspar.options import BackendName
from examples.field_paths import (
    CELLS_PER_METRE,
    CLEARANCE,
    END,
    KNOTS,
    OPTIONS,
    STIFFNESS,
    Way,
    arrays_of,
    clear,
    ends,
    simulate,
    spline_weights,
    straight,
)

Floats = NDArray[np.float64]

NUM_RUNS = 3


def cubic(rest: Floats) -> tuple[Floats, Floats]:
    """(m, 4) weights of a Catmull-Rom spline at distances from the sample below; derivatives."""
    matrix = 0.5 * np.array([[0, 2, 0, 0], [-1, 0, 1, 0], [2, -5, 4, -1], [-1, 3, -3, 1]])
    one = np.ones_like(rest)
    powers = np.stack([one, rest, rest**2, rest**3], axis=1)
    slopes = np.stack([0 * one, one, 2 * rest, 3 * rest**2], axis=1)
    return powers @ matrix, slopes @ matrix


def looked_up(field: Floats, places: Floats) -> tuple[Floats, Floats]:
    """(m,) interpolated distances at (m, 2) places in metres, and their derivatives, (m, 2)."""
    below = np.floor(CELLS_PER_METRE * places).astype(int)
    rest = CELLS_PER_METRE * places - below
    offset = np.arange(-1, 3)
    rows = np.clip(below[:, 1, None] + offset, 0, field.shape[0] - 1)
    columns = np.clip(below[:, 0, None] + offset, 0, field.shape[1] - 1)
    patch = field[rows[:, :, None], columns[:, None, :]]
    (by_x, slope_x), (by_y, slope_y) = cubic(rest[:, 0]), cubic(rest[:, 1])
    found = np.einsum("mr,mrc,mc->m", by_y, patch, by_x)
    slopes = [
        np.einsum("mr,mrc,mc->m", by_y, patch, slope_x),
        np.einsum("mr,mrc,mc->m", slope_y, patch, by_x),
    ]
    return found, CELLS_PER_METRE * np.stack(slopes, axis=1)


@dataclass(frozen=True)
class OnePath:
    """A path as SciPy takes it: residuals of the 28 numbers of its knots.

    Attributes:
        field: The table of distances.
        targets: (2, 2) its ends.
    """

    field: Floats
    targets: Floats

    @property
    def linear(self) -> Floats:
        """(14, 14) bends and ends, by the knots of one coordinate."""
        bends = STIFFNESS * np.diff(np.eye(KNOTS), 2, axis=0)
        return np.concatenate([bends, END * spline_weights()[[0, -1]]])

    def residuals(self, numbers: Floats) -> Floats:
        """(78,) residuals: clearances, then bends and ends."""
        knots = numbers.reshape(KNOTS, 2)
        distances, _ = looked_up(self.field, spline_weights() @ knots)
        wanted = np.concatenate([np.zeros((KNOTS - 2, 2)), END * self.targets])
        rest = self.linear @ knots - wanted
        return np.concatenate([np.maximum(CLEARANCE - distances, 0.0), rest.ravel()])

    def jacobian(self, numbers: Floats) -> Floats:
        """(78, 28) derivatives."""
        weights = spline_weights()
        distances, slopes = looked_up(self.field, weights @ numbers.reshape(KNOTS, 2))
        slopes = np.where(distances[:, None] < CLEARANCE, -slopes, 0.0)
        by_knots = weights[:, :, None] * slopes[:, None, :]
        return np.concatenate([by_knots.reshape(len(weights), -1), np.kron(self.linear, np.eye(2))])

    def cost(self, knots: Floats) -> float:
        """Half the sum of squares."""
        return 0.5 * float(np.sum(self.residuals(knots.ravel()) ** 2))

    def solved(self, start: Floats) -> Floats:
        """The knots that SciPy finds."""
        found = least_squares(
            self.residuals,
            start.ravel(),
            self.jacobian,
            method="lm",
            ftol=OPTIONS["cost_tolerance"],
            max_nfev=OPTIONS["max_iterations"],
        )
        knots: Floats = found.x.reshape(KNOTS, 2)
        return knots


def measured(num_paths: int, num_alone: int, backend: BackendName) -> list[list[str]]:
    """The rows of the table."""
    world = simulate(num_paths)
    host = arrays = arrays_of(world)
    solver = caspar.BatchSolver([clear, straight, ends], backend=backend)
    if backend == "cuda":
        import cupy

        arrays = on_device(arrays, cupy.asarray)
    result, seconds = solver.solve(arrays, **OPTIONS), []
    for _ in range(NUM_RUNS):
        start_s = time.perf_counter()
        result = solver.solve(arrays, **OPTIONS)
        seconds.append(time.perf_counter() - start_s)
    costs = result.final_cost
    costs = costs.get() if hasattr(costs, "get") else costs
    paths = [OnePath(host["clear"]["field"], one) for one in world.targets[:num_alone]]
    start_s = time.perf_counter()
    alone = [one.solved(start) for one, start in zip(paths, host["Way"], strict=False)]
    alone_s = time.perf_counter() - start_s
    theirs = [one.cost(knots) for one, knots in zip(paths, alone, strict=True)]
    counts = f"{num_paths:,}", f"{num_alone:,}"
    rates = num_paths / min(seconds), num_alone / alone_s
    means = float(np.mean(costs[:num_alone])), float(np.mean(theirs))
    names = f"BatchSolver, {backend}", "SciPy and NumPy in a loop"
    return [
        [name, count, f"{rate:,.0f}", f"{mean:.4f}"]
        for name, count, rate, mean in zip(names, counts, rates, means, strict=True)
    ]


def on_device(arrays: dict[str, Any], moved: Any) -> dict[str, Any]:
    """Arrays of the device; patches stay what they are, with arrays of the device."""
    found: dict[str, Any] = {"Way": moved(arrays["Way"])}
    for name in ("clear", "straight", "ends"):
        found[name] = {key: moved(one) for key, one in arrays[name].items() if key != "way"}
        if "way" in arrays[name]:
            patch = caspar.grid_patch(Way, (KNOTS,), found[name]["along"][..., None])
            found[name]["way"] = patch
    return found


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field_paths", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--paths", type=int, default=10_000)
    parser.add_argument("--alone", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    given = parser.parse_args()
    machine = environment("processor")
    if given.backend == "cuda":
        from caspar.options import BackendChoice
        from caspar.runtime.select import select_backend

        machine = environment(select_backend(BackendChoice.CUDA).device)
    heads = ["", "paths", "paths a second", f"mean cost of the first {given.alone:,}"]
    lines = [
        "# Paths in a distance field",
        "",
        *(f"* {name}: {value}" for name, value in machine.items()),
        "",
        table(heads, measured(given.paths, given.alone, given.backend)),
        "",
        "Paths of 14 knots, 28 unknowns, looked at in 50 points. Method: "
        "`benchmarks/field_paths.py`.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / f"field_paths_{given.backend}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
