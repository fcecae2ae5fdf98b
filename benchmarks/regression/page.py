"""The page of a run: definitions, counts for each solver, and the failures by name."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from benchmarks.page import table
from benchmarks.regression.answer import FALSE_SUCCESS, Outcome, Reached
from benchmarks.regression.caspar_fit import TIGHT
from benchmarks.regression.problem import SAME_MINIMUM, ZERO
from benchmarks.regression.runs import DECADES, SEED, Part

ENOUGH_DIGITS = 4.0
MANY_DIGITS = 6.0

DEFINITIONS = f"""
* *NIST*: the 27 nonlinear regressions of the Statistical Reference Datasets, both published starts.
  Digits are -log10 |x - c| / |c| of the worst parameter, c certified.
* *Test functions*: 35 functions of Moré, Garbow and Hillstrom (ACM Transactions on Mathematical
  Software 7, 1981), some in several sizes: 42 problems. Starts times 10 and 100 leave out the three
  linear functions; a start of zeros becomes 10 or 100 everywhere.
* *Global*: the sum of squares is at most that of the least known minimum, within
  {SAME_MINIMUM:g} relatively or {ZERO:g} absolutely. *Local*: another known minimum, to four
  digits; some lie at infinity. *Neither*: the rest.
* *Random starts*: around the published starts, in turn; each parameter is multiplied by a power of
  ten whose exponent is uniform from {-DECADES:g} to {DECADES:g} (seed {SEED}). Zeros are taken as 1
  or -1. Solved means global.
* *False success*: the solver reports success, and MINPACK's lm with tolerances near rounding, from
  the returned point, lowers the sum of squares by more than {100 * FALSE_SUCCESS:g} % of what it
  reaches (and by more than {ZERO:g}).
* caspar runs on the processor with default options, with all parameters in one *vector* or in a
  dataclass of *scalars*. *Tight* is {", ".join(f"{k}={v:g}" for k, v in TIGHT.items())}.
* SciPy's `least_squares` and Ceres (dense QR) have exact Jacobians and default tolerances and
  limits.
"""


def markdown(
    outcomes: Sequence[Outcome], environment: Mapping[str, str], remarks: Sequence[str]
) -> str:
    """The whole page."""
    facts = ", ".join(f"{name} {value}" for name, value in environment.items())
    lines = "".join(f"\n{remark}\n" for remark in remarks)
    parts = [f"# Curve fits and test functions\n\n{facts}.\n{lines}{DEFINITIONS}"]
    parts.append("## Counts\n\n" + _nist_counts(outcomes) + _function_counts(outcomes))
    parts.append(_random_counts(outcomes))
    parts.append(_failures(outcomes))
    parts.append(_random_by_problem(outcomes))
    parts.append(_false_successes(outcomes))
    return "\n".join(part for part in parts if part != "")


def of_part(outcomes: Sequence[Outcome], part: Part) -> list[Outcome]:
    """Those of one part."""
    return [one for one in outcomes if one.suite == part.value]


def by_solver(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Solvers in order of appearance, with their outcomes."""
    found: dict[str, list[Outcome]] = {}
    for one in outcomes:
        found.setdefault(one.solver, []).append(one)
    return found


def _count(outcomes: Sequence[Outcome], holds: Callable[[Outcome], bool]) -> str:
    return str(sum(1 for one in outcomes if holds(one)))


def _digits(outcome: Outcome) -> float:
    return outcome.digits if outcome.digits is not None else 0.0


def _nist_counts(outcomes: Sequence[Outcome]) -> str:
    rows = [
        [
            solver,
            str(len(some)),
            _count(some, lambda one: _digits(one) >= ENOUGH_DIGITS),
            _count(some, lambda one: _digits(one) >= MANY_DIGITS),
            _count(some, lambda one: one.is_false_success),
        ]
        for solver, some in by_solver(of_part(outcomes, Part.NIST)).items()
    ]
    headings = ["NIST", "starts", "4 digits", "6 digits", "false success"]
    return table(headings, rows) + "\n" if len(rows) > 0 else ""


