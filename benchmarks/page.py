"""The page of a report: tables in Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.measurement import Measurement
from benchmarks.report import Report

NEAR = (0.001, 0.0001)
"""Distances from the best cost, relative, whose times are listed."""


def markdown(report: Report, figure: str | None = None) -> str:
    """All tables; `figure` is the file of the plot."""
    facts = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    parts = [f"# Benchmarks\n\n{facts}.\n"]
    if figure is not None:
        parts.append(f"![Relative cost over time, final cost and memory]({figure})\n")
    parts.append(_summary(report))
    for problem in report.problems:
        parts.append(_problem(report, problem))
    if len(report.growths) > 0:
        parts.append(_growth(report))
    if len(report.startups) > 0:
        parts.append(_startups(report))
    if len(report.missing) > 0:
        listed = "\n".join(f"* {line}" for line in report.missing)
        parts.append(f"## Not measured\n\n{listed}\n")
    return "\n".join(part for part in parts if part != "")


def _summary(report: Report) -> str:
    """caspar's default beside the best of the reference's settings."""
    rows = []
    for problem in report.problems:
        of = [one for one in report.measurements if one.problem == problem]
        theirs = [one for one in of if one.solver.startswith("reference")]
        own = [one for one in of if one.solver.startswith("caspar") and one.solver.endswith("auto")]
        if len(theirs) == 0 or len(own) == 0:
            continue
        near = report.optimum(problem) * (1.0 + NEAR[0])
        reached = [time_s for one in theirs if (time_s := one.time_to(near)) is not None]
        their_s, own_s = min(reached, default=None), own[0].time_to(near)
        pcg = _fastest_pcg(of, ("auto", " schur_pcg", " pcg"))
        rows.append(
            [
                problem,
                f"{own[0].num_observations:,}",
                _number(theirs[0].linear_iteration_ms, 4),
                _number(pcg, 4),
                _ratio(theirs[0].linear_iteration_ms, pcg),
                _number(_fastest_pcg(of, ("float16 Jacobians",)), 4),
                _milliseconds(their_s),
                _milliseconds(own_s),
                _ratio(their_s, own_s),
            ]
        )
    if len(rows) == 0:
        return ""
    headings = [
        "problem",
        "observations",
        "ms per PCG iteration: reference",
        "caspar, the fastest of its defaults",
        "ratio",
        "caspar, float16 Jacobians",
        f"ms to {100 * NEAR[0]:g} %: reference, best of its settings",
        "caspar auto",
        "ratio",
    ]
    return "## Beside the reference\n\n" + table(headings, rows)


def _fastest_pcg(measurements: Sequence[Measurement], ends: tuple[str, ...]) -> float | None:
    """Milliseconds, of caspar's solvers whose names end so."""
    times = [
        one.linear_iteration_ms
        for one in measurements
        if one.linear_iteration_ms is not None
        and one.solver.startswith("caspar")
        and one.solver.endswith(ends)
    ]
    return min(times, default=None)


def _problem(report: Report, problem: str) -> str:
    rows = [one for one in report.measurements if one.problem == problem]
    optimum = report.optimum(problem)
    kind = "best known" if problem in report.known else "best seen here"
    near: list[tuple[str, Callable[[Measurement], str]]] = [
        (
            f"ms to {100 * share:g} %",
            lambda one, cost=optimum * (1.0 + share): (  # type: ignore[misc]
                _milliseconds(one.time_to(cost)) if one.same_cost else "other cost"
            ),
        )
        for share in NEAR
    ]
    solving: list[tuple[str, Callable[[Measurement], str]]] = [
        ("solver", lambda one: one.solver),
        ("LM / PCG iterations", _iterations),
        ("ms per PCG iteration", lambda one: _number(one.linear_iteration_ms, 4)),
        ("ms per LM iteration", lambda one: _number(one.iteration_ms, 3)),
        *near,
        ("ms to its own best", lambda one: _milliseconds(one.time_to_own_best, "-")),
        ("ms in all", lambda one: _milliseconds(one.solve_s)),
        ("final cost (float64)", lambda one: f"{one.final_cost:.8g}"),
        ("above best", lambda one: f"{100.0 * (one.final_cost / optimum - 1.0):.4f} %"),
        ("status", lambda one: one.status),
        ("runs", lambda one: str(one.runs)),
        ("remark", lambda one: one.remark),
    ]
    needs: list[tuple[str, Callable[[Measurement], str]]] = [
        ("solver", lambda one: one.solver),
        ("compile, s", lambda one: _number(_setup(one)[0], 3)),
        ("setup anew, ms", lambda one: _milliseconds(_setup(one)[1], "-")),
        (
            "setup, plan reused, ms",
            lambda one: _milliseconds(_setup(one)[2], "-"),
        ),
        ("LM iteration without PCG, ms", lambda one: _number(one.outer_iteration_ms, 3)),
        ("memory, MB", lambda one: _number(one.memory_bytes, 1, 1e-6)),
        (
            "bytes an observation",
            lambda one: _number(one.memory_bytes, 1, 1 / one.num_observations),
        ),
        ("by the driver, MB", lambda one: _number(one.device_bytes, 1, 1e-6)),
    ]
    measured = [one for one in rows if one.setup is not None]
    count = f"{rows[0].num_observations:,} observations"
    title = f"## {problem}: {count}, {kind} {optimum:.8g}\n\n"
    return title + _columns(solving, rows) + "\n" + _columns(needs, measured)


