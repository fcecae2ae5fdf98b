"""Pose graphs on a device: optima, landmarks, priors, losses."""

from pathlib import Path

import numpy as np
import pytest

import caspar
from caspar.io import read_pose_graph
from caspar.pose_graph import chi2_by_kind, problem, solve
from tests.io.graph_files import PLANE, SPACE
from tests.support_cudss import require_cudss

pytestmark = pytest.mark.gpu

DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("name", "optimum"),
    [
        ("smallGrid3D.g2o.bz2", 458.15378429),
        ("M3500.g2o.bz2", 137.91295094),
        ("victoria_park.txt.bz2", 6184.12025),
    ],
)
def test_optima(name: str, optimum: float) -> None:
    if name.startswith("victoria"):
        require_cudss()  # PCG does not get there in 100 iterations
    summary = solve(read_pose_graph(DATA / name), backend="cuda")
    assert summary.result.status.is_success
    assert summary.chi2 == pytest.approx(optimum, rel=1e-7)


@pytest.mark.parametrize("text", [PLANE, SPACE], ids=["plane", "space"])
def test_all_factors(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph.g2o").write_text(text)
    graph = read_pose_graph(tmp_path / "graph.g2o")
    task = problem(graph)
    solver = caspar.Solver(task.factors, backend="cuda", precision="float64")
    found = {name: 2.0 * cost for name, cost in solver.evaluate(task.arrays).costs.items()}
    assert found == pytest.approx(chi2_by_kind(graph), rel=1e-12)
    here, there = (
        solve(graph, backend=backend, loss=caspar.loss.Huber, loss_scale=2.0)
        for backend in ("cuda", "cpu")
    )
    assert here.result.final_cost == pytest.approx(there.result.final_cost, rel=1e-9)
    np.testing.assert_allclose(here.graph.poses, there.graph.poses, atol=1e-5)
