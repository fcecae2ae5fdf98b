"""`python -m benchmarks.compile_speed`: seconds from a residual function to CUDA text.

Two tables: all kernels of a solver, each time in a new process; and graphs of 1,000 to 100,000
calls or operands, by stage, with how the time grows beside n log n. Times are processor time, in
the median of several runs, so that other work on the machine hardly counts.
"""

import argparse
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.compile_shapes import SHAPES
from benchmarks.compile_solver import PARTS
from benchmarks.report import environment
from caspar.ir.graph import Graph
from caspar.passes.cost import CUDA_FLOAT32
from caspar.passes.pipeline import GRAPH_STAGES, compile_graph

FACTORS = {
    "snavely": "caspar.bundle_adjustment",
    "arm": "benchmarks.large_residuals",
    "network": "benchmarks.large_residuals",
}
"""Factor -> module."""

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
STAGES = (*(name for name, _ in GRAPH_STAGES), "schedule", "registers")
GIVEN_UP_S = 25.0
"""A shape that took longer is not tried at the next size."""

PATIENCE_S = 10.0
"""A graph that took longer in all is not run again."""

NOTICEABLE = 0.05
"""Part of the whole time that makes a stage worth naming."""

ROOT = Path(__file__).parents[1]
NAME = "compile_speed"


