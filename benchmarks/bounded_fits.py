"""`python -m benchmarks.bounded_fits`: fits with bounds that bind, beside SciPy.

Each problem is solved by caspar with default options, and by the two methods of
`scipy.optimize.least_squares` that take bounds, with exact derivatives and tolerances at rounding.
All costs are evaluated by the same NumPy function. Prints, and writes to a folder, a page.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.regression.bounded import bounded_problems
from benchmarks.regression.caspar_fit import CasparFit, Form
from benchmarks.regression.problem import Array, NumericProblem, Problem
from benchmarks.report import environment

METHODS = ("trf", "dogbox")

SAME = 1e-9
"""Relative difference of two costs at the same minimum, at most."""

ZERO = 1e-20
"""The same absolutely."""


@dataclass(frozen=True)
class Row:
    """A problem as all have solved it.

    Attributes:
        name: Of the problem.
        num_active: Parameters that ended at a bound.
        status: caspar's.
        iterations: caspar's.
        cost: caspar's.
        others: SciPy's cost and number of evaluations of residuals, by method.
    """

    name: str
    num_active: int
    status: str
    iterations: int
    cost: float
    others: dict[str, tuple[float, int]]

    def beside(self, method: str) -> str:
        """`lower`, `same` or `higher`: where caspar ended beside a method of SciPy."""
        other = self.others[method][0]
        slack = SAME * max(abs(other), abs(self.cost)) + ZERO
        if abs(self.cost - other) <= slack:
            return "same"
        return "lower" if self.cost < other else "higher"


def measure(problem: Problem) -> Row:
    """Solve a problem with bounds in all ways."""
    assert problem.bounds is not None
    lower, upper = problem.bounds
    numeric = NumericProblem(problem)
    result = CasparFit(problem, Form.VECTOR).result(np.array(problem.starts[0]), {})
    values = result.values["Parameters"][0]
    if not bool(((lower <= values) & (values <= upper)).all()):
        raise AssertionError(f"{problem.name}: {values} is outside the bounds")
    return Row(
        name=problem.name,
        num_active=int(np.count_nonzero(result.active_bounds["Parameters"])),
        status=result.status.name,
        iterations=len(result.iterations),
        cost=0.5 * numeric.sum_of_squares(values),
        others={method: scipy_cost(problem, numeric, method) for method in METHODS},
    )


def scipy_cost(problem: Problem, numeric: NumericProblem, method: str) -> tuple[float, int]:
    """The cost at which SciPy ends, infinite if it fails, and its evaluations."""
    assert problem.bounds is not None
    rounding = float(np.finfo(np.float64).eps)
    try:
        with np.errstate(all="ignore"):
            found = least_squares(
                numeric.residuals,
                problem.starts[0],
                numeric.jacobian,
                bounds=problem.bounds,
                method=method,
                x_scale="jac",
                ftol=rounding,
                xtol=rounding,
                gtol=rounding,
                max_nfev=5000,
            )
    except (ValueError, np.linalg.LinAlgError):
        return float("inf"), 0
    inside: Array = np.clip(found.x, *problem.bounds)
    return 0.5 * numeric.sum_of_squares(inside), int(found.nfev)


def page(rows: Sequence[Row]) -> str:
    """The tables in Markdown."""
    lines = ["# Fits with bounds, beside SciPy", ""]
    lines += [f"* {key}: {text}" for key, text in environment("processor").items()]
    lines += ["", "| caspar ends, beside | lower | same | higher |", "|---|--:|--:|--:|"]
    for method in METHODS:
        places = [row.beside(method) for row in rows]
        counts = " | ".join(str(places.count(where)) for where in ("lower", "same", "higher"))
        lines.append(f"| {method} | {counts} |")
    both = sum(all(row.beside(method) != "higher" for method in METHODS) for row in rows)
    lines += [
        "",
        f"{both} of {len(rows)} end no higher than either. Default options of caspar, float64; "
        "SciPy with exact derivatives, `x_scale='jac'` and tolerances at rounding. Same: to "
        f"{SAME:g} relative. Iterations of caspar, with rejected ones; evaluations of residuals of "
        "SciPy.",
        "",
        "| problem | at bounds | status | iterations | cost | trf | evaluations | dogbox | "
        "evaluations |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        others = " | ".join(
            f"{row.others[method][0]:.9e} ({row.beside(method)}) | {row.others[method][1]}"
            for method in METHODS
        )
        lines.append(
            f"| {row.name} | {row.num_active} | {row.status} | {row.iterations} | "
            f"{row.cost:.9e} | {others} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounded_fits")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    text = page([measure(problem) for problem in bounded_problems()])
    print(text)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "bounded_fits_cpu.md").write_text(text)


if __name__ == "__main__":
    main()