def _function_counts(outcomes: Sequence[Outcome]) -> str:
    parts = (Part.STANDARD, Part.TIMES_10, Part.TIMES_100)
    chosen = {part: by_solver(of_part(outcomes, part)) for part in parts}
    if len(chosen[Part.STANDARD]) == 0:
        return ""
    rows = []
    for solver in chosen[Part.STANDARD]:
        row = [solver]
        for part in parts:
            some = chosen[part].get(solver, [])
            counts = Counter(one.reached for one in some)
            row.append(" / ".join(str(counts[kind]) for kind in Reached) + f" of {len(some)}")
        some = [one for part in parts for one in chosen[part].get(solver, [])]
        rows.append([*row, _count(some, lambda one: one.is_false_success)])
    kinds = "global / local / neither"
    headings = ["test functions", f"standard start: {kinds}", "times 10", "times 100"]
    return table([*headings, "false success"], rows) + "\n"


def _random_counts(outcomes: Sequence[Outcome]) -> str:
    chosen = {part: by_solver(of_part(outcomes, part)) for part in Part if part.is_random}
    solvers = list(dict.fromkeys(solver for found in chosen.values() for solver in found))
    rows = []
    for solver in solvers:
        row = [solver]
        for found in chosen.values():
            some = found.get(solver, [])
            solved = _count(some, lambda one: one.reached is Reached.GLOBAL)
            row += [f"{solved} of {len(some)}", _count(some, lambda one: one.is_false_success)]
        rows.append(row)
    headings = ["random starts", "NIST, solved", "false success", "test functions, solved"]
    return table([*headings, "false success"], rows) if len(rows) > 0 else ""


def _failures(outcomes: Sequence[Outcome]) -> str:
    """Published starts that some solver failed on; an empty cell is no failure."""
    published = [part for part in Part if not part.is_random]
    chosen = [one for part in published for one in of_part(outcomes, part)]
    solvers = list(dict.fromkeys(one.solver for one in chosen))
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for one in chosen:
        said = _failure(one)
        if said != "":
            cells.setdefault((one.problem, one.start), {})[one.solver] = said
    rows = [
        [problem, start, *(found.get(solver, "") for solver in solvers)]
        for (problem, start), found in cells.items()
    ]
    if len(rows) == 0:
        return ""
    text = (
        "## Failures at published starts\n\nNIST: correct digits where they are fewer than four. "
        "Test functions: the minimum, if it is not the global one. Then the status, and *false* "
        "for a false success. Other cells are empty.\n\n"
    )
    return text + table(["problem", "start", *solvers], rows)


def _failure(outcome: Outcome) -> str:
    """What went wrong; empty for nothing."""
    if outcome.digits is not None:
        said = f"{outcome.digits:.1f}" if outcome.digits < ENOUGH_DIGITS else ""
    else:
        said = "" if outcome.reached is Reached.GLOBAL else outcome.reached.value
    if said == "":
        return ""
    return f"{said}, {outcome.status}" + (", *false*" if outcome.is_false_success else "")


def _random_by_problem(outcomes: Sequence[Outcome]) -> str:
    drawn = [one for part in Part if part.is_random for one in of_part(outcomes, part)]
    if len(drawn) == 0:
        return ""
    solvers = list(by_solver(drawn))
    starts = Counter(one.problem for one in drawn if one.solver == solvers[0])
    solved = Counter((one.problem, one.solver) for one in drawn if one.reached is Reached.GLOBAL)
    rows = [
        [problem, str(count), *(str(solved[problem, solver]) for solver in solvers)]
        for problem, count in starts.items()
    ]
    return "## Random starts solved\n\n" + table(["problem", "starts", *solvers], rows)


def _false_successes(outcomes: Sequence[Outcome]) -> str:
    """By solver, the problems with their numbers of starts."""
    lines = []
    for solver, some in by_solver(outcomes).items():
        found = Counter(one.problem for one in some if one.is_false_success)
        named = ", ".join(f"{problem} {count}" for problem, count in found.items())
        lines.append(f"* {solver}: {named if named != '' else 'none'}\n")
    return "## False successes, all starts\n\n" + "".join(lines)
