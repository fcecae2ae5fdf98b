"""`caspar graph`, from file to files."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caspar.cli import main
from caspar.cli.graph import GRAPH_LOSSES, INITIALIZE
from caspar.io import read_pose_graph
from caspar.loss import losses
from caspar.pose_graph import Initialize, chi2
from tests.io.g2o_files import DATA
from tests.io.graph_files import GTSAM_TEXT, PLANE, SPACE

GRID = DATA / "smallGrid3D.g2o.bz2"


def run(*arguments: object) -> int:
    """The exit code of `caspar graph` with these arguments, on the processor."""
    return main(["graph", *map(str, arguments), "--backend", "cpu"])


def test_all_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, report, plot = (tmp_path / name for name in ("out.g2o", "out.json", "out.png"))
    view = tmp_path / "out.html"
    assert run(GRID, "--out", out, "--json", report, "--plot", plot, "--html", view) == 0
    printed = capsys.readouterr()
    assert f"{GRID}: SE3, 125 poses, 297 edges" in printed.out
    assert "start: the chordal estimate, chi2 1184.14; the graph's own poses have 1" in printed.out
    assert "pose 0 is held: nothing else says where the graph is" in printed.out
    assert "chi2 1184.1356 -> 458.15378" in printed.out
    assert "CONVERGED" in printed.out
    assert f"written: {out}, {report}, {plot}, {view}" in printed.out
    assert f"reading {GRID}" in printed.err
    solved = read_pose_graph(out)
    assert chi2(solved) == pytest.approx(458.15378429, rel=1e-9)
    told = json.loads(report.read_text())
    assert told["problem"] == {"poses": 125, "edges": 297}
    assert (told["kind"], told["start"], told["held_first"]) == ("SE3", "chordal", [0])
    assert told["final_chi2"] == pytest.approx(458.15378429, rel=1e-9)
    assert told["file_chi2"] == pytest.approx(115_958, abs=0.5)
    assert told["iterations"][0]["iteration"] == 1
    with Image.open(plot) as image:
        assert min(image.size) > 800
    shown = view.read_text(encoding="utf-8")
    assert "smallGrid3D.g2o.bz2" in shown
    assert all(text in shown for text in ('"file"', '"start"', '"solution"', "297 edges"))


@pytest.mark.parametrize(
    ("text", "name"),
    [(PLANE, "plane"), pytest.param(SPACE, "space", marks=pytest.mark.reliability)],
)
def test_landmarks_and_priors(tmp_path: Path, text: str, name: str) -> None:
    file, out = tmp_path / f"{name}.g2o", tmp_path / "out.g2o.bz2"
    file.write_text(text)
    assert run(file, "--out", out, "--plot", tmp_path / "a.svg", "--quiet") == 0
    before, after = read_pose_graph(file), read_pose_graph(out)
    assert chi2(after) < chi2(before)
    np.testing.assert_array_equal(after.poses[before.fixed], before.poses[before.fixed])
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_choices_reach_the_solve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "a.json"
    chosen = ("--initialize", "file", "--no-fix-first", "--max-iterations", 1, "--json", report)
    assert run(GRID, *chosen, "--out", tmp_path / "a.graph") == 1
    printed = capsys.readouterr().out
    assert "start: the graph's own poses" in printed
    assert "is held" not in printed
    assert "initialize='chordal' may help" in printed
    assert "ITERATION_LIMIT" in printed
    assert (tmp_path / "a.graph").read_text().startswith("VERTEX3 0 ")
    assert run(GRID, "--loss", "huber", "--loss-scale", "0.5", "--json", report, "--quiet") == 0
    told = json.loads(report.read_text())
    assert 2.0 * told["final_cost"] < 458.0 < told["final_chi2"]


def test_unknown_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.g2o"
    file.write_text(f"{PLANE}EDGE_SE2_TWO 1 2 3\nEDGE_SE2_TWO 4\nVERTEX_CAM 1\n")
    assert run(file) == 2
    assert "line 21: lines of the kind 'EDGE_SE2_TWO' are not read" in capsys.readouterr().err
    assert run(file, "--unknown", "skip") == 0
    assert "passed over: 2 EDGE_SE2_TWO, 1 VERTEX_CAM" in capsys.readouterr().out


def test_warnings_are_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.g2o"
    file.write_text(f"{PLANE}VERTEX_XY 30 1 2\n")
    assert run(file) == 0
    printed = capsys.readouterr()
    assert "warning: node type Landmark: 1 of 3 instances are touched by no factor" in printed.out
    assert "UserWarning" not in printed.err


def test_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vertices = tmp_path / "vertices.g2o"
    vertices.write_text("VERTEX_SE2 0 0 0 0\n")
    for arguments, message in (
        ((GRID, "--out", tmp_path / "a.txt"), "the name must end in .g2o"),
        ((GRID, "--plot", tmp_path / "a.g2o"), "the name must end in .png"),
        ((vertices, "--out", vertices), "this is the graph itself; name another"),
        ((tmp_path / "none.g2o",), "No such file or directory"),
        ((vertices,), "has no measurements: there is nothing to solve"),
    ):
        assert run(*arguments) == 2
        assert message in capsys.readouterr().err
    landmarks = tmp_path / "plane.g2o"
    landmarks.write_text(PLANE)
    assert run(landmarks, "--out", tmp_path / "out.toro", "--quiet") == 2
    told = capsys.readouterr().err
    assert "TORO's format has" in told
    assert "no landmarks" in told
    assert not (tmp_path / "out.toro").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("out.g2o", "id 2 is a pose's and a landmark's; g2o has one numbering"),
        ("out.toro", "TORO's format has no landmarks, no sightings; use write_g2o"),
    ],
)
def test_what_the_output_cannot_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    """It is said before the solve, which may take hours."""
    path = tmp_path / "graph.txt"
    path.write_text(GTSAM_TEXT)
    assert main(["graph", str(path), "--out", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert f"caspar: --out {tmp_path / name}: PoseGraph: {said}" in printed.err
    assert printed.out == ""
    assert not (tmp_path / name).exists()


def test_help_knows_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    """They are written twice, so that help loads no solver."""
    assert list(INITIALIZE) == [one.value for one in Initialize]
    assert all(hasattr(losses, name) for name in GRAPH_LOSSES.values())
    with pytest.raises(SystemExit):
        main(["graph", "--help"])
    assert "--no-fix-first" in capsys.readouterr().out