def _setup(one: Measurement) -> tuple[float | None, float | None, float | None]:
    """Seconds: of compiling, anew, with the plan reused."""
    setup = one.setup
    return (None, None, None) if setup is None else (setup.compile_s, setup.anew_s, setup.reused_s)


def _iterations(one: Measurement) -> str:
    linear = "-" if one.num_linear_iterations is None else str(one.num_linear_iterations)
    return f"{one.num_iterations} / {linear}"


def _growth(report: Report) -> str:
    """Nanoseconds of one PCG iteration for each observation, and how they vary."""
    sizes = sorted({one.num_observations for one in report.growths})
    solvers = list(dict.fromkeys(one.solver for one in report.growths))
    found = {(one.solver, one.num_observations): one for one in report.growths}
    times, needs = [], []
    for solver in solvers:
        of = [found.get((solver, size)) for size in sizes]
        nanoseconds = [None if one is None else one.nanoseconds for one in of]
        known = [one for one in nanoseconds if one is not None]
        spread = f"{max(known) / min(known):.2f}" if len(known) > 1 else "-"
        times.append([solver, *(_number(one, 4) for one in nanoseconds), spread])
        needs.append(
            [
                solver,
                *(
                    "-"
                    if one is None
                    else f"{1e3 * one.setup_s:.1f} / {one.memory_bytes / one.num_observations:.1f}"
                    for one in of
                ),
            ]
        )
    headings = ["solver", *(f"{1e-6 * size:.3g} M" for size in sizes)]
    return (
        "## Growth\n\nNanoseconds of one PCG iteration for each observation, and the worst over "
        "the best:\n\n"
        + table([*headings, "worst / best"], times)
        + "\nMilliseconds of setup anew / bytes an observation:\n\n"
        + table(headings, needs)
    )


def _startups(report: Report) -> str:
    headings = [
        "backend",
        "problem",
        "precision",
        "import caspar",
        "all imports",
        "the same, cold",
        "cold first solve",
        "of it all cores",
        "warm first iteration",
        "warm first solve",
        "of it iterations",
        "second solver",
    ]
    rows = []
    for one in report.startups:
        names = [one.backend, one.case, one.precision]
        times = list(asdict(one).values())[len(names) :]
        cells = ["-" if time_s is None else f"{time_s:.3f} s" for time_s in times]
        rows.append([*names, *cells])
    title = "## A new process (imports not in the later columns)\n\n"
    return title + table(headings, rows)


def _columns(
    columns: Sequence[tuple[str, Callable[[Measurement], str]]], rows: Sequence[Measurement]
) -> str:
    """A table, without the columns that are empty in all rows."""
    cells = [[cell(one) for one in rows] for _, cell in columns]
    kept = [at for at, column in enumerate(cells) if any(cell not in ("", "-") for cell in column)]
    rest = [[cells[at][row] for at in kept] for row in range(len(rows))]
    return table([columns[at][0] for at in kept], rest)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _milliseconds(time_s: float | None, absent: str = "never") -> str:
    return absent if time_s is None else f"{1e3 * time_s:.2f}"


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "-" if value is None else f"{scale * value:.{digits}f}"


def _ratio(theirs: float | None, own: float | None) -> str:
    return "-" if theirs is None or own is None or own <= 0.0 else f"{theirs / own:.1f}"
