"""The runs as a page: a table of ratios, and one of seconds."""

import math
from collections.abc import Mapping, Sequence

from benchmarks.linear_choice.gtsam_graph import GraphRun
from benchmarks.linear_choice.measure import METHODS, Run, limit


def markdown(
    runs: Sequence[Run],
    graphs: Sequence[GraphRun],
    facts: Mapping[str, str],
    remarks: Sequence[str],
) -> str:
    """The page."""
    lines = [
        "# `auto` beside caspar's own linear solvers",
        "",
        *(f"* {name}: {fact}" for name, fact in facts.items()),
        *(f"* {remark}" for remark in remarks),
        "",
        "Milliseconds until the cost is within 1e-5 of the lowest that any method reached, with "
        "the set-up of a new structure, without compilation; the quickest of several runs. "
        "*Ratio* is `auto` over the quickest of the others; `-`: the method is not for these "
        "factors, or did not come so near.",
        "",
        *_times(runs),
        "",
        "Iterations of Levenberg-Marquardt, linear iterations in all, and milliseconds an "
        "iteration:",
        "",
        *_iterations(runs),
    ]
    if len(graphs) > 0:
        lines += ["", *_graphs(runs, graphs)]
    return "\n".join(lines) + "\n"


def ratio(runs: Sequence[Run]) -> float:
    """Of one problem: seconds of `auto` over those of the quickest other method."""
    near = limit(runs)
    seconds = {run.method: run.reached_s(near) for run in runs}
    own = min(seconds[method] for method in seconds if method != "auto")
    return seconds["auto"] / own


def _by_problem(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.problem, []).append(run)
    return found


def _times(runs: Sequence[Run]) -> list[str]:
    lines = [
        f"| problem | {' | '.join(METHODS)} | `auto` took | ratio |",
        f"|---|{'--:|' * len(METHODS)}---|--:|",
    ]
    for problem, some in _by_problem(runs).items():
        near, by_method = limit(some), {run.method: run for run in some}
        cells = [
            _milliseconds(by_method[method].reached_s(near)) if method in by_method else "-"
            for method in METHODS
        ]
        took = by_method["auto"].linear_solver
        lines.append(f"| {problem} | {' | '.join(cells)} | {took} | {ratio(some):.2f} |")
    return lines


def _iterations(runs: Sequence[Run]) -> list[str]:
    lines = [
        "| problem | method | solved by | iterations | linear | ms each | final cost | end |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    lines += [
        f"| {run.problem} | {run.method} | {run.linear_solver} | {len(run.trace)} | "
        f"{run.num_linear_iterations} | {1e3 * run.iteration_s:.3g} | {run.final_cost:.7g} | "
        f"{run.status} |"
        for run in runs
    ]
    return lines


def _graphs(runs: Sequence[Run], graphs: Sequence[GraphRun]) -> list[str]:
    sparse = {run.problem: run for run in runs if run.method == "sparse"}
    lines = [
        "Milliseconds an iteration of Levenberg-Marquardt beside GTSAM's (least of its orderings "
        "and iterations), on the same graphs:",
        "",
        "| problem | sparse | GTSAM | ratio |",
        "|---|--:|--:|--:|",
    ]
    for graph in graphs:
        if graph.problem in sparse:
            own = sparse[graph.problem].iteration_s
            lines.append(
                f"| {graph.problem} | {1e3 * own:.3g} | {1e3 * graph.iteration_s:.3g} | "
                f"{own / graph.iteration_s:.2f} |"
            )
    return lines


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if math.isfinite(seconds) else "-"
