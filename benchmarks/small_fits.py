"""`python -m benchmarks.small_fits`: what a call costs that solves a tiny problem again.

The same solver solves a problem of 3 or 6 unknowns again and again, on the processor. *With a
callback* the host decides about every step, else compiled code takes the plain ones. SciPy is
`least_squares(method="lm")` of a NumPy function, with its usual tolerances and differences for
derivatives. All take turns; times are those of the process, in ms a call, medians of the rounds.
*Ratio* is the median of caspar's time over SciPy's in the same round.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import symforce.symbolic as sf
from scipy.optimize import least_squares

import caspar
from benchmarks.page import table
from benchmarks.report import environment
from benchmarks.startup_cases import CASES, curve

Arrays = Mapping[str, Any]

FAR = (1.0, 6.0, -2.0)
"""Start of the curve from which more steps are needed."""


@caspar.factor
def see(
    pose: Annotated[sf.Pose3, caspar.TunableUnique],
    point: Annotated[sf.V3, caspar.ConstSequential],
    pixel: Annotated[sf.V2, caspar.ConstSequential],
) -> sf.V2:
    """A known point, seen by a camera that is tracked."""
    x, y, z = pose * point
    return 500 * sf.V2(x / z, y / z) - pixel


@dataclass(frozen=True)
class Fit:
    """A problem.

    Attributes:
        name: In the table.
        factor: Of its solver.
        calls: Arrays of calls that follow each other.
        theirs: Residuals by parameters, and a start, for SciPy; None: it takes no part.
    """

    name: str
    factor: Any
    calls: Sequence[Arrays]
    theirs: tuple[Callable[[Any], Any], Any] | None = None


def curve_fit(name: str, start: Sequence[float]) -> Fit:
    """The curve of the benchmark of first calls, from a start."""
    arrays = CASES["curve"]().arrays
    x, y = (arrays["curve"][key][:, 0] for key in "xy")

    def residuals(model: Any) -> Any:
        return model[0] * np.exp(-model[1] * x) + model[2] - y

    return Fit(name, curve, [{**arrays, "Curve": np.array([start])}], (residuals, np.array(start)))


def track(name: str, counts: Sequence[int]) -> Fit:
    """Poses that see so many points."""
    rng = np.random.default_rng(0)
    calls = []
    for count in counts:
        point = rng.uniform(-1.0, 1.0, (count, 3))
        pixel = 500.0 * point[:, :2] / (point[:, 2:] + 4.0) + rng.normal(size=(count, 2))
        pose = np.array([[0.0, 0.0, 0.0, 1.0, *(0.03 * rng.normal(size=2)), 4.0]])
        calls.append({"Pose3": pose, "see": {"point": point, "pixel": pixel}})
    return Fit(name, see, calls)


def fits() -> list[Fit]:
    """All problems."""
    counts = np.random.default_rng(1).integers(50, 300, 40)
    return [
        curve_fit("curve of 3 parameters", (1.0, 1.0, 1.0)),
        curve_fit("the same from farther away", FAR),
        track("one pose, 150 points", [150]),
        track("one pose, other counts in each call", counts.tolist()),
    ]


def milliseconds(calls: Sequence[Callable[[], Any]], num_calls: int) -> float:
    """Of the process, for each of some calls that follow each other."""
    start = time.process_time()
    for number in range(num_calls):
        calls[number % len(calls)]()
    return 1e3 * (time.process_time() - start) / num_calls


def _look(record: Any) -> None:
    """A callback that does nothing."""


def row(fit: Fit, num_rounds: int, num_calls: int) -> list[str]:
    """A problem, measured."""
    solver = caspar.Solver(fit.factor, backend="cpu")
    quick = [partial(solver.solve, arrays) for arrays in fit.calls]
    slow = [partial(solver.solve, arrays, on_iteration=_look) for arrays in fit.calls]
    ways: dict[str, Sequence[Callable[[], Any]]] = {"quick": quick, "slow": slow}
    if fit.theirs is not None:
        ways["theirs"] = [partial(least_squares, *fit.theirs, method="lm")]
    result = [call() for call in quick][-1]
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num_rounds):
        for name, calls in ways.items():
            times[name].append(milliseconds(calls, num_calls))
    medians = {name: f"{statistics.median(found):.2f}" for name, found in times.items()}
    ratio = ""
    if fit.theirs is not None:
        pairs = zip(times["quick"], times["theirs"], strict=True)
        ratio = f"{statistics.median(ours / theirs for ours, theirs in pairs):.2f}"
    return [
        *(fit.name, f"{len(result.iterations)}", result.status.name, medians["quick"]),
        *(medians["slow"], medians.get("theirs", ""), ratio),
    ]


def main() -> None:
    """Measure, write the page, and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_fits", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    given = parser.parse_args()
    rows = [row(fit, given.rounds, given.calls) for fit in fits()]
    facts = ", ".join(f"{key} {value}" for key, value in environment("processor").items())
    head = ["problem", "iterations", "status", "caspar", "with a callback", "SciPy", "ratio"]
    about = (__doc__ or "").split("\n", 2)[2]
    text = f"# Tiny problems solved again\n\n{facts}.\n\n{about}\n{table(head, rows)}"
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "small_fits_cpu.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
