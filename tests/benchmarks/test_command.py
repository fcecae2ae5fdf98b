"""The benchmarks as a command: what it measures on a processor, and what it names as missing."""

from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.report import read_json


def test_a_pose_graph_and_growth_on_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["benchmarks", "--backend", "cpu", "--folder", str(tmp_path)]
    command += ["--name", "page", "--parts", "graphs", "growth", "--millions", "0.01"]
    command += ["--graphs", "smallGrid3D", "kitti_05", "--solvers", "auto"]
    command += ["float64", "schur_pcg, stored Jacobians", "--runs", "1"]
    monkeypatch.setattr("sys.argv", command)
    main()
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
