"""The pages of CUTEst and of stiff problems: counts by solver, and the sums of squares missed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.page import table
from benchmarks.regression.answer import FALSE_SUCCESS, Outcome, Reached
from benchmarks.regression.cutest import MAX_UNKNOWNS, OBJECTIVES, SAME_COST
from benchmarks.regression.page import by_solver, of_part
from benchmarks.regression.problem import ZERO
from benchmarks.regression.runs import LIMIT, Part

_COMMON = f"""\
* *Reached*: the sum of squares is the least known one, within {SAME_COST:g} relatively or {ZERO:g}
  absolutely, whatever the status is.
* *Steps* are caspar's and GTSAM's iterations (caspar's with rejected ones), SciPy's evaluations of
  residuals, and Ceres' steps. The median is over the problems reached.
* caspar runs on the processor with default options. Peers have exact derivatives and default
  tolerances; SciPy and Ceres (dense QR) may take {LIMIT} evaluations or iterations.
"""

DEFINITIONS = {
    Part.CUTEST: f"""
* The systems of equations of CUTEst, as the package sif2jax has them, and {len(OBJECTIVES)}
  objectives that are written as sums of squares; some of these occur as equations too. NIST's
  regressions are left out. Problems of more than {MAX_UNKNOWNS} unknowns are made smaller if their
  size can be chosen. With at most 24 unknowns caspar has one node, a vector; with more, a node for
  each unknown.
* The least sum of squares known is the least that any solver ends at, after a polish.
* *False success*: the solver reports success, and SciPy with tolerances near rounding, from the
  returned point, lowers the sum of squares by more than {100 * FALSE_SUCCESS:g} % of what it
  reaches. *Other minimum*: success elsewhere, and the polish gains no more. *Failure*: the rest,
  which is reported as no success.
{_COMMON}""",
    Part.STIFF: f"""
* Each problem has one minimum, known from a closed form or from variables in which the problem is
  not stiff. For tied paths it is the least that any solver ends at, after a polish.
* *False success*: the solver reports success anywhere else. *Failure*: the rest.
* *Pseudoranges* are in metres; a sum of squares of 1e-6 counts as zero there.
* *Scaled, tight*: `x_scale="jac"`, as MINPACK has it by itself, and tolerances of 1e-15.
* *Tied paths*: two paths of 60 poses, as `Pose3` for caspar, and as tangents at the start for
  peers. GTSAM gets every problem as one factor of a vector.
{_COMMON}""",
}


def beside_markdown(
    outcomes: Sequence[Outcome],
    part: Part,
    environment: Mapping[str, str],
    remarks: Sequence[str],
) -> str:
    """The whole page of one part."""
    found = of_part(outcomes, part)
    facts = ", ".join(f"{name} {value}" for name, value in environment.items())
    lines = "".join(f"\n{remark}\n" for remark in remarks)
    sections = [
        f"# {part.value[0].upper()}{part.value[1:]}\n\n{facts}.\n{lines}{DEFINITIONS[part]}"
    ]
    sections.append("## Counts\n\n" + _counts(found))
    sections.append("## Missed by caspar\n\n" + _missed(found))
    sections.append(_problems(found, only_missed=part is Part.CUTEST))
    return "\n".join(sections)


def end_of(outcome: Outcome) -> str:
    """How a solve ended, as the page counts it."""
    if outcome.reached is Reached.GLOBAL:
        return "reached"
    if outcome.is_false_success:
        return "false success"
    return "other minimum" if outcome.is_success else "failure"


def _counts(outcomes: Sequence[Outcome]) -> str:
    ends = ("reached", "false success", "other minimum", "failure")
    rows = []
    for solver, some in by_solver(outcomes).items():
        counts = Counter(end_of(one) for one in some)
        steps = [one.steps for one in some if one.reached is Reached.GLOBAL]
        middle = f"{median(steps):g}" if len(steps) > 0 else "-"
        rows.append([solver, str(len(some)), *(str(counts[end]) for end in ends), middle])
    return table(["solver", "problems", *ends, "median steps"], rows)


def _missed(outcomes: Sequence[Outcome]) -> str:
    """By solver of caspar, the problems that it does not reach."""
    lines = []
    for solver, some in by_solver(outcomes).items():
        if solver.startswith("caspar"):
            missed = [f"{one.problem} ({end_of(one)})" for one in some if end_of(one) != "reached"]
            lines.append(f"* {solver}: {', '.join(missed) if len(missed) > 0 else 'none'}\n")
    return "".join(lines)


def _problems(outcomes: Sequence[Outcome], *, only_missed: bool) -> str:
    """Steps where the minimum is reached; elsewhere the sum of squares, the status and steps."""
    solvers = list(by_solver(outcomes))
    by_problem: dict[str, dict[str, Outcome]] = {}
    for one in outcomes:
        by_problem.setdefault(one.problem, {})[one.solver] = one
    rows = []
    for problem, found in by_problem.items():
        if only_missed and all(end_of(one) == "reached" for one in found.values()):
            continue
        least = min(one.sum_of_squares for one in found.values())
        cells = [_cell(found[solver]) if solver in found else "" for solver in solvers]
        rows.append([problem, f"{least:.6g}", *cells])
    title = "## Problems that a solver misses" if only_missed else "## Problems"
    text = (
        f"{title}\n\nSteps; where the minimum is missed also the sum of squares and the status.\n\n"
    )
    return text + table(["problem", "least", *solvers], rows)


def _cell(outcome: Outcome) -> str:
    if outcome.reached is Reached.GLOBAL:
        return str(outcome.steps)
    false = ", *false*" if outcome.is_false_success else ""
    return f"{outcome.steps}, {outcome.sum_of_squares:.4g}, {outcome.status}{false}"
