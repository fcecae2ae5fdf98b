"""The benchmarks as a command: what it measures on a processor, and what it names as missing."""

import subprocess
import sys
from pathlib import Path

from benchmarks.report import read_json

ROOT = Path(__file__).parents[2]


def test_a_pose_graph_and_growth_on_a_processor(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--backend", "cpu", "--folder", str(tmp_path)]
    command += ["--name", "page", "--parts", "graphs", "growth", "--millions", "0.01"]
    command += ["--graphs", "smallGrid3D", "kitti_05", "--solvers", "auto"]
    command += ["float64", "schur_pcg, stored Jacobians", "--runs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    report = read_json(tmp_path / "page.json")
    found = {one.solver: one for one in report.measurements}
    assert list(found) == ["caspar cpu auto", "caspar cpu float64"]
    for one in found.values():
        assert one.problem == "smallGrid3D"
        assert abs(one.final_cost / report.known["smallGrid3D"] - 1.0) < 1e-6
    (grown,) = report.growths
    assert grown.solver == "caspar cpu schur_pcg, stored Jacobians"
    assert grown.num_observations == 10_000
    assert any("kitti_05.g2o.bz2 is in none of" in line for line in report.missing)
    assert any(line.startswith("the reference: ") for line in report.missing)
    page = (tmp_path / "page.md").read_text()
    assert "## smallGrid3D: 297 observations" in page
    assert (tmp_path / "page.png").stat().st_size > 0