@dataclass(frozen=True)
class SolverTime:
    """All kernels of a solver of one factor, from the function to CUDA text, in a new process.

    Attributes:
        factor: Its name.
        num_operations: Of the score kernel's graph, before any pass.
        num_kernels: Kernels.
        num_calls: Calls of all graphs, before any pass.
        seconds: Processor time by part.
        wall_s: Elapsed time of all of it.
        nvrtc_s: Elapsed time of NVRTC for sm_90, one kernel after the other; None: not measured.
    """

    factor: str
    num_operations: int
    num_kernels: int
    num_calls: int
    seconds: dict[str, float]
    wall_s: float
    nvrtc_s: float | None

    @property
    def total_s(self) -> float:
        """Processor time of all parts."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class GraphTime:
    """The middle end on one graph.

    Attributes:
        shape: Its name in `compile_shapes`.
        num_calls: Calls of the graph.
        num_operands: Operands of all calls.
        seconds: Processor time by stage, in the median of the runs.
    """

    shape: str
    num_calls: int
    num_operands: int
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        """Processor time of all stages."""
        return sum(self.seconds.values())

    @property
    def n_log_n(self) -> float:
        """Of what there is to read: calls and operands."""
        size = self.num_calls + self.num_operands
        return size * math.log(size)


@dataclass(frozen=True)
class Report:
    """All that one run measured.

    Attributes:
        environment: Machine, versions and date.
        solvers: From functions to CUDA text.
        graphs: The middle end; sizes of one shape in ascending order.
    """

    environment: dict[str, str]
    solvers: tuple[SolverTime, ...]
    graphs: tuple[GraphTime, ...]


def main() -> None:
    """Parse the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_speed", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", choices=tuple(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--factors", nargs="*", choices=tuple(FACTORS), default=tuple(FACTORS))
    parser.add_argument("--max-size", type=int, default=SIZES[-1])
    parser.add_argument("--no-nvrtc", action="store_true", help="stop at the CUDA text")
    arguments = parser.parse_args()
    report = Report(
        environment("no GPU is used"),
        tuple(
            measure_solver(name, runs=arguments.runs, with_nvrtc=not arguments.no_nvrtc)
            for name in arguments.factors
        ),
        tuple(
            one
            for shape in arguments.shapes
            for one in measure_shape(shape, arguments.max_size, arguments.runs)
        ),
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(report), indent=1)
    (arguments.folder / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")
    (arguments.folder / f"{NAME}.md").write_text(markdown(report), encoding="utf-8")
    print(markdown(report))


# -- measuring -------------------------------------------------------------------------------------


def measure_solver(name: str, *, runs: int, with_nvrtc: bool) -> SolverTime:
    """Compile a factor's kernels in new processes; the run of median processor time."""
    found = [_compile_in_new_process(name, with_nvrtc and run == 0) for run in range(runs)]
    median = sorted(found, key=lambda one: one.total_s)[runs // 2]
    print(name, f"{median.total_s:.2f} s", file=sys.stderr, flush=True)
    return replace(median, nvrtc_s=found[0].nvrtc_s)


def _compile_in_new_process(name: str, with_nvrtc: bool) -> SolverTime:
    command = [sys.executable, "-m", "benchmarks.compile_solver", FACTORS[name], name]
    done = subprocess.run(
        command + ["--nvrtc"] * with_nvrtc,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return SolverTime(**json.loads(done.stdout.splitlines()[-1]))


def measure_shape(shape: str, max_size: int, runs: int) -> Iterator[GraphTime]:
    """The middle end on graphs of one shape, until one takes too long."""
    for size in SIZES:
        if size > max_size:
            return
        measured = _measure_graph(shape, SHAPES[shape](size), runs)
        print(shape, size, f"{measured.total_s:.2f} s", file=sys.stderr, flush=True)
        yield measured
        if measured.total_s > GIVEN_UP_S:
            return


def _measure_graph(shape: str, graph: Graph, runs: int) -> GraphTime:
    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for _ in range(runs):
        gc.collect()
        last = time.process_time()

        def observe(stage: str, _result: object) -> None:
            nonlocal last
            now = time.process_time()
            if stage in times:
                times[stage].append(now - last)
            last = now

        compile_graph(graph, CUDA_FLOAT32, observe)
        if sum(map(sum, times.values())) > PATIENCE_S:
            break
    return GraphTime(
        shape,
        len(graph.calls),
        sum(len(call.operands) for call in graph.calls),
        {stage: statistics.median(found) for stage, found in times.items()},
    )


# -- tables ----------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The page."""
    facts = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    parts = [f"# Compile speed\n\n{facts}.\n"]
    if report.solvers:
        parts.append(_solver_table(report.solvers))
    if report.graphs:
        parts += [_growth_table(report.graphs), _stage_table(report.graphs)]
    return "\n".join(parts)


def _solver_table(solvers: Sequence[SolverTime]) -> str:
    headings = ["factor", "operations", "kernels", "calls", *PARTS, "all", "elapsed", "NVRTC"]
    rows = [
        [
            one.factor,
            f"{one.num_operations:,}",
            str(one.num_kernels),
            f"{one.num_calls:,}",
            *(f"{one.seconds[part]:.3f}" for part in PARTS),
            f"**{one.total_s:.3f}**",
            f"{one.wall_s:.3f}",
            "-" if one.nvrtc_s is None else f"{one.nvrtc_s:.1f}",
        ]
        for one in solvers
    ]
    return (
        "## All kernels of a solver, from the function to CUDA text\n\n"
        "Seconds of processor time by part, mixed precision, new process, no cache. *Operations* "
        "are those of the residual and its cost before any pass, *calls* those of all kernels. "
        "Elapsed, and NVRTC for sm_90 after it, are seconds on the clock.\n\n"
        + _table(headings, rows)
    )


def _growth_table(graphs: Sequence[GraphTime]) -> str:
    headings = ["shape", "calls", "operands", "seconds", "to smallest", "to the one before"]
    headings.append("fastest growing stage")
    rows = []
    for one, before, first in _with_predecessors(graphs):
        rows.append(
            [
                one.shape,
                f"{one.num_calls:,}",
                f"{one.num_operands:,}",
                f"{one.total_s:.3f}",
                f"{_growth(one.total_s, one, first.total_s, first):.2f}",
                "-"
                if before is None
                else f"{_growth(one.total_s, one, before.total_s, before):.2f}",
                "-" if before is None else _fastest_growing(one, before),
            ]
        )
    return (
        "## The middle end, by size\n\n"
        "n is calls and operands; the three columns behind the seconds give time / (n log n), over "
        "that of the smallest graph of the shape and over that of the next smaller one: 1 is "
        "growth as n log n, more is faster. Small graphs are scheduled in many orders, large ones "
        "in one, so that growth starts low.\n\n" + _table(headings, rows)
    )


def _with_predecessors(
    graphs: Sequence[GraphTime],
) -> Iterator[tuple[GraphTime, GraphTime | None, GraphTime]]:
    """Each graph, the next smaller one of its shape, and the smallest one."""
    first: dict[str, GraphTime] = {}
    before: dict[str, GraphTime] = {}
    for one in graphs:
        yield one, before.get(one.shape), first.setdefault(one.shape, one)
        before[one.shape] = one


def _growth(time_s: float, graph: GraphTime, other_time_s: float, other: GraphTime) -> float:
    """Ratio of time / (n log n)."""
    return (time_s / graph.n_log_n) / (other_time_s / other.n_log_n)


def _fastest_growing(one: GraphTime, before: GraphTime) -> str:
    growths = {
        stage: _growth(time_s, one, before.seconds[stage], before)
        for stage, time_s in one.seconds.items()
        if time_s > NOTICEABLE * one.total_s and before.seconds[stage] > 0.0
    }
    stage = max(growths, key=lambda name: growths[name])
    return f"{stage} {growths[stage]:.2f}"


def _stage_table(graphs: Sequence[GraphTime]) -> str:
    largest = {one.shape: one for one in graphs}
    rows = [
        [one.shape, *(f"{one.seconds[stage]:.2f}" for stage in STAGES)] for one in largest.values()
    ]
    return "## Seconds by stage, largest graph of each shape\n\n" + _table(["shape", *STAGES], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
