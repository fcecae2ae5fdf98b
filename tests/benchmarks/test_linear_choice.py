"""`auto` beside the other methods: how runs are judged, and the page."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.linear_choice import gtsam_graph, measure
from benchmarks.linear_choice.__main__ import main
from benchmarks.linear_choice.cases import CASES, calibration
from benchmarks.linear_choice.gtsam_graph import GraphRun
from benchmarks.linear_choice.measure import METHODS, Run, limit, runs_of
from benchmarks.linear_choice.page import markdown, ratio


def run(method: str, setup_s: float, *trace: tuple[float, float]) -> Run:
    return Run("problem", method, "sparse", setup_s, trace[-1][0], trace, 7, "CONVERGED_COST")


RUNS = [
    run("auto", 0.5, (1.0, 20.0), (2.0, 10.00005), (9.0, 10.0)),
    run("pcg", 0.1, (1.0, 11.0), (1.9, 10.00009), (30.0, 10.00008)),
    run("sparse", 0.0, (0.1, 10.02)),
]


def test_a_run_counts_until_it_is_near_the_lowest_cost() -> None:
    assert limit(RUNS) == pytest.approx(10.0001)
    assert [one.reached_s(limit(RUNS)) for one in RUNS] == [2.5, 2.0, math.inf]
    assert ratio(RUNS) == 1.25
    assert RUNS[0].iteration_s == 3.0


def test_page() -> None:
    graphs = [GraphRun("problem", "4.3", 0.2), GraphRun("another", "4.3", 0.2)]
    lines = markdown(RUNS, graphs, {"device": "cpu"}, ["no GPU"]).splitlines()
    assert "* device: cpu" in lines
    assert "* no GPU" in lines
    assert "| problem | 2.5e+03 | 2e+03 | - | - | - | sparse | 1.25 |" in lines
    assert "| problem | sparse | sparse | 1 | 7 | 100 | 10.02 | CONVERGED_COST |" in lines
    assert "| problem | 100 | 200 | 0.50 |" in lines
    assert not any(line.startswith("| another") for line in lines)


def test_every_method_solves() -> None:
    found = {one.method: one for one in runs_of(calibration("small", 12), "cpu", 2, 0.0)}
    assert set(found) == set(METHODS)
    costs = [one.final_cost for one in found.values()]
    assert max(costs) == pytest.approx(min(costs), rel=1e-4)
    assert all(one.setup_s > 0.0 and one.num_linear_iterations > 0 for one in found.values())


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise FileNotFoundError("no such graph")

    monkeypatch.setattr(measure, "METHODS", {"auto": {}, "pcg": {"linear_solver": "pcg"}})
    monkeypatch.setattr("benchmarks.linear_choice.__main__.CASES", {**CASES, "sphere2500": absent})
    names = ["calibration-54", "sphere2500", "smallGrid3D"]
    options = ["--rounds", "1", "--gtsam", str(tmp_path / "no-python")]
    main(["--problems", *names, *options, "--folder", str(tmp_path)])
    stored = json.loads((tmp_path / "linear_choice_cpu.json").read_text(encoding="utf-8"))
    assert {one["problem"] for one in stored["runs"]} == {
        "calibration, 13 pictures of 54 corners",
        "smallGrid3D",
    }
    assert stored["graphs"] == []
    assert stored["remarks"][0] == "sphere2500 was not measured: no such graph"
    assert stored["remarks"][1].startswith("GTSAM on smallGrid3D was not measured: ")
    page = (tmp_path / "linear_choice_cpu.md").read_text(encoding="utf-8")
    assert "| smallGrid3D |" in page


def test_a_broken_gtsam_is_an_error(tmp_path: Path) -> None:
    case = CASES["smallGrid3D"]()
    assert case.graph is not None
    graph, weights = case.graph.graph, case.graph.weights
    with pytest.raises(OSError, match="absent"):
        gtsam_graph.measure("name", graph, weights, tmp_path / "absent", tmp_path)
    assert (tmp_path / "graph.npz").exists()
