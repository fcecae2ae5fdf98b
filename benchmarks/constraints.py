"""`python -m benchmarks.constraints`: constraints, beside known minima, fatrop, Ipopt and SciPy.

Problems of Hock and Schittkowski; the swing-up of a pole on a cart; random problems beside SciPy's
SLSQP, contradicting and repeating ones. Prints, and writes to a folder, a page.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import caspar
from benchmarks import cart_pole
from benchmarks.constrained_cases import CASES, solved, solver_of
from benchmarks.constrained_random import (
    by_slsqp,
    contradicting,
    drawn,
    equation,
    inequality,
    repeating,
    residual,
)
from benchmarks.report import environment

MET = 1e-8
"""Violation up to which a problem counts as met, for caspar."""

NEARLY_MET = 1e-6
"""The same for SLSQP."""

SAME = 1e-6
"""Relative difference of costs at the same minimum, at most."""


def known_minima() -> list[str]:
    """Rows of problems with known minima."""
    lines = [
        "| problem | status | iterations | violation | sum of squares | known minimum |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for case in CASES:
        result = solved(case, solver_of(case, backend="cpu"))
        assert result.violation is not None
        found = 2.0 * result.final_cost
        is_same = abs(found - case.minimum) <= 1e-8 * max(1.0, case.minimum)
        lines.append(
            f"| {case.name} | {result.status.name} | {len(result.iterations)} "
            f"| {result.violation.unscaled:.1e} | {found:.10g} | {case.minimum:.10g}"
            f"{'' if is_same else ' (another minimum)'} |"
        )
    return lines


def swing_ups(num_runs: int) -> list[str]:
    """Rows of the cart with the pole: the least processor time of some runs."""
    lines = [
        "| steps | iterations | violation | cost | known | relative | processor ms | ms |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    solver = caspar.Solver([cart_pole.effort, cart_pole.dynamics], backend="cpu")
    for num_steps, known in cart_pole.COSTS.items():
        times, processor_times = [], []
        result = cart_pole.solve(solver, num_steps)
        for _ in range(num_runs):
            start_s, processor_s = time.perf_counter(), time.process_time()
            result = cart_pole.solve(solver, num_steps)
            times.append(time.perf_counter() - start_s)
            processor_times.append(time.process_time() - processor_s)
        assert result.violation is not None
        cost = 2.0 * result.final_cost
        lines.append(
            f"| {num_steps} | {len(result.iterations)} | {result.violation.unscaled:.1e} "
            f"| {cost:.12f} | {known:.12f} | {cost / known - 1.0:.1e} "
            f"| {1e3 * min(processor_times):.0f} | {1e3 * min(times):.0f} |"
        )
    return lines


def random_problems(count: int, num_wrong: int) -> list[str]:
    """Counts of ends of random problems."""
    solver = caspar.Solver([residual, equation, inequality], backend="cpu")
    ends: Counter[str] = Counter()
    for seed in range(count):
        problem = drawn(seed)
        result = solver.solve(problem.arrays)
        values = np.asarray(result.values["Values"])[0]
        other, claims = by_slsqp(problem)
        is_met = problem.violation(values) <= MET
        ends["caspar: success"] += result.status.is_success
        ends["caspar: success, a constraint does not hold"] += (
            result.status.is_success and not is_met
        )
        other_is_met = problem.violation(other) <= NEARLY_MET
        ends["SLSQP: success"] += claims
        ends["SLSQP: constraints hold to 1e-6, success or not"] += other_is_met
        ends["SLSQP alone: success, and constraints hold"] += (
            claims and other_is_met and not result.status.is_success
        )
        if result.status.is_success and other_is_met:
            one, two = problem.cost(values), problem.cost(other)
            is_same = abs(one - two) <= SAME * max(abs(two), 1e-9)
            name = "the same" if is_same else "lower" if one < two else "higher"
            ends[f"constraints hold for both: caspar's cost is {name}"] += 1
    for seed in range(num_wrong):
        wrong = solver.solve(contradicting(seed).arrays)
        ends["contradicting: INFEASIBLE"] += wrong.status is caspar.SolveStatus.INFEASIBLE
        ends["contradicting: success"] += wrong.status.is_success
        twice = repeating(seed)
        if len(twice.equations) < 2:
            continue
        again = solver.solve(twice.arrays)
        ends["repeating: problems"] += 1
        ends["repeating: success"] += again.status.is_success
        ends["repeating: remarked"] += any("depend" in remark for remark in again.remarks)
    rows = [f"| {name} | {number:,} |" for name, number in sorted(ends.items())]
    return ["| | problems |", "|---|--:|", *rows]


def page(count: int, num_wrong: int, num_runs: int) -> str:
    """All of it."""
    parts = [
        "# Constraints, beside known minima, optimal control and SciPy",
        "",
        *(f"* {key}: {text}" for key, text in environment("processor").items()),
        "",
        "Where the load is above 1 the machine had other work, and times are upper limits.",
        "",
        "## Hock and Schittkowski, Boggs and Tolle",
        "",
        *known_minima(),
        "",
        "## Swing-up of a pole on a cart",
        "",
        "Known costs: of fatrop and Ipopt, by CasADi.",
        "",
        *swing_ups(num_runs),
        "",
        f"## {count:,} random problems, {num_wrong:,} contradicting ones, and repeating ones",
        "",
        *random_problems(count, num_wrong),
        "",
    ]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--contradicting", type=int, default=200)
    parser.add_argument("--runs", type=int, default=10)
    chosen = parser.parse_args(arguments)
    text = page(chosen.problems, chosen.contradicting, chosen.runs)
    print(text)
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        (chosen.folder / "constraints_cpu.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
