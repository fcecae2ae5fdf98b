"""`python -m benchmarks.linear_choice`: solve by every method, and write the page."""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.linear_choice import gtsam_graph
from benchmarks.linear_choice.cases import CASES, Case
from benchmarks.linear_choice.gtsam_graph import GraphRun
from benchmarks.linear_choice.measure import Run, runs_of
from benchmarks.linear_choice.page import markdown
from benchmarks.report import environment


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen problems and write `linear_choice_BACKEND.md` and `.json`."""
    chosen = _parse(arguments)
    facts = environment(chosen.backend)
    runs: list[Run] = []
    graphs: list[GraphRun] = []
    remarks: list[str] = []
    for name in chosen.problems:
        print(name, flush=True)
        try:
            case = CASES[name]()
        except FileNotFoundError as error:
            remarks.append(f"{name} was not measured: {error}")
            continue
        runs += runs_of(case, chosen.backend, chosen.rounds, chosen.seconds)
        if chosen.gtsam is not None and case.graph is not None and not case.graph.is_planar:
            graphs += _by_gtsam(case, chosen.gtsam, remarks)
    if len(graphs) > 0:
        facts["gtsam"] = graphs[0].version
    folder: Path = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"linear_choice_{chosen.backend}"
    path.with_suffix(".md").write_text(markdown(runs, graphs, facts, remarks), encoding="utf-8")
    path.with_suffix(".json").write_text(_json(runs, graphs, facts, remarks), encoding="utf-8")


def _by_gtsam(case: Case, python: Path, remarks: list[str]) -> list[GraphRun]:
    assert case.graph is not None
    with tempfile.TemporaryDirectory() as folder:
        try:
            graph, weights = case.graph.graph, case.graph.weights
            return [gtsam_graph.measure(case.name, graph, weights, python, Path(folder))]
        except (OSError, subprocess.CalledProcessError) as error:
            remarks.append(f"GTSAM on {case.name} was not measured: {error}")
            return []


def _json(
    runs: Sequence[Run], graphs: Sequence[GraphRun], facts: dict[str, str], remarks: Sequence[str]
) -> str:
    lines = [json.dumps({**asdict(run), "trace": len(run.trace)}) for run in runs]
    held = ",\n".join(lines)
    rest = {"graphs": [asdict(one) for one in graphs], "remarks": list(remarks)}
    return f'{{"environment": {json.dumps(facts)},\n"runs": [\n{held}\n],\n{json.dumps(rest)[1:]}\n'


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear_choice", description=__doc__)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--problems", nargs="+", choices=list(CASES), default=list(CASES), metavar="NAME"
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="solves by each method (%(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="for each problem (%(default)s)"
    )
    parser.add_argument("--gtsam", type=Path, default=None, help="a Python that has GTSAM")
    parser.add_argument("--folder", type=Path, default=Path("out"), help="for the page")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
