"""`python docs/plots.py`: the plots of the page on performance, from what was measured.

In: the files of benchmarks/results. Out: SVG files in docs/guide/figures, each with a digest of the
data that it shows; a test compares it with the data as they are.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/guide/figures"
RESULTS = ROOT / "benchmarks/results"
sys.path.insert(0, str(ROOT))

from benchmarks import figure as course  # noqa: E402  (found by the line above)
from benchmarks.report import Report, read_json  # noqa: E402

CASPAR, REFERENCE, COMPILATION = (
    course.COLORS["caspar"][0],
    course.COLORS["reference"][0],
    "#f59e0b",
)
FAMILIES = {"caspar": "caspar", "reference": "the paper's implementation"}
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "caspar",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def main() -> None:
    """Write all plots."""
    FOLDER.mkdir(exist_ok=True)
    for name, plot in PLOTS.items():
        with matplotlib.rc_context(SETTINGS):
            drawn = plot()
            metadata = {"Date": None, "Description": f"data {digest(drawn)}"}
            drawn.savefig(FOLDER / f"{name}.svg", metadata=metadata, facecolor="white")


def digest(drawn: matplotlib.figure.Figure) -> str:
    """Of the numbers and texts that a plot shows; not of how they are drawn."""
    shown = []
    for axis in drawn.axes:
        lines = [(line.get_label(), line.get_xydata().tolist()) for line in axis.lines]
        bars = [(bar.get_y(), bar.get_x(), bar.get_width()) for bar in axis.patches]
        names = [label.get_text() for label in axis.get_yticklabels()] if bars else []
        shown.append((axis.get_title(), lines, bars, names))
    return hashlib.sha256(json.dumps(shown, default=float).encode()).hexdigest()[:16]


def sizes() -> matplotlib.figure.Figure:
    """Bundle adjustment on a GPU: an iteration, and a solve, by the number of observations."""
    report = read_json(RESULTS / "bundle_adjustment_cuda.json")
    drawn, axes = _figure(2)
    for family, color in (("caspar", CASPAR), ("reference", REFERENCE)):
        iterations, solves = [], []
        for problem in report.problems:
            of = _featured(report, problem)[family]
            size = of.num_observations
            iterations += [(size, _fastest_iteration(report, problem, family))]
            time_s = of.time_to(report.optimum(problem) * 1.001)
            solves += [(size, 1e3 * time_s)] if time_s is not None else []
        for axis, points in zip(axes, (iterations, solves), strict=True):
            axis.plot(*zip(*sorted(points), strict=True), "o-", color=color, label=FAMILIES[family])
    for axis, title in zip(
        axes, ("ms per PCG iteration", "ms to 0.1 % of the best cost"), strict=True
    ):
        axis.set(title=title, xlabel="observations", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    _legend(drawn, axes)
    return drawn


def courses() -> matplotlib.figure.Figure:
    """Cost over time of four problems on a GPU, with the fastest setting of each library."""
    report = read_json(RESULTS / "bundle_adjustment_cuda.json")
    names = {
        "problem-21-11315": "Trafalgar-21 (real)",
        "synthetic ladybug-1723": "synthetic Ladybug-1723",
        "synthetic venice-1778": "synthetic Venice-1778",
        "synthetic final-13682": "synthetic Final-13682",
    }
    drawn, axes = _figure(2, 2)
    for axis, (problem, name) in zip(axes, names.items(), strict=True):
        _course(axis, report, problem, name)
    _legend(drawn, axes)
    return drawn


def processor() -> matplotlib.figure.Figure:
    """Trafalgar-21 on two cores, and the first result of a new process."""
    drawn, axes = _figure(2)
    _course(axes[0], read_json(RESULTS / "bundle_adjustment_cpu.json"), "problem-21-11315", "")
    axes[0].set_title("Trafalgar-21 on two cores: cost over time")
    axes[0].legend(frameon=False)
    stored = json.loads((RESULTS / "startup_cpu.json").read_text(encoding="utf-8"))
    runs = [run for run, _ in stored["startups"] if run["precision"] == "auto"]
    cases = list(dict.fromkeys(run["case"] for run in runs))
    of = {case: [run for run in runs if run["case"] == case] for case in cases}
    for offset, name, color, keys in (
        (-0.2, "empty cache", COMPILATION, ("cold_imports_s", "cold_s")),
        (0.2, "filled cache", CASPAR, ("imports_s", "warm_s")),
    ):
        seconds = [sorted(sum(run[k] for k in keys) for run in of[case]) for case in cases]
        medians = [values[len(values) // 2] for values in seconds]
        places = [number + offset for number in range(len(cases))]
        axes[1].barh(places, medians, height=0.35, color=color, label=name)
    axes[1].set_yticks(range(len(cases)), cases)
    axes[1].invert_yaxis()
    axes[1].set(title="new process to its first result", xlabel="seconds, imports included")
    axes[1].legend(frameon=False)
    return drawn


def batches() -> matplotlib.figure.Figure:
    """Problems a second: perspective from 12 points, float64."""
    cuda, cpu = (
        (RESULTS / f"batches_{kind}.md").read_text(encoding="utf-8") for kind in ("cuda", "cpu")
    )
    row = "PnP, 12 points | float64"
    bars = {
        "caspar, H100": _cell(cuda, row, 2),
        "optimistix with jax.vmap, H100": _cell(cuda, "float64 | 1,000,000", 1),
        "caspar, two cores": _cell(cpu, "float64 | 2,000", 0),
        "optimistix with jax.vmap, two cores": _cell(cpu, "float64 | 2,000", 1),
        "cv2.solvePnP in a loop, one core": _cell(cpu, "cv2.solvePnP", 0),
        "SciPy least_squares in a loop, one core": _cell(cpu, "SciPy least_squares", 0),
    }
    drawn, (axis,) = _figure(1, height=2.2)
    jax, other = course.COLORS["jaxls"][0], "#57534e"
    colors = [CASPAR, jax, CASPAR, jax, other, other]
    axis.barh(list(bars), list(bars.values()), color=colors, height=0.6)
    for number, value in enumerate(bars.values()):
        axis.text(value * 1.2, number, f"{value:,.0f}", va="center")
    axis.invert_yaxis()
    axis.set(xscale="log", xlim=(10, 1e11), xlabel="camera poses a second")
    return drawn


PLOTS: dict[str, Callable[[], matplotlib.figure.Figure]] = {
    "bundle_adjustment_sizes": sizes,
    "bundle_adjustment_courses": courses,
    "processor": processor,
    "batches": batches,
}


def _figure(
    columns: int, rows: int = 1, height: float = 3.0
) -> tuple[matplotlib.figure.Figure, list[Any]]:
    drawn = matplotlib.figure.Figure(figsize=(8.4, height * rows), layout="constrained")
    return drawn, list(drawn.subplots(rows, columns, squeeze=False).flat)


def _featured(report: Report, problem: str) -> dict[str, Any]:
    """Measurements by library; of caspar the default."""
    of = [one for one in report.measurements if one.problem == problem]
    found: dict[str, Any] = {}
    for one in course.featured(of, report.optimum(problem)):
        found.setdefault(course.family(one), one)
    return found


def _fastest_iteration(report: Report, problem: str, family: str) -> float:
    """Milliseconds of a PCG iteration, as the page of results has it: the fastest default."""
    ends = ("auto", " schur_pcg", " pcg") if family == "caspar" else ("",)
    return min(
        one.linear_iteration_ms
        for one in report.measurements
        if one.problem == problem
        and course.family(one) == family
        and one.solver.endswith(ends)
        and one.linear_iteration_ms is not None
    )


def _course(axis: Any, report: Report, problem: str, name: str) -> None:
    shown = list(_featured(report, problem).values())
    course.draw_course(axis, shown, report.optimum(problem))
    for line in axis.lines:
        line.set_label(FAMILIES.get(line.get_label().split()[0], line.get_label().split()[0]))
    axis.set_title(f"{name}, {shown[0].num_observations:,} observations")


def _legend(drawn: matplotlib.figure.Figure, axes: list[Any]) -> None:
    """One for all axes, above them; the first axes have every line."""
    lines = axes[0].lines
    drawn.legend(handles=lines, loc="outside upper center", ncols=len(lines), frameon=False)


def _cell(page: str, row: str, column: int) -> float:
    """A number of the first row of a table that begins so."""
    cells = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", page, re.MULTILINE)
    if cells is None:
        raise ValueError(f"no row '{row}'")
    return float(cells[1].split("|")[column].replace(",", ""))


if __name__ == "__main__":
    main()
